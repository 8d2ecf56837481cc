// Batch normalisation of (outer, rows, channels), nothing inside a channel: a channel is a column, and neighbouring columns
// are taken together, so that memory is read in lines. Formulas as in batchnorm.cuh; one block per (outer, strip of columns).
#pragma once

#include "batchnorm.cuh"

namespace gradjury {

// A thread has a pack of kWidth columns; kAcross threads lie side by side, the others of a block take other rows.
template <class T>
struct Strip {
#if defined(GJ_DEVICE)
  static constexpr int kWidth = 1, kAcross = 32;
#else
  static constexpr int kWidth = SimdWidth<T>::value > 1 ? SimdWidth<T>::value : 8, kAcross = 1;
#endif
  using Lanes = Pack<T, kWidth>;
  Index outer, rows, channels, column;
  int group, groups;  // which rows are this thread's: group, group + groups, ...

  GJ_MATH static Index strips(Index channels) { return round_up_divide(channels, kWidth * kAcross); }
  GJ_MATH Strip(Index b, Index rows_, Index channels_) : rows(rows_), channels(channels_) {
    outer = b / strips(channels);
    column = (b % strips(channels) * kAcross + threadIdx.x % kAcross) * kWidth;
    group = threadIdx.x / kAcross;
    groups = blockDim.x / kAcross;
  }
  GJ_MATH Index left() const { return channels - column; }  // columns from here on; not positive: none is this thread's
  GJ_MATH Index place(Index row) const { return (outer * rows + row) * channels + column; }
  GJ_MATH Lanes parameters(const T* p, double absent) const {
    return p ? load_pack<T, kWidth>(p + outer * channels + column, left()) : splat_pack<T, kWidth>(constant<T>(absent));
  }
  GJ_MATH void keep(T* p, const Lanes& x) const {
    if (group == 0) store_pack<T, kWidth>(p + outer * channels + column, x, left());
  }
  // The sum over the block's rows, the same in every group; in the order of the groups.
  GJ_MATH Lanes over_groups(const Lanes& mine) const {
    GJ_SHARED(totals, Lanes[256]);
    __syncthreads();
    totals[threadIdx.x] = mine;
    __syncthreads();
    Lanes sum = totals[threadIdx.x % kAcross];
    for (int g = 1; g < groups; g++) sum = sum + totals[g * kAcross + threadIdx.x % kAcross];
    return sum;
  }
  GJ_MATH static Lanes quotient(Lanes x, T count) {
    for (int i = 0; i < kWidth; i++) x.set(i, x.get(i) / count);
    return x;
  }
};

// Σ(x − shift)^power over this thread's rows, power 1 or 2
template <int power, class T>
GJ_HOT typename Strip<T>::Lanes column_moment(const Strip<T>& s, const T* x, typename Strip<T>::Lanes shift) {
  constexpr int W = Strip<T>::kWidth;
  auto sum = splat_pack<T, W>(constant<T>(0));
  for (Index i = s.group; i < s.rows; i += s.groups) {
    const auto d = load_pack<T, W>(x + s.place(i), s.left()) - shift;
    sum = power == 1 ? sum + d : fma_(d, d, sum);
  }
  return sum;
}
template <class T>
GJ_HOT void column_normalise(
    const Strip<T>& s, const T* x, typename Strip<T>::Lanes mean, typename Strip<T>::Lanes r, typename Strip<T>::Lanes gamma,
    typename Strip<T>::Lanes beta, T* y) {
  constexpr int W = Strip<T>::kWidth;
  for (Index i = s.group; i < s.rows; i += s.groups)
    store_pack<T, W>(y + s.place(i), (load_pack<T, W>(x + s.place(i), s.left()) - mean) * r * gamma + beta, s.left());
}

template <class T>
__global__ void batchnorm_columns_forward(
    Index outer, Index rows, Index channels, double epsilon, const T* x, const T* weight, const T* bias, T* mean, T* rstd, T* y) {
  constexpr int W = Strip<T>::kWidth;
  for (Index b = blockIdx.x; b < outer * Strip<T>::strips(channels); b += gridDim.x) {
    const Strip<T> s(b, rows, channels);
    const T count = constant<T>(static_cast<double>(rows)), lift = constant<T>(epsilon);
    const auto zero = splat_pack<T, W>(constant<T>(0));
    const auto mu = s.quotient(s.over_groups(column_moment<1>(s, x, zero)), count);
    auto r = s.quotient(s.over_groups(column_moment<2>(s, x, mu)), count);
    for (int i = 0; i < W; i++) r.set(i, rsqrt_(r.get(i) + lift));
    s.keep(mean, mu);
    s.keep(rstd, r);
    column_normalise<T>(s, x, mu, r, s.parameters(weight, 1), s.parameters(bias, 0), y);
  }
}
GJ_FORWARD_KERNEL(batchnorm_columns_forward)

template <class T>
struct ColumnSums {
  typename Strip<T>::Lanes dy, dy_normal;  // Σdy and Σdy·(x − μ)
};
template <class T>
GJ_HOT ColumnSums<T> column_backward_sums(const Strip<T>& s, const T* x, const T* dy, typename Strip<T>::Lanes mean) {
  constexpr int W = Strip<T>::kWidth;
  auto first = splat_pack<T, W>(constant<T>(0)), second = first;
  for (Index i = s.group; i < s.rows; i += s.groups) {
    const auto g = load_pack<T, W>(dy + s.place(i), s.left());
    first = first + g;
    second = fma_(g, load_pack<T, W>(x + s.place(i), s.left()) - mean, second);
  }
  return {first, second};
}
// dx = (dy − by_mean − (x − μ)·by_variance)·slope
template <class T>
GJ_HOT void column_backward_apply(
    const Strip<T>& s, const T* x, const T* dy, typename Strip<T>::Lanes mean, typename Strip<T>::Lanes by_mean,
    typename Strip<T>::Lanes by_variance, typename Strip<T>::Lanes slope, T* dx) {
  constexpr int W = Strip<T>::kWidth;
  for (Index i = s.group; i < s.rows; i += s.groups) {
    const auto d = load_pack<T, W>(x + s.place(i), s.left()) - mean, g = load_pack<T, W>(dy + s.place(i), s.left());
    store_pack<T, W>(dx + s.place(i), (g - by_mean - d * by_variance) * slope, s.left());
  }
}

template <class T>
__global__ void batchnorm_columns_backward(
    Index outer, Index rows, Index channels, const T* x, const T* weight, const T* mean, const T* rstd, const T* dy, T* dx,
    T* dweight, T* dbias) {
  for (Index b = blockIdx.x; b < outer * Strip<T>::strips(channels); b += gridDim.x) {
    const Strip<T> s(b, rows, channels);
    const T count = constant<T>(static_cast<double>(rows));
    const auto mu = s.parameters(mean, 0), r = s.parameters(rstd, 1);
    const ColumnSums<T> mine = column_backward_sums<T>(s, x, dy, mu);
    const auto sum = s.over_groups(mine.dy), weighted = s.over_groups(mine.dy_normal) * r;
    s.keep(dbias, sum);
    s.keep(dweight, weighted);
    column_backward_apply<T>(
        s, x, dy, mu, s.quotient(sum, count), s.quotient(weighted * r, count), r * s.parameters(weight, 1), dx);
  }
}
GJ_KERNEL(batchnorm_columns_backward)

}  // namespace gradjury
