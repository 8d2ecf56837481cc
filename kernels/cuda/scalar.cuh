// The functions every scalar has, for float and double. Kernels are written in these names and in + - * / alone, so that
// the same text computes values, double-doubles, derivatives, rounding noise and low precision.
#pragma once

#include "arithmetic.cuh"

namespace gradjury {

// Never contracted, whatever the compiler's flags: what error-free transformations are built of.
#if defined(GJ_DEVICE)
__device__ __forceinline__ double add_(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ double sub_(double a, double b) { return __dsub_rn(a, b); }
__device__ __forceinline__ double mul_(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ double fma_(double a, double b, double c) { return __fma_rn(a, b, c); }
__device__ __forceinline__ float fma_(float a, float b, float c) { return __fmaf_rn(a, b, c); }
#define GJ_MATH __device__ __forceinline__
#else
GJ_FN double add_(double a, double b) { return a + b; }
GJ_FN double sub_(double a, double b) { return a - b; }
GJ_FN double mul_(double a, double b) { return a * b; }
GJ_FN double fma_(double a, double b, double c) { return __builtin_fma(a, b, c); }
GJ_FN float fma_(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#define GJ_MATH GJ_FN
using std::exp;
using std::isfinite;
using std::ldexp;
using std::log;
using std::sqrt;
using std::tanh;
#endif

#if defined(GJ_DEVICE)
GJ_MATH unsigned long long bits_of(double x) { return static_cast<unsigned long long>(__double_as_longlong(x)); }
GJ_MATH double from_bits(unsigned long long b) { return __longlong_as_double(static_cast<long long>(b)); }
#else
GJ_MATH unsigned long long bits_of(double x) {
  unsigned long long b;
  std::memcpy(&b, &x, 8);
  return b;
}
GJ_MATH double from_bits(unsigned long long b) {
  double x;
  std::memcpy(&x, &b, 8);
  return x;
}
#endif

// An exact constant of scalar T.
template <class T>
struct Constant {
  GJ_MATH static T of(double c) { return static_cast<T>(c); }
};
template <class T>
GJ_MATH T constant(double c) {
  return Constant<T>::of(c);
}

// The value itself, for branches and indices.
GJ_MATH double primal(float x) { return x; }
GJ_MATH double primal(double x) { return x; }

GJ_MATH float tanh_(float x) { return tanh(x); }
GJ_MATH double tanh_(double x) { return tanh(x); }
GJ_MATH float exp_(float x) { return exp(x); }
GJ_MATH double exp_(double x) { return exp(x); }
GJ_MATH float log_(float x) { return log(x); }
GJ_MATH double log_(double x) { return log(x); }
GJ_MATH float sqrt_(float x) { return sqrt(x); }
GJ_MATH double sqrt_(double x) { return sqrt(x); }
GJ_MATH float rsqrt_(float x) { return 1.0f / sqrt(x); }
GJ_MATH double rsqrt_(double x) { return 1.0 / sqrt(x); }

// 1/(1+exp(-x)) without overflow on either side.
template <class T>
GJ_MATH T sigmoid_of_exp(T x) {
  const T one = constant<T>(1);
  const T e = exp_(primal(x) < 0 ? x : -x);
  T share = one;
  if (primal(x) < 0) share = e;
  return share / (one + e);
}
GJ_MATH float sigmoid_(float x) { return sigmoid_of_exp(x); }
GJ_MATH double sigmoid_(double x) { return sigmoid_of_exp(x); }

// The slopes of tanh, 1/cosh²(x), and of sigmoid, by e = exp(−|x|): 1 − y² and y(1 − y) cancel in the tails.
template <class T>
GJ_MATH T sigmoid_slope(const T& x) {
  const T e = exp_(primal(x) < 0 ? x : -x), whole = constant<T>(1) + e;
  return e / (whole * whole);
}
template <class T>
GJ_MATH T tanh_slope(const T& x) {
  return constant<T>(4) * sigmoid_slope(x + x);
}

// x times an exact constant: one rounding, none for powers of two.
template <class T>
GJ_MATH T scale(T x, double c) {
  return x * constant<T>(c);
}

}  // namespace gradjury
