"""The reference: exact gradients from exactly the testimony's inputs, and the error that honest rounding can reach."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import small_cases

from gradjury.kernels.engine import engine
from gradjury.verify.case import Case, Node
from gradjury.verify.precision import PRECISIONS, round_to_bits
from gradjury.verify.reference import Assumptions, Exact, Reference, _root_mean_square, confidence


def reference(case: Case, dtype: str = "float32", **options: object) -> Reference:
    asked = {name for node in case.graph for name in (*node.inputs.values(), *node.outputs.values())}
    return Reference(case, PRECISIONS[dtype], engine(), asked, **options)  # type: ignore[arg-type]


def normed() -> Case:
    """A linear layer before a batchnorm."""
    case = small_cases.linear(32)
    case.graph.append(Node("bn", "batchnorm", {"x": "y", "weight": "g"}, {"y": "z"}, {"epsilon": 2.0**-17}))
    case.values["g"] = np.ones(9, np.float32)
    case.upstream = {"z": case.upstream["y"]}
    return case


def sums(upstream: list[float]) -> Case:
    """The gradient of b is the sum of `upstream`."""
    case = small_cases.linear(len(upstream), 1, 1)
    case.upstream = {"y": np.array(upstream)[:, None]}
    return case


def exactly(found: Exact | None) -> list[Fraction]:
    assert found is not None
    low = np.zeros_like(found.high) if found.low is None else found.low
    return [Fraction(float(h)) + Fraction(float(r)) for h, r in zip(found.high.ravel(), low.ravel(), strict=True)]


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 50), ("float64", 100)])
def test_products_are_exact_to_many_more_bits_than_the_testimony_has(dtype: str, bits: int) -> None:
    case = small_cases.linear(6, 3, 2)
    found = exactly(reference(case, dtype).gradient("W"))
    terms = [
        [Fraction(float(case.upstream["y"][i, o])) * Fraction(float(case.values["x"][i, d])) for i in range(6)]
        for o in range(2) for d in range(3)
    ]
    for value, parts in zip(found, terms, strict=True):
        assert abs(value - sum(parts)) <= Fraction(1, 2**bits) * sum(map(abs, parts))


def test_inputs_enter_as_the_testimonys_dtype_rounds_them() -> None:
    """A float64 value is seen by a float32 witness as its nearest float32; by bfloat16 with 8 bits."""
    case = sums([1.0])
    case.values["x"] = np.array([[0.1]])
    for dtype, seen in (("float64", 0.1), ("float32", float(np.float32(0.1))), ("bfloat16", 0.10009765625)):
        found = reference(case, dtype).gradient("W")
        assert found is not None and found.high.item() == seen


def test_differences_keep_the_low_part() -> None:
    exact = Exact(np.array([1.0, np.inf]), np.array([2.0**-70, 0.0]))
    found = exact.difference(np.array([1.0, np.inf]))
    assert found[0] == -(2.0**-70) and np.isnan(found[1])


def test_what_cannot_be_computed_is_none() -> None:
    case = small_cases.branches()
    case.graph[1] = Node("left", "my.own", {"x": "h"}, {"y": "l"})
    found = reference(case)
    assert found.gradient("W") is None and found.value("y") is None
    assert found.value("r") is not None
    case.upstream = {}
    assert reference(case).gradient("y") is None


def test_parts_are_looked_up_like_wholes() -> None:
    found = reference(small_cases.branches())
    left, right, whole = (found.gradient(key) for key in ("h@left", "h@right", "h"))
    assert left is not None and right is not None and whole is not None
    np.testing.assert_array_equal(left.high + right.high, whole.high)
    assert found.budget("h@left").shape == (8, 4)


@pytest.mark.parametrize(
    ("upstream", "zero"),
    [
        ([1.0, -1.0], True),
        ([0.3, 0.1, -0.4], False),  # 0.3 + 0.1 − 0.4 of these doubles is 2^-55 or so, not 0
        ([1.0, -(1 - 2.0**-53)], False),
        ([1e-300, 0.0], False),
        ([0.0, 0.0], True),
    ],
)
def test_zero_is_told_from_small(upstream: list[float], zero: bool) -> None:
    assert reference(sums(upstream), "float64").exactly_zero("b") is zero


def test_a_bias_before_batchnorm_is_exactly_zero_and_nothing_else_is() -> None:
    for dtype in ("float32", "float64"):
        found = reference(normed(), dtype)
        assert {key for key in ("x", "W", "b", "g", "y") if found.exactly_zero(key)} == {"b"}


def test_a_gradient_that_is_not_finite_is_no_zero() -> None:
    assert reference(sums([np.inf, -np.inf]), "float64").exactly_zero("b") is False


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_budget_is_made_as_the_document_says(dtype: str) -> None:
    """τ·(λ·u·scale·(1 + u_ref/u) + 4η)."""
    found, p = reference(small_cases.linear(), dtype), PRECISIONS[dtype]
    scale = found.scale("W")
    expected = p.threshold * (confidence(scale.size) * p.u * scale * (1 + found.u / p.u) + 4 * p.least)
    np.testing.assert_array_equal(found.budget("W"), expected)
    wider = confidence(scale.size) * p.u * found.scale("W", replicas=True) * (1 + found.u / p.u)
    np.testing.assert_array_equal(found.bound("W", replicas=True), wider)


def test_confidence_grows_with_the_elements() -> None:
    """λ of docs/numerics.md: 5.4 for one element, 7.5 for a million."""
    assert confidence(1) == pytest.approx(5.39, abs=0.01) and confidence(10**6) == pytest.approx(7.53, abs=0.01)
    assert confidence(0) == confidence(1)


def test_replicas_only_widen() -> None:
    found = reference(normed())
    for key in ("x", "W", "b", "g"):
        assert (found.scale(key, replicas=True) >= found.scale(key)).all(), key
    assert (found.scale("W", replicas=True) > found.scale("W")).any(), "else they would add nothing here"


def test_a_larger_unit_roundoff_widens_the_budget_in_proportion() -> None:
    case = small_cases.linear()
    plain, coarse = reference(case), reference(case, assumptions=Assumptions(u=2.0**-14))
    np.testing.assert_array_equal(coarse.scale("W"), plain.scale("W"))
    expected = confidence(coarse.scale("W").size) * 2.0**-14 * coarse.scale("W") * (1 + coarse.u / 2.0**-14)
    np.testing.assert_array_equal(coarse.bound("W"), expected)


def test_less_precise_functions_widen_what_depends_on_them() -> None:
    case = small_cases.branches()
    plain, careless = reference(case), reference(case, assumptions=Assumptions(function_error=2.0**8))
    assert (careless.budget("b") > 10 * plain.budget("b")).all()
    np.testing.assert_array_equal(careless.budget("y"), plain.budget("y"))


def test_emulated_operands_are_those_of_numpy() -> None:
    """Products of operands with 8 bits, summed wide; a sum without a product is untouched."""
    case = small_cases.linear()
    found = reference(case).emulated({"operand_bits": 8})
    x, dy = (round_to_bits(a, 8, 0.0) for a in (case.values["x"], case.upstream["y"]))
    np.testing.assert_array_equal(found["W"], dy.T @ x)
    np.testing.assert_array_equal(found["b"], case.upstream["y"].sum(0, dtype=np.float64))


def test_a_replaced_gradient_changes_what_lies_behind() -> None:
    case = small_cases.branches()
    found = reference(case, replace={"h": np.ones((8, 4))}).gradient("b")
    assert found is not None and found.high.tolist() == [8.0] * 4


def kinked(offset: float) -> Reference:
    """relu of (offset, 1, −1) times x = 1, as float32."""
    node = Node("act", "relu", {"x": "x"}, {"y": "y"})
    wide = Node("fc", "linear", {"x": "one", "weight": "W", "bias": "b"}, {"y": "x"})
    values = {"one": np.ones((1, 1), np.float32), "W": np.ones((3, 1), np.float32)}
    values["b"] = np.array([offset - 1, 0, -2], np.float32)
    return reference(Case("kink", [wide, node], values, {"y": np.ones((1, 3), np.float32)}))


def test_units_far_from_the_kink_are_decided() -> None:
    found = kinked(0.5)
    assert found.active_units["act"].tolist() == [[1, 1, 0]]
    assert not found.could_flip({"act": np.array([[0, 1, 0]], np.uint8)})
    assert found.could_flip({"act": np.array([[1, 1, 0]], np.uint8)})


def test_a_unit_that_rounding_may_flip_is_allowed_to_be_on_either_side() -> None:
    """Its gradient, 1 or 0, is then within the budget; its neighbours' budgets stay small."""
    found = kinked(2.0**-24)
    assert found.could_flip({"act": np.array([[0, 1, 0]], np.uint8)})
    assert not found.could_flip({"act": np.array([[0, 1, 1]], np.uint8)})
    budget = found.budget("b")
    assert budget[0] >= 1 and (budget[1:] < 1e-4).all()


def test_given_masks_are_followed_and_leave_no_doubt() -> None:
    base = kinked(2.0**-24)
    own = reference(base.case, masks={"act": np.array([[0, 1, 0]], np.uint8)})
    gradient = own.gradient("b")
    assert gradient is not None and gradient.high.tolist() == [0.0, 1.0, 0.0]
    assert (own.budget("b") < 1e-4).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_directional_derivative_is_the_gradients(dtype: str) -> None:
    found = reference(normed(), dtype)
    direction = np.ones((9, 17))
    terms, gradient = found.directional_derivative({"W": direction}), found.gradient("W")
    assert gradient is not None
    gap = abs(math.fsum([*terms, *-gradient.high.ravel(), *(() if gradient.low is None else -gradient.low.ravel())]))
    assert gap <= found.rounding_of(terms) + found.own_bound("W").sum()


def test_root_mean_square_of_tiny_and_of_very_different_numbers() -> None:
    """Squares of 2^-700 vanish, and so would those of a small element beside a large one."""
    tiny = 2.0**-700
    rows = np.array([[3 * tiny, 1e150, 0.0, np.inf], [4 * tiny, -1e150, 0.0, 1.0]])
    found = _root_mean_square(rows)
    np.testing.assert_array_equal(found[:3], [np.sqrt(12.5) * tiny, 1e150, 0.0])
    assert found[3] == 0
