"""From one measurement to a verdict, and what two dtypes of one witness say together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradjury.verify.measure import Measurement
from gradjury.verify.reference import Exact
from gradjury.verify.verdict import Table, Verdict, of_ladder, of_one


def measurement(**changes: Any) -> Measurement:
    """Two elements of size 1 with a budget of 1e-3, off by a tenth of it."""
    settings: dict[str, Any] = {
        "key": "g", "testimony": np.array([1.0, -1.0]), "exact": Exact(np.array([1.0, -1.0])), "error": np.array([1e-4, 0.0]),
        "budget": np.full(2, 1e-3), "scale": np.ones(2), "unit": 2.0**-24, "excess": 0.1, "worst": (0,), "mismatch": False,
        "undefined": False, "zero": False,
    }
    return Measurement(**{**settings, **changes})


WIDE = {"budget": np.full(2, 0.5), "error": np.array([0.4, 0.0])}  # a budget that swallows mistakes of half the gradient


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "agrees"),
        ({"excess": 1.0}, "agrees"),
        ({"excess": np.nextafter(1.0, 2.0)}, "wrong"),
        ({"excess": np.inf}, "wrong"),
        ({"zero": True}, "zero-noise"),
        ({"zero": True, "excess": 2.0}, "wrong"),
        ({"exact": Exact(np.full(2, 1e-4))}, "zero-noise"),
        ({"mismatch": True}, "nonfinite"),
        ({"mismatch": True, "undefined": True}, "undecided"),
        (WIDE, "undecided"),
        ({**WIDE, "error": np.zeros(2)}, "agrees"),  # a mistake would have to be cancelled by rounding everywhere
    ],
)
def test_one_measurement(changes: dict[str, Any], verdict: str) -> None:
    assert of_one(measurement(**changes)).verdict == verdict


def test_without_a_reference_it_is_undecided_and_says_what_is_missing() -> None:
    found = of_one(None)
    assert found.verdict == "undecided" and "no inputs" in found.why


def test_a_mismatch_says_which_side_is_not_finite() -> None:
    theirs = of_one(measurement(mismatch=True, testimony=np.array([np.nan, 1.0])))
    ours = of_one(measurement(mismatch=True))
    assert "1 of 2 elements" in theirs.why and "exact gradient is not" in ours.why


def ladder(narrow: Verdict | None, wide: Verdict | None) -> tuple[str, str]:
    table: Table = {"float32": {"g": narrow} if narrow else {}, "float64": {"g": wide} if wide else {}}
    settled = of_ladder(table)
    return tuple(settled[d]["g"].verdict if "g" in settled[d] else "-" for d in ("float32", "float64"))  # type: ignore[return-value]


def over(excess: float) -> Verdict:
    return of_one(measurement(excess=excess))


def test_float64_settles_what_float32_leaves_open() -> None:
    assert ladder(of_one(measurement(**WIDE)), of_one(measurement())) == ("agrees", "agrees")


def test_float64_excuses_nothing_that_is_over_the_line() -> None:
    assert ladder(over(50.0), of_one(measurement())) == ("wrong", "agrees")


@pytest.mark.parametrize(
    ("narrow", "wide", "expected"),
    [
        (1e3, 1e3, "unstable"),  # the error shrank with the unit roundoff
        (1e3, 1e3 * 2.0**6, "unstable"),
        (1e3, 1e3 * 2.0**8, "wrong"),
        (1e3 * 2.0**8, 1e3, "wrong"),
        (1e3, 1e3 * 2.0**29, "wrong"),  # the error stayed: a bug
        (np.inf, np.inf, "wrong"),
    ],
)
def test_over_the_line_at_both_dtypes(narrow: float, wide: float, expected: str) -> None:
    assert ladder(over(narrow), over(wide)) == (expected, expected)


def test_a_zero_stays_a_zero() -> None:
    zero = of_one(measurement(zero=True))
    assert ladder(zero, of_one(measurement())) == ("zero-noise", "agrees")
