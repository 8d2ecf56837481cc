// Tiles of the matrix product: how many sums a thread keeps, and how each scalar adds products to them.
#pragma once

#include "pack.cuh"

namespace gradjury {

// A microtile is kRows×kPacks packs of C, kWidth columns a pack; a block makes BM×BN elements, BK steps of k at a time.
template <class T>
struct MatmulTile {
#if defined(GJ_DEVICE)
  static constexpr int kWidth = 1, kPacks = 4, kRows = 4, BM = 64, BN = 64, BK = sizeof(T) > 8 ? 8 : 16;
#else
  static constexpr int kWidth = SimdWidth<double>::value > 1 ? SimdWidth<double>::value : 4;
  static constexpr int kPacks = 1, kRows = 4, BM = 64, BN = 64, BK = 32;
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
struct MatmulTile<float> {
  static constexpr int kWidth = 16, kPacks = 2, kRows = 12, BM = 192, BN = 256, BK = 192;
};
template <>
struct MatmulTile<double> {
  static constexpr int kWidth = 8, kPacks = 2, kRows = 12, BM = 192, BN = 128, BK = 192;
};
#elif defined(__AVX2__) && defined(__FMA__)
template <>
struct MatmulTile<float> {
  static constexpr int kWidth = 8, kPacks = 2, kRows = 6, BM = 96, BN = 128, BK = 192;
};
template <>
struct MatmulTile<double> {
  static constexpr int kWidth = 4, kPacks = 2, kRows = 6, BM = 96, BN = 64, BK = 192;
};
#endif

// Pack i of a row: of packs, or of numbers that lie in memory like them.
template <class T, int W>
GJ_MATH Pack<T, W> pack_of(const Pack<T, W>* row, int i) {
  return row[i];
}
template <class T, int W>
GJ_MATH Pack<T, W> pack_of(const T* row, int i) {
  return load_pack<T, W>(row + i * W, W);
}

// The sums of a microtile. `add` takes steps of k: a[k·lda + r] and b[k·ldb + p], for the first Live rows.
template <class T, int R, int P, int W>
struct Microtile {
  Pack<T, W> sum[R][P];
  GJ_MATH void clear() {
    GJ_UNROLL
    for (int r = 0; r < R; r++)
      GJ_UNROLL
      for (int p = 0; p < P; p++) sum[r][p] = splat_pack<T, W>(constant<T>(0));
  }
  template <int Live, class Row>
  GJ_MATH void add(const T* a, int lda, const Row* b, Index ldb, int steps) {
    Pack<T, W> acc[Live][P];
    GJ_UNROLL
    for (int r = 0; r < Live; r++)
      GJ_UNROLL
      for (int p = 0; p < P; p++) acc[r][p] = sum[r][p];
    for (int k = 0; k < steps; k++) {
      Pack<T, W> right[P];
      GJ_UNROLL
      for (int p = 0; p < P; p++) right[p] = pack_of<T, W>(b + k * ldb, p);
      GJ_UNROLL
      for (int r = 0; r < Live; r++) {
        const Pack<T, W> left = splat_pack<T, W>(a[k * lda + r]);
        GJ_UNROLL
        for (int p = 0; p < P; p++) acc[r][p] = fma_(left, right[p], acc[r][p]);
      }
    }
    GJ_UNROLL
    for (int r = 0; r < Live; r++)
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
  template <int Live>
  GJ_MATH void add(const lowered* a, int lda, const Pack<lowered, W>* b, Index ldb, int steps) {
    for (int k = 0; k < steps; k++)
      GJ_UNROLL_DEVICE
      for (int c = 0; c < P * W; c++) {
        const lowered right = make_lowered(operand(b[k * ldb + c / W].get(c % W)));
        GJ_UNROLL_DEVICE
        for (int r = 0; r < Live; r++) sum[r][c].add_product(make_lowered(operand(a[k * lda + r])), right);
      }
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
  template <int Live>
  GJ_MATH void add(const spread* a, int lda, const Pack<spread, W>* b, Index ldb, int steps) {
    const double unit = arithmetic().u * arithmetic().u;
    for (int k = 0; k < steps; k++) {
      const Pack<double, W> right = b[k * ldb].v, right_variance = b[k * ldb].variance, right_square = right * right;
      sum.see_columns(right);
      GJ_UNROLL
      for (int r = 0; r < Live; r++) {
        const spread left = a[k * lda + r];
        sum.add_row(r, left.v, right);
        carried[r] = fma_(splat_pack<double, W>(left.v * left.v), right_variance, carried[r]);
        carried[r] = fma_(splat_pack<double, W>(left.variance), right_square, carried[r]);
        carried[r] = fma_(splat_pack<double, W>(unit * left.variance), right_variance, carried[r]);
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
  template <int Live>
  GJ_MATH void add(const noisy* a, int lda, const Pack<noisy, W>* b, Index ldb, int steps) {
    for (int k = 0; k < steps; k++) {
      const Pack<noisy, W> right = b[k * ldb];
      sum.see_columns(right.v);
      replica |= replica_of(right.key[0]) | replica_of(a[k * lda].key);
      GJ_UNROLL
      for (int r = 0; r < Live; r++) {
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

// A function of its own on the host, so that the sums stay in registers.
template <int Live, class T, int R, int P, int W, class Row>
GJ_HOT void multiply_tile(Microtile<T, R, P, W>& tile, const T* a, int lda, const Row* b, Index ldb, int steps) {
  tile.template add<Live>(a, lda, b, ldb, steps);
}

// The same for as many rows as exist; on the host a tile with few takes a shorter loop.
template <class T, int R, int P, int W, class Row>
GJ_MATH void multiply_rows(
    Microtile<T, R, P, W>& tile, Index rows, const T* a, int lda, const Row* b, Index ldb, int steps) {
#if !defined(GJ_DEVICE)
  if (rows == 1) return multiply_tile<1>(tile, a, lda, b, ldb, steps);
  if (rows == 2) return multiply_tile<2>(tile, a, lda, b, ldb, steps);
  if (R > 4 && rows <= 4) return multiply_tile<R < 4 ? R : 4>(tile, a, lda, b, ldb, steps);
  if (R > 8 && rows <= 8) return multiply_tile<R < 8 ? R : 8>(tile, a, lda, b, ldb, steps);
#endif
  multiply_tile<R>(tile, a, lda, b, ldb, steps);
}

}  // namespace gradjury
