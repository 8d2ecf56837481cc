// Pack<T, W>: W neighbouring values that one thread owns. On the host one SIMD register of float or double; elsewhere an
// unrolled array. A sum of products over packs is a PackSum.
#pragma once

#include "sum.cuh"

#if !defined(GJ_DEVICE) && defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

namespace gradjury {

template <class T, int W>
struct Pack {
  T lane[W];
  GJ_MATH T get(int i) const { return lane[i]; }
  GJ_MATH void set(int i, const T& x) { lane[i] = x; }
};

#if !defined(GJ_DEVICE)
#define GJ_SIMD_PACK(T, W) \
  template <> \
  struct Pack<T, W> { \
    typedef T Register __attribute__((vector_size(sizeof(T) * W))); \
    Register lane; \
    GJ_FN T get(int i) const { return lane[i]; } \
    GJ_FN void set(int i, const T& x) { lane[i] = x; } \
  }; \
  GJ_FN Pack<T, W> operator+(const Pack<T, W>& a, const Pack<T, W>& b) { return {a.lane + b.lane}; } \
  GJ_FN Pack<T, W> operator-(const Pack<T, W>& a, const Pack<T, W>& b) { return {a.lane - b.lane}; } \
  GJ_FN Pack<T, W> operator*(const Pack<T, W>& a, const Pack<T, W>& b) { return {a.lane * b.lane}; } \
  GJ_FN Pack<T, W> splat(T x, Pack<T, W>*) { \
    Pack<T, W> r; \
    r.lane = x - typename Pack<T, W>::Register{}; \
    return r; \
  }
#if defined(__AVX512F__)
GJ_SIMD_PACK(float, 16)
GJ_SIMD_PACK(double, 8)
GJ_FN Pack<float, 16> fma_(const Pack<float, 16>& a, const Pack<float, 16>& b, const Pack<float, 16>& c) {
  return {(Pack<float, 16>::Register)_mm512_fmadd_ps((__m512)a.lane, (__m512)b.lane, (__m512)c.lane)};
}
GJ_FN Pack<double, 8> fma_(const Pack<double, 8>& a, const Pack<double, 8>& b, const Pack<double, 8>& c) {
  return {(Pack<double, 8>::Register)_mm512_fmadd_pd((__m512d)a.lane, (__m512d)b.lane, (__m512d)c.lane)};
}
constexpr int kSimdBytes = 64;
#elif defined(__AVX2__) && defined(__FMA__)
GJ_SIMD_PACK(float, 8)
GJ_SIMD_PACK(double, 4)
GJ_FN Pack<float, 8> fma_(const Pack<float, 8>& a, const Pack<float, 8>& b, const Pack<float, 8>& c) {
  return {(Pack<float, 8>::Register)_mm256_fmadd_ps((__m256)a.lane, (__m256)b.lane, (__m256)c.lane)};
}
GJ_FN Pack<double, 4> fma_(const Pack<double, 4>& a, const Pack<double, 4>& b, const Pack<double, 4>& c) {
  return {(Pack<double, 4>::Register)_mm256_fmadd_pd((__m256d)a.lane, (__m256d)b.lane, (__m256d)c.lane)};
}
constexpr int kSimdBytes = 32;
#else
constexpr int kSimdBytes = 0;
#endif
#else
constexpr int kSimdBytes = 0;
#endif

// Pairs lie apart, so that their parts are registers of their own.
template <int W>
struct Pack<dd, W> {
  Pack<double, W> hi, lo;
  GJ_MATH dd get(int i) const { return make_dd(hi.get(i), lo.get(i)); }
  GJ_MATH void set(int i, const dd& x) { hi.set(i, x.hi), lo.set(i, x.lo); }
};
template <int W>
struct Pack<spread, W> {
  Pack<double, W> v, variance;
  GJ_MATH spread get(int i) const { return make_spread(v.get(i), variance.get(i)); }
  GJ_MATH void set(int i, const spread& x) { v.set(i, x.v), variance.set(i, x.variance); }
};
template <int W>
struct Pack<noisy, W> {
  Pack<double, W> v;
  unsigned long long key[W];
  GJ_MATH noisy get(int i) const { return make_noisy(v.get(i), key[i]); }
  GJ_MATH void set(int i, const noisy& x) { v.set(i, x.v), key[i] = x.key; }
};
template <int W>
struct Pack<bound, W> {
  Pack<double, W> v, deviation;
  GJ_MATH bound get(int i) const { return make_bound(v.get(i), deviation.get(i)); }
  GJ_MATH void set(int i, const bound& x) { v.set(i, x.v), deviation.set(i, x.deviation); }
};
template <class R, int W>
struct Pack<dual<R>, W> {
  Pack<R, W> v, d;
  GJ_MATH dual<R> get(int i) const { return make_dual(v.get(i), d.get(i)); }
  GJ_MATH void set(int i, const dual<R>& x) { v.set(i, x.v), d.set(i, x.d); }
};

// The widest pack of T that is one register; 1 where there are none.
template <class T>
struct SimdWidth {
  static constexpr int value = 1;
};
template <>
struct SimdWidth<float> {
  static constexpr int value = kSimdBytes ? kSimdBytes / 4 : 1;
};
template <>
struct SimdWidth<double> {
  static constexpr int value = kSimdBytes ? kSimdBytes / 8 : 1;
};

template <class T, int W>
GJ_MATH Pack<T, W> splat(const T& x, Pack<T, W>*) {
  Pack<T, W> r;
  GJ_UNROLL
  for (int i = 0; i < W; i++) r.set(i, x);
  return r;
}
template <class T, int W>
GJ_MATH Pack<T, W> splat_pack(const T& x) {
  return splat(x, static_cast<Pack<T, W>*>(nullptr));
}
#define GJ_PACK_OPERATOR(op) \
  template <class T, int W> \
  GJ_MATH Pack<T, W> operator op(const Pack<T, W>& a, const Pack<T, W>& b) { \
    Pack<T, W> r; \
    GJ_UNROLL \
    for (int i = 0; i < W; i++) r.set(i, a.get(i) op b.get(i)); \
    return r; \
  }
GJ_PACK_OPERATOR(+)
GJ_PACK_OPERATOR(-)
GJ_PACK_OPERATOR(*)
#undef GJ_PACK_OPERATOR
template <class T, int W>
GJ_MATH Pack<T, W> fma_(const Pack<T, W>& a, const Pack<T, W>& b, const Pack<T, W>& c) {
  Pack<T, W> r;
  GJ_UNROLL
  for (int i = 0; i < W; i++) r.set(i, fma_(a.get(i), b.get(i), c.get(i)));
  return r;
}

template <int W>
GJ_MATH Pack<double, W> absolute(const Pack<double, W>& x) {
  Pack<double, W> r;
  GJ_UNROLL
  for (int i = 0; i < W; i++) r.set(i, fabs(x.get(i)));
  return r;
}
template <int W>
GJ_MATH Pack<double, W> operator-(const Pack<double, W>& a) {
  return splat_pack<double, W>(0.0) - a;
}
template <int W>
GJ_MATH Pack<double, W> add_(const Pack<double, W>& a, const Pack<double, W>& b) {
  return a + b;
}
template <int W>
GJ_MATH Pack<double, W> sub_(const Pack<double, W>& a, const Pack<double, W>& b) {
  return a - b;
}
template <int W>
GJ_MATH Pack<double, W> mul_(const Pack<double, W>& a, const Pack<double, W>& b) {
  return a * b;
}
template <int W>
GJ_MATH Pack<dd, W> splat(const dd& x, Pack<dd, W>*) {
  return {splat_pack<double, W>(x.hi), splat_pack<double, W>(x.lo)};
}
// Without the scalar's care for infinities: a sum that is not finite here may end as NaN.
template <int W>
GJ_MATH Pack<dd, W> fma_(const Pack<dd, W>& a, const Pack<dd, W>& b, const Pack<dd, W>& c) {
  Pack<dd, W> p, r;
  dd_multiply(a.hi, a.lo, b.hi, b.lo, p.hi, p.lo);
  dd_add(p.hi, p.lo, c.hi, c.lo, r.hi, r.lo);
  return r;
}
template <class R, int W>
GJ_MATH Pack<dual<R>, W> fma_(const Pack<dual<R>, W>& a, const Pack<dual<R>, W>& b, const Pack<dual<R>, W>& c) {
  return {fma_(a.v, b.v, c.v), fma_(a.v, b.d, fma_(a.d, b.v, c.d))};
}
template <int W>
GJ_MATH Pack<bound, W> fma_(const Pack<bound, W>& a, const Pack<bound, W>& b, const Pack<bound, W>& c) {
  const Pack<double, W> crossed = absolute(a.v) * b.deviation + absolute(b.v) * a.deviation;
  return {a.v * b.v + c.v, crossed + a.deviation * b.deviation + c.deviation};
}

// W neighbouring values from memory, of which `left` exist; the rest read as zero.
template <class T, int W>
GJ_MATH Pack<T, W> load_pack(const T* p, Index left) {
  Pack<T, W> r;
#if !defined(GJ_DEVICE)
  if constexpr (SimdWidth<T>::value == W && W > 1) {
    if (left >= W) {
      std::memcpy(&r, p, sizeof r);
      return r;
    }
  }
#endif
  GJ_UNROLL
  for (int i = 0; i < W; i++) r.set(i, i < left ? p[i] : constant<T>(0));
  return r;
}
template <class T, int W>
GJ_MATH void store_pack(T* p, const Pack<T, W>& x, Index left) {
#if !defined(GJ_DEVICE)
  if constexpr (SimdWidth<T>::value == W && W > 1) {
    if (left >= W) {
      std::memcpy(p, &x, sizeof x);
      return;
    }
  }
#endif
  GJ_UNROLL
  for (int i = 0; i < W; i++)
    if (i < left) p[i] = x.get(i);
}
template <class T, int W>
GJ_MATH T sum_of_lanes(const Pack<T, W>& x) {
  T s = x.get(0);
  GJ_UNROLL
  for (int i = 1; i < W; i++) s = s + x.get(i);
  return s;
}

}  // namespace gradjury
