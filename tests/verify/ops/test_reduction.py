"""sum and mean over axes against their definitions."""

from __future__ import annotations

from typing import Any

import exact
import numpy as np
import pytest
from guards import BACKWARD, Guarded, whole_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import PLAIN, directional_gap, float32_values, kernels, run, worst_excess

from gradjury.verify import ops
from gradjury.verify.ops.base import OpError

SHAPE = (4, 3, 5)
AXES = [None, 0, -1, [1], [0, 2], (0, 1, 2), [-1, 0], []]


def numpy_axes(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, (list, tuple)) else axis


def formula(name: str) -> Any:
    def reduce(attributes: dict[str, Any], x: Any) -> Any:
        total = np.asarray(x.sum(numpy_axes(attributes["axis"]), keepdims=attributes["keepdims"]), object)
        return {"y": total if name == "sum" else np.asarray(total / exact.Exact(x.size // total.size), object)}

    return reduce


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_exact(name: str, axis: Any, keepdims: bool, scalar: str) -> None:
    rng, op = np.random.default_rng(0), ops.all_ops()[name]
    attributes = {"axis": axis, "keepdims": keepdims}
    upstream = {"y": float32_values(rng, *op.shapes({"x": SHAPE}, {}, attributes)["y"])}
    inputs = {"x": float32_values(rng, *SHAPE)}
    assert worst_excess(op, formula(name), inputs, attributes, upstream, scalar) <= 1
    assert directional_gap(op, inputs, attributes) < 2.0**-98


@settings(max_examples=40)
@given(st.lists(st.integers(0, 6), max_size=4), st.data(), st.sampled_from(BACKWARD), st.booleans())
def test_any_shape(shape: list[int], data: st.DataObject, scalar: str, keepdims: bool) -> None:
    """Every scalar on whole numbers, empty axes included, between stretches of NaN."""
    axes = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1)))) if shape else []
    rng, k, op = np.random.default_rng(1), Guarded(scalar), ops.all_ops()["sum"]
    attributes = {"axis": axes, "keepdims": keepdims}
    x = whole_numbers(rng, *shape)
    dy = whole_numbers(rng, *op.shapes({"x": x.shape}, {}, attributes)["y"])
    found = run(op, {"x": x}, attributes, {"y": dy}, k, cases=2)
    each = np.broadcast_to(dy if keepdims else np.expand_dims(dy, axes), shape)
    for case in range(2):
        np.testing.assert_array_equal(k.whole(found.outputs["y"])[case], x.sum(tuple(axes), keepdims=keepdims))
        np.testing.assert_array_equal(k.whole(found.gradients["x"])[case], each)
    assert k.intact()


def test_mean_of_nothing() -> None:
    """0/0, as in PyTorch and numpy."""
    k = kernels("float64")
    found = run(ops.all_ops()["mean"], {"x": np.zeros((0, 2))}, {"axis": 0}, {"y": np.ones(2)}, k)
    np.testing.assert_array_equal(k.values(found.outputs["y"]), [[np.nan, np.nan]])
    assert found.gradients["x"].shape == (0, 2)


@pytest.mark.parametrize("axis", [2, -3, [0, 5], ["0"], [0.5]])
def test_bad_axis(axis: Any) -> None:
    with pytest.raises(OpError, match=r"^attribute axis: expected axes of x of shape \(2, 3\), found "):
        ops.all_ops()["sum"].shapes({"x": (2, 3)}, {}, {"axis": axis, "keepdims": False})
