"""Formats: their unit roundoffs, and rounding to them as the hardware does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradjury.verify.case import DTYPES
from gradjury.verify.precision import PRECISIONS, round_to_bits

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


def test_there_is_one_of_every_dtype_of_a_case() -> None:
    assert set(PRECISIONS) == set(DTYPES)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_formats_that_numpy_knows(name: str) -> None:
    """Unit roundoff, smallest subnormal and largest number are those of the hardware format."""
    p, info = PRECISIONS[name], np.finfo(name)
    assert (p.u, p.least, p.largest) == (float(info.eps) / 2, float(info.smallest_subnormal), float(info.max))


def test_bfloat16_ends_where_its_bits_end() -> None:
    p = PRECISIONS["bfloat16"]
    largest = np.array([0x7F7F0000], np.uint32).view(np.float32)[0]
    least = np.array([0x00010000], np.uint32).view(np.float32)[0]
    assert (p.largest, p.least) == (float(largest), float(least))


@given(st.lists(finite, min_size=1, max_size=20))
def test_float16_is_rounded_as_numpy_rounds(values: list[float]) -> None:
    """Ties, subnormals and signed zeros included; only what overflows is left to the caller."""
    x = np.array(values, np.float32)
    x = x[np.abs(x) < 65504]
    np.testing.assert_array_equal(PRECISIONS["float16"].round(x), x.astype(np.float16).astype(np.float32))


@given(st.lists(finite, min_size=1, max_size=20))
def test_bfloat16_is_rounded_to_nearest_even(values: list[float]) -> None:
    """As the usual trick on the bits does it: add half a unit, ties to the even bit, and cut."""
    x = np.array(values, np.float32)
    bits = x.view(np.uint32).astype(np.uint64)
    expected = (((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000) & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
    np.testing.assert_array_equal(PRECISIONS["bfloat16"].round(x), expected)


@given(finite, st.integers(2, 52))
def test_rounding_is_idempotent_and_within_half_a_unit(value: float, bits: int) -> None:
    x = np.array([value])
    once = round_to_bits(x, bits, 0.0)
    assert np.abs(once - x)[0] <= 2.0**-bits * np.abs(x)[0]
    np.testing.assert_array_equal(round_to_bits(once, bits, 0.0), once)


def test_not_numbers_and_infinities_stay() -> None:
    x = np.array([np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(round_to_bits(x, 8, 0.0), x)


def test_integers_and_float64_are_left_alone() -> None:
    index, wide = np.arange(3), np.array([0.1])
    assert PRECISIONS["float32"].round(index) is index
    assert PRECISIONS["float64"].round(wide) is wide
    assert PRECISIONS["float32"].round(wide)[0] == np.float32(0.1)


def test_sums_at_float64_are_taken_to_round_coherently_and_at_float32_to_an_eighth() -> None:
    """κ and τ of docs/numerics.md, section by section measured."""
    wide, narrow = PRECISIONS["float64"], PRECISIONS["float32"]
    assert (wide.arithmetic().kappa, narrow.arithmetic().kappa) == (1.0, 0.125)
    assert (wide.threshold, narrow.threshold) == (4.0, 2.0)
    assert narrow.arithmetic(operand_bits=11).operand_bits == 11
