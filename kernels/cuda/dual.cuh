// Dual numbers: a value and its derivative along one direction. Run on the forward kernels they give the exact
// directional derivative that a backward has to match.
#pragma once

#include "dd.cuh"

namespace gradjury {

template <class R>
struct dual {
  R v, d;
};
template <class R>
GJ_MATH dual<R> make_dual(R v, R d) {
  dual<R> r;
  r.v = v;
  r.d = d;
  return r;
}
template <class R>
struct Constant<dual<R>> {
  GJ_MATH static dual<R> of(double c) { return make_dual(constant<R>(c), constant<R>(0)); }
};
template <class R>
GJ_MATH double primal(const dual<R>& x) {
  return primal(x.v);
}
template <class R>
GJ_MATH dual<R> operator-(const dual<R>& a) {
  return make_dual(-a.v, -a.d);
}
template <class R>
GJ_MATH dual<R> operator+(const dual<R>& a, const dual<R>& b) {
  return make_dual(a.v + b.v, a.d + b.d);
}
template <class R>
GJ_MATH dual<R> operator-(const dual<R>& a, const dual<R>& b) {
  return make_dual(a.v - b.v, a.d - b.d);
}
template <class R>
GJ_MATH dual<R> operator*(const dual<R>& a, const dual<R>& b) {
  return make_dual(a.v * b.v, a.v * b.d + a.d * b.v);
}
template <class R>
GJ_MATH dual<R> operator/(const dual<R>& a, const dual<R>& b) {
  const R y = a.v / b.v;
  return make_dual(y, (a.d - y * b.d) / b.v);
}
template <class R>
GJ_MATH dual<R> fma_(const dual<R>& a, const dual<R>& b, const dual<R>& c) {
  return make_dual(fma_(a.v, b.v, c.v), fma_(a.v, b.d, fma_(a.d, b.v, c.d)));
}
template <class R>
GJ_MATH dual<R> tanh_(const dual<R>& x) {
  return make_dual(tanh_(x.v), tanh_slope(x.v) * x.d);
}
template <class R>
GJ_MATH dual<R> sigmoid_(const dual<R>& x) {
  return make_dual(sigmoid_(x.v), sigmoid_slope(x.v) * x.d);
}
template <class R>
GJ_MATH dual<R> exp_(const dual<R>& x) {
  const R y = exp_(x.v);
  return make_dual(y, y * x.d);
}
template <class R>
GJ_MATH dual<R> log_(const dual<R>& x) {
  return make_dual(log_(x.v), x.d / x.v);
}
template <class R>
GJ_MATH dual<R> sqrt_(const dual<R>& x) {
  const R y = sqrt_(x.v);
  return make_dual(y, x.d / (y + y));
}
template <class R>
GJ_MATH dual<R> rsqrt_(const dual<R>& x) {
  const R y = rsqrt_(x.v);
  return make_dual(y, constant<R>(-0.5) * y * x.d / x.v);
}

}  // namespace gradjury
