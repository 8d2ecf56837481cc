// Losses per position; reductions are sums and one division. Log-probabilities and logits are (outer, classes, inner),
// targets and losses (outer, inner), `outer` holding the cases. Any one-dimensional grid and block.
#pragma once

#include "softmax.cuh"

namespace gradjury {

// loss = −log_probability[target], 0 where the target is `ignored`
template <class T>
__global__ void nll_forward(
    Index outer, Index classes, Index inner, Index ignored, const T* log_probability, const Index* target, T* loss) {
  each_element(outer, inner, [=](Index e) {
    const Index t = target[e];
    loss[e] = t == ignored ? constant<T>(0) : -row_of(log_probability, e, classes, inner)[t * inner];
  });
}
GJ_FORWARD_KERNEL(nll_forward)

// d log_probability = −dloss at the target, 0 elsewhere
template <class T>
__global__ void nll_backward(
    Index outer, Index classes, Index inner, Index ignored, const Index* target, const T* dloss, T* dx) {
  each_element(outer, inner, [=](Index e) {
    T* row = const_cast<T*>(row_of(static_cast<const T*>(dx), e, classes, inner));
    for (Index i = 0; i < classes; i++)
      row[i * inner] = i == target[e] && target[e] != ignored ? -dloss[e] : constant<T>(0);
  });
}
GJ_KERNEL(nll_backward)

// d logits = (softmax − one-hot)·dloss, 0 where the target is ignored; y the log_softmax of the logits
template <class T>
__global__ void cross_entropy_backward(
    Index outer, Index classes, Index inner, Index ignored, const T* y, const Index* target, const T* dloss, T* dx) {
  each_element(outer, inner, [=](Index e) {
    const T* row = row_of(y, e, classes, inner);
    for (Index i = 0; i < classes; i++) {
      const T p = probability(row[i * inner]);
      const T flow = i == target[e] ? p - constant<T>(1) : p;
      dx[row - y + i * inner] = target[e] == ignored ? constant<T>(0) : flow * dloss[e];
    }
  });
}
GJ_KERNEL(cross_entropy_backward)

// loss = (y − target)²
template <class T>
__global__ void squared_error_forward(Index cases, Index n, const T* y, const T* target, T* loss) {
  each_element(cases, n, [=](Index i) {
    const T d = y[i] - target[i];
    loss[i] = d * d;
  });
}
GJ_FORWARD_KERNEL(squared_error_forward)

// dy = 2·factor·(y − target)·dloss
template <class T>
__global__ void squared_error_backward(
    Index cases, Index n, double factor, const T* y, const T* target, const T* dloss, T* dy) {
  each_element(cases, n, [=](Index i) { dy[i] = scale((y[i] - target[i]) * dloss[i], 2 * factor); });
}
GJ_KERNEL(squared_error_backward)

}  // namespace gradjury
