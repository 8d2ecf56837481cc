// softmax and log_softmax along one axis of (outer, count, inner), stable by subtracting the largest value; `outer` holds
// the cases. One thread a row, any one-dimensional grid and block.
#pragma once

#include "elementwise.cuh"

namespace gradjury {

// The row of element e of outer·inner: its first element, its values `inner` apart.
template <class T>
GJ_MATH const T* row_of(const T* x, Index e, Index count, Index inner) {
  return x + e / inner * count * inner + e % inner;
}
template <class T>
GJ_MATH T largest_of(const T* row, Index count, Index inner) {
  T largest = count > 0 ? row[0] : constant<T>(0);
  for (Index i = 1; i < count; i++)
    if (primal(row[i * inner]) > primal(largest) || primal(row[i * inner]) != primal(row[i * inner])) largest = row[i * inner];
  return largest;
}
// Whether x is −∞ (a masked class). It takes part in nothing, and so has no rounding error either.
template <class T>
GJ_MATH bool masked(const T& x) {
  return primal(x) < -1.7976931348623157e308;
}
// exp(x − largest) and exp(x). Where all of a row is masked its softmax is NaN, from −∞ − (−∞).
template <class T>
GJ_MATH T exp_below(const T& x, const T& largest) {
  return masked(x) && !masked(largest) ? constant<T>(0) : exp_(x - largest);
}
template <class T>
GJ_MATH T probability(const T& x) {
  return masked(x) ? constant<T>(0) : exp_(x);
}
template <class T>
GJ_MATH T sum_of_exp(const T* row, const T& largest, Index count, Index inner) {
  Sum<T> sum;
  for (Index i = 0; i < count; i++) sum.add(exp_below(row[i * inner], largest));
  return sum.result();
}

// y = exp(x − max)/Σexp(x − max)
template <class T>
__global__ void softmax_forward(Index outer, Index count, Index inner, const T* x, T* y) {
  each_element(outer, inner, [=](Index e) {
    const T* row = row_of(x, e, count, inner);
    const T largest = largest_of(row, count, inner), sum = sum_of_exp(row, largest, count, inner);
    for (Index i = 0; i < count; i++) y[row - x + i * inner] = exp_below(row[i * inner], largest) / sum;
  });
}
GJ_FORWARD_KERNEL(softmax_forward)

// dx = y·(dy − Σ dy·y)
template <class T>
__global__ void softmax_backward(Index outer, Index count, Index inner, const T* y, const T* dy, T* dx) {
  each_element(outer, inner, [=](Index e) {
    const T *row = row_of(y, e, count, inner), *flow = row_of(dy, e, count, inner);
    Sum<T> sum;
    for (Index i = 0; i < count; i++) sum.add_product(flow[i * inner], row[i * inner]);
    const T total = sum.result();
    for (Index i = 0; i < count; i++) dx[row - y + i * inner] = row[i * inner] * (flow[i * inner] - total);
  });
}
GJ_KERNEL(softmax_backward)

// y = (x − max) − log Σexp(x − max)
template <class T>
__global__ void log_softmax_forward(Index outer, Index count, Index inner, const T* x, T* y) {
  each_element(outer, inner, [=](Index e) {
    const T* row = row_of(x, e, count, inner);
    const T largest = largest_of(row, count, inner), logarithm = log_(sum_of_exp(row, largest, count, inner));
    for (Index i = 0; i < count; i++) {
      const T& value = row[i * inner];
      y[row - x + i * inner] =
          masked(value) && !masked(largest) ? constant<T>(primal(value)) : (value - largest) - logarithm;
    }
  });
}
GJ_FORWARD_KERNEL(log_softmax_forward)

// dx = dy − exp(y)·Σdy
template <class T>
__global__ void log_softmax_backward(Index outer, Index count, Index inner, const T* y, const T* dy, T* dx) {
  each_element(outer, inner, [=](Index e) {
    const T *row = row_of(y, e, count, inner), *flow = row_of(dy, e, count, inner);
    Sum<T> sum;
    for (Index i = 0; i < count; i++) sum.add(flow[i * inner]);
    const T total = sum.result();
    for (Index i = 0; i < count; i++) dx[row - y + i * inner] = flow[i * inner] - probability(row[i * inner]) * total;
  });
}
GJ_KERNEL(log_softmax_backward)

}  // namespace gradjury
