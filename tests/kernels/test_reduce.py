"""Sums along axes: every scalar on whole numbers, roundings one by one, noise by its formula, bits by launch."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from guards import FORWARD, Guarded, nearest, rest, same_bits_however_launched, whole_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import exact_numbers, excess

from gradjury.kernels.arithmetic import Arithmetic

SIZES = [(1, 1), (1, 7), (5, 1), (17, 3), (3, 16), (9, 17), (7, 15), (4, 33), (129, 8), (0, 5), (5, 0), (40, 130)]
SHAPE = (3, 5, 2, 7)


@pytest.mark.parametrize("scalar", FORWARD)
@pytest.mark.parametrize("size", SIZES)
def test_column_sum(size: tuple[int, int], scalar: str) -> None:
    rng = np.random.default_rng(sum(size))
    x = whole_numbers(rng, 3, *size)
    k = Guarded(scalar)
    total = k.column_sum(k.tensor(x))
    assert total.shape == size[1:]
    assert total.length == size[0]
    np.testing.assert_array_equal(k.whole(total), x.sum(1))
    if scalar not in ("spread", "noisy"):
        np.testing.assert_array_equal(rest(total), np.zeros_like(rest(total)))
    assert k.intact()


@pytest.mark.parametrize("scalar", FORWARD)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [(), (0,), (3,), (-1,), (1, 2), (0, 2), (0, 1, 3), (-4, -1, 1), (3, 2, 1, 0), (2, -2)])
def test_sum_axes(axes: tuple[int, ...], keepdims: bool, scalar: str) -> None:
    x = whole_numbers(np.random.default_rng(0), 2, *SHAPE)
    k = Guarded(scalar)
    total = k.sum_axes(k.tensor(x), axes, keepdims=keepdims)
    distinct = tuple(sorted({1 + axis % 4 for axis in axes}))
    expected = x.sum(distinct, keepdims=keepdims)
    assert (total.cases, *total.shape) == expected.shape
    np.testing.assert_array_equal(k.whole(total), expected)
    assert k.intact()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=4), st.data(), st.sampled_from(FORWARD), st.integers(0, 3), st.booleans())
def test_any_axes(shape: list[int], data: st.DataObject, scalar: str, cases: int, keepdims: bool) -> None:
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1))) if shape else set()
    x = whole_numbers(np.random.default_rng(1), cases, *shape)
    k = Guarded(scalar)
    total = k.sum_axes(k.tensor(x), sorted(axes), keepdims=keepdims)
    np.testing.assert_array_equal(k.whole(total), x.sum(tuple(1 + axis for axis in axes), keepdims=keepdims))
    assert k.intact()


@pytest.mark.parametrize(("scalar", "bits"), [("float32", 24), ("float64", 53)])
@pytest.mark.parametrize("inner", [1, 3, 16, 37])
def test_every_step_rounds_in_order(inner: int, scalar: str, bits: int) -> None:
    """From the first to the last, in packs or alone."""
    x = np.random.default_rng(2).uniform(0.1, 1, (2, 60, inner)).astype(np.float32).astype(float) * (1 + (bits > 24) / 3)
    k = Guarded(scalar)
    found = k.column_sum(k.tensor(x)).data
    for case in range(2):
        for column in range(inner):
            total = 0.0
            for term in x[case, :, column]:
                total = nearest(Fraction(total) + Fraction(term), bits)
            assert found[case, column] == total


@pytest.mark.parametrize("scalar", ["float32", "float64"])
@pytest.mark.parametrize("low", [-1.0, 0.5])
def test_budget(low: float, scalar: str) -> None:
    x = np.random.default_rng(3).uniform(low, 1, (1, 5000, 20)).astype(np.float32).astype(float)
    arithmetic = Arithmetic() if scalar == "float32" else Arithmetic(u=2.0**-53, kappa=1.0, eta=5e-324)
    here, noise, wide = Guarded(scalar), Guarded("spread", arithmetic), Guarded("double-double")
    true = exact_numbers(wide.column_sum(wide.tensor(x)))  # float32 terms sum exactly in 106 bits
    variance = noise.column_sum(noise.tensor(x)).data[0, ..., 1]
    assert excess(exact_numbers(here.column_sum(here.tensor(x))), true, variance, arithmetic.u) <= 1


def test_double_double() -> None:
    """Within 2^-98 of Σ|x| where everything but low parts cancels."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((1, 200, 5))
    x[:, 100:] = -x[:, :100]
    low = x * rng.uniform(-(2.0**-54), 2.0**-54, x.shape)
    k = Guarded("double-double")
    total = k.column_sum(k.tensor(x, low))
    exact = np.frompyfunc(lambda high, low: Fraction(high) + Fraction(low), 2, 1)
    terms, found = exact(x[0], low[0]), exact(total.data[0, :, 0], total.data[0, :, 1])
    assert np.all(abs(found - terms.sum(0)) <= Fraction(1, 2**98) * abs(terms).sum(0))


@pytest.mark.parametrize("scalar", ["dual", "dual-double-double", "bound"])
def test_second_parts_add_up(scalar: str) -> None:
    rng = np.random.default_rng(5)
    x, second = whole_numbers(rng, 2, 9, 20), abs(whole_numbers(rng, 2, 9, 20))
    k = Guarded(scalar)
    place = 2 if scalar == "dual-double-double" else 1
    given_x = k.tensor(x)
    given_x.data[..., place] = second
    np.testing.assert_array_equal(k.column_sum(given_x).data[..., place], second.sum(1))


@pytest.mark.parametrize("bits", [0, 8, 13])
def test_low_precision_accumulators(bits: int) -> None:
    x = np.random.default_rng(6).standard_normal((1, 30, 3))
    k = Guarded("lowered", Arithmetic(accumulator_bits=bits, storage_bits=7))
    found = k.column_sum(k.tensor(x)).data[0]
    for column in range(3):
        total = 0.0
        for term in x[0, :, column]:
            total = nearest(Fraction(total + term), bits or 53)
        assert found[column] == nearest(Fraction(total), 7)


def test_spread() -> None:
    """docs/numerics.md: K2·m/2 + Σs² + (κΣ|s|/6)² + 2m(η/u)² + ΣV, κ = 1 where more than a fifth repeat."""
    rng = np.random.default_rng(7)
    arithmetic = Arithmetic(u=2.0**-24, eta=2.0**-26)
    x = whole_numbers(rng, 1, 25, 40)
    x[..., ::2] = rng.integers(0, 2, x[..., ::2].shape)
    k = Guarded("spread", arithmetic)
    terms = k.tensor(x)
    terms.data[..., 1] = rng.integers(0, 9, x.shape)
    partial = np.cumsum(x, axis=1)
    repeats = np.sum((x[:, 1:] == x[:, :-1]) & (x[:, 1:] != 0), axis=1) > 0.2 * 24
    assert 0 < np.sum(repeats) < 40
    weight = np.where(repeats, 1.0, arithmetic.kappa) * np.sum(np.abs(partial), axis=1) / 6.0
    own = np.sum(x**2, axis=1) * 12.5 + np.sum(partial**2, axis=1) + weight * weight + 50 / 16
    total = k.column_sum(terms)
    np.testing.assert_array_equal(total.data[..., 1], own + np.sum(terms.data[..., 1], axis=1))


def test_replicas_show_the_local_variance() -> None:
    replicas = 2000
    arithmetic = Arithmetic(eta=0.0)
    x = np.random.default_rng(8).uniform(0, 1, (1, 12, 5))
    noise = Guarded("spread", arithmetic)
    V = noise.column_sum(noise.tensor(x)).data[0, :, 1]
    k = Guarded("noisy", arithmetic)
    draws = (k.values(k.column_sum(k.tensor(np.repeat(x, replicas, axis=0)))) - x.sum(1)) / (arithmetic.u * np.sqrt(V))
    assert np.all(abs(3 * np.mean(draws**2, axis=0) - 1) <= 5 * np.sqrt(0.8 / replicas))


@pytest.mark.parametrize("scalar", FORWARD)
def test_nan_stays_in_its_column(scalar: str) -> None:
    x = whole_numbers(np.random.default_rng(9), 2, 6, 19)
    x[1, 3, 17], x[1, 2, 0] = np.nan, np.inf
    k = Guarded(scalar)
    np.testing.assert_array_equal(np.isfinite(k.values(k.column_sum(k.tensor(x)))), np.isfinite(x.sum(1)))


@pytest.mark.parametrize("scalar", FORWARD)
@pytest.mark.parametrize("size", [(300, 1), (50, 37)])
def test_bits_depend_on_nothing_else(size: tuple[int, int], scalar: str) -> None:
    """Neither on the batch nor on threads and their order."""
    k = Guarded(scalar, Arithmetic())
    x = k.tensor(np.random.default_rng(10).standard_normal((12, *size)))
    together = k.column_sum(x).data
    alone = [k.column_sum(replace(x, data=x.data[i : i + 1].copy())).data for i in range(12)]
    assert together.tobytes() == np.concatenate(alone).tobytes()
    assert same_bits_however_launched(lambda: k.column_sum(x))


@pytest.mark.parametrize("scalar", FORWARD)
@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ((5,), (3, 4, 5)),
        ((4, 1), (3, 4, 5)),
        ((), (2, 3)),
        ((1, 1, 1), (2, 3, 4)),
        ((3, 4), (3, 4)),
        ((2, 1, 3), (2, 0, 3)),
    ],
)
def test_unbroadcast(narrow: tuple[int, ...], wide: tuple[int, ...], scalar: str) -> None:
    """The transpose of numpy's broadcasting: ⟨broadcast(x), y⟩ = ⟨x, unbroadcast(y)⟩."""
    rng = np.random.default_rng(11)
    x, y = whole_numbers(rng, 2, *narrow), whole_numbers(rng, 2, *wide)
    k = Guarded(scalar)
    spread_out, total = k.broadcast(k.tensor(x), wide), k.unbroadcast(k.tensor(y), narrow)
    assert total.shape == narrow
    expected = np.stack([np.broadcast_to(one, wide) for one in x])
    np.testing.assert_array_equal(k.whole(spread_out), expected)
    for case in range(2):
        assert np.sum(expected[case] * y[case]) == np.sum(x[case] * k.whole(total)[case])
    assert k.intact()
