// The variance of batchnorm's rounding error. Errors of the mean and of r are common to a whole channel and do not average
// out, so they are kept apart from the elementwise ones: formulas in docs/numerics.md, batchnorm.
//
// One thread per (outer, channel). Arrays of spread hold value and variance; rstd's variance is that of δr/r.
#pragma once

#include "batchnorm.cuh"

namespace gradjury {

// Calls body(offset) for the elements of a channel in order.
template <class Body>
GJ_MATH void along_channel(const Channel& c, Body body) {
  for (Index i = 0; i < c.rows; i++)
    for (Index j = 0; j < c.inner; j++) body(c.first + i * c.stride + j);
}
template <class Body>
GJ_MATH void each_channel(Index outer, Index rows, Index channels, Index inner, Body body) {
  const Index stride = static_cast<Index>(gridDim.x) * blockDim.x;
  for (Index b = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; b < outer * channels; b += stride)
    body(b, channel_of(b, rows, channels, inner));
}
GJ_MATH double square(double x) { return x * x; }

// one_pass: the hypothesis that the variance is computed as mean(x²) − mean(x)².
template <class T>
__global__ void batchnorm_spread_forward(
    Index outer, Index rows, Index channels, Index inner, double epsilon, Index one_pass, const T* x, const T* weight,
    const T* bias, T* mean, T* rstd, T* y) {
  each_channel(outer, rows, channels, inner, [=](Index b, Channel c) {
    const double N = static_cast<double>(rows * inner), u = arithmetic().u, e = underflow_variance();
    Tracked sum, deviations, raw;
    double x_variance = 0;
    along_channel(c, [&](Index o) {
      sum.add(x[o].v);
      x_variance += x[o].variance;
    });
    const double mu = sum.total / N, V_mu = (x_variance + sum.variance()) / square(N) + square(mu);
    double carried = 0, fourth = 0;
    along_channel(c, [&](Index o) {
      const double d2 = square(x[o].v - mu);
      deviations.add(d2);
      carried += 4 * d2 * (x[o].variance + d2) + square(d2);
      raw.add(square(x[o].v));
      fourth += square(square(x[o].v));
    });
    const double v = deviations.total / N, w = v + epsilon, r = 1 / sqrt(w);
    double V_v = (carried + deviations.variance()) / square(N) + square(v) + square(9 * u * V_mu) + v * square(mu);
    if (one_pass)
      V_v += (raw.variance() + fourth) / square(N) + 4 * square(mu) * V_mu + 2 * square(square(mu)) + square(raw.total / N);
    const double V_rho = 0.25 * (V_v + square(w)) / square(w) + square(arithmetic().function_error);
    mean[b] = make_spread(mu, V_mu);
    rstd[b] = make_spread(r, V_rho);
    const spread gamma = weight ? weight[b] : make_spread(1, 0), beta = bias ? bias[b] : make_spread(0, 0);
    along_channel(c, [&](Index o) {
      const double normal = (x[o].v - mu) * r, scaled = gamma.v * normal, value = scaled + beta.v;
      const double V_normal = square(r) * x[o].variance + 3 * square(normal) + e * (1 + square(r));
      const double parameters = square(normal) * gamma.variance + beta.variance;
      const double folded = square(gamma.v * r) * (square(x[o].v) + square(mu));
      y[o] = make_spread(
          value, square(gamma.v) * (V_normal + square(r) * V_mu + square(normal) * V_rho) + square(scaled) + square(value) + folded +
                     parameters + e * (2 + square(gamma.v)));
    });
  });
}

// dx with its elementwise variance; what is common to a channel goes to modes (3, outer·channels): the variance of a
// constant, of a multiple of x̂ and of a multiple of dx. x̂ itself goes to normal. Only the constant's is not yet in dx.
// raw_moments: the hypothesis that the backward sums dy·x instead of dy·(x − μ).
template <class T>
__global__ void batchnorm_spread_backward(
    Index outer, Index rows, Index channels, Index inner, Index raw_moments, const T* x, const T* weight, const T* mean,
    const T* rstd, const T* dy, T* dx, T* dweight, T* dbias, double* modes, double* normal) {
  const Index total = outer * channels;
  each_channel(outer, rows, channels, inner, [=](Index b, Channel c) {
    const double N = static_cast<double>(rows * inner), u = arithmetic().u, e = underflow_variance();
    const double mu = mean[b].v, V_mu = mean[b].variance, r = rstd[b].v, V_rho = rstd[b].variance;
    const spread gamma = weight ? weight[b] : make_spread(1, 0);
    const double s = gamma.v * r;
    Tracked flow, product, raw;
    double V_flow = 0, V_product = 0, raw_squares = 0;
    along_channel(c, [&](Index o) {
      const double g = dy[o].v, hat = (x[o].v - mu) * r;
      const double V_hat = square(r) * x[o].variance + 3 * square(hat) + e * (1 + square(r));
      normal[o] = hat;
      flow.add(g);
      product.add(g * hat);
      raw.add(g * x[o].v);
      raw_squares += square(g * x[o].v);
      V_flow += dy[o].variance;
      V_product += square(hat) * dy[o].variance + square(g) * V_hat + square(g * hat);
    });
    const double d_beta = flow.total, d_gamma = product.total, m1 = d_beta / N, m2 = d_gamma / N;
    const double V_beta = V_flow + flow.variance() + N * e;
    double V_gamma = V_product + product.variance() + N * e * (2 + square(r));
    if (raw_moments)
      V_gamma += square(r) * (raw.variance() + raw_squares + square(mu) * (flow.variance() + 2 * square(d_beta)));
    const double V_gamma_whole = V_gamma + square(r) * V_mu * square(d_beta) + V_rho * square(d_gamma);
    dbias[b] = make_spread(d_beta, V_beta);
    dweight[b] = make_spread(d_gamma, V_gamma_whole);
    modes[b] = square(s) * (V_beta / square(N) + square(r) * V_mu * square(m2)) + square(s) * e / N +
               square(s * 9 * u * square(r) * V_mu * m1);
    modes[total + b] = square(s) * (V_gamma_whole / square(N) + 4 * V_rho * square(m2));
    modes[2 * total + b] = V_rho;
    along_channel(c, [&](Index o) {
      const double g = dy[o].v, hat = normal[o], d = x[o].v - mu, t = g - m1 - hat * m2, value = s * t;
      const double V_hat = square(r) * x[o].variance + 3 * square(hat) + e * (1 + square(r));
      double V = square(s) * (dy[o].variance + square(hat) * V_gamma_whole / square(N) + V_hat * square(m2) +
                              4 * V_rho * square(hat * m2) + square(g) + 2 * square(m1) + 3 * square(hat * m2) + 3 * square(t));
      V += (V_rho + 4) * square(value) + square(r * t) * gamma.variance;
      V += e * (3 + square(s) * (4 + 2 * square(hat) + square(d)) + square(x[o].v) + square(mu));
      if (raw_moments) V += 2 * square(s * m2 * r) * (square(x[o].v) + square(mu));
      dx[o] = make_spread(value, V);
    });
  });
}

}  // namespace gradjury
