// C = op(A)·op(B) (+ bias per row) (+ start): the product behind linear, matmul and the recurrent layers.
//
// Every element is one sum over k from 0 to K in one thread, so its bits depend neither on tiles nor threads nor on the
// rest of the batch.
#pragma once

#include "pack.cuh"

namespace gradjury {

// Rows of packs in shared memory are this much longer on the host: walked down a column, a row of a power of two bytes
// would meet few sets of the cache.
#if defined(GJ_DEVICE)
constexpr int kPad = 0;
#else
constexpr int kPad = 1;
#endif

// A thread owns Rows×Packs packs of C; a block BM×BN elements; BK steps of k pass through shared memory at a time.
template <class T>
struct MatmulTile {
#if defined(GJ_DEVICE)
  static constexpr int kWidth = 1, kPacks = 4, kRows = 4, BM = 64, BN = 64, BK = sizeof(T) > 8 ? 8 : 16;
#else
  static constexpr int kWidth = 4, kPacks = 1, kRows = 4, BM = 64, BN = 32, BK = 32;
#endif
};
#if defined(GJ_DEVICE)
template <>
struct MatmulTile<dual<dd>> {
  static constexpr int kWidth = 1, kPacks = 2, kRows = 2, BM = 32, BN = 32, BK = 8;
};
template <>
struct MatmulTile<float> {
  static constexpr int kWidth = 1, kPacks = 8, kRows = 8, BM = 128, BN = 128, BK = 16;
};
#elif defined(__AVX512F__)
template <>
struct MatmulTile<dd> {
  static constexpr int kWidth = 8, kPacks = 1, kRows = 4, BM = 64, BN = 64, BK = 32;
};
template <>
struct MatmulTile<spread> : MatmulTile<dd> {};
template <>
struct MatmulTile<noisy> : MatmulTile<dd> {};
template <>
struct MatmulTile<float> {
  static constexpr int kWidth = 16, kPacks = 2, kRows = 12, BM = 192, BN = 256, BK = 128;
};
template <>
struct MatmulTile<double> {
  static constexpr int kWidth = 8, kPacks = 2, kRows = 12, BM = 192, BN = 128, BK = 128;
};
#elif defined(__AVX2__) && defined(__FMA__)
template <>
struct MatmulTile<float> {
  static constexpr int kWidth = 8, kPacks = 2, kRows = 6, BM = 96, BN = 128, BK = 128;
};
template <>
struct MatmulTile<double> {
  static constexpr int kWidth = 4, kPacks = 2, kRows = 6, BM = 96, BN = 64, BK = 128;
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

// Low precision: matrix units round their operands, and a narrow accumulator every step of the sum.
template <int R, int P, int W>
struct Microtile<lowered, R, P, W> {
  Sum<lowered> sum[R][P * W];
  GJ_MATH void clear() {
    for (int r = 0; r < R; r++)
      for (int c = 0; c < P * W; c++) sum[r][c] = Sum<lowered>();
  }
  GJ_MATH void add(const lowered* a, int lda, const Pack<lowered, W>* b, int ldb, int steps) {
    for (int k = 0; k < steps; k++)
      for (int r = 0; r < R; r++)
        for (int c = 0; c < P * W; c++)
          sum[r][c].add_product(make_lowered(operand(a[k * lda + r])), make_lowered(operand(b[k * ldb + c / W].get(c % W))));
  }
  GJ_MATH lowered result(int r, int p, int lane) const { return sum[r][p * W + lane].result(); }
};

// What Tracked keeps of one sum, for R×W sums at once: neighbours in a row share a factor, neighbours in a column the other.
template <int R, int W>
struct TrackedTile {
  using Lanes = Pack<double, W>;
  Lanes total[R], squares[R], partial_squares[R], partial_sizes[R];
  double last[W], repeats[W];
  Repeats rows[R];
  GJ_MATH void clear() {
    for (int w = 0; w < W; w++) last[w] = repeats[w] = 0;
    for (int r = 0; r < R; r++) {
      rows[r] = Repeats();
      total[r] = squares[r] = partial_squares[r] = partial_sizes[r] = splat_pack<double, W>(0.0);
    }
  }
  GJ_MATH void see_columns(const Lanes& b) {
    GJ_UNROLL
    for (int w = 0; w < W; w++) {
      repeats[w] += b.get(w) == last[w] && b.get(w) != 0 ? 1.0 : 0.0;
      last[w] = b.get(w);
    }
  }
  GJ_MATH void add_row(int r, double a, const Lanes& b) {
    rows[r].see(a);
    const Lanes t = splat_pack<double, W>(a) * b;
    total[r] = total[r] + t;
    squares[r] = fma_(t, t, squares[r]);
    partial_squares[r] = fma_(total[r], total[r], partial_squares[r]);
    partial_sizes[r] = partial_sizes[r] + absolute(total[r]);
  }
  GJ_MATH double variance(int r, int w) const {
    const double m = rows[r].m;
    const bool coherent = rows[r].many() && repeats[w] > 0.2 * (m - 1);
    const double own = accumulation_variance(
        m, true, squares[r].get(w), partial_squares[r].get(w), partial_sizes[r].get(w), coherent);
    return own + 2 * m * underflow_variance();
  }
};

template <int R, int W>
struct Microtile<spread, R, 1, W> {
  TrackedTile<R, W> sum;
  Pack<double, W> carried[R];
  GJ_MATH void clear() {
    sum.clear();
    for (int r = 0; r < R; r++) carried[r] = splat_pack<double, W>(0.0);
  }
  GJ_MATH void add(const spread* a, int lda, const Pack<spread, W>* b, int ldb, int steps) {
    for (int k = 0; k < steps; k++) {
      const Pack<double, W> right = b[k * ldb].v, right_variance = b[k * ldb].variance, right_square = right * right;
      sum.see_columns(right);
      GJ_UNROLL
      for (int r = 0; r < R; r++) {
        const spread left = a[k * lda + r];
        sum.add_row(r, left.v, right);
        carried[r] = fma_(splat_pack<double, W>(left.v * left.v), right_variance, carried[r]);
        carried[r] = fma_(splat_pack<double, W>(left.variance), right_square, carried[r]);
      }
    }
  }
  GJ_MATH spread result(int r, int, int w) const {
    return make_spread(sum.total[r].get(w), sum.variance(r, w) + carried[r].get(w));
  }
};

template <int R, int W>
struct Microtile<noisy, R, 1, W> {
  TrackedTile<R, W> sum;
  unsigned long long key[R][W], replica;
  GJ_MATH void clear() {
    sum.clear();
    replica = 0;
    for (int r = 0; r < R; r++)
      for (int w = 0; w < W; w++) key[r][w] = 0;
  }
  GJ_MATH void add(const noisy* a, int lda, const Pack<noisy, W>* b, int ldb, int steps) {
    for (int k = 0; k < steps; k++) {
      const Pack<noisy, W> right = b[k * ldb];
      sum.see_columns(right.v);
      replica |= replica_of(right.key[0]) | replica_of(a[k * lda].key);
      GJ_UNROLL
      for (int r = 0; r < R; r++) {
        const noisy left = a[k * lda + r];
        sum.add_row(r, left.v, right.v);
        GJ_UNROLL
        for (int w = 0; w < W; w++) key[r][w] = key[r][w] * 0x9E3779B97F4A7C15ull + (left.key ^ (right.key[w] << 1));
      }
    }
  }
  GJ_MATH noisy result(int r, int, int w) const {
    const double total = sum.total[r].get(w), deviation = accumulation_deviation(sum.variance(r, w), total);
    return perturbed(total, deviation, (mixed(key[r][w] + kSum) & ~0xffffull) | replica);
  }
};

template <class T, int R, int P, int W>
GJ_HOT void multiply_tile(Microtile<T, R, P, W>& tile, const T* a, int lda, const Pack<T, W>* b, int ldb, int steps) {
  tile.add(a, lda, b, ldb, steps);
}

// Reads rows that are contiguous along k and hands out store(row, k, value). On the host a thread turns small squares over,
// so that both memories are walked in lines; on a GPU neighbouring threads read neighbouring k.
template <class T, int Threads, class Store>
GJ_MATH void load_across(const T* from, Index pitch, Index rows, int steps, Store store) {
#if defined(GJ_DEVICE)
  for (Index i = threadIdx.x; i < rows * steps; i += Threads) store(static_cast<int>(i / steps), static_cast<int>(i % steps), from[i / steps * pitch + i % steps]);
#else
  constexpr int S = 16;
  const Index across = round_up_divide(rows, S), squares = across * round_up_divide(steps, S);
  for (Index q = threadIdx.x; q < squares; q += Threads) {
    const int r0 = static_cast<int>(q % across) * S, k0 = static_cast<int>(q / across) * S;
    const int r1 = static_cast<int>(rows - r0 < S ? rows - r0 : S), k1 = steps - k0 < S ? steps - k0 : S;
    T square[S][S];
    for (int r = 0; r < r1; r++)
      for (int k = 0; k < k1; k++) square[k][r] = from[(r0 + r) * pitch + k0 + k];
    for (int k = 0; k < k1; k++)
      for (int r = 0; r < r1; r++) store(r0 + r, k0 + k, square[k][r]);
  }
#endif
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
  return perturbed(y, hypot(sqrt(static_cast<double>(m)) * x.v, y), key_of(kExtra, sum.key, x.key));
}

// C[M,N] of every case. A[i,k] is at a_row·i + a_col·k within its case, B[k,j] at b_row·k + b_col·j: any transposition.
// bias (N) and start (M,N) may be null. Grid: x over tiles (any number), z over cases (any number).
template <class T>
__global__ void matmul(
    Index cases, Index M, Index N, Index K, const T* A, Index a_row, Index a_col, const T* B, Index b_row, Index b_col,
    const T* bias, const T* start, T* C) {
  using Tile = MatmulTile<T>;
  constexpr int W = Tile::kWidth, P = Tile::kPacks, R = Tile::kRows, BM = Tile::BM, BN = Tile::BN, BK = Tile::BK;
  constexpr int kColumns = BN / (W * P), kThreads = (BM / R) * kColumns, kPackRow = BN / W, kPitch = kPackRow + kPad;
  GJ_SHARED(left, T[BK][BM]);
  GJ_SHARED(right, Pack<T, W>[BK][kPitch]);
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
        if (a_col == 1)
          load_across<T, kThreads>(
              a + m0 * a_row + k0, a_row, M - m0 < BM ? M - m0 : BM, steps, [&](int m, int k, const T& x) { left[k][m] = x; });
        else
          for (int i = thread; i < steps * BM; i += kThreads) {
            const int k = i / BM, m = i % BM;
            if (m0 + m < M) left[k][m] = a[(m0 + m) * a_row + (k0 + k) * a_col];
          }
        if (b_row == 1)
          load_across<T, kThreads>(
              b + n0 * b_col + k0, b_col, N - n0 < BN ? N - n0 : BN, steps, [&](int n, int k, const T& x) { put(right[k], n, x); });
        else
          for (int i = thread; i < steps * kPackRow; i += kThreads) {
            const int k = i / kPackRow, p = i % kPackRow;
            if (n0 + p * W < N) right[k][p] = load_pack<T, W>(b + (k0 + k) * b_row + n0 + p * W, N - n0 - p * W);
          }
        __syncthreads();
        if (owns) multiply_tile(tile, &left[0][ty * R], BM, &right[0][tx * P], kPitch, steps);
        __syncthreads();
      }
      GJ_UNROLL_DEVICE
      for (int r = 0; r < R; r++) {
        const Index m = m0 + ty * R + r;
        GJ_UNROLL_DEVICE
        for (int p = 0; p < P; p++)
          GJ_UNROLL_DEVICE
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
