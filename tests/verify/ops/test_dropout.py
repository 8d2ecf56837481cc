"""Dropout with a given mask against its definition."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from mpmath import mpf
from problems import PLAIN, directional_gap, exact_numbers, float32_values, kernels, run, worst_excess

from gradjury.kernels.tensor import Mode
from gradjury.verify import ops
from gradjury.verify.ops.base import OpError

OP = ops.all_ops()["dropout"]
RATES = [0.0, 0.5, 0.1, 0.9, 1 / 3, 1e-20]


def formula(attributes: dict[str, Any], x: Any, mask: Any) -> Any:
    kept = 1 - Fraction(attributes["rate"])
    return {"y": x * mask * (mpf(kept.denominator) / mpf(kept.numerator))}


def problem(*shape: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    mask = (rng.random(shape) < 0.6).astype(np.float64)
    return {"x": float32_values(rng, *shape), "mask": mask}, {"y": float32_values(rng, *shape)}


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("rate", RATES)
def test_exact(rate: float, scalar: str) -> None:
    for shape in [(5, 6), (17,), (2, 3, 1)]:
        inputs, upstream = problem(*shape)
        assert worst_excess(OP, formula, inputs, {"rate": rate}, upstream, scalar) <= 1


def test_derivative_of_the_forward() -> None:
    inputs, _ = problem(5, 6)
    assert directional_gap(OP, inputs, {"rate": 0.1}) < 2.0**-98


@pytest.mark.parametrize("scalar", PLAIN)
def test_everything_dropped(scalar: str) -> None:
    """At rate 1 all is 0, not 0/0."""
    inputs, upstream = problem(5, 6)
    found = run(OP, inputs, {"rate": 1}, upstream, kernels(scalar))
    assert not exact_numbers(found.outputs["y"]).any()
    assert not exact_numbers(found.gradients["x"]).any()
    assert set(found.gradients) == {"x"}


def test_passes_common_errors_on() -> None:
    """A common error keeps its direction, scaled and dropped as the gradient is."""
    k, rng = kernels("spread"), np.random.default_rng(2)
    inputs, upstream = problem(5, 6)
    mode = Mode(rng.standard_normal((1, 5, 6)), np.ones((1, 6)), included=True)
    flow = replace(k.tensor(upstream["y"][None]), modes=(mode,))
    x = {slot: k.tensor(a[None]) for slot, a in inputs.items()}
    (passed,) = OP.backward(k, x, {"rate": 0.75}, None, {"y": flow}, {"x"})["x"].modes
    np.testing.assert_array_equal(passed.direction, mode.direction * inputs["mask"] * 4)
    assert passed.included


def test_bad_inputs() -> None:
    with pytest.raises(OpError, match=r"^mask: expected the shape of x, \(2, 3\), found \(3,\)$"):
        OP.shapes({"x": (2, 3), "mask": (3,)}, {}, {"rate": 0.5})
    with pytest.raises(OpError, match=r"^attribute rate: expected 0 to 1, found 1.5$"):
        OP.shapes({"x": (3,), "mask": (3,)}, {}, {"rate": 1.5})
