// Batch normalisation over (outer, rows, channels, inner): one block per (outer, channel). batchnorm has outer = cases;
// layernorm is the same over its own axes. Ioffe & Szegedy 2015 (arXiv:1502.03167), biased variance.
//
//   y = γ·x̂ + β,  x̂ = (x − μ)·r,  r = (var + ε)^-½
//   dβ = Σdy,  dγ = Σdy·x̂,  dx = γ·r·(dy − dβ/N − x̂·dγ/N)
#pragma once

#include "pack.cuh"

namespace gradjury {

// The values of one channel: element (i, j) at first[i·stride + j], N = rows·inner of them.
struct Channel {
  Index first, rows, inner, stride;
};
GJ_MATH Channel channel_of(Index b, Index rows, Index channels, Index inner) {
  const Index outer = b / channels, channel = b % channels;
  return {(outer * rows * channels + channel) * inner, rows, inner, channels * inner};
}

// Calls packed(offset) for every pack of W elements that is this thread's, and single(offset) for each element left over.
// On a GPU threads share (row, column) pairs instead, so that short rows keep them busy, and everything is single.
#if defined(GJ_DEVICE)
#define GJ_EACH_OF_CHANNEL(c, W, packed, single) \
  for (Index e = threadIdx.x; e < (c).rows * (c).inner; e += blockDim.x) single((c).first + e / (c).inner * (c).stride + e % (c).inner)
#else
#define GJ_EACH_OF_CHANNEL(c, W, packed, single) each_of_channel<W>(c, packed, single)
template <int W, class Packed, class Single>
GJ_MATH void each_of_channel(const Channel& c, Packed packed, Single single) {
  const Index packs = c.inner / W, thread = threadIdx.x, threads = blockDim.x;
  for (Index i = c.rows * thread / threads; i < c.rows * (thread + 1) / threads; i++) {
    const Index row = c.first + i * c.stride;
    if constexpr (W > 1)
      for (Index p = 0; p < packs; p++) packed(row + p * W);
    for (Index j = W > 1 ? packs * W : 0; j < c.inner; j++) single(row + j);
  }
}
#endif

// The sum over the block's threads (a power of two, 256 at most), the same in each: pairwise, in a fixed order.
template <class T>
GJ_MATH T block_sum(const T& mine) {
  GJ_SHARED(totals, T[256]);
  __syncthreads();
  totals[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half; half /= 2) {
    if (threadIdx.x < half) totals[threadIdx.x] = totals[threadIdx.x] + totals[threadIdx.x + half];
    __syncthreads();
  }
  return totals[0];
}

// Σ term(offset) over a channel, and the packed form of the same.
template <class T, class Packed, class Single>
GJ_HOT T channel_sum(const Channel& c, Packed packed_term, Single term) {
  constexpr int W = SimdWidth<T>::value;
  Sum<T> sum;
  Pack<T, W> lanes = splat_pack<T, W>(constant<T>(0));
  auto packed = [&](Index o) { lanes = lanes + packed_term(o); };
  auto single = [&](Index o) { sum.add(term(o)); };
  GJ_EACH_OF_CHANNEL(c, W, packed, single);
  if constexpr (W > 1) return sum.result() + sum_of_lanes(lanes);
  return sum.result();
}

// The form y = (γr)·x + (β − γr·μ) rounds at the size of its terms: what models rounding has to allow for it.
template <class T>
GJ_MATH T with_folded_rounding(const T& y, const T&, const T&, const T&) {
  return y;
}
GJ_MATH spread with_folded_rounding(const spread& y, const spread& x, const spread& mean, const spread& slope) {
  return make_spread(y.v, y.variance + slope.v * slope.v * (x.v * x.v + mean.v * mean.v));
}
GJ_MATH noisy with_folded_rounding(const noisy& y, const noisy& x, const noisy& mean, const noisy& slope) {
  return perturbed(y.v, fabs(slope.v) * (fabs(x.v) + fabs(mean.v)), key_of(kExtra, y.key, x.key));
}

// y = (x − μ)·r·weight + bias; weight and bias: of this channel, or null.
template <class T>
GJ_HOT void affine_apply(const Channel& c, const T* x, T mu, T r, const T* weight, const T* bias, T* y) {
  const T slope = weight ? r * *weight : r;
  auto value = [&](Index o) {
    const T normal = (x[o] - mu) * r;
    const T scaled = weight ? normal * *weight : normal;
    y[o] = with_folded_rounding(bias ? scaled + *bias : scaled, x[o], mu, slope);
  };
  GJ_EACH_OF_CHANNEL(c, 1, value, value);
}

// mean and r per channel, then y. weight and bias may be null.
template <class T>
__global__ void batchnorm_forward(
    Index outer, Index rows, Index channels, Index inner, double epsilon, const T* x, const T* weight, const T* bias, T* mean,
    T* rstd, T* y) {
  constexpr int W = SimdWidth<T>::value;
  for (Index b = blockIdx.x; b < outer * channels; b += gridDim.x) {
    const Channel c = channel_of(b, rows, channels, inner);
    const T count = constant<T>(static_cast<double>(rows * inner));
    const T mu = block_sum(channel_sum<T>(c, [=](Index o) { return load_pack<T, W>(x + o, W); }, [=](Index o) { return x[o]; })) / count;
    const Pack<T, W> mus = splat_pack<T, W>(mu);
    const T squares = block_sum(channel_sum<T>(
        c,
        [=](Index o) {
          const Pack<T, W> d = load_pack<T, W>(x + o, W) - mus;
          return d * d;
        },
        [=](Index o) {
          const T d = x[o] - mu;
          return d * d;
        }));
    const T r = rsqrt_(squares / count + constant<T>(epsilon));
    if (threadIdx.x == 0) mean[b] = mu, rstd[b] = r;
    affine_apply<T>(c, x, mu, r, weight ? weight + b : nullptr, bias ? bias + b : nullptr, y);
  }
}
GJ_FORWARD_KERNEL(batchnorm_forward)

template <class T>
struct ChannelSums {
  T dy, dy_normal;  // Σdy and Σdy·(x − μ)
};
// Both sums of the backward in one reading of x and dy.
template <class T>
GJ_HOT ChannelSums<T> backward_sums(const Channel& c, const T* x, const T* dy, T mu) {
  constexpr int W = SimdWidth<T>::value;
  Sum<T> first, second;
  Pack<T, W> a = splat_pack<T, W>(constant<T>(0)), b = a;
  const Pack<T, W> mus = splat_pack<T, W>(mu);
  auto packed = [&](Index o) {
    const Pack<T, W> g = load_pack<T, W>(dy + o, W);
    a = a + g;
    b = fma_(g, load_pack<T, W>(x + o, W) - mus, b);
  };
  auto single = [&](Index o) {
    first.add(dy[o]);
    second.add_product(dy[o], x[o] - mu);
  };
  GJ_EACH_OF_CHANNEL(c, W, packed, single);
  if constexpr (W > 1) return {first.result() + sum_of_lanes(a), second.result() + sum_of_lanes(b)};
  return {first.result(), second.result()};
}
// dx = (dy − by_mean − (x − μ)·by_variance)·slope
template <class T>
GJ_HOT void backward_apply(const Channel& c, const T* x, const T* dy, T mu, T by_mean, T by_variance, T slope, T* dx) {
  constexpr int W = SimdWidth<T>::value;
  const Pack<T, W> mus = splat_pack<T, W>(mu), means = splat_pack<T, W>(by_mean), variances = splat_pack<T, W>(by_variance),
                   slopes = splat_pack<T, W>(slope);
  auto packed = [&](Index o) {
    const Pack<T, W> d = load_pack<T, W>(x + o, W) - mus;
    store_pack<T, W>(dx + o, (load_pack<T, W>(dy + o, W) - means - d * variances) * slopes, W);
  };
  auto single = [&](Index o) { dx[o] = (dy[o] - by_mean - (x[o] - mu) * by_variance) * slope; };
  GJ_EACH_OF_CHANNEL(c, W, packed, single);
}

// From the statistics that the forward kept: dx, dweight, dbias (per case; all three are written). weight may be null.
template <class T>
__global__ void batchnorm_backward(
    Index outer, Index rows, Index channels, Index inner, const T* x, const T* weight, const T* mean, const T* rstd, const T* dy,
    T* dx, T* dweight, T* dbias) {
  for (Index b = blockIdx.x; b < outer * channels; b += gridDim.x) {
    const Channel c = channel_of(b, rows, channels, inner);
    const T count = constant<T>(static_cast<double>(rows * inner)), mu = mean[b], r = rstd[b];
    const ChannelSums<T> mine = backward_sums<T>(c, x, dy, mu);
    const T sum = block_sum(mine.dy), weighted = block_sum(mine.dy_normal) * r;
    if (threadIdx.x == 0) {
      dbias[b] = sum;
      dweight[b] = weighted;
    }
    const T slope = weight ? r * weight[b] : r;
    backward_apply<T>(c, x, dy, mu, sum / count, weighted * r / count, slope, dx);
  }
}
GJ_KERNEL(batchnorm_backward)

// to = from·slope
template <class T>
GJ_HOT void scaled_copy(const Channel& c, const T* from, T slope, T* to) {
  constexpr int W = SimdWidth<T>::value;
  const Pack<T, W> slopes = splat_pack<T, W>(slope);
  auto packed = [&](Index o) { store_pack<T, W>(to + o, load_pack<T, W>(from + o, W) * slopes, W); };
  auto single = [&](Index o) { to[o] = from[o] * slope; };
  GJ_EACH_OF_CHANNEL(c, W, packed, single);
}

// With statistics that are constants (evaluation): y and, backward, dx = dy·γ·r with the parameters' sums.
template <class T>
__global__ void batchnorm_fixed_forward(
    Index outer, Index rows, Index channels, Index inner, double epsilon, const T* x, const T* mean, const T* variance,
    const T* weight, const T* bias, T* y) {
  for (Index b = blockIdx.x; b < outer * channels; b += gridDim.x) {
    const Channel c = channel_of(b, rows, channels, inner);
    const T mu = mean[b], r = rsqrt_(variance[b] + constant<T>(epsilon));
    affine_apply<T>(c, x, mu, r, weight ? weight + b : nullptr, bias ? bias + b : nullptr, y);
  }
}
GJ_FORWARD_KERNEL(batchnorm_fixed_forward)

template <class T>
__global__ void batchnorm_fixed_backward(
    Index outer, Index rows, Index channels, Index inner, double epsilon, const T* x, const T* mean, const T* variance,
    const T* weight, const T* dy, T* dx, T* dweight, T* dbias) {
  for (Index b = blockIdx.x; b < outer * channels; b += gridDim.x) {
    const Channel c = channel_of(b, rows, channels, inner);
    const T mu = mean[b], r = rsqrt_(variance[b] + constant<T>(epsilon));
    const ChannelSums<T> mine = backward_sums<T>(c, x, dy, mu);
    const T sum = block_sum(mine.dy), weighted = block_sum(mine.dy_normal) * r;
    if (threadIdx.x == 0) dbias[b] = sum, dweight[b] = weighted;
    const T slope = weight ? r * weight[b] : r;
    scaled_copy<T>(c, dy, slope, dx);
  }
}
GJ_KERNEL(batchnorm_fixed_backward)

}  // namespace gradjury
