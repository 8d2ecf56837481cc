// Operations element by element, forward and backward. All take (cases, n, …): arrays of cases·n elements, any
// one-dimensional grid and block.
#pragma once

#include "sum.cuh"

namespace gradjury {

// Calls body(i) for every element of cases·n that is this thread's.
template <class Body>
GJ_MATH void each_element(Index cases, Index n, Body body) {
  const Index total = cases * n, threads = static_cast<Index>(gridDim.x) * blockDim.x;
  const Index me = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
#if defined(GJ_DEVICE)
  for (Index i = me; i < total; i += threads) body(i);
#else
  for (Index i = total * me / threads; i < total * (me + 1) / threads; i++) body(i);
#endif
}

template <class T>
__global__ void add(Index cases, Index n, const T* a, const T* b, T* y) {
  each_element(cases, n, [=](Index i) { y[i] = a[i] + b[i]; });
}
GJ_FORWARD_KERNEL(add)

template <class T>
__global__ void subtract(Index cases, Index n, const T* a, const T* b, T* y) {
  each_element(cases, n, [=](Index i) { y[i] = a[i] - b[i]; });
}
GJ_FORWARD_KERNEL(subtract)

template <class T>
__global__ void multiply(Index cases, Index n, const T* a, const T* b, T* y) {
  each_element(cases, n, [=](Index i) { y[i] = a[i] * b[i]; });
}
GJ_FORWARD_KERNEL(multiply)

template <class T>
__global__ void divide(Index cases, Index n, const T* a, const T* b, T* y) {
  each_element(cases, n, [=](Index i) { y[i] = a[i] / b[i]; });
}
GJ_FORWARD_KERNEL(divide)

// y = −x
template <class T>
__global__ void negate(Index cases, Index n, const T* x, T* y) {
  each_element(cases, n, [=](Index i) { y[i] = -x[i]; });
}
GJ_FORWARD_KERNEL(negate)

// y = x·c and y = x/c for an exact constant c
template <class T>
__global__ void multiply_by(Index cases, Index n, double c, const T* x, T* y) {
  each_element(cases, n, [=](Index i) { y[i] = scale(x[i], c); });
}
GJ_FORWARD_KERNEL(multiply_by)

template <class T>
__global__ void divide_by(Index cases, Index n, double c, const T* x, T* y) {
  each_element(cases, n, [=](Index i) { y[i] = x[i] / constant<T>(c); });
}
GJ_FORWARD_KERNEL(divide_by)

// A gradient accumulated: total + part, where the part is a sum of `length` terms that may have started from the total.
template <class T>
GJ_MATH T accumulated(const T& total, const T& part, double) {
  return total + part;
}
GJ_MATH spread accumulated(const spread& total, const spread& part, double length) {
  const spread y = total + part;
  return make_spread(y.v, y.variance + length * total.v * total.v);
}
GJ_MATH noisy accumulated(const noisy& total, const noisy& part, double length) {
  const double y = total.v + part.v;
  return perturbed(y, hypot(sqrt(length) * total.v, y), key_of(kExtra, total.key, part.key));
}
template <class T>
__global__ void accumulate(Index cases, Index n, double length, const T* total, const T* part, T* y) {
  each_element(cases, n, [=](Index i) { y[i] = accumulated(total[i], part[i], length); });
}
GJ_KERNEL(accumulate)

// What an undecided unit may add: only `bound` carries it.
template <class T>
GJ_MATH T opened(const T& y, double) {
  return y;
}
GJ_MATH bound opened(const bound& y, double deviation) { return make_bound(y.v, y.deviation + deviation); }

// y = x where active, else 0. Active: mask[i] where a mask is given, else x > 0. undecided (or null): by how much the
// other decision changes y, 0 where there is no doubt.
template <class T>
__global__ void relu_forward(Index cases, Index n, const T* x, const unsigned char* mask, const double* undecided, T* y) {
  each_element(cases, n, [=](Index i) {
    const bool active = mask ? mask[i] != 0 : primal(x[i]) > 0;
    const T value = active ? x[i] : constant<T>(0);
    y[i] = undecided ? opened(value, undecided[i]) : value;
  });
}
GJ_FORWARD_KERNEL(relu_forward)

template <class T>
__global__ void relu_backward(
    Index cases, Index n, const T* x, const unsigned char* mask, const double* undecided, const T* dy, T* dx) {
  each_element(cases, n, [=](Index i) {
    const bool active = mask ? mask[i] != 0 : primal(x[i]) > 0;
    const T value = active ? dy[i] : constant<T>(0);
    dx[i] = undecided && undecided[i] > 0 ? opened(value, fabs(primal(dy[i]))) : value;
  });
}
GJ_KERNEL(relu_backward)

template <class T>
__global__ void tanh_forward(Index cases, Index n, const T* x, T* y) {
  each_element(cases, n, [=](Index i) { y[i] = tanh_(x[i]); });
}
GJ_FORWARD_KERNEL(tanh_forward)

// dx = dy·(1 − y²), y the function's value
template <class T>
__global__ void tanh_backward(Index cases, Index n, const T* y, const T* dy, T* dx) {
  each_element(cases, n, [=](Index i) { dx[i] = dy[i] * (constant<T>(1) - y[i] * y[i]); });
}
GJ_KERNEL(tanh_backward)

template <class T>
__global__ void sigmoid_forward(Index cases, Index n, const T* x, T* y) {
  each_element(cases, n, [=](Index i) { y[i] = sigmoid_(x[i]); });
}
GJ_FORWARD_KERNEL(sigmoid_forward)

// dx = dy·y·(1 − y)
template <class T>
__global__ void sigmoid_backward(Index cases, Index n, const T* y, const T* dy, T* dx) {
  each_element(cases, n, [=](Index i) { dx[i] = dy[i] * (y[i] * (constant<T>(1) - y[i])); });
}
GJ_KERNEL(sigmoid_backward)

template <class T>
__global__ void exp_forward(Index cases, Index n, const T* x, T* y) {
  each_element(cases, n, [=](Index i) { y[i] = exp_(x[i]); });
}
GJ_FORWARD_KERNEL(exp_forward)

template <class T>
__global__ void log_forward(Index cases, Index n, const T* x, T* y) {
  each_element(cases, n, [=](Index i) { y[i] = log_(x[i]); });
}
GJ_FORWARD_KERNEL(log_forward)

// y = x·mask/kept, kept = 1 − rate as kept_hi + kept_lo; linear in x, so backward is the same.
template <class T>
__global__ void dropout(Index cases, Index n, double kept_hi, double kept_lo, const T* x, const T* mask, T* y) {
  const T kept = constant<T>(kept_hi) + constant<T>(kept_lo);
  each_element(cases, n, [=](Index i) {
    y[i] = primal(mask[i]) == 0 ? constant<T>(0) : x[i] * mask[i] / kept;
  });
}
GJ_FORWARD_KERNEL(dropout)

}  // namespace gradjury
