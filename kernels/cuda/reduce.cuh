// Sums along one axis.
#pragma once

#include "elementwise.cuh"
#include "pack.cuh"

namespace gradjury {

// Sums that a host thread adds up side by side: neighbouring columns share lines of memory, and no sum waits for another.
#if defined(GJ_DEVICE)
constexpr int kSideBySide = 1;
#else
constexpr int kSideBySide = 8;
#endif

// out[e], …, out[e + S − 1] of sum_middle.
template <int S, class T>
GJ_MATH void sums_side_by_side(Index e, Index count, Index inner, const T* x, T* out) {
  const T* from[S];
  Sum<T> sums[S];
  GJ_UNROLL
  for (int s = 0; s < S; s++) from[s] = x + (e + s) / inner * count * inner + (e + s) % inner;
  for (Index i = 0; i < count; i++)
    GJ_UNROLL
    for (int s = 0; s < S; s++) sums[s].add(from[s][i * inner]);
  GJ_UNROLL
  for (int s = 0; s < S; s++) out[e + s] = sums[s].result();
}

// out[o, j] = Σ_i x[o, i, j] over (outer, count, inner); each sum from first to last in one thread.
// Any one-dimensional grid and block.
template <class T>
__global__ void sum_middle(Index outer, Index count, Index inner, const T* x, T* out) {
  const Index total = outer * inner;
  each_element(1, round_up_divide(total, kSideBySide), [=](Index group) {
    Index e = group * kSideBySide;
    if (e + kSideBySide <= total) return sums_side_by_side<kSideBySide>(e, count, inner, x, out);
    for (; e < total; e++) sums_side_by_side<1>(e, count, inner, x, out);
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
