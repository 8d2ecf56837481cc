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

}  // namespace gradjury
