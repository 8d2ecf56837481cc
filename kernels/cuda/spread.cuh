// A value and the variance of its rounding error, in units of u² (docs/numerics.md, propagated variance): each operation
// passes on the variances of its operands and adds its own, y², and what underflow may take, e = (η/u)².
#pragma once

#include "scalar.cuh"

namespace gradjury {

struct spread {
  double v, variance;
};
GJ_MATH spread make_spread(double v, double variance) {
  spread r;
  r.v = v;
  r.variance = variance;
  return r;
}
template <>
struct Constant<spread> {
  GJ_MATH static spread of(double c) { return make_spread(c, 0.0); }
};
GJ_MATH double primal(const spread& x) { return x.v; }

// The result y of an operation through which the variance `carried` comes.
GJ_MATH spread rounded(double y, double carried) { return make_spread(y, carried + y * y + underflow_variance()); }
// The same for a function that is accurate to function_error half units in the last place.
GJ_MATH spread approximated(double y, double carried) {
  const double c = arithmetic().function_error;
  return make_spread(y, carried + c * c * y * y + underflow_variance());
}

// The same for exp and sigmoid, which may lose what is below the smallest normal number.
GJ_MATH spread vanishing(double y, double carried) {
  const double lost = smallest_normal() / arithmetic().u;
  return approximated(y, carried + lost * lost);
}

GJ_MATH spread operator-(const spread& a) { return make_spread(-a.v, a.variance); }
GJ_MATH spread operator+(const spread& a, const spread& b) { return rounded(a.v + b.v, a.variance + b.variance); }
GJ_MATH spread operator-(const spread& a, const spread& b) { return rounded(a.v - b.v, a.variance + b.variance); }
// What comes through a product. The second order counts where both factors are what is left of a cancellation, as
// 1 − z and 1 − n² of saturated gates are.
GJ_MATH double product_variance(const spread& a, const spread& b) {
  const double u = arithmetic().u;
  return a.v * a.v * b.variance + b.v * b.v * a.variance + (u * a.variance) * (u * b.variance);
}
GJ_MATH spread operator*(const spread& a, const spread& b) { return rounded(a.v * b.v, product_variance(a, b)); }
GJ_MATH spread operator/(const spread& a, const spread& b) {
  const double y = a.v / b.v;
  return rounded(y, (a.variance + y * y * b.variance) / (b.v * b.v));
}
GJ_MATH spread fma_(const spread& a, const spread& b, const spread& c) { return a * b + c; }
GJ_MATH spread scale(const spread& x, double c) {
  const double y = x.v * c, carried = c * c * x.variance;
  int exponent;
  const bool exact = frexp(fabs(c), &exponent) == 0.5;
  return exact ? make_spread(y, carried + underflow_variance()) : rounded(y, carried);
}
GJ_MATH spread tanh_(const spread& x) {
  const double y = tanh(x.v), slope = 1 - y * y;
  return approximated(y, slope * slope * x.variance);
}
GJ_MATH spread sigmoid_(const spread& x) {
  const double y = sigmoid_(x.v), slope = y * (1 - y);
  return vanishing(y, slope * slope * x.variance);
}
GJ_MATH spread exp_(const spread& x) {
  const double y = exp(x.v);
  return vanishing(y, y * y * x.variance);
}
GJ_MATH spread log_(const spread& x) { return approximated(log(x.v), x.variance / (x.v * x.v)); }
// |√(v + δ) − √v| ≤ √|δ| where the slope is infinite, δ² = u²·variance.
GJ_MATH spread sqrt_(const spread& x) {
  return rounded(sqrt(x.v), fmin(x.variance / (4 * x.v), sqrt(x.variance) / arithmetic().u));
}
GJ_MATH spread rsqrt_(const spread& x) {
  const double y = 1 / sqrt(x.v), slope = 0.5 * y / x.v;
  return approximated(y, slope * slope * x.variance);
}

}  // namespace gradjury
