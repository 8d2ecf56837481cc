// Sums and sums of products: the accumulator of every reduction, for every scalar.
#pragma once

#include "bound.cuh"
#include "dd.cuh"
#include "dual.cuh"
#include "lowered.cuh"
#include "noisy.cuh"
#include "spread.cuh"

namespace gradjury {

// One running sum, from left to right.
template <class T>
struct Sum {
  T total = constant<T>(0);
  GJ_MATH void add(const T& x) { total = total + x; }
  GJ_MATH void add_product(const T& a, const T& b) { total = fma_(a, b, total); }
  GJ_MATH T result() const { return total; }
  static constexpr bool kSplits = true;  // whether threads may share a sum
};

template <>
struct Sum<lowered> {
  double total = 0.0;
  GJ_MATH void keep(double x) { total = to_bits(x, arithmetic().accumulator_bits, false); }
  GJ_MATH void add(const lowered& x) { keep(total + x.v); }
  GJ_MATH void add_product(const lowered& a, const lowered& b) { keep(fma_(a.v, b.v, total)); }
  GJ_MATH lowered result() const { return stored(total); }
  static constexpr bool kSplits = true;
};

// The variance, in units of u², of a sum of m terms in whatever order (docs/numerics.md, accumulation):
// products and partial sums of any order (squares = Σ term²), sequential partial sums (partial_squares = Σ s_k²), and the
// part that rounds coherently (partial_sizes = Σ|s_k|), in full where neighbouring terms are equal.
GJ_MATH double accumulation_variance(
    double m, bool products, double squares, double partial_squares, double partial_sizes, bool coherent) {
  if (m <= 1) return products ? squares : 0.0;
  const double weight = (coherent ? 1.0 : arithmetic().kappa) * partial_sizes / 6.0;
  return squares * ((products ? 1.0 : 0.0) + 0.5 * m) + partial_squares + weight * weight;
}

// Its root, for a sum that came to `total`: where the squares have underflowed, the size of the sum, which is never more.
GJ_MATH double accumulation_deviation(double variance, double total) {
  return variance < 0x1p-900 ? fmax(sqrt(variance), fabs(total)) : sqrt(variance);
}

// Counts how often a sequence repeats its last value, zeros apart.
struct Repeats {
  double last = 0.0, count = 0.0, m = 0.0;
  GJ_MATH void see(double x) {
    count += x == last && x != 0.0 ? 1.0 : 0.0;
    last = x;
    m += 1.0;
  }
  GJ_MATH bool many() const { return count > 0.2 * (m - 1.0); }
};

// What the accumulation variance needs to know of one sum.
struct Tracked {
  double total = 0.0, squares = 0.0, partial_squares = 0.0, partial_sizes = 0.0;
  Repeats first, second;
  bool products = false;
  GJ_MATH void add_term(double t) {
    total += t;
    squares += t * t;
    partial_squares += total * total;
    partial_sizes += fabs(total);
  }
  GJ_MATH void add(double x) {
    first.see(x);
    add_term(x);
  }
  GJ_MATH void add_product(double a, double b) {
    products = true;
    first.see(a);
    second.see(b);
    add_term(a * b);
  }
  GJ_MATH double variance() const {
    const bool coherent = first.many() && (!products || second.many());
    return accumulation_variance(first.m, products, squares, partial_squares, partial_sizes, coherent) +
        2 * first.m * underflow_variance();
  }
  GJ_MATH double deviation() const {
    const bool rounds = products || first.m > 1;
    return rounds ? accumulation_deviation(variance(), total) : sqrt(variance());
  }
};

template <>
struct Sum<spread> {
  Tracked sum;
  double carried = 0.0;
  GJ_MATH void add(const spread& x) {
    sum.add(x.v);
    carried += x.variance;
  }
  GJ_MATH void add_product(const spread& a, const spread& b) {
    sum.add_product(a.v, b.v);
    carried += product_variance(a, b);
  }
  GJ_MATH spread result() const { return make_spread(sum.total, sum.variance() + carried); }
  static constexpr bool kSplits = false;
};

template <>
struct Sum<noisy> {
  Tracked sum;
  unsigned long long key = 0, replica = 0;
  GJ_MATH void see(unsigned long long a, unsigned long long b) {
    key = key * 0x9E3779B97F4A7C15ull + (a ^ (b << 1));
    replica |= replica_of(a) | replica_of(b);
  }
  GJ_MATH void add(const noisy& x) {
    sum.add(x.v);
    see(x.key, 0);
  }
  GJ_MATH void add_product(const noisy& a, const noisy& b) {
    sum.add_product(a.v, b.v);
    see(a.key, b.key);
  }
  GJ_MATH noisy result() const {
    return perturbed(sum.total, sum.deviation(), (mixed(key + kSum) & ~0xffffull) | replica);
  }
  static constexpr bool kSplits = false;
};

}  // namespace gradjury
