"""One tensor against the reference: excess, masks of what is not finite, digits lost in print."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import small_cases
from hypothesis import given
from hypothesis import strategies as st

from gradjury.kernels.engine import engine
from gradjury.verify.measure import Measurement, hopeless, measure, printed_half_unit
from gradjury.verify.precision import PRECISIONS
from gradjury.verify.reference import Reference


def reference(dtype: str = "float32", upstream: np.ndarray | None = None) -> Reference:
    case = small_cases.linear()
    if upstream is not None:
        case.upstream = {"y": upstream}
    return Reference(case, PRECISIONS[dtype], engine(), {"x", "W", "b", "y"})


def held(against: Reference, testimony: np.ndarray, key: str = "W", **options: Any) -> Measurement:
    found = measure(against, key, testimony, **options)
    assert found is not None
    return found


def exact(against: Reference, key: str = "W") -> np.ndarray:
    gradient = against.gradient(key)
    assert gradient is not None
    return gradient.high.copy()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("share", "within"), [(0.0, True), (0.999, True), (1.001, False)])
def test_excess_is_the_largest_error_in_units_of_its_budget(dtype: str, share: float, within: bool) -> None:
    against = reference(dtype)
    said = exact(against)
    budget = against.budget("W", replicas=True)
    said[4, 2] += share * budget[4, 2]
    said[1, 1] -= 0.25 * budget[1, 1]
    found = held(against, said)
    rounding = 2.0**-53 * np.abs(said).max() / budget.min()  # of this test's own sums
    assert found.within is within
    assert found.excess <= max(share, 0.25) * max(1.0, float((budget / against.budget("W")).max())) + rounding
    if not within:
        assert found.excess == pytest.approx(share, abs=10 * rounding + 1e-12) and found.worst == (4, 2)
        assert np.argwhere(found.outside).tolist() == [[4, 2]]
        assert found.difference == pytest.approx(share * budget[4, 2], rel=1e-3)
        assert found.allowed == budget[4, 2]


def test_what_passes_under_the_propagated_variance_runs_no_replicas() -> None:
    against = reference()
    held(against, exact(against))
    assert "_replica_deviation" not in vars(against)
    held(against, exact(against) + 1.5 * against.budget("W"))
    assert "_replica_deviation" in vars(against)


def test_what_is_hopeless_runs_no_replicas_either() -> None:
    against = reference()
    found = held(against, exact(against) + 1e7 * against.budget("W"))
    assert not found.within and "_replica_deviation" not in vars(against)


def test_hopeless_needs_a_variance_that_did_not_underflow() -> None:
    assert [hopeless(*given) for given in ((1e7, 1.0), (1e5, 1.0), (1e7, 1e-150), (np.inf, 0.0))] == [True, False, False, False]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite_where_the_reference_is(value: float) -> None:
    against = reference()
    said = exact(against)
    said[0, 0] = value
    found = held(against, said)
    assert found.mismatch and not found.within and not found.undefined


def infinite(value: float) -> np.ndarray:
    upstream = np.ones((24, 9))
    upstream[0, 0] = value
    return upstream


def test_the_same_not_finite_elements_are_no_mismatch_and_the_rest_is_measured() -> None:
    against = reference(upstream=infinite(np.nan))
    said = exact(against)
    assert np.isnan(said[0]).all() and np.isfinite(said[1:]).all()
    assert held(against, said).within
    said[3, 3] += 1
    assert not held(against, said).within


def test_finite_where_the_reference_is_not_is_undefined() -> None:
    """Nobody is accused by a reference that is not finite: the masks differ, and more cannot be said."""
    against = reference(upstream=infinite(np.inf))
    assert held(against, np.zeros((9, 17))).undefined


def test_infinite_where_the_dtype_ends_is_no_mismatch() -> None:
    """The reference knows 10^300; a float32 witness can only say infinity."""
    against = reference(upstream=np.full((24, 9), 3e38))
    wide = exact(against, "b")
    assert (wide > PRECISIONS["float32"].largest).all() and np.isfinite(wide).all()
    assert not held(against, np.full(9, np.inf), "b").mismatch
    assert held(against, np.full(9, 1.0), "b").mismatch


def test_no_reference_is_none() -> None:
    case = small_cases.linear()
    case.values = {}
    assert measure(Reference(case, PRECISIONS["float32"], engine(), {"W"}), "W", np.zeros((9, 17))) is None


def test_forward_values_are_measured_by_name() -> None:
    against = reference()
    y = against.value("y")
    assert y is not None
    assert held(against, y.high, "y", forward=True).within
    assert not held(against, y.high + 1e-3, "y", forward=True).within


def test_an_empty_tensor_is_within() -> None:
    case = small_cases.linear(0)
    against = Reference(case, PRECISIONS["float32"], engine(), {"x", "W"})
    assert held(against, np.zeros((0, 17)), "x").within
    assert held(against, np.zeros((9, 17))).within
    assert not held(against, np.ones((9, 17))).within


def test_resolution_is_the_size_of_what_would_have_gone_unseen() -> None:
    against = reference()
    found = held(against, exact(against))
    assert found.resolution == pytest.approx(np.linalg.norm(against.budget("W")) / np.linalg.norm(exact(against)))
    assert 0 < found.hidden < found.resolution


@pytest.mark.parametrize("form", ["g", "e"])
@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), digits=st.integers(1, 9))
def test_no_print_with_significant_digits_loses_more_than_half_a_unit(form: str, values: list[float], digits: int) -> None:
    """Whatever a value was, its print is within half a unit of it."""
    shape = f".{digits}g" if form == "g" else f".{digits - 1}e"
    printed = np.array([float(f"{v:{shape}}") for v in values])
    lost = np.abs(printed - np.array(values))
    allowed = printed_half_unit(printed, digits)
    shown = printed != 0
    assert (lost[shown] <= allowed[shown] * (1 + 1e-9)).all()


@given(values=st.lists(st.floats(-10, 10), min_size=8, max_size=20), decimals=st.integers(2, 6))
def test_small_values_of_a_print_with_fixed_decimals_have_fewer_digits(values: list[float], decimals: int) -> None:
    """`%.4f` prints 0.00012 as 0.0001: one digit, although the widest literal has five."""
    printed = np.array([float(f"{v:.{decimals}f}") for v in values])
    digits = max(len(f"{abs(v):.{decimals}f}".replace(".", "").lstrip("0")) for v in values)
    if digits < 1 or int((printed != 0).sum()) < 8:
        return
    assert (np.abs(printed - np.array(values)) <= printed_half_unit(printed, digits) * (1 + 1e-9)).all()


def test_few_literals_that_end_in_zeros_tell_no_decimals() -> None:
    assert printed_half_unit(np.array([0.5, 0.0]), 6).tolist() == [0.5e-6, 0.0]
