// The fused pointwise part of a GRU step, forward and backward; the products with the weights are matmul's.
//
//   r = σ(gx_r + gh_r), z = σ(gx_z + gh_z), gx = W_ih x + b_ih, gh = W_hh h + b_hh, gates in the order r, z, n
//   reset after:  n = tanh(gx_n + r·gh_n)          reset before: n = tanh(gx_n + U_n (r·h) + b_n)
//   h' = z·h + (1−z)·n  (keeps-previous), or (1−z)·h + z·n  (keeps-candidate)
//
// Cho et al. 2014 (arXiv:1406.1078, eq. 5-8: reset before); Chung et al. 2014; cuDNN's form is reset after.
// Rows are cases·batch; arrays of gates are (rows, 3H), the others (rows, H). Any one-dimensional grid and block.
#pragma once

#include "elementwise.cuh"

namespace gradjury {

template <class T>
GJ_MATH T mix_states(bool keeps_candidate, const T& z, const T& h, const T& n) {
  const T rest = constant<T>(1) - z;
  return keeps_candidate ? rest * h + z * n : z * h + rest * n;
}

// The step with reset after, all in one: r, z, n are kept for the backward.
template <class T>
__global__ void gru_forward(
    Index rows, Index hidden, Index keeps_candidate, const T* gx, const T* gh, const T* h, T* r, T* z, T* n, T* next) {
  each_element(rows, hidden, [=](Index i) {
    const Index gate = i / hidden * 3 * hidden + i % hidden;
    r[i] = sigmoid_(gx[gate] + gh[gate]);
    z[i] = sigmoid_(gx[gate + hidden] + gh[gate + hidden]);
    n[i] = tanh_(gx[gate + 2 * hidden] + r[i] * gh[gate + 2 * hidden]);
    next[i] = mix_states(keeps_candidate != 0, z[i], h[i], n[i]);
  });
}
GJ_FORWARD_KERNEL(gru_forward)

// Reset before, first half: the gates and r·h, from gh of (rows, 2H).
template <class T>
__global__ void gru_gates(Index rows, Index hidden, const T* gx, const T* gh, const T* h, T* r, T* z, T* reset) {
  each_element(rows, hidden, [=](Index i) {
    const Index row = i / hidden, j = i % hidden;
    r[i] = sigmoid_(gx[row * 3 * hidden + j] + gh[row * 2 * hidden + j]);
    z[i] = sigmoid_(gx[row * 3 * hidden + hidden + j] + gh[row * 2 * hidden + hidden + j]);
    reset[i] = r[i] * h[i];
  });
}
GJ_FORWARD_KERNEL(gru_gates)

// Reset before, second half: `recurrent` = U_n (r·h) + b_n.
template <class T>
__global__ void gru_candidate(
    Index rows, Index hidden, Index keeps_candidate, const T* gx, const T* recurrent, const T* z, const T* h, T* n, T* next) {
  each_element(rows, hidden, [=](Index i) {
    n[i] = tanh_(gx[i / hidden * 3 * hidden + 2 * hidden + i % hidden] + recurrent[i]);
    next[i] = mix_states(keeps_candidate != 0, z[i], h[i], n[i]);
  });
}
GJ_FORWARD_KERNEL(gru_candidate)

// Gradients of the pre-activations of n and z, and of h along the direct path.
template <class T>
GJ_MATH void mix_backward(
    bool keeps_candidate, const T& z, const T& n, const T& h, const T& flow, T& d_n, T& d_z, T& d_h) {
  const T one = constant<T>(1), rest = one - z;
  T of_n = rest, of_h = z, difference = h - n;  // copies: a choice between references would go through a GPU's local memory
  if (keeps_candidate) of_n = z, of_h = rest, difference = n - h;
  d_n = flow * of_n * (one - n * n);
  d_z = flow * difference * (z * rest);
  d_h = flow * of_h;
}

// Reset after: from the gates as given to dgx and dgh (rows, 3H) and the direct part of dh. gh_n is in gh.
template <class T>
__global__ void gru_backward(
    Index rows, Index hidden, Index keeps_candidate, const T* r, const T* z, const T* n, const T* gh, const T* h, const T* dnext,
    T* dgx, T* dgh, T* dh) {
  each_element(rows, hidden, [=](Index i) {
    const Index gate = i / hidden * 3 * hidden + i % hidden;
    T d_n, d_z, d_h;
    mix_backward(keeps_candidate != 0, z[i], n[i], h[i], dnext[i], d_n, d_z, d_h);
    const T d_r = d_n * gh[gate + 2 * hidden] * (r[i] * (constant<T>(1) - r[i]));
    dgx[gate] = dgh[gate] = d_r;
    dgx[gate + hidden] = dgh[gate + hidden] = d_z;
    dgx[gate + 2 * hidden] = d_n;
    dgh[gate + 2 * hidden] = d_n * r[i];
    dh[i] = d_h;
  });
}
GJ_KERNEL(gru_backward)

// Reset before, first half: gradients of n and z into dgates (rows, 3H), of n alone into dcandidate (rows, H).
template <class T>
__global__ void gru_candidate_backward(
    Index rows, Index hidden, Index keeps_candidate, const T* z, const T* n, const T* h, const T* dnext, T* dgates, T* dcandidate,
    T* dh) {
  each_element(rows, hidden, [=](Index i) {
    const Index gate = i / hidden * 3 * hidden + i % hidden;
    T d_n, d_z, d_h;
    mix_backward(keeps_candidate != 0, z[i], n[i], h[i], dnext[i], d_n, d_z, d_h);
    dgates[gate + hidden] = d_z;
    dgates[gate + 2 * hidden] = dcandidate[i] = d_n;
    dh[i] = d_h;
  });
}
GJ_KERNEL(gru_candidate_backward)

// Second half: dreset = dcandidate·U_n is the gradient of r·h. Adds to dh what flows through it.
template <class T>
__global__ void gru_reset_backward(
    Index rows, Index hidden, const T* r, const T* h, const T* dreset, const T* direct, T* dgates, T* dgates_rz, T* dh) {
  each_element(rows, hidden, [=](Index i) {
    const Index row = i / hidden, j = i % hidden;
    const T d_r = dreset[i] * h[i] * (r[i] * (constant<T>(1) - r[i]));
    dgates[row * 3 * hidden + j] = d_r;
    dgates_rz[row * 2 * hidden + j] = d_r;
    dgates_rz[row * 2 * hidden + hidden + j] = dgates[row * 3 * hidden + hidden + j];
    dh[i] = direct[i] + dreset[i] * r[i];
  });
}
GJ_KERNEL(gru_reset_backward)

}  // namespace gradjury
