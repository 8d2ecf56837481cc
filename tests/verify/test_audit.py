"""The reference's cross-examination: it passes where forward and backward belong together, and finds planted slips."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import small_cases

from gradjury.kernels.engine import engine
from gradjury.verify import graph, ops
from gradjury.verify.audit import Audit, directional
from gradjury.verify.case import Case, Node
from gradjury.verify.new import new_case
from gradjury.verify.precision import PRECISIONS
from gradjury.verify.reference import Reference

DTYPES = ("float32", "float64")


def audited(case: Case, dtype: str) -> Audit:
    case = graph.complete(case, graph.check(case))
    asked = {name for node in case.graph for name in (*node.inputs.values(), *node.outputs.values())}
    return directional(Reference(case, PRECISIONS[dtype], engine(), asked))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ops.all_ops())
def test_every_op_matches_its_own_forward(op: str, dtype: str) -> None:
    found = audited(new_case(op), dtype)
    assert found.directional_excess is not None and found.directional_excess <= 1, found
    assert not found.disputed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mean", [0.0, 300.0, 1e5])
def test_a_large_mean_is_no_reason_for_doubt(dtype: str, mean: float) -> None:
    """Honest kernels stay undisputed where the mean swamps the variation."""
    rng = np.random.default_rng(3)
    node = Node("bn", "batchnorm", {"x": "x"}, {"y": "y"}, {"epsilon": 2.0**-17})
    values = {"x": (rng.standard_normal((64, 6)) + mean).astype(np.float32)}
    assert not audited(Case("bn", [node], values, {"y": small_cases.float32(rng, 64, 6)}), dtype).disputed


@pytest.mark.parametrize(("dtype", "slip"), [("float32", 1e-10), ("float64", 1e-25)])
def test_a_slip_far_below_the_testimonys_rounding_is_found(dtype: str, slip: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One element of one gradient is off by a part in 10^10 (10^25 at float64), where the testimony rounds at 10^-7 (10^-16)."""
    op = ops.get("linear")
    assert op is not None
    right = type(op).backward

    def slipped(self: Any, k: Any, *given: Any) -> Any:
        found = right(self, k, *given)
        if "weight" in found and k.scalar.name in ("float64", "double-double"):
            data = found["weight"].data
            if k.scalar.components == 1:
                data[0, 0, 0] *= 1 + slip
            else:
                data[0, 0, 0, 1] += slip * data[0, 0, 0, 0]
        return found

    case = small_cases.linear(3, 4, 2)
    assert not audited(case, dtype).disputed
    monkeypatch.setattr(type(op), "backward", slipped)
    assert audited(case, dtype).disputed


def test_an_input_far_from_zero_does_not_drown_a_slip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A direction is as large as its input varies: steps as large as a mean of 2^40 would hide a slip in another gradient."""
    case = small_cases.linear(3, 4, 2)
    case.values["b"] = (2.0**40 + np.array([0.0, 2.0**17])).astype(np.float32)
    assert not audited(case, "float32").disputed
    right = Reference.gradient

    def slipped(self: Reference, key: str) -> Any:
        found = right(self, key)
        return replace(found, high=found.high * (1 + 1e-6)) if key == "W" and found is not None else found

    monkeypatch.setattr(Reference, "gradient", slipped)
    assert audited(case, "float32").disputed


def test_kinks_take_the_side_of_the_point_itself() -> None:
    node = Node("act", "relu", {"x": "x"}, {"y": "y"})
    case = Case("kink", [node], {"x": np.array([-1.0, 0.0, 5e-324, 2.0])}, {"y": np.ones(4)})
    assert audited(case, "float64").directional_excess == 0


def test_without_a_gradient_there_is_nothing_to_examine() -> None:
    case = small_cases.linear()
    case.values = {}
    found = audited(case, "float32")
    assert found.directional_excess is None and found.why is not None and not found.disputed


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_is_said_and_disputes_nothing(value: float) -> None:
    case = small_cases.linear()
    case.upstream["y"][0, 0] = value
    found = audited(case, "float32")
    assert found == Audit(None, "the exact gradient is not finite") and not found.disputed


def test_the_same_on_every_run() -> None:
    assert audited(small_cases.branches(), "float32") == audited(small_cases.branches(), "float32")


def test_a_dispute_is_anything_not_within_the_line() -> None:
    assert [Audit(x).disputed for x in (None, 0.0, 1.0, 1.01, float("inf"), float("nan"))] == [False] * 3 + [True] * 3
