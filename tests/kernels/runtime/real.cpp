// The kernels that have barriers, with blocks of many threads, under a sanitizer:
//   real SEED OS_THREADS
// Sizes with ragged edges; prints the sum of all results.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "batchnorm_columns.cuh"
#include "matmul.cuh"

namespace {

using gradjury::Index;
using Real = GJ_SCALAR;

std::vector<Real> numbers(size_t n, int step) {
  std::vector<Real> values(n);
  for (size_t i = 0; i < n; i++) values[i] = static_cast<Real>(static_cast<double>(i * step % 101) / 50.0 - 1.0);
  return values;
}

void launch(unsigned blocks, unsigned threads, const std::function<void()>& body) {
  auto call = [](void* closure) { (*static_cast<const std::function<void()>*>(closure))(); };
  fibre::launch({blocks, 1, 1}, {threads, 1, 1}, call, const_cast<std::function<void()>*>(&body));
}

double total(const std::vector<Real>& values) {
  double sum = 0;
  for (const Real& value : values) sum += value;
  return sum;
}

double product(bool transpose_a, bool transpose_b) {
  const Index cases = 2, M = 37, N = 45, K = 150;
  const auto a = numbers(cases * M * K, 37), b = numbers(cases * K * N, 53), bias = numbers(cases * N, 11);
  const auto start = numbers(cases * M * N, 7);
  std::vector<Real> c(cases * M * N);
  const Index a_row = transpose_a ? 1 : K, a_col = transpose_a ? M : 1, b_row = transpose_b ? 1 : N, b_col = transpose_b ? K : 1;
  launch(3, 16, [&] {
    gradjury::matmul<Real>(
        cases, M, N, K, a.data(), a_row, a_col, b.data(), b_row, b_col, bias.data(), start.data(), c.data());
  });
  return total(c);
}

struct Batchnorm {
  Index outer = 2, rows = 9, channels = 21, inner = 1;
  std::vector<Real> x, dy, weight, bias, mean, rstd, y, dx, dweight, dbias;
  explicit Batchnorm(Index inner_) : inner(inner_) {
    const size_t all = outer * rows * channels * inner, few = outer * channels;
    x = numbers(all, 37), dy = numbers(all, 53), weight = numbers(few, 11), bias = numbers(few, 7);
    for (auto* small : {&mean, &rstd, &dweight, &dbias}) small->resize(few);
    y.resize(all), dx.resize(all);
  }
  double sum() const { return total(y) + total(dx) + total(dweight) + total(dbias) + total(mean) + total(rstd); }
};

double batchnorm(Index inner) {
  Batchnorm b(inner);
  launch(4, 16, [&] {
    gradjury::batchnorm_forward<Real>(
        b.outer, b.rows, b.channels, b.inner, 1e-5, b.x.data(), b.weight.data(), b.bias.data(), b.mean.data(), b.rstd.data(),
        b.y.data());
  });
  launch(4, 16, [&] {
    gradjury::batchnorm_backward<Real>(
        b.outer, b.rows, b.channels, b.inner, b.x.data(), b.weight.data(), b.mean.data(), b.rstd.data(), b.dy.data(), b.dx.data(),
        b.dweight.data(), b.dbias.data());
  });
  return b.sum();
}

double batchnorm_columns() {
  Batchnorm b(1);
  launch(2, 4, [&] {
    gradjury::batchnorm_columns_forward<Real>(
        b.outer, b.rows, b.channels, 1e-5, b.x.data(), b.weight.data(), b.bias.data(), b.mean.data(), b.rstd.data(), b.y.data());
  });
  launch(2, 4, [&] {
    gradjury::batchnorm_columns_backward<Real>(
        b.outer, b.rows, b.channels, b.x.data(), b.weight.data(), b.mean.data(), b.rstd.data(), b.dy.data(), b.dx.data(),
        b.dweight.data(), b.dbias.data());
  });
  return b.sum();
}

}  // namespace

int main(int, char** arguments) {
  fibre::set_seed(std::atol(arguments[1]));
  fibre::set_threads(std::atoi(arguments[2]));
  for (const bool a : {false, true})
    for (const bool b : {false, true}) std::printf("%.17g\n", product(a, b));
  std::printf("%.17g\n%.17g\n%.17g\n", batchnorm(1), batchnorm(19), batchnorm_columns());
}
