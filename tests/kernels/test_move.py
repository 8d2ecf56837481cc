"""gather moves bits as they are; scatter sums in order of position."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from guards import BACKWARD, FORWARD, Guarded, same_bits_however_launched, whole_numbers
from hypothesis import given, settings
from hypothesis import strategies as st

from gradjury.kernels.arithmetic import Arithmetic


def random_index(rng: np.random.Generator, size: int, *shape: int) -> np.ndarray:
    """Places among `size`, some twice, some never, some -1: nothing."""
    return np.asarray(rng.integers(-1, size, shape))


@pytest.mark.parametrize("scalar", FORWARD)
@pytest.mark.parametrize("shape", [(7,), (2, 3), (0,), (40, 3), ()])
def test_gather_moves_bits(shape: tuple[int, ...], scalar: str) -> None:
    rng = np.random.default_rng(0)
    k = Guarded(scalar)
    x = k.tensor(rng.standard_normal((3, 4, 5)))
    x.data[1, 2, 3], x.data[0, 0, 0] = np.nan, -0.0
    index = random_index(rng, 20, *shape)
    y = k.gather(x, index)
    assert y.shape == shape
    zero = np.zeros((3, 1, *x.data.shape[3:]), x.data.dtype)
    flat = np.concatenate((x.data.reshape(3, 20, *x.data.shape[3:]), zero), axis=1)
    assert y.data.tobytes() == flat[:, index].astype(x.data.dtype).tobytes()
    assert k.intact()


@pytest.mark.parametrize("scalar", BACKWARD)
@pytest.mark.parametrize("shape", [(7,), (2, 3), (0,), (40, 3), ()])
def test_scatter_is_the_transpose(shape: tuple[int, ...], scalar: str) -> None:
    rng = np.random.default_rng(1)
    k = Guarded(scalar)
    index = random_index(rng, 20, *shape)
    x, dy = whole_numbers(rng, 3, 4, 5), whole_numbers(rng, 3, *shape)
    y, dx = k.whole(k.gather(k.tensor(x), index)), k.scatter(k.tensor(dy), index, (4, 5))
    expected = np.zeros((3, 21))
    for case in range(3):
        np.add.at(expected[case], index.ravel(), dy[case].ravel())  # -1 lands in the last place
        assert np.sum(y[case] * dy[case]) == np.sum(x[case] * k.whole(dx)[case])
    np.testing.assert_array_equal(k.whole(dx), expected[:, :20].reshape(3, 4, 5))
    counts = np.bincount(index[index >= 0].ravel(), minlength=1)
    assert dx.length == max(1, counts.max())
    assert k.intact()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(0, 60), st.sampled_from(BACKWARD), st.integers(1, 3), st.integers(0, 2**32))
def test_any_index(size: int, count: int, scalar: str, cases: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    index = random_index(rng, size, count)
    dy = whole_numbers(rng, cases, count)
    k = Guarded(scalar)
    expected = np.zeros((cases, size + 1))
    for case in range(cases):
        np.add.at(expected[case], index, dy[case])
    np.testing.assert_array_equal(k.whole(k.scatter(k.tensor(dy), index, (size,))), expected[:, :size])
    assert k.intact()


def test_scatter_sums_in_order_of_position() -> None:
    """(1e8 + 1) − 1e8 is 0 in float32, and (1e8 − 1e8) + 1 is 1."""
    k = Guarded("float32")
    dy = k.tensor(np.array([[1e8, 1e8, 1.0, -1e8, -1e8, 1.0]]))
    np.testing.assert_array_equal(k.scatter(dy, np.array([0, 1, 0, 0, 1, 1]), (2,)).data, [[0.0, 1.0]])


def test_scatter_into_nothing() -> None:
    k = Guarded("float64")
    np.testing.assert_array_equal(k.scatter(k.tensor(np.ones((2, 3))), np.full(3, -1), (4,)).data, np.zeros((2, 4)))
    assert k.scatter(k.tensor(np.ones((2, 0))), np.zeros(0, np.int64), (0,)).shape == (0,)


@pytest.mark.parametrize("scalar", BACKWARD)
def test_nan_goes_where_it_belongs(scalar: str) -> None:
    k = Guarded(scalar)
    dy = np.ones((2, 4))
    dy[1, 2] = np.nan
    found = k.values(k.scatter(k.tensor(dy), np.array([0, 1, 1, 2]), (3,)))
    np.testing.assert_array_equal(np.isnan(found), [[False] * 3, [False, True, False]])


def test_spread_of_moved_and_summed() -> None:
    """Moving rounds nothing; a sum of one only adds what underflow takes; two terms round as a sum does."""
    k = Guarded("spread", Arithmetic(u=2.0**-24, eta=2.0**-26))
    x = k.tensor(np.array([[3.0, 5.0, 2.0]]))
    x.data[..., 1] = [[0.5, 0.25, 1.0]]
    np.testing.assert_array_equal(k.gather(x, np.array([2, -1, 2])).data[0], [[2.0, 1.0], [0.0, 0.0], [2.0, 1.0]])
    dx = k.scatter(x, np.array([1, 0, 0]), (3,)).data[0]
    two = (25 + 4) * 1.0 + (25 + 49) + (12 / 8 / 6.0) ** 2 + 4 / 16 + 1.25
    np.testing.assert_array_equal(dx, [[7.0, two], [3.0, 0.5 + 2 / 16], [0.0, 0.0]])


@pytest.mark.parametrize("scalar", BACKWARD)
def test_bits_depend_on_nothing_else(scalar: str) -> None:
    """Neither on the batch nor on threads and their order."""
    rng = np.random.default_rng(2)
    k = Guarded(scalar, Arithmetic())
    index = random_index(rng, 90, 3000)
    dy = k.tensor(rng.standard_normal((4, 3000)))
    together = k.scatter(dy, index, (90,)).data
    alone = [k.scatter(replace(dy, data=dy.data[i : i + 1].copy()), index, (90,)).data for i in range(4)]
    assert together.tobytes() == np.concatenate(alone).tobytes()
    assert same_bits_however_launched(lambda: k.scatter(dy, index, (90,)))
    assert same_bits_however_launched(lambda: k.gather(dy, index))


def test_broadcast_to_its_own_shape_is_itself() -> None:
    k = Guarded("float64")
    x = k.tensor(np.ones((2, 3)))
    assert k.broadcast(x, (3,)) is x
