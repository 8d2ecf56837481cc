// Double-double: an unevaluated sum of two doubles, about 106 bits.
// Sources: Joldes, Muller & Popescu, Tight and Rigorous Error Bounds for Basic Building Blocks of Double-Word Arithmetic
// (AccurateDWPlusDW, DWTimesDW3); Ogita, Rump & Oishi, Accurate Sum and Dot Product (the error-free transformations).
#pragma once

#include "scalar.cuh"

namespace gradjury {

// s + e = a + b exactly. Knuth's TwoSum; D is double or a pack of doubles.
template <class D>
GJ_MATH void two_sum(D a, D b, D& s, D& e) {
  s = add_(a, b);
  const D t = sub_(s, a);
  e = add_(sub_(a, sub_(s, t)), sub_(b, t));
}
// The same where |a| >= |b| (Dekker).
template <class D>
GJ_MATH void fast_two_sum(D a, D b, D& s, D& e) {
  s = add_(a, b);
  e = sub_(b, sub_(s, a));
}
// p + e = a·b exactly.
template <class D>
GJ_MATH void two_product(D a, D b, D& p, D& e) {
  p = mul_(a, b);
  e = fma_(a, b, -p);
}
template <class D>
GJ_MATH void dd_add(D ah, D al, D bh, D bl, D& rh, D& rl) {
  D s, e, t, f;
  two_sum(ah, bh, s, e);
  two_sum(al, bl, t, f);
  e = add_(e, t);
  fast_two_sum(s, e, s, e);
  e = add_(e, f);
  fast_two_sum(s, e, rh, rl);
}
template <class D>
GJ_MATH void dd_multiply(D ah, D al, D bh, D bl, D& rh, D& rl) {
  D p, e;
  two_product(ah, bh, p, e);
  D cross = mul_(al, bl);
  cross = fma_(ah, bl, cross);
  cross = fma_(al, bh, cross);
  fast_two_sum(p, add_(e, cross), rh, rl);
}

struct dd {
  double hi, lo;
};
GJ_MATH dd make_dd(double hi, double lo) {
  dd r;
  r.hi = hi;
  r.lo = lo;
  return r;
}
template <>
struct Constant<dd> {
  GJ_MATH static dd of(double c) { return make_dd(c, 0.0); }
};
GJ_MATH double primal(const dd& x) { return x.hi; }

GJ_MATH dd operator-(const dd& a) { return make_dd(-a.hi, -a.lo); }
// Sums and products that are not finite are the doubles' own: error terms of infinities would be NaN.
GJ_MATH dd operator+(const dd& a, const dd& b) {
  dd r;
  dd_add(a.hi, a.lo, b.hi, b.lo, r.hi, r.lo);
  return isfinite(r.hi) ? r : make_dd(a.hi + b.hi, 0.0);
}
GJ_MATH dd operator-(const dd& a, const dd& b) { return a + -b; }
GJ_MATH dd operator*(const dd& a, const dd& b) {
  dd r;
  dd_multiply(a.hi, a.lo, b.hi, b.lo, r.hi, r.lo);
  return isfinite(r.hi) ? r : make_dd(a.hi * b.hi, 0.0);
}
GJ_MATH dd fma_(const dd& a, const dd& b, const dd& c) { return a * b + c; }
GJ_MATH dd times_power_of_two(const dd& a, double power) { return make_dd(a.hi * power, a.lo * power); }

// The power of two that brings x to where neither its square nor the error of a product overflows or underflows.
GJ_MATH double toward_one(double x) {
  const double size = fabs(x);
  return size < 0x1p-600 ? 0x1p600 : size > 0x1p600 ? 0x1p-600 : 1.0;
}

// Long division: three quotients of doubles.
GJ_MATH dd divide_scaled(const dd& a, const dd& b) {
  const double first = a.hi / b.hi;
  dd rest = a - b * make_dd(first, 0.0);
  const double second = rest.hi / b.hi;
  rest = rest - b * make_dd(second, 0.0);
  dd r;
  fast_two_sum(first, second, r.hi, r.lo);
  return r + make_dd(rest.hi / b.hi, 0.0);
}
GJ_MATH dd operator/(const dd& a, const dd& b) {
  const double plain = a.hi / b.hi;
  if (!isfinite(plain) || !isfinite(b.hi)) return make_dd(plain, 0.0);
  const double up = toward_one(a.hi), down = toward_one(b.hi);
  const dd r = divide_scaled(times_power_of_two(a, up), times_power_of_two(b, down));
  return times_power_of_two(r, down / up);
}

// √a = s + (a − s²)/(2s), s = √a.hi.
GJ_MATH dd sqrt_(const dd& a) {
  if (!(a.hi > 0.0) || !isfinite(a.hi)) return make_dd(sqrt(a.hi), 0.0);
  const double power = toward_one(a.hi), s = sqrt(a.hi * power);
  double square, error;
  two_product(s, s, square, error);
  const dd rest = times_power_of_two(a, power) - make_dd(square, error);
  dd r;
  fast_two_sum(s, rest.hi / (2 * s), r.hi, r.lo);
  return times_power_of_two(r, 1 / sqrt(power));
}
// One Newton step, r + r(1 − a r²)/2, in double-double.
GJ_MATH dd rsqrt_(const dd& a) {
  const double plain = 1.0 / sqrt(a.hi);
  if (!isfinite(plain) || plain == 0.0) return make_dd(plain, 0.0);
  const double power = toward_one(a.hi);
  const dd scaled = times_power_of_two(a, power), r = make_dd(1.0 / sqrt(scaled.hi), 0.0);
  const dd rest = make_dd(1.0, 0.0) - scaled * (r * r);
  return times_power_of_two(r + times_power_of_two(r * rest, 0.5), sqrt(power));
}

namespace series {
#if defined(GJ_DEVICE)
#define GJ_TABLE __constant__ const double
#else
#define GJ_TABLE constexpr double
#endif
// 1/n! for n = 1 … 8 as double-doubles and for n = 9 … 14 as doubles, which is all that their share of expm1(r),
// |r| < 2^-5.5, needs.
GJ_TABLE inverse_factorial[8][2] = {
    {1.0, 0.0},
    {0.5, 0.0},
    {0x1.5555555555555p-3, 0x1.5555555555555p-57},
    {0x1.5555555555555p-5, 0x1.5555555555555p-59},
    {0x1.1111111111111p-7, 0x1.1111111111111p-63},
    {0x1.6c16c16c16c17p-10, -0x1.f49f49f49f49fp-65},
    {0x1.a01a01a01a01ap-13, 0x1.a01a01a01a01ap-73},
    {0x1.a01a01a01a01ap-16, 0x1.a01a01a01a01ap-76}};
GJ_TABLE small_inverse_factorial[6] = {0x1.71de3a556c734p-19, 0x1.27e4fb7789f5cp-22, 0x1.ae64567f544e4p-26,
                                       0x1.1eed8eff8d898p-29, 0x1.6124613a86d09p-33, 0x1.93974a8c07c9dp-37};
#undef GJ_TABLE
}  // namespace series

// count·ln 2 = first + rest; the first is exact, together they are so to 2^-150.
GJ_MATH void turns_of_ln2(double count, dd& first, dd& rest) {
  const double ln2_hi = 0x1.62e42fefa39efp-1, ln2_lo = 0x1.abc9e3b39803fp-56, ln2_rest = 0x1.7b57a079a1934p-111;
  two_product(count, ln2_hi, first.hi, first.lo);
  double p, e;
  two_product(count, ln2_lo, p, e);
  fast_two_sum(p, fma_(count, ln2_rest, e), rest.hi, rest.lo);
}

// x = k·ln 2 + r; returns exp(r) − 1, accurate relative to itself, and k. Taylor at r/16, then (1 + s)² − 1 four times.
GJ_MATH dd expm1_reduced(const dd& x, int& k) {
  const double count = rint(x.hi * 0x1.71547652b82fep+0);
  k = static_cast<int>(count);
  dd r = x;
  if (k != 0) {
    dd first, rest;
    turns_of_ln2(count, first, rest);
    r = x - first - rest;
  }
  r = times_power_of_two(r, 0x1p-4);
  double tail = series::small_inverse_factorial[5];
  GJ_UNROLL
  for (int i = 4; i >= 0; i--) tail = fma_(tail, r.hi, series::small_inverse_factorial[i]);
  dd s = make_dd(tail, 0.0);
  for (int i = 7; i >= 0; i--)
    s = fma_(s, r, make_dd(series::inverse_factorial[i][0], series::inverse_factorial[i][1]));
  s = s * r;
  for (int i = 0; i < 4; i++) s = fma_(s, s, times_power_of_two(s, 2.0));
  return s;
}
// exp(x) − 1 for |x| < 700, accurate relative to itself.
GJ_MATH dd expm1_(const dd& x) {
  if (fabs(x.hi) < 0x1p-120) return x;  // where r/16 may be subnormal
  int k;
  const dd s = expm1_reduced(x, k), one = make_dd(1.0, 0.0);
  return k == 0 ? s : times_power_of_two(s + one, ldexp(1.0, k)) - one;
}
GJ_MATH dd exp_(const dd& x) {
  if (!(fabs(x.hi) < 746.0)) return make_dd(exp(x.hi), 0.0);
  int k;
  const dd s = expm1_reduced(x, k) + make_dd(1.0, 0.0);
  const double hi = ldexp(s.hi, k);
  return make_dd(hi, isfinite(hi) ? ldexp(s.lo, k) : 0.0);
}
// x = 2^k·m; log m = y + log(1 + q), y the double's logarithm and q = (m − 1 − expm1(y))/exp(y) about 2^-53.
GJ_MATH dd log_(const dd& x) {
  if (!(x.hi > 0.0) || !isfinite(x.hi)) return make_dd(log(x.hi), 0.0);
  int k;
  if (frexp(x.hi, &k) < 0x1.6a09e667f3bcdp-1) k--;  // m from √½ to √2, so that log m and k·ln 2 do not cancel
  const dd m = make_dd(ldexp(x.hi, -k), ldexp(x.lo, -k)), one = make_dd(1.0, 0.0), y = make_dd(log(m.hi), 0.0);
  const dd e = expm1_(y), q = (m - one - e) / (one + e);
  const dd log_m = y + (q - times_power_of_two(q * q, 0.5));
  if (k == 0) return log_m;
  dd first, rest;
  turns_of_ln2(k, first, rest);
  return first + (rest + log_m);
}
// expm1(2|x|) / (expm1(2|x|) + 2): no cancellation near 0.
GJ_MATH dd tanh_(const dd& x) {
  if (!(fabs(x.hi) < 40.0)) return make_dd(tanh(x.hi), 0.0);
  if (fabs(x.hi) < 0x1p-60) return x;  // x³/3 is beyond the last bit
  const bool negative = x.hi < 0;
  const dd e = expm1_(times_power_of_two(negative ? -x : x, 2.0));
  const dd t = e / (e + make_dd(2.0, 0.0));
  return negative ? -t : t;
}
GJ_MATH dd sigmoid_(const dd& x) { return sigmoid_of_exp(x); }

}  // namespace gradjury
