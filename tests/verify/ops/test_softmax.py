"""softmax and log_softmax against their definitions, along any axis."""

from __future__ import annotations

from typing import Any

import exact
import numpy as np
import pytest
from guards import BACKWARD
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import PLAIN, batch_is_indifferent, directional_gap, float32_values, kernels, run, worst_excess

from gradjury.verify import ops
from gradjury.verify.ops.base import OpError

NAMES = ["softmax", "log_softmax"]
SHAPES = [((4, 5), -1), ((4, 5), 0), ((2, 3, 4), 1), ((7,), 0), ((3, 1), 1), ((1, 40), -1)]


def softmax(x: Any, axis: int) -> Any:
    powers = exact.exp(x)
    return powers / powers.sum(axis, keepdims=True)


def formula(name: str) -> Any:
    if name == "softmax":
        return lambda attributes, x: {"y": softmax(x, attributes["axis"])}
    return lambda attributes, x: {"y": exact.log(softmax(x, attributes["axis"]))}


def problem(shape: tuple[int, ...], scale: float = 1.0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return {"x": float32_values(rng, *shape) * scale}, {"y": float32_values(rng, *shape)}


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_exact(name: str, shape: tuple[int, ...], axis: int, scalar: str) -> None:
    for scale in (1.0, 16.0, 2.0**-20):
        inputs, upstream = problem(shape, scale)
        assert worst_excess(ops.all_ops()[name], formula(name), inputs, {"axis": axis}, upstream, scalar) <= 1


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("name", NAMES)
def test_far_from_zero(name: str, scalar: str) -> None:
    """The largest value is subtracted first: nothing overflows."""
    inputs, upstream = problem((3, 6))
    inputs["x"] = (inputs["x"] + 1e4).astype(np.float32).astype(np.float64)
    assert worst_excess(ops.all_ops()[name], formula(name), inputs, {"axis": 1}, upstream, scalar) <= 1


@pytest.mark.parametrize("scalar", PLAIN)
def test_certain_classes(scalar: str) -> None:
    """A class that is certain, and one that cannot be."""
    inputs = {"x": np.array([[0.0, 1e4, -1e4], [0.0, -np.inf, 0.0]])}
    k = kernels(scalar)
    found = run(ops.all_ops()["softmax"], inputs, {"axis": 1}, {"y": np.ones((2, 3))}, k)
    np.testing.assert_array_equal(k.values(found.outputs["y"])[0], [[0, 1, 0], [0.5, 0, 0.5]])
    np.testing.assert_array_equal(k.values(found.gradients["x"])[0], np.zeros((2, 3)))


@pytest.mark.parametrize("scalar", BACKWARD)
@pytest.mark.parametrize("name", NAMES)
def test_masked_classes(name: str, scalar: str) -> None:
    """Classes at −∞, given or through a sum, take no part: the others are as if alone, with their errors and no more."""
    k, op, add = kernels(scalar), ops.all_ops()[name], ops.all_ops()["add"]
    rng = np.random.default_rng(6)
    x, dy = float32_values(rng, 2, 5), float32_values(rng, 2, 5)
    mask = np.array([0, -np.inf, 0, -np.inf, 0])
    kept = np.isfinite(mask)
    dy[:, ~kept] = 0
    summed = run(add, {"a": x, "b": mask}, {}, {"y": np.ones((2, 5))}, k).outputs["y"]
    for scores in (k.tensor((x + mask)[None]), summed):
        outputs, saved = op.forward(k, {"x": scores}, {"axis": -1})
        y = k.values(outputs["y"])[0]
        dx = op.backward(k, {"x": scores}, {"axis": -1}, saved, {"y": k.tensor(dy[None])}, {"x"})["x"]
        if name == "softmax":  # `noisy` lets anything underflow, in either direction
            assert np.all(np.abs(y[:, ~kept]) <= (k.arithmetic.eta if scalar == "noisy" else 0))
        else:
            assert np.array_equal(y[:, ~kept], np.full((2, 2), -np.inf))
        assert np.isfinite(y[:, kept]).all()
        gradient = k.values(dx)[0]
        assert np.isfinite(gradient).all()
        if scalar in PLAIN:
            alone = run(op, {"x": x[:, kept]}, {"axis": -1}, {"y": dy[:, kept]}, k)
            assert not gradient[:, ~kept].any()
            np.testing.assert_array_equal(y[:, kept], k.values(alone.outputs["y"])[0])
            np.testing.assert_array_equal(gradient[:, kept], k.values(alone.gradients["x"])[0])
        if scalar == "spread":
            assert np.isfinite(dx.data[..., 1]).all()
            assert np.isfinite(outputs["y"].data[..., 1]).all()


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("name", NAMES)
def test_all_masked(name: str, scalar: str) -> None:
    """Nothing to choose from is NaN, as in PyTorch."""
    k = kernels(scalar)
    found = run(ops.all_ops()[name], {"x": np.full((1, 3), -np.inf)}, {}, {"y": np.ones((1, 3))}, k)
    assert np.isnan(k.values(found.outputs["y"])).all()


@pytest.mark.parametrize("name", NAMES)
def test_nan_spoils_its_row_only(name: str) -> None:
    inputs, upstream = problem((3, 4))
    inputs["x"][1, 2] = np.nan
    k = kernels("float64")
    found = run(ops.all_ops()[name], inputs, {"axis": 1}, upstream, k)
    for values in (k.values(found.outputs["y"])[0], k.values(found.gradients["x"])[0]):
        np.testing.assert_array_equal(np.isnan(values), [[False] * 4, [True] * 4, [False] * 4])


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_derivative_of_the_forward(name: str, shape: tuple[int, ...], axis: int) -> None:
    if shape[axis] > 1:  # else the derivative is 0, and so are all its terms
        assert directional_gap(ops.all_ops()[name], problem(shape)[0], {"axis": axis}) < 2.0**-98


@settings(max_examples=30)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.data(), st.sampled_from(NAMES))
def test_axes(shape: list[int], data: st.DataObject, name: str) -> None:
    """An axis anywhere is the last axis of the transposed array, bit for bit; empty ones do no harm."""
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    inputs, upstream = problem(tuple(shape))
    op, k = ops.all_ops()[name], kernels("float32")
    here = run(op, inputs, {"axis": axis}, upstream, k)
    there = run(
        op,
        {"x": np.moveaxis(inputs["x"], axis, -1)},
        {"axis": -1},
        {"y": np.moveaxis(upstream["y"], axis, -1)},
        k,
    )
    np.testing.assert_array_equal(
        np.moveaxis(k.values(here.outputs["y"])[0], axis, -1), k.values(there.outputs["y"])[0]
    )
    np.testing.assert_array_equal(
        np.moveaxis(k.values(here.gradients["x"])[0], axis, -1), k.values(there.gradients["x"])[0]
    )


@pytest.mark.parametrize("scalar", ["float32", "double-double", "spread", "noisy"])
@pytest.mark.parametrize("name", NAMES)
def test_batch_is_indifferent(name: str, scalar: str) -> None:
    assert batch_is_indifferent(ops.all_ops()[name], problem((3, 5, 2))[0], {"axis": 1}, scalar)


def test_bad_axis() -> None:
    op = ops.all_ops()["softmax"]
    with pytest.raises(OpError, match=r"^attribute axis: expected an axis of x of shape \(2, 3\), found 2$"):
        op.shapes({"x": (2, 3)}, {}, {"axis": 2})
    with pytest.raises(OpError, match=r"^attribute axis"):
        op.shapes({"x": ()}, {}, {"axis": -1})
