// Sums along one axis.
#pragma once

#include "elementwise.cuh"
#include "pack.cuh"

namespace gradjury {

// out[o, j] = Σ_i x[o, i, j] over (outer, count, inner); each sum from first to last in one thread.
// Any one-dimensional grid and block.
template <class T>
__global__ void sum_middle(Index outer, Index count, Index inner, const T* x, T* out) {
  each_element(outer, inner, [=](Index e) {
    const T* first = x + e / inner * count * inner + e % inner;
    Sum<T> sum;
    for (Index i = 0; i < count; i++) sum.add(first[i * inner]);
    out[e] = sum.result();
  });
}
GJ_FORWARD_KERNEL(sum_middle)

// The same by packs of neighbouring columns, for scalars that have them: a row is read at a time.
template <class T>
__global__ void sum_columns(Index outer, Index count, Index inner, const T* x, T* out) {
  constexpr int W = SimdWidth<T>::value;
  const Index packs = round_up_divide(inner, W);
  each_element(outer, packs, [=](Index e) {
    const Index column = e % packs * W, left = inner - column;
    const T* first = x + e / packs * count * inner + column;
    Pack<T, W> sum = splat_pack<T, W>(constant<T>(0));
    for (Index i = 0; i < count; i++) sum = sum + load_pack<T, W>(first + i * inner, left);
    store_pack<T, W>(out + e / packs * inner + column, sum, left);
  });
}
GJ_KERNEL(sum_columns)

}  // namespace gradjury
