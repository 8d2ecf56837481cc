"""`spread` by hand from the formulas of docs/numerics.md, `noisy` as a random variable, and each against the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradjury.kernels.arithmetic import Arithmetic
from gradjury.kernels.calls import Kernels
from gradjury.kernels.engine import engine
from gradjury.kernels.scalars import SCALARS
from gradjury.kernels.tensor import Tensor

U = 2.0**-4
COARSE = Arithmetic(u=U, eta=2.0**-6)  # so that e = (η/u)² = 1/16 shows, and every figure below is exact
E = 1 / 16
LOST = 4.0  # exp and sigmoid may lose what is below the smallest normal number, η/(2u), in units of u
# Sampling error of a mean square of m draws from U(−1,1) is √(4/5m) of it; five of them never happen by chance, and the
# keys are fixed, so these tests give the same figures every time.
SIGMAS = 5


def spreads(k: Kernels, values: list[tuple[float, float]]) -> Tensor:
    x = k.empty(1, (len(values),))
    x.data[0] = values
    return x


def unary(
    kernel: str, value: float, variance: float, *more: float, arithmetic: Arithmetic = COARSE
) -> tuple[float, float]:
    k = Kernels(engine("host"), SCALARS["spread"], arithmetic, poison=True)
    return tuple(k.unary(kernel, spreads(k, [(value, variance)]), *more).data[0, 0].tolist())


def binary(kernel: str, a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    k = Kernels(engine("host"), SCALARS["spread"], COARSE, poison=True)
    return tuple(k.binary(kernel, spreads(k, [a]), spreads(k, [b])).data[0, 0].tolist())


def summed(values: list[tuple[float, float]], kappa: float = 0.125) -> tuple[float, float]:
    k = Kernels(engine("host"), SCALARS["spread"], Arithmetic(u=U, eta=COARSE.eta, kappa=kappa), poison=True)
    return tuple(k.sum_middle(spreads(k, values), 1, len(values), 1, ()).data[0].tolist())


def dotted(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> tuple[float, float]:
    k = Kernels(engine("host"), SCALARS["spread"], COARSE, poison=True)
    out = k.empty(1, ())
    k.launch("dot", (1, 1, 1), 1, 1, len(a), spreads(k, a), spreads(k, b), out)
    return tuple(out.data[0].tolist())


# ---- spread: elementwise


def test_spread_arithmetic() -> None:
    a, b = (3.0, 2.0), (-1.0, 0.5)
    assert binary("add", a, b) == (2.0, 2.5 + 2**2 + E)
    assert binary("subtract", a, b) == (4.0, 2.5 + 4**2 + E)
    assert binary("multiply", a, b) == (-3.0, 9 * 0.5 + 1 * 2.0 + U**2 * 2.0 * 0.5 + 3**2 + E)
    assert binary("divide", (6.0, 2.0), (2.0, 0.5)) == (3.0, 3**2 * (2.0 / 6**2 + 0.5 / 2**2) + 3**2 + E)


@pytest.mark.parametrize(
    ("kernel", "x", "y", "slope", "rounding"),
    [
        ("exp_forward", 0.0, 1.0, 1.0, 16.0 + LOST),
        ("log_forward", 1.0, 0.0, 1.0, 0.0),
        ("tanh_forward", 0.0, 0.0, 1.0, 0.0),
        ("sigmoid_forward", 0.0, 0.5, 0.25, 16 * 0.5**2 + LOST),
        ("square_root", 4.0, 2.0, 0.25, 2.0**2),
        ("reciprocal_square_root", 4.0, 0.5, 0.0625, 16 * 0.5**2),
        ("negate", 4.0, -4.0, 1.0, None),
    ],
)
def test_spread_function(kernel: str, x: float, y: float, slope: float, rounding: float | None) -> None:
    """slope²V + 16y² + e; a correctly rounded root y² instead; a sign changes without rounding."""
    own = 0.0 if rounding is None else rounding + E
    assert unary(kernel, x, 8.0) == (y, slope**2 * 8.0 + own)


def test_spread_tanh_away_from_zero() -> None:
    plain = Kernels(engine("host"), SCALARS["float64"])
    y = float(plain.unary("tanh_forward", plain.tensor(np.array([[0.5]]))).data[0, 0])
    slope = 1 - y * y
    assert unary("tanh_forward", 0.5, 3.0) == (y, slope * slope * 3.0 + 16 * y * y + E)


def test_spread_of_approximate_functions() -> None:
    rough = Arithmetic(u=U, eta=COARSE.eta, function_error=64.0)
    assert unary("exp_forward", 0.0, 8.0, arithmetic=rough) == (1.0, 8 + 64**2 + E + LOST)


def test_spread_root_at_zero() -> None:
    """√ has no slope at 0, but |√δ| bounds it: δ² = u²V."""
    assert unary("square_root", 0.0, 4.0) == (0.0, 2.0 / U + E)


def test_spread_times_a_constant() -> None:
    assert unary("multiply_by", 3.0, 2.0, 0.25) == (0.75, 2 / 16 + E)
    assert unary("multiply_by", 3.0, 2.0, -1.0) == (-3.0, 2 + E)
    assert unary("multiply_by", 2.0, 2.0, 3.0) == (6.0, 9 * 2 + 6**2 + E)


# ---- spread: sums


def test_spread_sum() -> None:
    """V = Σx²·m/2 + Σs² + (κΣ|s|/6)² + ΣV + 2me, here with partial sums 2, 3, 7."""
    squares, partial_squares, coherent = 21 * 3 / 2, 4 + 9 + 49, (12 / 8 / 6) ** 2
    assert summed([(2.0, 0.5), (1.0, 0.25), (4.0, 0.0)]) == (7.0, squares + partial_squares + coherent + 0.75 + 6 * E)


def test_spread_sum_of_one_does_not_round() -> None:
    assert summed([(2.0, 0.5)]) == (2.0, 0.5 + 2 * E)


def test_spread_sum_of_equal_terms_rounds_coherently() -> None:
    """κ = 1 where neighbours are equal: partial sums 2, 4, 6."""
    assert summed([(2.0, 0.0)] * 3) == (6.0, 12 * 3 / 2 + 4 + 16 + 36 + (12 / 6) ** 2 + 6 * E)
    assert summed([(0.0, 0.0)] * 3) == (0.0, 6 * E)


@pytest.mark.parametrize(("equal", "coherent"), [(1, False), (2, True)])
def test_more_than_a_fifth_must_be_equal(equal: int, coherent: bool) -> None:
    """Of the five pairs of neighbours among six terms, one is a fifth."""
    terms = [1.0] * (equal + 1) + [float(i) for i in range(2, 7 - equal)]
    partial = np.cumsum(terms)
    weight = 1.0 if coherent else 0.0
    expected = sum(t * t for t in terms) * 3 + np.sum(partial**2) + (weight * np.sum(partial) / 6.0) ** 2 + 12 * E
    assert summed([(t, 0.0) for t in terms], kappa=0.0)[1] == expected


def test_spread_dot() -> None:
    """V = Σ(ab)²(1 + m/2) + Σs² + (κΣ|s|/6)² + Σ(a²Vb + b²Va) + 2me; partial sums 2, 6."""
    a, b = [(1.0, 0.5), (2.0, 0.0)], [(2.0, 0.0), (2.0, 0.25)]
    expected = (4 + 16) * 2 + 4 + 36 + (8 / 8 / 6.0) ** 2 + (4 * 0.5 + 4 * 0.25) + 4 * E
    assert dotted(a, b) == (6.0, expected)


def test_spread_dot_is_coherent_only_in_both_factors() -> None:
    same, other = [(1.0, 0.0)] * 3, [(1.0, 0.0), (2.0, 0.0), (3.0, 0.0)]
    both, one = 3 * 2.5 + 1 + 4 + 9 + (6 / 6) ** 2 + 6 * E, 14 * 2.5 + 1 + 9 + 36 + (10 / 8 / 6.0) ** 2 + 6 * E
    assert dotted(same, same) == (3.0, both)
    assert dotted(same, other) == (6.0, one)


def test_spread_dot_of_one_is_a_product() -> None:
    assert dotted([(3.0, 2.0)], [(-1.0, 0.5)]) == (-3.0, 9 * 0.5 + 2.0 + U**2 + 9 + 2 * E)


def test_spread_start() -> None:
    """A product accumulated into y0 rounds at its size m more times."""
    k = Kernels(engine("host"), SCALARS["spread"], COARSE, poison=True)
    total, part = spreads(k, [(3.0, 1.0)]), spreads(k, [(2.0, 0.5)])
    assert k.binary("accumulate", total, part, 7.0).data[0, 0].tolist() == [5.0, 1.5 + 5**2 + E + 7 * 3**2]


@pytest.mark.parametrize("scalar", ["spread", "noisy"])
def test_matmul_and_dot_know_the_same_formula(scalar: str) -> None:
    """Two implementations, one of them over packs; small whole numbers, so that both are exact."""
    rng = np.random.default_rng(0)
    k = Kernels(engine("host"), SCALARS[scalar], COARSE, poison=True)
    a = k.tensor(rng.integers(-3, 4, (1, 5, 37)).astype(float))
    b = k.tensor(rng.integers(-1, 2, (1, 37, 43)).astype(float))
    if scalar == "spread":
        a.data[..., 1] = rng.integers(0, 9, a.data.shape[:-1])
        b.data[..., 1] = rng.integers(0, 9, b.data.shape[:-1])
    product = k.matmul(a, b)
    for row in range(5):
        for column in range(43):
            left = Tensor(np.ascontiguousarray(a.data[:, row]), a.scalar)
            right = Tensor(np.ascontiguousarray(b.data[:, :, column]), b.scalar)
            out = k.empty(1, ())
            k.launch("dot", (1, 1, 1), 1, 1, 37, left, right, out)
            assert out.data[0].tobytes() == product.data[0, row, column].tobytes()


# ---- noisy


def noisy(arithmetic: Arithmetic | None = None) -> Kernels:
    return Kernels(engine("host"), SCALARS["noisy"], arithmetic or Arithmetic(u=2.0**-20, eta=0.0), poison=True)


def draws(k: Kernels, result: Tensor, exact: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The draws behind the results, in units of the largest."""
    return np.asarray((k.values(result) - exact) / (c * k.arithmetic.u * np.abs(exact)))


def operands(k: Kernels, replicas: int, n: int) -> tuple[Tensor, Tensor, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    a, b = (np.broadcast_to(rng.integers(1, 2**20, n).astype(float), (replicas, n)) for _ in range(2))
    return k.tensor(a), k.tensor(b), a, b


def test_draws_are_uniform_and_independent() -> None:
    """Moments of U(−1,1), and no correlation between neighbours, replicas or operations."""
    k = noisy()
    a, b, x, y = operands(k, 2, 40000)
    sums, products = draws(k, k.add(a, b), x + y), draws(k, k.multiply(a, b), x * y)
    resolution = 2.0**-32  # the result's own rounding, 2^-53 of it, in units of u = 2^-20, and as much for the division
    assert np.max(np.abs([sums, products])) <= 1 + resolution
    n = sums.size
    for sample in (sums, products):
        assert abs(np.mean(sample)) <= SIGMAS / np.sqrt(3 * n)
        assert abs(np.mean(sample**2) - 1 / 3) <= SIGMAS * np.sqrt(4 / 45 / n)
        assert np.max(sample) >= 1 - 20 / n
    for p, q in ((sums[0], sums[1]), (sums[0], products[0]), (sums[0, 1:], sums[0, :-1]), (sums[0] ** 2, sums[1] ** 2)):
        assert abs(np.corrcoef(p, q)[0, 1]) <= SIGMAS / np.sqrt(p.size)


def test_the_same_operation_rounds_the_same_way() -> None:
    k = noisy()
    a, b, _, _ = operands(k, 3, 100)
    assert k.add(a, b).data.tobytes() == k.add(a, b).data.tobytes() == k.add(b, a).data.tobytes()
    assert k.multiply(a, b).data.tobytes() == k.multiply(b, a).data.tobytes()
    assert k.add(a, b).data.tobytes() != k.add(a, a).data.tobytes()
    difference, negated = k.values(k.binary("subtract", a, b)), k.values(k.unary("negate", k.binary("subtract", a, b)))
    np.testing.assert_array_equal(difference, -negated)


def test_different_constants_round_differently() -> None:
    k = noisy()
    a, _, x, _ = operands(k, 1, 5000)
    third, fifth = (draws(k, k.unary("multiply_by", a, c), x * c) for c in (3.0, 5.0))
    assert abs(np.corrcoef(third[0], fifth[0])[0, 1]) <= SIGMAS / np.sqrt(5000)
    np.testing.assert_array_equal(k.values(k.unary("multiply_by", a, 0.25)), x / 4)


def test_keys_keep_the_replica() -> None:
    k = noisy()
    a, b, _, _ = operands(k, 7, 10)
    c = k.unary("tanh_forward", k.binary("divide", k.add(a, b), a))
    c = k.unary("exp_forward", k.unary("multiply_by", c, 0.3))
    nobody, _, _, _ = operands(k, 7, 10)
    nobody.data[..., 1] = 0  # as constants are
    c = k.binary("subtract", nobody, k.add(c, nobody))
    replicas = np.ascontiguousarray(k.sum_middle(c, 7, 10, 1, ()).data[..., 1]).view(np.uint64) & 0xFFFF
    assert replicas.tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_bits_do_not_depend_on_the_order_of_threads() -> None:
    e: Any = engine("host")
    k = noisy()
    a, b, _, _ = operands(k, 3, 5000)

    def result() -> bytes:
        return bytes(k.sum_middle(k.unary("tanh_forward", k.multiply(a, b)), 3, 5000, 1, ()).data.tobytes())

    first = result()
    try:
        for seed in (0, 1):
            e.set_order(seed)
            assert result() == first
    finally:
        e.set_order(-1)


@pytest.mark.parametrize(
    "kernel", ["tanh_forward", "sigmoid_forward", "exp_forward", "log_forward", "reciprocal_square_root"]
)
def test_coherent_functions_share_one_draw(kernel: str) -> None:
    """One relative error per function and replica, of any size up to function_error."""
    k = noisy(Arithmetic(u=2.0**-20, eta=0.0, coherent=1))
    x = np.broadcast_to(np.linspace(1.5, 4, 50), (40, 50))
    exact = Kernels(engine("host"), SCALARS["float64"])
    truth = exact.values(exact.unary(kernel, exact.tensor(x)))
    own = draws(k, k.unary(kernel, k.tensor(x)), truth, 4.0)
    assert np.all(np.ptp(own, axis=1) <= 2.0**-30)  # the results' own rounding, 2^-53, in units of u = 2^-20
    assert len(np.unique(own[:, 0])) == 40
    assert np.max(np.abs(own)) <= 1
    apart = noisy()
    independent = draws(apart, apart.unary(kernel, apart.tensor(x)), truth, 4.0)
    assert np.all(np.std(independent, axis=1) > 0.3)


def test_underflow_is_noise_too() -> None:
    """η acts where the result is 0 as well."""
    k = noisy(Arithmetic(u=U, eta=2.0**-10))
    zeros = k.tensor(np.zeros((1, 4000)))
    noise = k.values(k.add(zeros, k.tensor(np.zeros((1, 4000))))) * 2.0**10
    assert np.max(np.abs(noise)) <= 1
    assert abs(np.mean(noise**2) - 1 / 3) <= SIGMAS * np.sqrt(4 / 45 / 4000)


def test_noise_where_squares_underflow() -> None:
    """A sum of terms of 1e-200 still rounds at its own size."""
    k = noisy(Arithmetic(u=2.0**-40, kappa=1.0, eta=0.0))
    x = np.broadcast_to(1e-200 * np.linspace(1, 2, 16), (400, 16))
    noise = (k.values(k.sum_middle(k.tensor(x), 400, 16, 1, ())) / x.sum(1) - 1) / 2.0**-40
    assert abs(np.mean(noise**2) - 1 / 3) <= SIGMAS * np.sqrt(4 / 45 / 400)


# ---- both


def test_propagated_variance_is_what_replicas_show() -> None:
    """√3·σ of replicas against √V: U(−1,1) has variance 1/3, V counts squares of largest errors.

    First order is exact here to u, so only the sampling error of M replicas is left: √(0.8/M) of a mean square of one
    uniform draw, less than √(2/M) of any sum of draws.
    """
    replicas, n = 2000, 24
    rng = np.random.default_rng(8)
    a, b, c = rng.uniform(0.5, 1.5, (3, n))

    def compute(k: Kernels, rows: int) -> list[Tensor]:
        x, y, z = (k.tensor(np.broadcast_to(v, (rows, n))) for v in (a, b, c))
        t = k.unary("tanh_forward", k.binary("divide", k.add(k.multiply(x, y), z), y))
        r = k.unary("reciprocal_square_root", k.unary("exp_forward", k.unary("log_forward", k.unary("square_root", t))))
        s = k.unary("sigmoid_forward", k.binary("subtract", r, z))
        return [t, r, s, k.sum_middle(s, rows, n, 1, ())]

    variances = compute(Kernels(engine("host"), SCALARS["spread"], Arithmetic(u=U)), 1)
    samples = compute(noisy(Arithmetic(u=U)), replicas)
    for spread, sample in zip(variances, samples, strict=True):
        values, propagated = sample.data[..., 0], spread.data[0, ..., 1]
        observed = 3 * np.mean(((values - spread.data[0, ..., 0]) / U) ** 2, axis=0)
        assert np.all(np.abs(observed / propagated - 1) <= SIGMAS * np.sqrt(2 / replicas))
