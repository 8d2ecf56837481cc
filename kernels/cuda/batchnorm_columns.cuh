// Batch normalisation of (outer, rows, channels), nothing inside a channel: a channel is a column, and neighbouring columns
// are taken together, so that memory is read in lines. Formulas as in batchnorm.cuh; one block per (outer, strip of columns).
#pragma once

#include "batchnorm.cuh"

namespace gradjury {

// Neighbouring columns of one thread: one on a GPU, on the host a few packs, so that a row gives it whole lines of memory.
template <class T>
struct Columns {
#if defined(GJ_DEVICE)
  static constexpr int W = 1, P = 1;
#else
  static constexpr int W = SimdWidth<T>::value > 1 ? SimdWidth<T>::value : 8, P = SimdWidth<T>::value > 1 ? 4 : 1;
#endif
  Pack<T, W> part[P];
  // Each part of the result by f(index of the part).
  template <class F>
  GJ_MATH static Columns of(F f) {
    Columns r;
    GJ_UNROLL
    for (int p = 0; p < P; p++) r.part[p] = f(p);
    return r;
  }
  GJ_MATH static Columns all(const T& x) {
    return of([&](int) { return splat_pack<T, W>(x); });
  }
  GJ_MATH static Columns load(const T* from, Index left) {
    return of([&](int p) { return load_pack<T, W>(from + p * W, left - p * W); });
  }
  GJ_MATH void store(T* to, Index left) const {
    GJ_UNROLL
    for (int p = 0; p < P; p++) store_pack<T, W>(to + p * W, part[p], left - p * W);
  }
  template <class F>
  GJ_MATH Columns each(F f) const {
    Columns r = *this;
    for (int p = 0; p < P; p++)
      for (int w = 0; w < W; w++) r.part[p].set(w, f(part[p].get(w)));
    return r;
  }
};
template <class T>
GJ_MATH Columns<T> operator+(const Columns<T>& a, const Columns<T>& b) {
  return Columns<T>::of([&](int p) { return a.part[p] + b.part[p]; });
}
template <class T>
GJ_MATH Columns<T> operator-(const Columns<T>& a, const Columns<T>& b) {
  return Columns<T>::of([&](int p) { return a.part[p] - b.part[p]; });
}
template <class T>
GJ_MATH Columns<T> operator*(const Columns<T>& a, const Columns<T>& b) {
  return Columns<T>::of([&](int p) { return a.part[p] * b.part[p]; });
}
template <class T>
GJ_MATH Columns<T> fma_(const Columns<T>& a, const Columns<T>& b, const Columns<T>& c) {
  return Columns<T>::of([&](int p) { return fma_(a.part[p], b.part[p], c.part[p]); });
}

// Where in the arrays a thread works: kAcross threads lie side by side, the others of a block take other rows.
template <class T>
struct Strip {
#if defined(GJ_DEVICE)
  static constexpr int kAcross = 32;
#else
  static constexpr int kAcross = 1;
#endif
  static constexpr int kWidth = Columns<T>::W * Columns<T>::P;
  using Lanes = Columns<T>;
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
    return p ? Lanes::load(p + outer * channels + column, left()) : Lanes::all(constant<T>(absent));
  }
  GJ_MATH void keep(T* p, const Lanes& x) const {
    if (group == 0) x.store(p + outer * channels + column, left());
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
  GJ_MATH static Lanes quotient(const Lanes& x, const T& count) {
    return x.each([&](const T& total) { return total / count; });
  }
};

// Σ(x − shift)^power over this thread's rows, power 1 or 2
template <int power, class T>
GJ_HOT Columns<T> column_moment(const Strip<T>& s, const T* x, Columns<T> shift) {
  auto sum = Columns<T>::all(constant<T>(0));
  for (Index i = s.group; i < s.rows; i += s.groups) {
    const auto d = Columns<T>::load(x + s.place(i), s.left()) - shift;
    sum = power == 1 ? sum + d : fma_(d, d, sum);
  }
  return sum;
}
template <class T>
GJ_HOT void column_normalise(
    const Strip<T>& s, const T* x, Columns<T> mean, Columns<T> r, Columns<T> gamma,
    Columns<T> beta, T* y) {
  for (Index i = s.group; i < s.rows; i += s.groups)
    ((Columns<T>::load(x + s.place(i), s.left()) - mean) * r * gamma + beta).store(y + s.place(i), s.left());
}

template <class T>
__global__ void batchnorm_columns_forward(
    Index outer, Index rows, Index channels, double epsilon, const T* x, const T* weight, const T* bias, T* mean, T* rstd, T* y) {
  for (Index b = blockIdx.x; b < outer * Strip<T>::strips(channels); b += gridDim.x) {
    const Strip<T> s(b, rows, channels);
    const T count = constant<T>(static_cast<double>(rows)), lift = constant<T>(epsilon);
    const auto zero = Columns<T>::all(constant<T>(0));
    const auto mu = s.quotient(s.over_groups(column_moment<1>(s, x, zero)), count);
    auto r = s.quotient(s.over_groups(column_moment<2>(s, x, mu)), count);
    r = r.each([&](const T& variance) { return rsqrt_(variance + lift); });
    s.keep(mean, mu);
    s.keep(rstd, r);
    column_normalise<T>(s, x, mu, r, s.parameters(weight, 1), s.parameters(bias, 0), y);
  }
}
GJ_FORWARD_KERNEL(batchnorm_columns_forward)

template <class T>
struct ColumnSums {
  Columns<T> dy, dy_normal;  // Σdy and Σdy·(x − μ)
};
template <class T>
GJ_HOT ColumnSums<T> column_backward_sums(const Strip<T>& s, const T* x, const T* dy, Columns<T> mean) {
  auto first = Columns<T>::all(constant<T>(0)), second = first;
  for (Index i = s.group; i < s.rows; i += s.groups) {
    const auto g = Columns<T>::load(dy + s.place(i), s.left());
    first = first + g;
    second = fma_(g, Columns<T>::load(x + s.place(i), s.left()) - mean, second);
  }
  return {first, second};
}
// dx = (dy − by_mean − (x − μ)·by_variance)·slope
template <class T>
GJ_HOT void column_backward_apply(
    const Strip<T>& s, const T* x, const T* dy, Columns<T> mean, Columns<T> by_mean,
    Columns<T> by_variance, Columns<T> slope, T* dx) {
  for (Index i = s.group; i < s.rows; i += s.groups) {
    const auto d = Columns<T>::load(x + s.place(i), s.left()) - mean, g = Columns<T>::load(dy + s.place(i), s.left());
    ((g - by_mean - d * by_variance) * slope).store(dx + s.place(i), s.left());
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
