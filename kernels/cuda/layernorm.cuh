// The affine part of layer normalisation; the normalisation itself is batchnorm.cuh's, every row a channel.
#pragma once

#include "batchnorm.cuh"

namespace gradjury {

// y = x·weight + bias over (cases, rows, features), weight and bias (cases, features) or null; one block per (case, row).
template <class T>
__global__ void affine_rows(Index cases, Index rows, Index features, const T* x, const T* weight, const T* bias, T* y) {
  for (Index b = blockIdx.x; b < cases * rows; b += gridDim.x) {
    const Channel c = channel_of(b, 1, rows, features);
    const Index parameters = b / rows * features - c.first;
    auto value = [=](Index o) {
      const T scaled = weight ? x[o] * weight[parameters + o] : x[o];
      y[o] = bias ? scaled + bias[parameters + o] : scaled;
    };
    GJ_EACH_OF_CHANNEL(c, 1, value, value);
  }
}
GJ_FORWARD_KERNEL(affine_rows)

}  // namespace gradjury
