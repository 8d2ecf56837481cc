"""Ops that move: y has elements of the inputs, from where numpy would take them, and their gradients go back there."""

from __future__ import annotations

from typing import Any

import exact
import numpy as np
import pytest
from guards import BACKWARD, Guarded, whole_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from problems import PLAIN, batch_is_indifferent, directional_gap, float32_values, kernels, run, worst_excess

from gradjury.verify import ops
from gradjury.verify.ops.base import OpError
from gradjury.verify.ops.join import MOST

VIEWS: list[tuple[str, dict[str, Any], Any]] = [
    ("reshape", {"shape": [2, -1]}, lambda x: x.reshape(2, -1)),
    ("reshape", {"shape": [24]}, lambda x: x.reshape(24)),
    ("transpose", {"axes": [2, 0, 1]}, lambda x: x.transpose(2, 0, 1)),
    ("transpose", {"axes": None}, lambda x: x.T),
    ("transpose", {"axes": [0, -1, 1]}, lambda x: x.transpose(0, 2, 1)),
    ("slice", {"axis": 1, "start": 1}, lambda x: x[:, 1:]),
    ("slice", {"axis": -1, "start": -3, "stop": -1}, lambda x: x[..., -3:-1]),
    ("slice", {"axis": 2, "start": None, "stop": None, "step": -2}, lambda x: x[:, :, ::-2]),
    ("slice", {"axis": 0, "start": 5, "stop": 9}, lambda x: x[5:9]),
]


@pytest.mark.parametrize("scalar", BACKWARD)
@pytest.mark.parametrize(("name", "attributes", "view"), VIEWS)
def test_views(name: str, attributes: dict[str, Any], view: Any, scalar: str) -> None:
    """As numpy's view; the gradient is the upstream put back through the same view."""
    rng, op, k = np.random.default_rng(0), ops.all_ops()[name], Guarded(scalar)
    x = whole_numbers(rng, 2, 3, 4)
    dy = whole_numbers(rng, *view(x).shape)
    found = run(op, {"x": x}, attributes, {"y": dy}, k, cases=2)
    expected = np.zeros_like(x)
    view(expected)[...] = dy
    for case in range(2):
        np.testing.assert_array_equal(k.whole(found.outputs["y"])[case], view(x))
        np.testing.assert_array_equal(k.whole(found.gradients["x"])[case], expected)
    assert k.intact()


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 5), max_size=3),
    st.lists(st.integers(0, 5), max_size=3),
    st.sampled_from(BACKWARD),
    st.data(),
)
def test_any_move(shape: list[int], out: list[int], scalar: str, data: st.DataObject) -> None:
    """Elements may repeat or stay behind, and −1 reads 0."""
    rng, k = np.random.default_rng(data.draw(st.integers(0, 99))), Guarded(scalar)
    x, dy = whole_numbers(rng, *shape), whole_numbers(rng, *out)
    index = rng.integers(-1, x.size, out) if x.size else np.full(out, -1)
    found = run(ops.all_ops()["move"], {"x": x, "index": index}, {}, {"y": dy}, k, cases=2)
    padded, gradient = np.append(x.ravel(), 0), np.zeros(x.size + 1)
    np.add.at(gradient, index.ravel(), dy.ravel())
    for case in range(2):
        np.testing.assert_array_equal(k.whole(found.outputs["y"])[case], padded[index])
        np.testing.assert_array_equal(k.whole(found.gradients["x"])[case], gradient[:-1].reshape(shape))
    assert k.intact()


def test_length_of_a_move() -> None:
    """As long as the sum of the element that is read most often."""
    inputs = {"x": np.ones(4), "index": np.array([0, 2, 2, 2, -1, -1, -1, -1])}
    found = run(ops.all_ops()["move"], inputs, {}, {"y": np.ones(8)}, kernels("float64"))
    assert found.gradients["x"].length == 3


def test_one_index_a_batch() -> None:
    """Cases that move differently do not belong in one batch, and are refused."""
    k = kernels("float64")
    x = {"x": k.tensor(np.ones((2, 3))), "index": k.integers(np.array([[0, 1], [0, 2]]))}
    with pytest.raises(OpError, match=r"^index: expected the same numbers in all cases of a batch$"):
        ops.all_ops()["move"].forward(k, x, {})


def embedded(attributes: dict[str, Any], weight: Any, index: np.ndarray) -> Any:
    rows = weight[index]
    if attributes["padding_idx"] is not None:
        hidden = index == attributes["padding_idx"] % len(weight)
        rows[hidden] = exact.variables(exact.values(weight[index][hidden]))  # constants: no gradient flows back
    return {"y": rows}


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("padding", [None, 0, 2, -1])
def test_embedding(padding: int | None, scalar: str) -> None:
    rng, op = np.random.default_rng(1), ops.all_ops()["embedding"]
    index = np.array([[0, 2, 2], [4, 0, 2]])
    inputs = {"weight": float32_values(rng, 5, 3), "index": index}
    upstream, attributes = {"y": float32_values(rng, 2, 3, 3)}, {"padding_idx": padding}
    assert worst_excess(op, embedded, inputs, attributes, upstream, scalar) <= 1
    gradient = run(op, inputs, attributes, upstream, kernels(scalar)).gradients["weight"]
    assert not gradient.data[0, [1, 3]].any()
    if padding is not None:
        assert not gradient.data[0, padding].any()
    assert directional_gap(op, inputs, attributes) < 2.0**-98


@settings(max_examples=40)
@given(mutually_broadcastable_shapes(num_shapes=3, max_dims=3, min_side=0, max_side=4), st.sampled_from(BACKWARD))
def test_where(shapes: Any, scalar: str) -> None:
    """As numpy's, every input repeated as it must be; what was not taken gets no gradient."""
    rng, k = np.random.default_rng(4), Guarded(scalar)
    condition = rng.integers(0, 3, shapes.input_shapes[0])
    a, b = (whole_numbers(rng, *shape) for shape in shapes.input_shapes[1:])
    dy = whole_numbers(rng, *shapes.result_shape)
    inputs = {"condition": condition, "a": a, "b": b}
    found = run(ops.all_ops()["where"], inputs, {}, {"y": dy}, k, cases=2)
    for case in range(2):
        np.testing.assert_array_equal(k.whole(found.outputs["y"])[case], np.where(condition, a, b))
        for slot, taken, x in (("a", condition != 0, a), ("b", condition == 0, b)):
            np.testing.assert_array_equal(k.whole(found.gradients[slot])[case], summed(dy * taken, x.shape))
    assert k.intact()


def summed(whole: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A gradient summed over the axes along which its input was repeated."""
    kept = whole.sum(tuple(range(whole.ndim - len(shape))))
    return np.asarray(kept.sum(tuple(i for i, n in enumerate(shape) if n == 1 != kept.shape[i]), keepdims=True))


@pytest.mark.parametrize("scalar", BACKWARD)
@pytest.mark.parametrize("count", [1, 2, MOST])
def test_join(count: int, scalar: str) -> None:
    """One after another, flat; scalars and empty tensors have their place."""
    rng, k = np.random.default_rng(2), Guarded(scalar)
    shapes = [(2, 3), (), (0,), (4,), (1, 2, 2)]
    inputs = {f"x{i}": whole_numbers(rng, *shapes[i % len(shapes)]) for i in range(count)}
    flat = np.concatenate([a.ravel() for a in inputs.values()])
    dy = whole_numbers(rng, flat.size)
    found = run(ops.all_ops()["join"], inputs, {}, {"y": dy}, k, cases=2)
    parts = np.split(dy, np.cumsum([a.size for a in inputs.values()])[:-1])
    for case in range(2):
        np.testing.assert_array_equal(k.whole(found.outputs["y"])[case], flat)
        for (slot, a), part in zip(inputs.items(), parts, strict=True):
            np.testing.assert_array_equal(k.whole(found.gradients[slot])[case], part.reshape(a.shape))
    assert k.intact()


@pytest.mark.parametrize("scalar", ["float32", "double-double", "spread", "noisy"])
@pytest.mark.parametrize("name", ["move", "embedding", "transpose", "join"])
def test_batch_is_indifferent(name: str, scalar: str) -> None:
    op = ops.all_ops()[name]
    example = op.example(np.random.default_rng(3))
    assert batch_is_indifferent(op, example.inputs, example.attributes, scalar)


@pytest.mark.parametrize(
    ("name", "shapes", "values", "attributes", "message"),
    [
        (
            "move",
            {"x": (2, 3), "index": (2,)},
            [0, 6],
            {},
            "index: expected -1 to 5 for x of shape (2, 3), found 0 to 6",
        ),
        (
            "move",
            {"x": (2, 3), "index": (1,)},
            [-2],
            {},
            "index: expected -1 to 5 for x of shape (2, 3), found -2 to -2",
        ),
        ("embedding", {"weight": (5, 3), "index": (1,)}, [5], {}, "index: expected 0 to 4, found 5 to 5"),
        ("embedding", {"weight": (5,), "index": (1,)}, None, {}, "weight: expected (rows, features), found shape (5,)"),
        ("embedding", {"weight": (5, 3), "index": (1,)}, [1], {"padding_idx": 5}, "attribute padding_idx: expected "),
        ("reshape", {"x": (2, 3)}, None, {"shape": [4]}, "attribute shape: [4] does not hold the elements of x"),
        ("transpose", {"x": (2, 3)}, None, {"axes": [0, 0]}, "attribute axes: [0, 0] is no permutation of the axes"),
        ("slice", {"x": (2, 3)}, None, {"axis": 2}, "attribute axis: expected an axis of x of shape (2, 3), found 2"),
        (
            "where",
            {"condition": (2,), "a": (3,), "b": ()},
            None,
            {},
            "condition, a, b: expected shapes that broadcast, ",
        ),
        ("slice", {"x": (2, 3)}, None, {"step": 0}, "attribute step: expected anything but 0"),
    ],
)
def test_bad_inputs(name: str, shapes: Any, values: Any, attributes: dict[str, Any], message: str) -> None:
    op = ops.all_ops()[name]
    known = {} if values is None else {"index": np.array(values)}
    with pytest.raises(OpError) as raised:
        op.shapes(shapes, known, op.complete(attributes))
    assert str(raised.value).startswith(message)
