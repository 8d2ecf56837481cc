// Pure data movement, and its transpose.
#pragma once

#include "elementwise.cuh"

namespace gradjury {

// y[c, i] = x[c, index[i]], 0 where index[i] is negative. x has `size` elements a case, y `count`.
template <class T>
__global__ void gather(Index cases, Index size, Index count, const Index* index, const T* x, T* y) {
  each_element(cases, count, [=](Index e) {
    const Index from = index[e % count];
    y[e] = from < 0 ? constant<T>(0) : x[e / count * size + from];
  });
}
GJ_FORWARD_KERNEL(gather)

// dx[c, j] = Σ dy[c, i] over all i with index[i] = j, in ascending order of i. The index comes inverted: the i of j are
// sources[first[j]] … sources[first[j+1]-1]. No atomics: each element is one thread's sum.
template <class T>
__global__ void scatter(Index cases, Index size, Index count, const Index* first, const Index* sources, const T* dy, T* dx) {
  each_element(cases, size, [=](Index e) {
    const Index j = e % size;
    Sum<T> sum;
    for (Index s = first[j]; s < first[j + 1]; s++) sum.add(dy[e / size * count + sources[s]]);
    dx[e] = sum.result();
  });
}
GJ_KERNEL(scatter)

}  // namespace gradjury
