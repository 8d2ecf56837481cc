"""matmul: every scalar on whole numbers, where it is exact; roundings one by one; noise by its formula; launches."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guards import FORWARD, Guarded, fused, launches, nearest, rest, same_bits_however_launched, whole_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import exact_numbers, excess, float32_values

from gradjury.kernels.arithmetic import Arithmetic
from gradjury.kernels.tensor import Tensor

FORMS = [(False, False), (False, True), (True, False), (True, True)]
# M, N, K around every tile and microtile of the kernels: one short, exact, one beyond; vectors; nothing at all.
SIZES = [
    *((1, 1, 1), (1, 1, 7), (1, 33, 16), (33, 1, 17), (1, 70, 129), (2, 3, 31), (8, 17, 33), (9, 16, 32), (5, 257, 3)),
    *((63, 31, 33), (64, 32, 32), (65, 33, 65), (13, 7, 5), (0, 3, 2), (3, 0, 2), (0, 0, 0), (3, 2, 0), (12, 48, 1)),
]
LARGE = [(193, 257, 129), (96, 129, 128), (191, 33, 260), (8, 300, 257), (7, 513, 130)]
DD_ERROR = Fraction(1, 2**98)  # of the sum of the absolute terms


def operands(a: np.ndarray, b: np.ndarray, form: tuple[bool, bool]) -> tuple[np.ndarray, np.ndarray]:
    """a (…, M, K) and b (…, K, N) as they are stored under `form`."""
    swap = [np.swapaxes(x, -1, -2) if turned else x for x, turned in zip((a, b), form, strict=True)]
    return np.ascontiguousarray(swap[0]), np.ascontiguousarray(swap[1])


def product(k: Guarded, a: np.ndarray, b: np.ndarray, form: tuple[bool, bool] = (False, False), **more: Any) -> Tensor:
    left, right = operands(a, b, form)
    return k.matmul(k.tensor(left), k.tensor(right), transpose_a=form[0], transpose_b=form[1], **more)


def assert_exact(size: tuple[int, int, int], form: tuple[bool, bool], scalar: str, cases: int = 2) -> None:
    M, N, K = size
    rng = np.random.default_rng(M + 3 * N + 7 * K)
    a, b = whole_numbers(rng, cases, M, K), whole_numbers(rng, cases, K, N)
    k = Guarded(scalar)
    c = product(k, a, b, form)
    assert c.shape == (M, N)
    assert c.length == K
    np.testing.assert_array_equal(k.whole(c), a @ b)
    if scalar in ("double-double", "dual", "dual-double-double", "bound"):
        np.testing.assert_array_equal(rest(c), np.zeros_like(rest(c)))
    assert k.intact()


@pytest.mark.parametrize("scalar", FORWARD)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", SIZES)
def test_whole_numbers(size: tuple[int, int, int], form: tuple[bool, bool], scalar: str) -> None:
    assert_exact(size, form, scalar)


@pytest.mark.parametrize("scalar", [s for s in FORWARD if s != "dual-double-double"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", LARGE)
def test_whole_numbers_beyond_a_tile(size: tuple[int, int, int], form: tuple[bool, bool], scalar: str) -> None:
    assert_exact(size, form, scalar, cases=1)


@settings(max_examples=60, deadline=None)
@given(st.tuples(*[st.integers(0, 70)] * 3), st.sampled_from(FORMS), st.sampled_from(FORWARD), st.integers(0, 3))
def test_any_size(size: tuple[int, int, int], form: tuple[bool, bool], scalar: str, cases: int) -> None:
    assert_exact(size, form, scalar, cases)


@pytest.mark.parametrize("scalar", FORWARD)
@pytest.mark.parametrize("size", [(3, 5, 0), (4, 37, 9), (70, 33, 40), (40, 3, 9), (50, 1, 300), (9, 40, 200)])
def test_bias_and_start(size: tuple[int, int, int], scalar: str) -> None:
    M, N, K = size
    rng = np.random.default_rng(1)
    a, b = whole_numbers(rng, 2, M, K), whole_numbers(rng, 2, K, N)
    bias, start = whole_numbers(rng, 2, N), whole_numbers(rng, 2, M, N)
    k = Guarded(scalar)
    for with_bias, with_start in ((True, False), (False, True), (True, True)):
        more: dict[str, Any] = {
            "bias": k.tensor(bias) if with_bias else None,
            "start": k.tensor(start) if with_start else None,
        }
        expected = a @ b + with_bias * bias[:, None] + with_start * start
        np.testing.assert_array_equal(k.whole(product(k, a, b, **more)), expected)
    assert k.intact()


# ---- roundings


@pytest.mark.parametrize(("scalar", "bits"), [("float32", 24), ("float64", 53)])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [(2, 19, 40), (13, 35, 37)])
def test_every_step_rounds_once_and_in_order(size: tuple[int, int, int], form: tuple[bool, bool], scalar: str, bits: int) -> None:
    """An element is one chain of fused multiply-adds from k = 0 on, whatever the path taken; a bias comes after it."""
    M, N, K = size
    rng = np.random.default_rng(2)
    a, b, bias = (float32_values(rng, *shape) for shape in ((1, M, K), (1, K, N), (1, N)))
    if scalar == "float64":
        a, b = a * np.pi, b * np.e
    k = Guarded(scalar)
    found = product(k, a, b, form).data[0]
    shifted = product(k, a, b, form, bias=k.tensor(bias)).data[0]
    for m in range(M):
        for n in range(N):
            total = 0.0
            for i in range(K):
                total = fused(a[0, m, i], b[0, i, n], total, bits)
            assert found[m, n] == total
            assert shifted[m, n] == nearest(Fraction(total) + Fraction(bias[0, n]), bits)


@pytest.mark.parametrize("scalar", ["float32", "float64"])
@pytest.mark.parametrize(("size", "low"), [((3, 70, 1000), -1.0), ((17, 5, 1000), 0.0), ((2, 3, 10000), 0.0)])
def test_budget(size: tuple[int, int, int], low: float, scalar: str) -> None:
    """Errors against exact sums stay inside what `spread` allows for, with and without one sign."""
    M, N, K = size
    rng = np.random.default_rng(3)
    a, b = (rng.uniform(low, 1, shape).astype(np.float32).astype(float) for shape in ((1, M, K), (1, K, N)))
    here = product(Guarded(scalar), a, b)
    arithmetic = Arithmetic() if scalar == "float32" else Arithmetic(u=2.0**-53, kappa=1.0, eta=5e-324)
    noise = product(Guarded("spread", arithmetic), a, b)
    # Products of float32 are exact in float64, and so are their sums in mpf.
    true = exact_numbers(product(Guarded("double-double"), a, b))
    assert excess(exact_numbers(here), true, noise.data[0, ..., 1], arithmetic.u) <= 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [(3, 9, 50), (9, 5, 60), (6, 17, 33)])
def test_double_double(size: tuple[int, int, int], form: tuple[bool, bool]) -> None:
    """Within 2^-98 of Σ|ab|, low parts included, where sums cancel."""
    M, N, K = size
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((1, M, K)), rng.standard_normal((1, K, N))
    half = K // 2
    a[..., half : 2 * half], b[:, half : 2 * half] = a[..., :half], -b[:, :half]
    lows = [x * rng.uniform(-(2.0**-54), 2.0**-54, x.shape) for x in (a, b)]
    left, right = operands(a, b, form)
    left_low, right_low = operands(lows[0], lows[1], form)
    k = Guarded("double-double")
    c = k.matmul(k.tensor(left, left_low), k.tensor(right, right_low), transpose_a=form[0], transpose_b=form[1])
    pair = np.frompyfunc(lambda high, low: Fraction(high) + Fraction(low), 2, 1)
    exact_a, exact_b, found = pair(a[0], lows[0][0]), pair(b[0], lows[1][0]), pair(c.data[0, ..., 0], c.data[0, ..., 1])
    assert np.all(abs(found - exact_a @ exact_b) <= DD_ERROR * (abs(exact_a) @ abs(exact_b)))


@pytest.mark.parametrize("scalar", ["dual", "dual-double-double"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [(3, 37, 11), (11, 9, 33)])
def test_derivatives(size: tuple[int, int, int], form: tuple[bool, bool], scalar: str) -> None:
    """(A + εA')(B + εB') = AB + ε(A'B + AB')."""
    M, N, K = size
    rng = np.random.default_rng(5)
    a, b, da, db = (whole_numbers(rng, 2, *s) for s in ((M, K), (K, N), (M, K), (K, N)))
    left, right = operands(a, b, form)
    moved_left, moved_right = operands(da, db, form)
    k = Guarded(scalar)
    c = k.matmul(k.tensor(left, moved_left), k.tensor(right, moved_right), transpose_a=form[0], transpose_b=form[1])
    derivative = c.data[..., 2 if scalar == "dual-double-double" else 1]
    np.testing.assert_array_equal(k.values(c), a @ b)
    np.testing.assert_array_equal(derivative, da @ b + a @ db)


def test_bounds() -> None:
    """Deviations: |A|D(B) + D(A)|B| + D(A)D(B)."""
    rng = np.random.default_rng(6)
    a, b = whole_numbers(rng, 1, 5, 9), whole_numbers(rng, 1, 9, 37)
    deviation_a, deviation_b = abs(whole_numbers(rng, 1, 5, 9)), abs(whole_numbers(rng, 1, 9, 37))
    k = Guarded("bound")
    left, right = k.tensor(a), k.tensor(b)
    left.data[..., 1], right.data[..., 1] = deviation_a, deviation_b
    c = k.matmul(left, right)
    expected = abs(a) @ deviation_b + deviation_a @ abs(b) + deviation_a @ deviation_b
    np.testing.assert_array_equal(c.data[..., 1], expected)


@pytest.mark.parametrize("toward_zero", [0, 1])
@pytest.mark.parametrize("accumulator", [0, 13])
@pytest.mark.parametrize("storage", [0, 8])
def test_low_precision(storage: int, accumulator: int, toward_zero: int) -> None:
    """Operands to 11 bits, running sums to `accumulator`, the result to `storage`; 0: not rounded."""
    rng = np.random.default_rng(7)
    a, b = float32_values(rng, 1, 3, 21), float32_values(rng, 1, 21, 33)
    settings = Arithmetic(operand_bits=11, operand_toward_zero=toward_zero, accumulator_bits=accumulator, storage_bits=storage)

    def narrowed(x: float) -> float:
        mantissa, exponent = np.frexp(x)
        return float(np.ldexp(np.trunc(mantissa * 2**11), exponent - 11)) if toward_zero else nearest(Fraction(x), 11)

    def rounded(x: float, bits: int) -> float:
        return nearest(Fraction(x), bits) if bits else x

    found = product(Guarded("lowered", settings), a, b).data[0]
    for m in range(3):
        for n in range(33):
            total = 0.0
            for i in range(21):
                total = rounded(fused(narrowed(a[0, m, i]), narrowed(b[0, i, n]), total, 53), accumulator)
            assert found[m, n] == rounded(total, storage)


# ---- noise

# (η/u)² = 1/16 shows in every sum; whole numbers keep everything exact but (κΣ|s|/6)², which is written here as there.
COARSE = Arithmetic(u=2.0**-4, kappa=0.25, eta=2.0**-6)
E = 1 / 16


def variance_by_formula(a: np.ndarray, b: np.ndarray, va: np.ndarray, vb: np.ndarray) -> np.ndarray:
    """docs/numerics.md, accumulation: K2(1 + m/2) + Σs² + (κΣ|s|/6)² + 2m(η/u)² + (A∘A)V(B) + V(A)(B∘B) + u²V(A)V(B)."""
    M, K = a.shape
    V = np.zeros((M, b.shape[1]))
    for i in range(M):
        for j in range(b.shape[1]):
            terms = a[i] * b[:, j]
            partial = np.cumsum(terms)
            equal = [np.sum((x[1:] == x[:-1]) & (x[1:] != 0)) > 0.2 * (K - 1) for x in (a[i], b[:, j])]
            weight = (1.0 if all(equal) else COARSE.kappa) * np.sum(np.abs(partial)) / 6.0
            own = np.sum(terms**2) * (1 + 0.5 * K) + np.sum(partial**2) + weight * weight if K > 1 else np.sum(terms**2)
            V[i, j] = own + 2 * K * E + np.sum(a[i] ** 2 * vb[:, j] + va[i] * b[:, j] ** 2 + COARSE.u**2 * va[i] * vb[:, j])
    return V


def uneven(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Rows with many equal neighbours, with few, and of zeros."""
    x = whole_numbers(rng, *shape)
    x[..., ::3, :] = rng.integers(0, 2, x[..., ::3, :].shape)
    x[..., 1::5, :] = 0
    return x


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [(3, 9, 1), (8, 35, 24), (9, 33, 65), (70, 5, 6), (40, 40, 10), (12, 2, 11)])
def test_spread(size: tuple[int, int, int], form: tuple[bool, bool]) -> None:
    M, N, K = size
    rng = np.random.default_rng(8)
    a, b = uneven(rng, M, K), uneven(rng, N, K).T
    va, vb = abs(whole_numbers(rng, M, K)), abs(whole_numbers(rng, K, N))
    k = Guarded("spread", COARSE)
    left, right = (k.tensor(x[None]) for x in operands(a, b, form))
    left.data[0, ..., 1], right.data[0, ..., 1] = operands(va, vb, form)
    c = k.matmul(left, right, transpose_a=form[0], transpose_b=form[1])
    np.testing.assert_array_equal(c.data[0, ..., 0], a @ b)
    np.testing.assert_array_equal(c.data[0, ..., 1], variance_by_formula(a, b, va, vb))
    assert k.intact()


def test_spread_of_a_start() -> None:
    """m·y0² + y² more for each of bias and start, and what underflow takes."""
    rng = np.random.default_rng(9)
    a, b, bias, start = (whole_numbers(rng, 1, *s) for s in ((3, 6), (6, 5), (5,), (3, 5)))
    k = Guarded("spread", COARSE)
    plain = product(k, a, b).data
    y = plain[..., 0] + bias[:, None]
    shifted = plain[..., 1] + y**2 + E + 6 * bias[:, None] ** 2
    z = y + start
    started = shifted + z**2 + E + 6 * start**2
    np.testing.assert_array_equal(product(k, a, b, bias=k.tensor(bias)).data[..., 1], shifted)
    both = product(k, a, b, bias=k.tensor(bias), start=k.tensor(start))
    np.testing.assert_array_equal(both.data, np.stack((z, started), -1))


@pytest.mark.parametrize("size", [(3, 9, 7), (10, 4, 20)])
def test_replicas_show_the_local_variance(size: tuple[int, int, int]) -> None:
    """√3·σ of the draws is √V_local; draws of different elements and replicas are independent.

    The sampling error of a mean square of n draws from U(−1,1) is √(4/5n) of it; five of those never happen by chance.
    """
    M, N, K = size
    replicas = 1000
    rng = np.random.default_rng(10)
    a, b = whole_numbers(rng, 1, M, K) + 0.5, whole_numbers(rng, 1, K, N) + 0.5
    arithmetic = Arithmetic(u=2.0**-24, eta=0.0)
    V = product(Guarded("spread", arithmetic), a, b).data[0, ..., 1]
    noisy = Guarded("noisy", arithmetic)
    found = noisy.values(product(noisy, np.repeat(a, replicas, axis=0), np.repeat(b, replicas, axis=0)))
    draws = (found - a @ b) / (arithmetic.u * np.sqrt(V))
    assert np.all(abs(3 * np.mean(draws**2, axis=0) - 1) <= 5 * np.sqrt(0.8 / replicas))
    flat = draws.reshape(replicas, -1)
    together = np.corrcoef(flat.T) - np.eye(flat.shape[1])
    assert np.max(abs(together)) <= 6 / np.sqrt(replicas)  # of up to 780 pairs
    assert abs(np.mean(flat[1:] * flat[:-1])) <= 5 / 3 / np.sqrt(flat[1:].size)


def test_noise_of_a_start() -> None:
    """Draws of m·y0² + y² come on top of the product's, for a bias and for a start."""
    replicas, m = 1000, 12
    rng = np.random.default_rng(15)
    a, b, shift = whole_numbers(rng, 1, 2, m) + 0.5, whole_numbers(rng, 1, m, 3) + 0.5, np.full((1, 2, 3), 100.0)
    arithmetic = Arithmetic(eta=0.0)
    k = Guarded("noisy", arithmetic)
    every = [np.repeat(x, replicas, axis=0) for x in (a, b)]
    for more in ({"bias": shift[:, 0]}, {"start": shift}):
        added = {name: np.repeat(x, replicas, axis=0) for name, x in more.items()}
        y = product(k, every[0], every[1], (False, False), **{name: k.tensor(x) for name, x in added.items()})
        spread = Guarded("spread", arithmetic)
        noise = product(spread, a, b, (False, False), **{name: spread.tensor(x) for name, x in more.items()})
        draws = (k.values(y) - (a @ b + shift)) / (arithmetic.u * np.sqrt(noise.data[0, ..., 1]))
        # Of a sum of two independent draws the mean square scatters by less than √2 of itself.
        assert np.all(abs(3 * np.mean(draws**2, axis=0) - 1) <= 5 * np.sqrt(2 / replicas))


def test_keys_of_noise() -> None:
    """A result belongs to its operands' replica, and its draw to them in their order."""
    rng = np.random.default_rng(16)
    a, b = whole_numbers(rng, 1, 3, 40), whole_numbers(rng, 1, 40, 5)
    k = Guarded("noisy", Arithmetic())
    left, right = k.tensor(np.repeat(a, 9, axis=0)), k.tensor(np.repeat(b, 9, axis=0))
    forward = k.matmul(left, right)
    replicas = np.ascontiguousarray(forward.data[..., 1]).view(np.uint64) & 0xFFFF
    np.testing.assert_array_equal(replicas, np.broadcast_to(np.arange(1, 10)[:, None, None], (9, 3, 5)))
    back = [replace(t, data=np.ascontiguousarray(x)) for t, x in ((left, left.data[:, :, ::-1]), (right, right.data[:, ::-1]))]
    errors = [k.values(c) - a @ b for c in (forward, k.matmul(back[0], back[1]))]
    assert abs(np.corrcoef(errors[0].ravel(), errors[1].ravel())[0, 1]) <= 5 / np.sqrt(errors[0].size)


# ---- what is not finite, and what else may not matter


@pytest.mark.parametrize("scalar", FORWARD)
@pytest.mark.parametrize("M", [3, 70])
def test_nan_stays_in_its_row_and_column(M: int, scalar: str) -> None:
    rng = np.random.default_rng(11)
    a, b = whole_numbers(rng, 2, M, 40), whole_numbers(rng, 2, 40, 35)
    a[0, 2, 33], b[0, 17, 34] = np.nan, np.inf
    reached = np.zeros((2, M, 35), bool)
    reached[0, 2], reached[0, :, 34] = True, True
    a[0, a[0, :, 17] == 0, 17] = 1  # 0·∞ would be NaN, which is right but not what is looked at here
    k = Guarded(scalar)
    found = k.values(product(k, a, b))
    np.testing.assert_array_equal(np.isfinite(found), ~reached)


@pytest.mark.parametrize("scalar", FORWARD)
@pytest.mark.parametrize("form", FORMS[:3])
@pytest.mark.parametrize("size", [(5, 70, 33), (70, 40, 33)])
def test_bits_do_not_depend_on_the_batch(size: tuple[int, int, int], form: tuple[bool, bool], scalar: str) -> None:
    M, N, K = size
    rng = np.random.default_rng(12)
    k = Guarded(scalar, Arithmetic())
    pair = [k.tensor(x) for x in operands(rng.standard_normal((5, M, K)), rng.standard_normal((5, K, N)), form)]

    def bits(first: int, last: int) -> bytes:
        own = [replace(t, data=t.data[first:last].copy()) for t in pair]
        return bytes(k.matmul(*own, transpose_a=form[0], transpose_b=form[1]).data.tobytes())

    assert bits(0, 5) == b"".join(bits(i, i + 1) for i in range(5))


@pytest.mark.parametrize("scalar", FORWARD)
@pytest.mark.parametrize("form", FORMS[:3])
@pytest.mark.parametrize("size", [(5, 70, 33), (200, 40, 33)])
def test_bits_do_not_depend_on_threads(size: tuple[int, int, int], form: tuple[bool, bool], scalar: str) -> None:
    """Shuffled orders start from shared memory of NaN: a missing barrier or an unwritten place would show."""
    M, N, K = size
    rng = np.random.default_rng(13)
    k = Guarded(scalar, Arithmetic())
    left, right = (k.tensor(x) for x in operands(rng.standard_normal((2, M, K)), rng.standard_normal((2, K, N)), form))
    assert same_bits_however_launched(lambda: k.matmul(left, right, transpose_a=form[0], transpose_b=form[1]))


@pytest.mark.parametrize("threads", [1, 2, 32])
@pytest.mark.parametrize("grid", [(1, 1, 1), (3, 1, 2), (50, 1, 7)])
@pytest.mark.parametrize("scalar", ["float32", "double-double", "spread"])
def test_any_launch(scalar: str, grid: tuple[int, int, int], threads: int) -> None:
    """Many threads a block share what is in shared memory: a missing barrier would read NaN."""
    rng = np.random.default_rng(14)
    a, b = whole_numbers(rng, 3, 200, 300), whole_numbers(rng, 3, 300, 270)
    k = Guarded(scalar)
    c = k.empty(3, (200, 270))
    places = (k.tensor(a), 300, 1, k.tensor(b), 270, 1, None, None, c)
    for seed in (-1, 5):
        c.data[...] = np.nan
        with launches(seed=seed):
            k.launch("matmul", grid, threads, 3, 200, 270, 300, *places)
        np.testing.assert_array_equal(k.values(c), a @ b)
    assert k.intact()


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect of Linux")
@pytest.mark.parametrize("scalar", FORWARD)
def test_nothing_is_read_beyond_the_operands(scalar: str) -> None:
    """Operands end where readable memory ends. A process of its own, for a mistake would end it."""
    script = Path(__file__).with_name("edge_of_memory.py")
    done = subprocess.run([sys.executable, str(script), scalar], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "every product computed\n"), done.stderr


def test_shapes_that_do_not_belong_together() -> None:
    k = Guarded("float32")
    three, four = k.tensor(np.ones((2, 3, 3))), k.tensor(np.ones((2, 4, 3)))
    with pytest.raises(ValueError, match="2 cases of 3×3 and 2 cases of 4×3"):
        k.matmul(three, four)
    with pytest.raises(ValueError, match="1 cases"):
        k.matmul(three, k.tensor(np.ones((1, 3, 3))))
    assert k.matmul(three, four, transpose_b=True).shape == (3, 4)
