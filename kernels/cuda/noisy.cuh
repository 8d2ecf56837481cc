// A replica of a computation with model noise: each operation's result t gets a draw from U(−1,1)·(c·u·|t| + η)
// (docs/numerics.md, replicas; Parker, Monte Carlo Arithmetic).
//
// The draw is a hash of the operation and of its operands' keys, and the result's key is that hash. So there is no state,
// and the bits are the same in any order of threads. It is also what a real machine does: rounding is a function of the
// operation and its operands, so the same operation on the same operands rounds the same way wherever it is computed
// (a value recomputed in backward has forward's error), a + b as b + a, and errors that cancel in the machine cancel here;
// draws that were independent every time would miss that. Round to nearest is odd, so a draw follows the sign of the result.
// Each input element has a key of its own, hence operations on different operands have draws that are independent to the
// quality of the hash. The low 16 bits of a key are the replica's number and pass through every operation.
#pragma once

#include "scalar.cuh"

namespace gradjury {

struct noisy {
  double v;
  unsigned long long key;
};

enum NoisyOperation : unsigned long long {
  kAdd = 1, kSubtract, kMultiply, kDivide, kScale, kTanh, kSigmoid, kExp, kLog, kSqrt, kRsqrt, kSum, kExtra
};

GJ_MATH noisy make_noisy(double v, unsigned long long key) {
  noisy r;
  r.v = v;
  r.key = key;
  return r;
}
// Constants have keys of their own and belong to no replica.
GJ_MATH unsigned long long key_of_constant(double c) { return bits_of(c) & ~0xffffull; }
template <>
struct Constant<noisy> {
  GJ_MATH static noisy of(double c) { return make_noisy(c, key_of_constant(c)); }
};
GJ_MATH double primal(const noisy& x) { return x.v; }

// Stafford's variant 13 of MurmurHash3's finaliser.
GJ_MATH unsigned long long mixed(unsigned long long x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}
GJ_MATH unsigned long long replica_of(unsigned long long key) { return key & 0xffff; }
// Key of the result of an operation.
GJ_MATH unsigned long long key_of(unsigned long long operation, unsigned long long a, unsigned long long b) {
  const unsigned long long hash = mixed(mixed(a + 0x9E3779B97F4A7C15ull * operation) ^ (b + 0xD1B54A32D192ED03ull));
  return (hash & ~0xffffull) | (replica_of(a) | replica_of(b));
}
// The same where the operands commute.
GJ_MATH unsigned long long key_of_pair(unsigned long long operation, unsigned long long a, unsigned long long b) {
  return a < b ? key_of(operation, a, b) : key_of(operation, b, a);
}
// Uniform in (−1, 1), from the top 53 bits of a hash of the key: the middles of 2^53 equal intervals.
GJ_MATH double uniform(unsigned long long key) {
  return (static_cast<double>(static_cast<long long>(mixed(key)) >> 11) + 0.5) * 0x1p-52;
}

// y with its draw; `size` is the error's largest value in units of u. An infinity stays what it is.
GJ_MATH noisy perturbed(double y, double size, unsigned long long key) {
  const double wanted = arithmetic().u * size + arithmetic().eta, largest = 1.7976931348623157e308;
  return make_noisy(y + uniform(key) * copysign(wanted < largest ? wanted : largest, y), key);
}
// A function: in coherent replicas all elements share one draw per function.
// `lost`: what may underflow in it beyond η.
GJ_MATH noisy perturbed_function(
    double y, unsigned long long operation, unsigned long long operand, double lost = 0.0) {
  const unsigned long long key = key_of(operation, operand, 0);
  const double c = arithmetic().function_error;
  if (!arithmetic().coherent || fabs(y) > 1.7976931348623157e308) return perturbed(y, c * fabs(y) + lost / arithmetic().u, key);
  const double shared = uniform(key_of(operation, replica_of(operand), 0));
  return make_noisy(y + shared * c * arithmetic().u * y + uniform(key) * (arithmetic().eta + lost), key);
}

GJ_MATH noisy operator-(const noisy& a) { return make_noisy(-a.v, a.key); }
GJ_MATH noisy operator+(const noisy& a, const noisy& b) {
  const double y = a.v + b.v;
  return perturbed(y, fabs(y), key_of_pair(kAdd, a.key, b.key));
}
GJ_MATH noisy operator-(const noisy& a, const noisy& b) {
  const double y = a.v - b.v;
  return perturbed(y, fabs(y), key_of(kSubtract, a.key, b.key));
}
GJ_MATH noisy operator*(const noisy& a, const noisy& b) {
  const double y = a.v * b.v;
  return perturbed(y, fabs(y), key_of_pair(kMultiply, a.key, b.key));
}
GJ_MATH noisy operator/(const noisy& a, const noisy& b) {
  const double y = a.v / b.v;
  return perturbed(y, fabs(y), key_of(kDivide, a.key, b.key));
}
GJ_MATH noisy fma_(const noisy& a, const noisy& b, const noisy& c) { return a * b + c; }
GJ_MATH noisy scale(const noisy& x, double c) {
  const double y = x.v * c;
  int exponent;
  const double size = frexp(fabs(c), &exponent) == 0.5 ? 0.0 : fabs(y);
  return perturbed(y, size, key_of(kScale, x.key, key_of_constant(c)));
}
GJ_MATH noisy tanh_(const noisy& x) { return perturbed_function(tanh(x.v), kTanh, x.key); }
GJ_MATH noisy sigmoid_(const noisy& x) { return perturbed_function(sigmoid_(x.v), kSigmoid, x.key, smallest_normal()); }
GJ_MATH noisy exp_(const noisy& x) { return perturbed_function(exp(x.v), kExp, x.key, smallest_normal()); }
GJ_MATH noisy log_(const noisy& x) { return perturbed_function(log(x.v), kLog, x.key); }
GJ_MATH noisy sqrt_(const noisy& x) {
  const double y = sqrt(x.v);
  return perturbed(y, fabs(y), key_of(kSqrt, x.key, 0));
}
GJ_MATH noisy rsqrt_(const noisy& x) { return perturbed_function(1 / sqrt(x.v), kRsqrt, x.key); }

}  // namespace gradjury
