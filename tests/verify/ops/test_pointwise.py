"""relu, tanh, sigmoid, exp and log against their definitions; kinks, masks and common errors of relu."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import exact
import numpy as np
import pytest
from guards import BACKWARD, Guarded
from problems import PLAIN, directional_gap, float32_values, kernels, run, worst_excess

from gradjury.kernels.tensor import Mode
from gradjury.verify import ops

NAMES = ["relu", "tanh", "sigmoid", "exp", "log"]
RANGES = {
    "relu": [(-1, 1)],
    "tanh": [(-1, 1), (-20, 20), (-1e-6, 1e-6)],
    "sigmoid": [(-1, 1), (-40, 40), (-1e-6, 1e-6)],
    "exp": [(-1, 1), (-40, 40)],
    "log": [(0.5, 2), (1e-6, 1e6), (1 - 1e-5, 1 + 1e-5)],
}
SHAPES = [(7,), (3, 5), (2, 1, 4), ()]


def formula(name: str) -> Any:
    return lambda attributes, x: {"y": np.asarray(getattr(exact, name)(x), object)}


def problem(name: str, shape: tuple[int, ...], low: float, high: float) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(0)
    x = np.asarray(rng.uniform(low, high, shape), np.float32).astype(np.float64)
    return {"x": x}, {"y": float32_values(rng, *shape)}


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize(("name", "limits"), [(name, limits) for name in NAMES for limits in RANGES[name]])
def test_exact(name: str, limits: tuple[float, float], scalar: str) -> None:
    for shape in SHAPES:
        inputs, upstream = problem(name, shape, *limits)
        assert worst_excess(ops.all_ops()[name], formula(name), inputs, {}, upstream, scalar) <= 1


@pytest.mark.parametrize("name", NAMES)
def test_derivative_of_the_forward(name: str) -> None:
    inputs, _ = problem(name, (4, 9), *RANGES[name][0])
    assert directional_gap(ops.all_ops()[name], inputs, {}) < 2.0**-98


@pytest.mark.parametrize("scalar", BACKWARD)
def test_relu_at_zero(scalar: str) -> None:
    """The gradient at 0 is 0, whichever its sign."""
    x = np.array([0.0, -0.0, 1.0, -1.0, 2.0**-149, -(2.0**-149)])
    k = Guarded(scalar)
    found = run(ops.all_ops()["relu"], {"x": x}, {}, {"y": np.full(6, 3.0)}, k)
    np.testing.assert_array_equal(k.values(found.gradients["x"])[0], [0, 0, 3, 0, 3, 0])
    np.testing.assert_array_equal(k.values(found.outputs["y"])[0], np.maximum(x, 0))


def relu(scalar: str, x: np.ndarray, mask: Any, undecided: Any, dy: np.ndarray) -> tuple[Any, Any]:
    """Output and gradient of one case with the kink's side given."""
    k, op = kernels(scalar), ops.all_ops()["relu"]
    given: dict[str, Any] = {
        "x": k.tensor(x[None]),
        "kink.mask": None if mask is None else k.mask(mask[None]),
        "kink.undecided": None if undecided is None else k.doubles(undecided[None]),
    }
    outputs, saved = op.forward(k, given, {})
    return outputs["y"].data[0], op.backward(k, given, {}, saved, {"y": k.tensor(dy[None])}, {"x"})["x"].data[0]


@pytest.mark.parametrize("scalar", ["float32", "float64"])
def test_relu_with_a_mask(scalar: str) -> None:
    """A witness's own mask decides, on either side of 0."""
    x, dy = np.array([-1.0, -2.0, 3.0, 4.0, 0.0]), np.array([5.0, 6.0, 7.0, 8.0, 9.0])
    mask = np.array([1, 0, 1, 0, 1], np.uint8)
    y, dx = relu(scalar, x, mask, None, dy)
    np.testing.assert_array_equal(y, x * mask)
    np.testing.assert_array_equal(dx, dy * mask)


def test_relu_undecided() -> None:
    """`bound` carries by how much the other side would change y, and the whole upstream of an undecided unit."""
    x, dy = np.array([1.0, -1.0, 1e-9, -1e-9]), np.array([2.0, 3.0, -4.0, 5.0])
    y, dx = relu("bound", x, None, np.array([0.0, 0.0, 2e-9, 3e-9]), dy)
    np.testing.assert_array_equal(y, [[1, 0], [0, 0], [1e-9, 2e-9], [0, 3e-9]])
    np.testing.assert_array_equal(dx, [[2, 0], [0, 0], [-4, 4], [0, 5]])


@pytest.mark.parametrize("mask", [None, np.array([[1, 0, 1], [0, 1, 0]], np.uint8)])
def test_relu_passes_common_errors_on(mask: np.ndarray | None) -> None:
    """A common error keeps its direction where the unit is active, and has none elsewhere."""
    k, rng, op = kernels("spread"), np.random.default_rng(2), ops.all_ops()["relu"]
    x, direction = rng.standard_normal((1, 2, 3)), rng.standard_normal((1, 2, 3))
    mode = Mode(direction, np.ones((1, 3)), included=False)
    flow = replace(k.tensor(rng.standard_normal((1, 2, 3))), modes=(mode,))
    given: dict[str, Any] = {"x": k.tensor(x), "kink.mask": None if mask is None else k.mask(mask[None])}
    given["kink.undecided"] = None
    (passed,) = op.backward(k, given, {}, None, {"y": flow}, {"x"})["x"].modes
    np.testing.assert_array_equal(passed.direction, direction * (x > 0 if mask is None else mask))
    assert passed.variance is mode.variance


@pytest.mark.parametrize(
    ("name", "x", "y", "dx"),
    [
        ("tanh", [-1e4, 1e4], [-1, 1], [0, 0]),
        ("sigmoid", [-1e4, 1e4], [0, 1], [0, 0]),
        ("exp", [-1e4, 1e4], [0, np.inf], [0, np.inf]),
        ("log", [np.inf, 1], [np.inf, 0], [0, 1]),
    ],
)
@pytest.mark.parametrize("scalar", PLAIN)
def test_far_out(name: str, x: list[float], y: list[float], dx: list[float], scalar: str) -> None:
    """Where the function saturates or overflows, nothing else comes."""
    k = kernels(scalar)
    found = run(ops.all_ops()[name], {"x": np.array(x)}, {}, {"y": np.ones(2)}, k)
    np.testing.assert_array_equal(k.values(found.outputs["y"])[0], y)
    np.testing.assert_array_equal(k.values(found.gradients["x"])[0], dx)


def test_all_functions_are_here() -> None:
    assert set(NAMES) == {name for name, op in ops.all_ops().items() if type(op).__module__.endswith(".pointwise")}
