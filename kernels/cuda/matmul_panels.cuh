// The part of A and B that a block of the matrix product has in shared memory.
//
// On a GPU neighbouring threads read neighbouring columns: k by k. On the host one thread works through microtile after
// microtile: what a microtile reads lies together, and blocks that are contiguous along k are turned over in registers.
#pragma once

#include "matmul_tile.cuh"

namespace gradjury {

template <class T>
struct Panels {
  using Tile = MatmulTile<T>;
  static constexpr int W = Tile::kWidth, P = Tile::kPacks, R = Tile::kRows, BM = Tile::BM, BN = Tile::BN, BK = Tile::BK;
  using Lanes = Pack<T, W>;
#if defined(GJ_DEVICE)
  static constexpr int kLeftStep = BM, kRightStep = BN / W;  // from one k to the next
  GJ_MATH static int left(int m, int k) { return k * BM + m; }
  GJ_MATH static int right(int p, int k) { return k * kRightStep + p; }
#else
  static constexpr int kLeftStep = R, kRightStep = P;
  GJ_MATH static int left(int m, int k) { return (m / R * BK + k) * R + m % R; }
  GJ_MATH static int right(int p, int k) { return (p / P * BK + k) * P + p % P; }
#endif
};

#if defined(GJ_DEVICE)

// `rows` rows and `steps` steps of A, whose element (m, k) is a[m·a_row + k·a_col].
template <class T>
GJ_MATH void load_left(const T* a, Index a_row, Index a_col, Index rows, int steps, Index, T* left) {
  using L = Panels<T>;
  for (int i = threadIdx.x; i < L::BM * L::BK; i += blockDim.x) {
    const int m = a_col == 1 ? i / L::BK : i % L::BM, k = a_col == 1 ? i % L::BK : i / L::BM;
    if (m < rows && k < steps) left[L::left(m, k)] = a[m * a_row + k * a_col];
  }
}
// The same of B: `columns` columns, element (k, n) at b[k·b_row + n·b_col].
template <class T>
GJ_MATH void load_right(
    const T* b, Index b_row, Index b_col, Index columns, int steps, Index, typename Panels<T>::Lanes* right) {
  using L = Panels<T>;
  for (int i = threadIdx.x; i < L::BN * L::BK; i += blockDim.x) {
    const int n = b_row == 1 ? i / L::BK : i % L::BN, k = b_row == 1 ? i % L::BK : i / L::BN;
    if (n < columns && k < steps) right[L::right(n / L::W, k)].set(n % L::W, b[k * b_row + n * b_col]);
  }
}

#else

// Lanes with bit S of their number set change places with lanes of the other pack where it is not.
template <int S, class T, int W, int... I>
GJ_FN void exchange(Pack<T, W>& a, Pack<T, W>& b, std::integer_sequence<int, I...>) {
  using Register = typename Pack<T, W>::Register;
#if defined(__clang__)
  const Register low = __builtin_shufflevector(a.lane, b.lane, (I & S ? W + I - S : I)...);
  const Register high = __builtin_shufflevector(a.lane, b.lane, (I & S ? W + I : I + S)...);
#else
  using Number = std::conditional_t<sizeof(T) == 4, int, long long>;
  typedef Number Places __attribute__((vector_size(sizeof(Number) * W)));
  const Register low = __builtin_shuffle(a.lane, b.lane, Places{(I & S ? W + I - S : I)...});
  const Register high = __builtin_shuffle(a.lane, b.lane, Places{(I & S ? W + I : I + S)...});
#endif
  a.lane = low;
  b.lane = high;
}
// Turns a square of packs over: bit by bit of the numbers of rows and lanes.
template <int S = 1, class T, int W>
GJ_FN void turn_over(Pack<T, W> (&square)[W]) {
  if constexpr (S < W) {
    GJ_UNROLL
    for (int i = 0; i < W; i++)
      if (!(i & S)) exchange<S>(square[i], square[i + S], std::make_integer_sequence<int, W>{});
    turn_over<2 * S>(square);
  }
}
// The square of up to W rows and W steps at `from`, rows `pitch` apart and contiguous along k: one pack for each k.
template <class T, int W>
GJ_FN void load_square(const T* from, Index pitch, Index rows, Index steps, Pack<T, W>* to, int step) {
  if constexpr (SimdWidth<T>::value == W && W > 1) {
    Pack<T, W> square[W];
    GJ_UNROLL
    for (int r = 0; r < W; r++)
      square[r] = r < rows ? load_pack<T, W>(from + r * pitch, steps) : splat_pack<T, W>(constant<T>(0));
    turn_over(square);
    GJ_UNROLL
    for (int k = 0; k < W; k++)
      if (k < steps) to[k * step] = square[k];
  } else {
    for (int k = 0; k < W && k < steps; k++)
      for (int r = 0; r < W; r++) to[k * step].set(r, r < rows ? from[r * pitch + k] : constant<T>(0));
  }
}

// `rows` rows and `steps` steps of A, whose element (m, k) is a[m·a_row + k·a_col], one of the two being 1. `more` steps
// are left from the first; a microtile's rows that do not exist are zero.
template <class T>
GJ_HOT void load_left(const T* a, Index a_row, Index a_col, Index rows, int steps, Index more, T* left) {
  using L = Panels<T>;
  constexpr int R = L::R, W = L::W;
  const int strips = static_cast<int>(round_up_divide(rows, R));
  for (int s = threadIdx.x; s < strips; s += blockDim.x) {
    const T* from = a + s * R * a_row;
    T* to = left + L::left(s * R, 0);
    const Index live = rows - s * R < R ? rows - s * R : R;
    if (a_col == 1 && SimdWidth<T>::value > 1) {
      GJ_UNROLL
      for (int r = 0; r < R; r += W)
        for (int k = 0; k < steps; k += W) {
          Pack<T, W> turned[W];
          load_square<T, W>(from + r * a_row + k, a_row, live - r, more - k, turned, 1);
          for (int i = 0; i < W && k + i < steps; i++)
            std::memcpy(to + (k + i) * R + r, &turned[i], sizeof(T) * (R - r < W ? R - r : W));
        }
    } else if (live == R && a_row == 1) {
      for (int k = 0; k < steps; k++) std::memcpy(to + k * R, from + k * a_col, R * sizeof(T));
    } else {
      for (int k = 0; k < steps; k++)
        for (int r = 0; r < R; r++) to[k * R + r] = r < live ? from[r * a_row + k * a_col] : constant<T>(0);
    }
  }
}
// The same of B: `columns` columns, element (k, n) at b[k·b_row + n·b_col].
template <class T>
GJ_HOT void load_right(
    const T* b, Index b_row, Index b_col, Index columns, int steps, Index more, typename Panels<T>::Lanes* right) {
  using L = Panels<T>;
  constexpr int P = L::P, W = L::W;
  const int packs = static_cast<int>(round_up_divide(columns, W));
  if (b_row == 1) {
    for (int p = threadIdx.x; p < packs; p += blockDim.x)
      for (int k = 0; k < steps; k += W)
        load_square<T, W>(b + p * W * b_col + k, b_col, columns - p * W, more - k, right + L::right(p, k), P);
  } else {
    for (int k = threadIdx.x; k < steps; k += blockDim.x)
      for (int p = 0; p < packs; p++) right[L::right(p, k)] = load_pack<T, W>(b + k * b_row + p * W, columns - p * W);
  }
}

#endif

}  // namespace gradjury
