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

// Infinities and NaN pass through without leaving NaN in the low part.
GJ_MATH dd settled(double hi, double lo) { return make_dd(hi, isfinite(hi) ? lo : 0.0); }

GJ_MATH dd operator-(const dd& a) { return make_dd(-a.hi, -a.lo); }
GJ_MATH dd operator+(const dd& a, const dd& b) {
  const double plain = a.hi + b.hi;
  if (!isfinite(plain)) return make_dd(plain, 0.0);
  dd r;
  dd_add(a.hi, a.lo, b.hi, b.lo, r.hi, r.lo);
  return r;
}
GJ_MATH dd operator-(const dd& a, const dd& b) { return a + -b; }
GJ_MATH dd operator*(const dd& a, const dd& b) {
  const double plain = a.hi * b.hi;
  if (!isfinite(plain) || plain == 0.0) return make_dd(plain, 0.0);
  dd r;
  dd_multiply(a.hi, a.lo, b.hi, b.lo, r.hi, r.lo);
  return r;
}
GJ_MATH dd fma_(const dd& a, const dd& b, const dd& c) { return a * b + c; }
GJ_MATH dd times_power_of_two(const dd& a, double power) { return make_dd(a.hi * power, a.lo * power); }
GJ_MATH dd operator/(const dd& a, const dd& b) {
  const double first = a.hi / b.hi;
  if (!isfinite(first) || !isfinite(b.hi)) return make_dd(first, 0.0);
  dd rest = a - b * make_dd(first, 0.0);
  const double second = rest.hi / b.hi;
  rest = rest - b * make_dd(second, 0.0);
  const double third = rest.hi / b.hi;
  double hi, lo;
  fast_two_sum(first, second, hi, lo);
  return make_dd(hi, lo) + make_dd(third, 0.0);
}
// √a = s + (a − s²)/(2s), s = √a.hi.
GJ_MATH dd sqrt_(const dd& a) {
  const double s = sqrt(a.hi);
  if (s == 0.0 || !isfinite(s)) return make_dd(s, 0.0);
  double square, error;
  two_product(s, s, square, error);
  const dd rest = a - make_dd(square, error);
  double hi, lo;
  fast_two_sum(s, rest.hi / (2 * s), hi, lo);
  return make_dd(hi, lo);
}
// One Newton step, r + r(1 − a r²)/2, in double-double.
GJ_MATH dd rsqrt_(const dd& a) {
  const double start = 1.0 / sqrt(a.hi);
  if (!isfinite(start) || start == 0.0) return make_dd(start, 0.0);
  const dd r = make_dd(start, 0.0);
  const dd rest = make_dd(1.0, 0.0) - a * (r * r);
  return r + times_power_of_two(r * rest, 0.5);
}

namespace series {
// 1/n! for n = 1 … 13 as double-doubles: what Taylor's expm1 needs for |x| < 2^-7.
#if defined(GJ_DEVICE)
__constant__
#else
constexpr
#endif
    const double inverse_factorial[13][2] = {
        {1.0, 0.0},
        {0.5, 0.0},
        {0x1.5555555555555p-3, 0x1.5555555555555p-57},
        {0x1.5555555555555p-5, 0x1.5555555555555p-59},
        {0x1.1111111111111p-7, 0x1.1111111111111p-63},
        {0x1.6c16c16c16c17p-10, -0x1.f49f49f49f49fp-65},
        {0x1.a01a01a01a01ap-13, 0x1.a01a01a01a01ap-73},
        {0x1.a01a01a01a01ap-16, 0x1.a01a01a01a01ap-76},
        {0x1.71de3a556c734p-19, -0x1.c154f8ddc6c00p-73},
        {0x1.27e4fb7789f5cp-22, 0x1.cbbc05b4fa99ap-76},
        {0x1.ae64567f544e4p-26, -0x1.c062e06d1f209p-80},
        {0x1.1eed8eff8d898p-29, -0x1.2aec959e14c06p-83},
        {0x1.6124613a86d09p-33, 0x1.f28e0cc748ebep-87}};
}  // namespace series

// x = k·ln 2 + r; returns exp(r) − 1 and k. Taylor at r/64, then (1+s)² − 1 six times.
GJ_MATH dd expm1_reduced(const dd& x, int& k) {
  const double ln2_hi = 0x1.62e42fefa39efp-1, ln2_lo = 0x1.abc9e3b39803fp-56, ln2_rest = 0x1.7b57a079a1934p-111;
  const double count = rint(x.hi * 0x1.71547652b82fep+0);
  k = static_cast<int>(count);
  const dd turns = make_dd(count, 0.0);
  const dd r = times_power_of_two(x - turns * make_dd(ln2_hi, ln2_lo) - turns * make_dd(ln2_rest, 0.0), 0x1p-6);
  dd s = make_dd(series::inverse_factorial[12][0], series::inverse_factorial[12][1]);
  for (int n = 11; n >= 0; n--) s = s * r + make_dd(series::inverse_factorial[n][0], series::inverse_factorial[n][1]);
  s = s * r;
  for (int i = 0; i < 6; i++) s = times_power_of_two(s, 2.0) + s * s;
  return s;
}
GJ_MATH dd exp_(const dd& x) {
  if (!(x.hi < 709.79)) return make_dd(exp(x.hi), 0.0);
  if (x.hi < -746.0) return make_dd(0.0, 0.0);
  int k;
  const dd s = expm1_reduced(x, k) + make_dd(1.0, 0.0);
  return make_dd(ldexp(s.hi, k), ldexp(s.lo, k));
}
// Near 1 by 2·atanh((x−1)/(x+1)); elsewhere a second-order correction of the double's logarithm.
GJ_MATH dd log_(const dd& x) {
  const double start = log(x.hi);
  if (!isfinite(start)) return make_dd(start, 0.0);
  const dd one = make_dd(1.0, 0.0);
  if (x.hi > 0.8 && x.hi < 1.25) {
    const dd z = (x - one) / (x + one), z2 = z * z;
    dd sum = make_dd(0.0, 0.0);
    for (int n = 18; n >= 0; n--) sum = sum * z2 + one / make_dd(2 * n + 1, 0.0);
    return times_power_of_two(z * sum, 2.0);
  }
  const dd y = make_dd(start, 0.0);
  const dd q = x * exp_(-y) - one;
  return y + (q - times_power_of_two(q * q, 0.5));
}
// expm1(2|x|) / (expm1(2|x|) + 2): no cancellation near 0.
GJ_MATH dd tanh_(const dd& x) {
  const bool negative = x.hi < 0;
  const dd a = negative ? -x : x;
  if (!(a.hi < 40.0)) return make_dd(tanh(x.hi), 0.0);
  int k;
  dd e = expm1_reduced(times_power_of_two(a, 2.0), k);
  const dd one = make_dd(1.0, 0.0);
  if (k != 0) e = times_power_of_two(e + one, ldexp(1.0, k)) - one;
  const dd t = e / (e + make_dd(2.0, 0.0));
  return negative ? -t : t;
}
GJ_MATH dd sigmoid_(const dd& x) { return sigmoid_of_exp(x); }

}  // namespace gradjury
