// C = op(A)·op(B) (+ bias per row) (+ start): the product behind linear, matmul and the recurrent layers.
//
// Every element is one sum over k from 0 to K in one thread, so its bits depend neither on tiles nor threads nor on the
// rest of the batch.
#pragma once

#include "matmul_panels.cuh"

namespace gradjury {

constexpr int kLines = 16;  // rows of B that are read along at a time, where all of it is read once

// x added to a finished sum of m products as if the accumulation had started from it: m more roundings of its size.
template <class T>
GJ_MATH T started_from(const T& sum, const T& x, Index) {
  return sum + x;
}
GJ_MATH spread started_from(const spread& sum, const spread& x, Index m) {
  const spread y = sum + x;
  return make_spread(y.v, y.variance + static_cast<double>(m) * x.v * x.v);
}
GJ_MATH noisy started_from(const noisy& sum, const noisy& x, Index m) {
  const double y = sum.v + x.v;
  return perturbed(y, hypot(sqrt(static_cast<double>(m)) * x.v, y), key_of(kExtra, sum.key, x.key));
}

// One case of the product. Turned: B'·A' is computed instead, and C written by columns.
template <class T>
struct Product {
  Index M, N, K;
  const T *a, *b;
  Index a_row, a_col, b_row, b_col;
  const T *bias, *start;
  T* c;
  bool turned;

  GJ_MATH void turn() {
    turned = true;
    const Index rows = M, row = a_row, col = a_col;
    const T* left = a;
    M = N, N = rows;
    a = b, a_row = b_col, a_col = b_row;
    b = left, b_row = col, b_col = row;
  }
  GJ_MATH void write(Index m, Index n, T value) const {
    const Index row = turned ? n : m, column = turned ? m : n, place = row * (turned ? M : N) + column;
    if (bias) value = started_from(value, bias[column], K);
    if (start) value = started_from(value, start[place], K);
    c[place] = value;
  }
  // A row of neighbours, of which `left` exist.
  template <int W>
  GJ_MATH void write_pack(Index m, Index n, Pack<T, W> value, Index left) const {
    if (bias) value = value + load_pack<T, W>(bias + n, left);
    if (start) value = value + load_pack<T, W>(start + m * N + n, left);
    store_pack<T, W>(c + m * N + n, value, left);
  }
};

// A microtile's results to (m, n) on, as far as C goes.
template <class T, int R, int P, int W>
GJ_HOT void write_tile(const Microtile<T, R, P, W>& tile, const Product<T>& product, Index m, Index n) {
#if !defined(GJ_DEVICE)
  if constexpr (SimdWidth<T>::value == W && W > 1) {
    const Index rows = product.M - m < R ? product.M - m : R, columns = product.N - n;
    for (int r = 0; r < rows && !product.turned; r++)
      for (int p = 0; p < P && p * W < columns; p++)
        product.write_pack(m + r, n + p * W, tile.sum[r][p], columns - p * W);
    if (!product.turned) return;
  }
#endif
  GJ_UNROLL_DEVICE
  for (int r = 0; r < R; r++)
    GJ_UNROLL_DEVICE
    for (int p = 0; p < P; p++)
      GJ_UNROLL_DEVICE
      for (int lane = 0; lane < W; lane++) {
        const Index column = n + p * W + lane;
        if (m + r < product.M && column < product.N) product.write(m + r, column, tile.result(r, p, lane));
      }
}

// Calls body(tile, m, n) for the microtiles of rows×columns elements that are this thread's: on a GPU a thread has one, on
// the host any number.
template <class T, class Tile, class Body>
GJ_MATH void each_microtile(Tile* tiles, Index rows, Index columns, Body body) {
  using L = Panels<T>;
#if defined(GJ_DEVICE)
  constexpr int kAcross = L::BN / (L::P * L::W);
  const int m = threadIdx.x / kAcross * L::R, n = threadIdx.x % kAcross * L::P * L::W;
  if (m < rows && n < columns) body(*tiles, m, n);
#else
  const int down = static_cast<int>(round_up_divide(rows, L::R));
  const int count = down * static_cast<int>(round_up_divide(columns, L::P * L::W));
  for (int i = threadIdx.x; i < count; i += blockDim.x) body(tiles[i], i % down * L::R, i / down * L::P * L::W);
#endif
}

// Elements of C that a block makes at a time: on the host the work is dealt out evenly, to every block if it can be.
template <class T>
GJ_MATH void choose_extent(Index cases, Index M, Index N, Index& tall, Index& wide) {
  using L = Panels<T>;
  tall = L::BM, wide = L::BN;
#if !defined(GJ_DEVICE)
  const Index blocks = static_cast<Index>(gridDim.x) * gridDim.z;
  Index down = round_up_divide(M, tall), across = round_up_divide(N, wide);
  while (down * across * cases < blocks && (M / down > 4 * L::R || N / across > 4 * L::P * L::W))
    (M / down > N / across ? down : across) *= 2;
  tall = round_up_divide(round_up_divide(M, down), L::R) * L::R;
  wide = round_up_divide(round_up_divide(N, across), L::P * L::W) * L::P * L::W;
#endif
}

// C[M,N] of every case. A[i,k] is at a_row·i + a_col·k within its case, B[k,j] at b_row·k + b_col·j; one stride of each
// is 1. bias (N) and start (M,N) may be null. Grid: x over tiles (any number), z over cases (any number). Block: on a GPU
// a thread for every microtile, on the host any number.
template <class T>
__global__ void matmul(
    Index cases, Index M, Index N, Index K, const T* A, Index a_row, Index a_col, const T* B, Index b_row, Index b_col,
    const T* bias, const T* start, T* C) {
  using L = Panels<T>;
  using Tile = Microtile<T, L::R, L::P, L::W>;
  constexpr bool kDirect = SimdWidth<T>::value == L::W && L::W > 1;
  GJ_SHARED(left, T[L::BK * L::BM]);
  GJ_SHARED(right, typename Panels<T>::Lanes[L::BK * L::BN / L::W]);
#if defined(GJ_DEVICE)
  Tile tiles[1];
#else
  GJ_SHARED(tiles, Microtile<T, L::R, L::P, L::W>[L::BM / L::R * (L::BN / (L::P * L::W))]);
#endif
  for (Index c = blockIdx.z; c < cases; c += gridDim.z) {
    Product<T> product{M, N, K, A + c * M * K, B + c * K * N, a_row, a_col, b_row, b_col, nullptr, nullptr, C + c * M * N, false};
    if (bias) product.bias = bias + c * N;
    if (start) product.start = start + c * M * N;
#if !defined(GJ_DEVICE)
    if (N < M && 2 * N <= L::P * L::W) product.turn();  // few columns would leave most lanes idle
#endif
    Index tall, wide;
    choose_extent<T>(cases, product.M, product.N, tall, wide);
    const Index across = round_up_divide(product.N, wide), count = round_up_divide(product.M, tall) * across;
    for (Index t = blockIdx.x; t < count; t += gridDim.x) {
      const Index m0 = t / across * tall, n0 = t % across * wide;
      const Index rows = product.M - m0 < tall ? product.M - m0 : tall;
      const Index columns = product.N - n0 < wide ? product.N - n0 : wide;
      // Columns that a block needs once are read where they lie; for few rows of C along lines of memory.
      const Index once = product.M <= L::R && product.b_row != 1 ? columns : 0;
      const int direct = kDirect ? static_cast<int>(once / (L::P * L::W) * L::P * L::W) : 0;
      each_microtile<T>(tiles, rows, columns, [](Tile& tile, int, int) { tile.clear(); });
      const int depth = direct > 0 && rows <= 4 ? kLines : L::BK;
      for (Index k0 = 0; k0 < K; k0 += depth) {
        const int steps = static_cast<int>(K - k0 < depth ? K - k0 : depth);
        load_left<T>(
            product.a + m0 * product.a_row + k0 * product.a_col, product.a_row, product.a_col, rows, steps, K - k0, left);
        const T* b = product.b + k0 * product.b_row + n0 * product.b_col;
        load_right<T>(
            b + direct * product.b_col, product.b_row, product.b_col, columns - direct, steps, K - k0,
            right + L::right(direct / L::W, 0));
        __syncthreads();
        each_microtile<T>(tiles, rows, columns, [&](Tile& tile, int m, int n) {
          const T* a = left + L::left(m, 0);
          if constexpr (kDirect)
            if (n < direct) return multiply_rows(tile, rows - m, a, L::kLeftStep, b + n, product.b_row, steps);
          multiply_rows(tile, rows - m, a, L::kLeftStep, right + L::right(n / L::W, 0), L::kRightStep, steps);
        });
        __syncthreads();
      }
      each_microtile<T>(
          tiles, rows, columns, [&](const Tile& tile, int m, int n) { write_tile(tile, product, m0 + m, n0 + n); });
    }
  }
}
GJ_FORWARD_KERNEL(matmul)

}  // namespace gradjury
