// Numbers near a power of two, tanh to float32's precision, and the activations.

INLINE float power_of_two(float most) {
  u32 bits = __float_as_uint(most) & 0x7F800000u;
  return __uint_as_float(bits > 0x10000000u && bits < 0x6F000000u ? bits : 0x3F800000u);
}

INLINE float inverse_of(float power) { return __uint_as_float(0x7F000000u - __float_as_uint(power)); }

INLINE float exact_tanh(float x) {
  const float square = x * x;
  // The quotient cancels near 0, where the series is exact to rounding.
  const float series = x * (1.f + square * (-0.33333334f + square * (0.13333334f - square * 0.053968254f)));
  const float whole = 1.f - 2.f * reciprocal(two_to(2.8853901f * x) + 1.f);
  return square < 0.0121f ? series : whole;
}

// Activations by the codes of `kernels/activations.py`, and gradients through them from what they took in.
// EXACT: tanh to float32's precision; QUICK: the hardware's exponential.
static_assert(ACT >= 0 && ACT <= 3, "an activation that these kernels do not know");

template <bool EXACT> INLINE float tanh_of(float x) { return EXACT ? exact_tanh(x) : fast_tanh(x); }
template <bool QUICK> INLINE float exp_of(float x) { return QUICK ? __expf(x) : expf(x); }
template <bool QUICK> INLINE float log_of(float x) { return QUICK ? __logf(x) : logf(x); }

template <bool EXACT, bool QUICK> INLINE float activate(float x) {
  if (ACT == 0) return x < 0.f ? 0.f : x;
  if (ACT == 1) return tanh_of<EXACT>(x);
  if (ACT == 2) return x / (1.f + exp_of<QUICK>(-x));
  return x > 20.f ? x : log_of<QUICK>(1.f + exp_of<QUICK>(x));
}

template <bool EXACT, bool QUICK> INLINE float through_activation(float g, float x) {
  if (ACT == 0) return x > 0.f ? g : 0.f;
  if (ACT == 1) { const float y = tanh_of<EXACT>(x); return g * (1.f - y * y); }
  const float share = 1.f / (1.f + exp_of<QUICK>(-x));
  if (ACT == 2) return g * share * (1.f + x * (1.f - share));
  return g * share;
}
