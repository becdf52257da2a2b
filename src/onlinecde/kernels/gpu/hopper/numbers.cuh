// Numbers near a power of two, and tanh to float32's precision.

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
