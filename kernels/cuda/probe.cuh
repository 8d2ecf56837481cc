// The scalars' own operations as kernels, for proving the scalars on whatever machine they run.
#pragma once

#include "elementwise.cuh"

namespace gradjury {

template <class T>
__global__ void square_root(Index cases, Index n, const T* x, T* y) {
  each_element(cases, n, [=](Index i) { y[i] = sqrt_(x[i]); });
}
GJ_FORWARD_KERNEL(square_root)

template <class T>
__global__ void reciprocal_square_root(Index cases, Index n, const T* x, T* y) {
  each_element(cases, n, [=](Index i) { y[i] = rsqrt_(x[i]); });
}
GJ_FORWARD_KERNEL(reciprocal_square_root)

// out[i] = Σ_j a[i, j]·b[i, j] over (outer, count): each sum in one thread.
template <class T>
__global__ void dot(Index outer, Index count, const T* a, const T* b, T* out) {
  each_element(outer, 1, [=](Index i) {
    Sum<T> sum;
    for (Index j = 0; j < count; j++) sum.add_product(a[i * count + j], b[i * count + j]);
    out[i] = sum.result();
  });
}
GJ_FORWARD_KERNEL(dot)

}  // namespace gradjury
