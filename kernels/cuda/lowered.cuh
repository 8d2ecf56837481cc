// Emulates arithmetic of lower precision in float64: operands of products, stored results and running sums are rounded to
// the bits that `arithmetic()` names (tfloat32: operands of 11 bits; bfloat16 storage: results of 8 bits).
#pragma once

#include "scalar.cuh"

namespace gradjury {

struct lowered {
  double v;
};
GJ_MATH lowered make_lowered(double v) {
  lowered r;
  r.v = v;
  return r;
}

// x at `bits` significant bits (0: all), to nearest even or toward zero.
GJ_MATH double to_bits(double x, Index bits, bool toward_zero) {
  if (bits == 0 || bits >= 53 || !isfinite(x)) return x;
  const int dropped = static_cast<int>(53 - bits);
  const unsigned long long mask = (1ull << dropped) - 1;
  unsigned long long b = bits_of(x);
  if (!toward_zero) b += (1ull << (dropped - 1)) - 1 + ((b >> dropped) & 1);
  return from_bits(b & ~mask);
}
GJ_MATH lowered stored(double x) { return make_lowered(to_bits(x, arithmetic().storage_bits, false)); }
GJ_MATH double operand(const lowered& x) {
  return to_bits(x.v, arithmetic().operand_bits, arithmetic().operand_toward_zero != 0);
}

template <>
struct Constant<lowered> {
  GJ_MATH static lowered of(double c) { return make_lowered(c); }
};
GJ_MATH double primal(const lowered& x) { return x.v; }
GJ_MATH lowered operator-(const lowered& a) { return make_lowered(-a.v); }
GJ_MATH lowered operator+(const lowered& a, const lowered& b) { return stored(a.v + b.v); }
GJ_MATH lowered operator-(const lowered& a, const lowered& b) { return stored(a.v - b.v); }
GJ_MATH lowered operator*(const lowered& a, const lowered& b) { return stored(a.v * b.v); }
GJ_MATH lowered operator/(const lowered& a, const lowered& b) { return stored(a.v / b.v); }
GJ_MATH lowered fma_(const lowered& a, const lowered& b, const lowered& c) { return stored(fma_(a.v, b.v, c.v)); }
GJ_MATH lowered tanh_(const lowered& x) { return stored(tanh(x.v)); }
GJ_MATH lowered sigmoid_(const lowered& x) { return stored(sigmoid_(x.v)); }
GJ_MATH lowered exp_(const lowered& x) { return stored(exp(x.v)); }
GJ_MATH lowered log_(const lowered& x) { return stored(log(x.v)); }
GJ_MATH lowered sqrt_(const lowered& x) { return stored(sqrt(x.v)); }
GJ_MATH lowered rsqrt_(const lowered& x) { return stored(1 / sqrt(x.v)); }

}  // namespace gradjury
