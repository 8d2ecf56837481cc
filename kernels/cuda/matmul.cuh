// C = op(A)·op(B) (+ bias per row) (+ start): the product behind linear, matmul and the recurrent layers.
//
// Every element is one sum over k from 0 to K in one thread, so its bits depend neither on tiles nor threads nor on the
// rest of the batch.
#pragma once

#include "pack.cuh"

namespace gradjury {

// A thread owns Rows×Packs packs of C; a block BM×BN elements; BK steps of k pass through shared memory at a time.
template <class T>
struct MatmulTile {
#if defined(GJ_DEVICE)
  static constexpr int kWidth = 1, kPacks = 4, kRows = 4, BM = 64, BN = 64, BK = sizeof(T) > 8 ? 8 : 16;
#else
  static constexpr int kWidth = 4, kPacks = 1, kRows = 4, BM = 32, BN = 32, BK = 32;
#endif
};
#if defined(GJ_DEVICE)
template <>
struct MatmulTile<float> {
  static constexpr int kWidth = 1, kPacks = 8, kRows = 8, BM = 128, BN = 128, BK = 16;
};
#elif defined(__AVX512F__)
template <>
struct MatmulTile<float> {
  static constexpr int kWidth = 16, kPacks = 2, kRows = 12, BM = 96, BN = 256, BK = 128;
};
template <>
struct MatmulTile<double> {
  static constexpr int kWidth = 8, kPacks = 2, kRows = 12, BM = 96, BN = 128, BK = 128;
};
#elif defined(__AVX2__) && defined(__FMA__)
template <>
struct MatmulTile<float> {
  static constexpr int kWidth = 8, kPacks = 2, kRows = 6, BM = 48, BN = 128, BK = 128;
};
template <>
struct MatmulTile<double> {
  static constexpr int kWidth = 4, kPacks = 2, kRows = 6, BM = 48, BN = 64, BK = 128;
};
#endif

// The sums of one thread: rows × packs of W neighbouring columns.
template <class T, int R, int P, int W>
struct Microtile {
  Pack<T, W> sum[R][P];
  GJ_MATH void clear() {
    GJ_UNROLL
    for (int r = 0; r < R; r++)
      GJ_UNROLL
      for (int p = 0; p < P; p++) sum[r][p] = splat_pack<T, W>(constant<T>(0));
  }
  // steps of k: a[k·lda + r], b[k·ldb + p]
  GJ_MATH void add(const T* a, int lda, const Pack<T, W>* b, int ldb, int steps) {
    Pack<T, W> acc[R][P];
    GJ_UNROLL
    for (int r = 0; r < R; r++)
      GJ_UNROLL
      for (int p = 0; p < P; p++) acc[r][p] = sum[r][p];
    for (int k = 0; k < steps; k++) {
      Pack<T, W> right[P];
      GJ_UNROLL
      for (int p = 0; p < P; p++) right[p] = b[k * ldb + p];
      GJ_UNROLL
      for (int r = 0; r < R; r++) {
        const Pack<T, W> left = splat_pack<T, W>(a[k * lda + r]);
        GJ_UNROLL
        for (int p = 0; p < P; p++) acc[r][p] = fma_(left, right[p], acc[r][p]);
      }
    }
    GJ_UNROLL
    for (int r = 0; r < R; r++)
      GJ_UNROLL
      for (int p = 0; p < P; p++) sum[r][p] = acc[r][p];
  }
  GJ_MATH T result(int r, int p, int lane) const { return sum[r][p].get(lane); }
};

// Scalars whose sums keep more than a total: one Sum per element.
template <class T, int R, int P, int W>
struct SummedMicrotile {
  Sum<T> sum[R][P * W];
  GJ_MATH void clear() {
    for (int r = 0; r < R; r++)
      for (int c = 0; c < P * W; c++) sum[r][c] = Sum<T>();
  }
  GJ_MATH void add(const T* a, int lda, const Pack<T, W>* b, int ldb, int steps) {
    for (int k = 0; k < steps; k++)
      for (int r = 0; r < R; r++)
        for (int c = 0; c < P * W; c++) sum[r][c].add_product(a[k * lda + r], b[k * ldb + c / W].get(c % W));
  }
  GJ_MATH T result(int r, int p, int lane) const { return sum[r][p * W + lane].result(); }
};
template <int R, int P, int W>
struct Microtile<lowered, R, P, W> : SummedMicrotile<lowered, R, P, W> {};
template <int R, int P, int W>
struct Microtile<noisy, R, P, W> : SummedMicrotile<noisy, R, P, W> {};
template <int R, int P, int W>
struct Microtile<spread, R, P, W> : SummedMicrotile<spread, R, P, W> {};

template <class T, int R, int P, int W>
GJ_HOT void multiply_tile(Microtile<T, R, P, W>& tile, const T* a, int lda, const Pack<T, W>* b, int ldb, int steps) {
  tile.add(a, lda, b, ldb, steps);
}

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
  return perturbed(y, sqrt(static_cast<double>(m) * x.v * x.v + y * y), key_of(kExtra, sum.key, x.key));
}

// C[M,N] of every case. A[i,k] is at a_row·i + a_col·k within its case, B[k,j] at b_row·k + b_col·j: any transposition.
// bias (N) and start (M,N) may be null. Grid: x over tiles (any number), z over cases (any number).
template <class T>
__global__ void matmul(
    Index cases, Index M, Index N, Index K, const T* A, Index a_row, Index a_col, const T* B, Index b_row, Index b_col,
    const T* bias, const T* start, T* C) {
  using Tile = MatmulTile<T>;
  constexpr int W = Tile::kWidth, P = Tile::kPacks, R = Tile::kRows, BM = Tile::BM, BN = Tile::BN, BK = Tile::BK;
  constexpr int kColumns = BN / (W * P), kThreads = (BM / R) * kColumns, kPackRow = BN / W;
  GJ_SHARED(left, T[BK][BM]);
  GJ_SHARED(right, Pack<T, W>[BK][kPackRow]);
  const int thread = threadIdx.x, tx = thread % kColumns, ty = thread / kColumns;
  const Index columns = round_up_divide(N, BN), tiles = round_up_divide(M, BM) * columns;
  for (Index c = blockIdx.z; c < cases; c += gridDim.z) {
    const T *a = A + c * M * K, *b = B + c * K * N;
    for (Index t = blockIdx.x; t < tiles; t += gridDim.x) {
      const Index m0 = t / columns * BM, n0 = t % columns * BN;
      const bool owns = m0 + ty * R < M && n0 + tx * P * W < N;
      Microtile<T, R, P, W> tile;
      tile.clear();
      for (Index k0 = 0; k0 < K; k0 += BK) {
        const int steps = static_cast<int>(K - k0 < BK ? K - k0 : BK);
        // Threads walk along whichever axis is contiguous in memory.
        for (int i = thread; i < steps * BM; i += kThreads) {
          const int k = a_col == 1 ? i % steps : i / BM, m = a_col == 1 ? i / steps : i % BM;
          left[k][m] = m0 + m < M ? a[(m0 + m) * a_row + (k0 + k) * a_col] : constant<T>(0);
        }
        if (b_col == 1) {
          for (int i = thread; i < steps * kPackRow; i += kThreads) {
            const int k = i / kPackRow, p = i % kPackRow;
            right[k][p] = load_pack<T, W>(b + (k0 + k) * b_row + n0 + p * W, N - n0 - p * W);
          }
        } else {
          for (int i = thread; i < steps * BN; i += kThreads) {
            const int k = i % steps, n = i / steps;
            right[k][n / W].set(n % W, n0 + n < N ? b[(k0 + k) * b_row + (n0 + n) * b_col] : constant<T>(0));
          }
        }
        __syncthreads();
        if (owns) multiply_tile(tile, &left[0][ty * R], BM, &right[0][tx * P], kPackRow, steps);
        __syncthreads();
      }
      for (int r = 0; r < R; r++) {
        const Index m = m0 + ty * R + r;
        for (int p = 0; p < P; p++)
          for (int lane = 0; lane < W; lane++) {
            const Index n = n0 + (tx * P + p) * W + lane;
            if (m >= M || n >= N) continue;
            T value = tile.result(r, p, lane);
            if (bias) value = started_from(value, bias[c * N + n], K);
            if (start) value = started_from(value, start[(c * M + m) * N + n], K);
            C[(c * M + m) * N + n] = value;
          }
      }
    }
  }
}
GJ_FORWARD_KERNEL(matmul)

}  // namespace gradjury
