"""add, multiply and divide with broadcasting against their definitions."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guards import BACKWARD, Guarded, whole_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from problems import PLAIN, directional_gap, float32_values, kernels, run, worst_excess

from gradjury.kernels.modes import total_variance
from gradjury.kernels.tensor import Mode
from gradjury.verify import ops
from gradjury.verify.ops.base import OpError

OPERATORS = {"add": operator.add, "multiply": operator.mul, "divide": operator.truediv}
SHAPES = [((4, 3), (3,)), ((4, 1), (1, 5)), ((), (2, 3)), ((2, 3, 4), (3, 1)), ((6,), (6,)), ((2, 1), (2, 1))]


def formula(name: str) -> Any:
    return lambda attributes, a, b: {"y": np.asarray(OPERATORS[name](a, b), object)}


def problem(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    inputs = {"a": float32_values(rng, *a), "b": float32_values(rng, *b)}
    return inputs, {"y": float32_values(rng, *np.broadcast_shapes(a, b))}


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize(("a", "b"), [*SHAPES, *((b, a) for a, b in SHAPES)])
@pytest.mark.parametrize("name", OPERATORS)
def test_exact(name: str, a: tuple[int, ...], b: tuple[int, ...], scalar: str) -> None:
    inputs, upstream = problem(a, b)
    assert worst_excess(ops.all_ops()[name], formula(name), inputs, {}, upstream, scalar) <= 1


@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize("name", OPERATORS)
def test_derivative_of_the_forward(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert directional_gap(ops.all_ops()[name], problem(a, b)[0], {}) < 2.0**-98


def summed(whole: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A gradient summed to the shape of the operand that was repeated."""
    added = tuple(range(whole.ndim - len(shape)))
    kept = whole.sum(added)
    return np.asarray(kept.sum(tuple(i for i, n in enumerate(shape) if n == 1 != kept.shape[i]), keepdims=True))


@settings(max_examples=40)
@given(
    mutually_broadcastable_shapes(num_shapes=2, min_dims=0, max_dims=3, min_side=0, max_side=5),
    st.sampled_from(["add", "multiply"]),
    st.sampled_from(BACKWARD),
    st.integers(0, 99),
)
def test_any_shapes(shapes: Any, name: str, scalar: str, seed: int) -> None:
    """Every scalar on whole numbers, empty axes included, between stretches of NaN."""
    rng = np.random.default_rng(seed)
    a, b = (whole_numbers(rng, *shape) for shape in shapes.input_shapes)
    dy, k = whole_numbers(rng, *shapes.result_shape), Guarded(scalar)
    found = run(ops.all_ops()[name], {"a": a, "b": b}, {}, {"y": dy}, k, cases=2)
    flows = (dy, dy) if name == "add" else (dy * b, dy * a)
    for case in range(2):
        np.testing.assert_array_equal(k.whole(found.outputs["y"])[case], OPERATORS[name](a, b))
        np.testing.assert_array_equal(k.whole(found.gradients["a"])[case], summed(flows[0], a.shape))
        np.testing.assert_array_equal(k.whole(found.gradients["b"])[case], summed(flows[1], b.shape))
    assert k.intact()


def test_the_same_tensor_twice() -> None:
    """a·a: each slot has its own part."""
    x, dy = np.array([3.0, -2.0]), np.array([5.0, 7.0])
    found = run(ops.all_ops()["multiply"], {"a": x, "b": x}, {}, {"y": dy}, kernels("float64"))
    for gradient in found.gradients.values():
        np.testing.assert_array_equal(gradient.data[0], dy * x)


@pytest.mark.parametrize("name", OPERATORS)
def test_common_errors(name: str) -> None:
    """Passed on where shapes stay, with the factor; independent where they are summed away or divided."""
    k, op, rng = kernels("spread"), ops.all_ops()[name], np.random.default_rng(3)
    a, b, direction = (whole_numbers(rng, 1, *shape) for shape in [(4, 3), (3,), (4, 3)])
    b[b == 0] = 2
    x = {"a": k.tensor(a), "b": k.tensor(b)}
    plain = k.zeros(1, (4, 3))
    mode = Mode(direction, np.array([[1.0, 4.0, 9.0]]), included=False)
    _, saved = op.forward(k, x, {})
    found = op.backward(k, x, {}, saved, {"y": replace(plain, modes=(mode,))}, {"a", "b"})
    without = op.backward(k, x, {}, saved, {"y": plain}, {"a", "b"})
    factor = {"add": 1.0, "multiply": b[:, None], "divide": 1 / b[:, None]}[name]
    if name == "divide":
        assert not found["a"].modes
    else:
        np.testing.assert_array_equal(found["a"].modes[0].direction, direction * factor)
        assert found["a"].modes[0].variance is mode.variance
    assert not found["b"].modes
    if name == "add":
        gain = total_variance(found["b"]) - total_variance(without["b"])
        np.testing.assert_array_equal(gain, (direction**2).sum(1) * mode.variance)


def test_zero_divisor() -> None:
    """1/0 and 0/0 as the machine has them."""
    k = kernels("float64")
    found = run(
        ops.all_ops()["divide"], {"a": np.array([1.0, 0.0]), "b": np.zeros(2)}, {}, {"y": np.ones(2)}, k, only={"a"}
    )
    np.testing.assert_array_equal(k.values(found.outputs["y"])[0], [np.inf, np.nan])
    np.testing.assert_array_equal(k.values(found.gradients["a"])[0], [np.inf, np.inf])


def test_bad_shapes() -> None:
    for name in OPERATORS:
        with pytest.raises(OpError, match=r"^b: shape \(4,\) does not broadcast with a of shape \(2, 3\)$"):
            ops.all_ops()[name].shapes({"a": (2, 3), "b": (4,)}, {}, {})
