// Numbers near a power of two, and the activations.

INLINE float power_of_two(float most) {
  u32 bits = __float_as_uint(most) & 0x7F800000u;
  return __uint_as_float(bits > 0x10000000u && bits < 0x6F000000u ? bits : 0x3F800000u);
}

INLINE float inverse_of(float power) { return __uint_as_float(0x7F000000u - __float_as_uint(power)); }

// Activations by the codes of `kernels/activations.py`, and gradients through them from what they took in, by the
// hardware's tanh and exponential.
static_assert(ACT >= 0 && ACT <= 3, "an activation that these kernels do not know");

INLINE float activate(float x) {
  if (ACT == 0) return x < 0.f ? 0.f : x;
  if (ACT == 1) return fast_tanh(x);
  if (ACT == 2) return x / (1.f + __expf(-x));
  return x > 20.f ? x : __logf(1.f + __expf(x));
}

INLINE float through_activation(float g, float x) {
  if (ACT == 0) return x > 0.f ? g : 0.f;
  if (ACT == 1) { const float y = fast_tanh(x); return g * (1.f - y * y); }
  const float share = 1.f / (1.f + __expf(-x));
  if (ACT == 2) return g * share * (1.f + x * (1.f - share));
  return g * share;
}
