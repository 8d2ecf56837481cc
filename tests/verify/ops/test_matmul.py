"""matmul by numpy's rules: matrices, vectors, leading axes that broadcast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from guards import BACKWARD, Guarded, whole_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from problems import PLAIN, batch_is_indifferent, directional_gap, float32_values, kernels, run, worst_excess

from gradjury.verify import ops
from gradjury.verify.ops.base import OpError

OP = ops.all_ops()["matmul"]
SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((4,), (2, 4, 3)),
    ((2, 3, 4), (4,)),
    ((17, 33), (33, 18)),
]


def formula(attributes: dict[str, Any], a: Any, b: Any) -> Any:
    return {"y": np.asarray(a @ b, object)}


def problem(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    upstream = {"y": float32_values(rng, *OP.shapes({"a": a, "b": b}, {}, {})["y"])}
    return {"a": float32_values(rng, *a), "b": float32_values(rng, *b)}, upstream


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_exact(a: tuple[int, ...], b: tuple[int, ...], scalar: str) -> None:
    inputs, upstream = problem(a, b)
    assert worst_excess(OP, formula, inputs, {}, upstream, scalar) <= 1


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_derivative_of_the_forward(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert directional_gap(OP, problem(a, b)[0], {}) < 2.0**-98


@settings(max_examples=60)
@given(
    mutually_broadcastable_shapes(signature="(m?,k),(k,n?)->(m?,n?)", max_dims=2, min_side=0, max_side=4),
    st.sampled_from(BACKWARD),
    st.integers(0, 99),
)
def test_any_shapes(shapes: Any, scalar: str, seed: int) -> None:
    """Every scalar on whole numbers, empty axes included, between stretches of NaN; gradients by numpy's einsum."""
    rng, k = np.random.default_rng(seed), Guarded(scalar)
    a, b = (whole_numbers(rng, *shape) for shape in shapes.input_shapes)
    dy = whole_numbers(rng, *shapes.result_shape)
    found = run(OP, {"a": a, "b": b}, {}, {"y": dy}, k, cases=2)
    wide_a, wide_b = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
    leading = np.broadcast_shapes(wide_a.shape[:-2], wide_b.shape[:-2])
    flow = dy.reshape(*leading, wide_a.shape[-2], wide_b.shape[-1])
    da, db = flow @ np.swapaxes(wide_b, -1, -2), np.swapaxes(wide_a, -1, -2) @ flow
    for case in range(2):
        np.testing.assert_array_equal(k.whole(found.outputs["y"])[case], a @ b)
        np.testing.assert_array_equal(k.whole(found.gradients["a"])[case], summed(da, wide_a.shape).reshape(a.shape))
        np.testing.assert_array_equal(k.whole(found.gradients["b"])[case], summed(db, wide_b.shape).reshape(b.shape))
    assert k.intact()


def summed(whole: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A gradient summed over the leading axes along which the operand was repeated."""
    kept = whole.sum(tuple(range(whole.ndim - len(shape))))
    return np.asarray(kept.sum(tuple(i for i, n in enumerate(shape) if n == 1 != kept.shape[i]), keepdims=True))


def test_lengths() -> None:
    """How many terms each gradient sums, repeated operands included."""
    inputs, upstream = problem((2, 3, 4), (4, 5))
    found = run(OP, inputs, {}, upstream, kernels("float64")).gradients
    assert {slot: found[slot].length for slot in found} == {"a": 5, "b": 6}


@pytest.mark.parametrize("scalar", ["float32", "double-double", "spread", "noisy"])
def test_batch_is_indifferent(scalar: str) -> None:
    assert batch_is_indifferent(OP, problem((2, 1, 3, 4), (5, 4, 2))[0], {}, scalar)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((2, 3), (4, 5), "b: expected 3 rows for a of shape (2, 3), found shape (4, 5)"),
        ((), (4,), "a and b: expected at least one axis each, found shapes () and (4,)"),
        ((2, 2, 3), (3, 3, 4), "b: leading axes of shape (3, 3, 4) do not broadcast with a of shape (2, 2, 3)"),
    ],
)
def test_bad_shapes(a: tuple[int, ...], b: tuple[int, ...], message: str) -> None:
    with pytest.raises(OpError) as raised:
        OP.shapes({"a": a, "b": b}, {}, {})
    assert str(raised.value) == message
