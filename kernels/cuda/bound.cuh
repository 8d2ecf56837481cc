// A value and the largest deviation that an undecided branch may cause in it: composition of absolute derivatives, no
// rounding. Deviations are tiny; first order is enough for functions, products keep the second.
#pragma once

#include "scalar.cuh"

namespace gradjury {

struct bound {
  double v, deviation;
};
GJ_MATH bound make_bound(double v, double deviation) {
  bound r;
  r.v = v;
  r.deviation = deviation;
  return r;
}
template <>
struct Constant<bound> {
  GJ_MATH static bound of(double c) { return make_bound(c, 0.0); }
};
GJ_MATH double primal(const bound& x) { return x.v; }
GJ_MATH bound operator-(const bound& a) { return make_bound(-a.v, a.deviation); }
GJ_MATH bound operator+(const bound& a, const bound& b) { return make_bound(a.v + b.v, a.deviation + b.deviation); }
GJ_MATH bound operator-(const bound& a, const bound& b) { return make_bound(a.v - b.v, a.deviation + b.deviation); }
GJ_MATH bound operator*(const bound& a, const bound& b) {
  return make_bound(a.v * b.v, fabs(a.v) * b.deviation + fabs(b.v) * a.deviation + a.deviation * b.deviation);
}
GJ_MATH bound operator/(const bound& a, const bound& b) {
  const double y = a.v / b.v;
  return make_bound(y, (a.deviation + fabs(y) * b.deviation) / fabs(b.v));
}
GJ_MATH bound fma_(const bound& a, const bound& b, const bound& c) { return a * b + c; }
GJ_MATH bound tanh_(const bound& x) {
  return make_bound(tanh(x.v), tanh_slope(x.v) * x.deviation);
}
GJ_MATH bound sigmoid_(const bound& x) {
  return make_bound(sigmoid_(x.v), sigmoid_slope(x.v) * x.deviation);
}
GJ_MATH bound exp_(const bound& x) {
  const double y = exp(x.v);
  return make_bound(y, y * x.deviation);
}
GJ_MATH bound log_(const bound& x) { return make_bound(log(x.v), x.deviation / fabs(x.v)); }
// |√(v + δ) − √v| ≤ √|δ| where the slope is infinite.
GJ_MATH bound sqrt_(const bound& x) {
  const double y = sqrt(x.v);
  return make_bound(y, fmin(x.deviation / (2 * y), sqrt(x.deviation)));
}
GJ_MATH bound rsqrt_(const bound& x) {
  const double y = 1 / sqrt(x.v);
  return make_bound(y, 0.5 * y / x.v * x.deviation);
}

}  // namespace gradjury
