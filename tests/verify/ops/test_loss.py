"""cross_entropy, nll and squared_error against their definitions: classes on axis 1, ignored targets, reductions."""

from __future__ import annotations

import math
from typing import Any

import exact
import numpy as np
import pytest
from problems import (
    PLAIN,
    batch_is_indifferent,
    directional_gap,
    exact_numbers,
    float32_values,
    kernels,
    run,
    worst_excess,
)

from gradjury.verify import ops
from gradjury.verify.ops.base import OpError

SHAPES = [(6, 4), (5,), (3, 4, 2), (2, 3, 2, 2), (1, 9), (4, 1)]
REDUCTIONS = ["mean", "sum", "none"]


def reduced(each: Any, reduction: str, count: int) -> Any:
    if reduction == "none":
        return each
    total = np.asarray(each, object).sum()
    return np.asarray(total / count if reduction == "mean" else total, object)


def formula(name: str) -> Any:
    """Bishop 2006, equation 4.108 and its sum over samples, without what is ignored."""

    def loss(attributes: dict[str, Any], target: Any, **scores: Any) -> Any:
        x = scores.popitem()[1]
        rows = np.moveaxis(x, 0 if x.ndim == 1 else 1, -1).reshape(target.size, -1)
        ignored = target.ravel() == attributes.get("ignore_index", -100)
        each = []
        for row, t, skipped in zip(rows, target.ravel(), ignored, strict=True):
            if skipped:
                each.append(exact.Exact(0))
            elif name == "nll":
                each.append(-row[t])
            else:
                powers = exact.exp(row)
                each.append(-exact.log(powers[t] / powers.sum()))
        whole = np.array(each, object).reshape(target.shape)
        return {"loss": reduced(whole, attributes["reduction"], int((~ignored).sum()))}

    return loss


def problem(name: str, shape: tuple[int, ...], reduction: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    places = () if len(shape) == 1 else (shape[0], *shape[2:])
    target = np.asarray(rng.integers(0, shape[0 if len(shape) == 1 else 1], places))
    slot = ops.all_ops()[name].inputs[0].name
    upstream = float32_values(rng, *(places if reduction == "none" else ()))
    return {slot: float32_values(rng, *shape), "target": target}, {"loss": upstream}


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ["cross_entropy", "nll"])
def test_exact(name: str, reduction: str, scalar: str) -> None:
    for shape in SHAPES:
        inputs, upstream = problem(name, shape, reduction)
        attributes = {"reduction": reduction}
        assert worst_excess(ops.all_ops()[name], formula(name), inputs, attributes, upstream, scalar) <= 1, shape


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("ignored", [-100, -1, 0, 2])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ["cross_entropy", "nll"])
def test_ignored(name: str, reduction: str, ignored: int, scalar: str) -> None:
    """Ignored targets, even those that name a class, have no loss and no gradient, and do not count."""
    inputs, upstream = problem(name, (5, 4, 2), reduction)
    inputs["target"][[0, 3, 4], [1, 0, 1]] = ignored
    attributes = {"reduction": reduction, "ignore_index": ignored}
    op = ops.all_ops()[name]
    assert worst_excess(op, formula(name), inputs, attributes, upstream, scalar) <= 1
    gradient = run(op, inputs, attributes, upstream, kernels(scalar)).gradients[op.inputs[0].name]
    rows = np.moveaxis(exact_numbers(gradient), 1, -1)
    assert not rows[inputs["target"] == ignored].any()


@pytest.mark.parametrize("name", ["cross_entropy", "nll"])
def test_all_ignored(name: str) -> None:
    """The mean over nothing is NaN, as in PyTorch; its gradient, and a sum, is 0 or NaN by the same rule 0·(1/0)."""
    inputs, upstream = problem(name, (3, 4), "mean")
    inputs["target"][:] = -100
    k, op = kernels("float64"), ops.all_ops()[name]
    found = run(op, inputs, {"reduction": "mean"}, upstream, k)
    assert np.isnan(k.values(found.outputs["loss"])).all()
    total = run(op, inputs, {"reduction": "sum"}, upstream, k)
    assert not k.values(total.outputs["loss"]).any()
    assert not k.values(total.gradients[op.inputs[0].name]).any()


@pytest.mark.parametrize("scalar", PLAIN)
def test_certain_and_wrong(scalar: str) -> None:
    """Logits far apart neither overflow nor lose the loss."""
    k = kernels(scalar)
    inputs = {"logits": np.array([[0.0, 1e4], [0.0, 1e4]]), "target": np.array([0, 1])}
    found = run(ops.all_ops()["cross_entropy"], inputs, {"reduction": "none"}, {"loss": np.ones(2)}, k)
    np.testing.assert_array_equal(k.values(found.outputs["loss"])[0], [1e4, 0])
    np.testing.assert_array_equal(k.values(found.gradients["logits"])[0], [[-1, 1], [0, 0]])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ["cross_entropy", "nll"])
def test_derivative_of_the_forward(name: str, reduction: str) -> None:
    inputs, _ = problem(name, (5, 4, 2), reduction)
    inputs["target"][2, 1] = -100
    assert directional_gap(ops.all_ops()[name], inputs, {"reduction": reduction}) < 2.0**-98


def test_cases_count_their_own_targets() -> None:
    """Each case of a batch is divided by the number of its own targets that are not ignored."""
    op, k = ops.all_ops()["nll"], kernels("float64")
    x = {"log_probabilities": k.tensor(-np.ones((3, 4, 2))), "target": k.integers(np.zeros((3, 4)))}
    x["target"][1, :2] = x["target"][2, 1:] = -100
    attributes = op.complete({})
    outputs, saved = op.forward(k, x, attributes)
    found = op.backward(k, x, attributes, saved, {"loss": k.tensor(np.ones(3))}, {"log_probabilities"})
    np.testing.assert_array_equal(outputs["loss"].data, np.ones(3))
    expected = np.array([[-0.25] * 4, [0, 0, -0.5, -0.5], [-1, 0, 0, 0]])
    np.testing.assert_array_equal(found["log_probabilities"].data[..., 0], expected)


def squares(attributes: dict[str, Any], y: Any, target: Any) -> Any:
    d = np.asarray(y - target, object)
    return {"loss": reduced(d * d, attributes["reduction"], math.prod(y.shape)) * attributes["factor"]}


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("factor", [1.0, 0.5, 0.1, 3])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_squared_error(reduction: str, factor: float, scalar: str) -> None:
    rng, op = np.random.default_rng(1), ops.all_ops()["squared_error"]
    for shape in [(3, 4), (7,), (), (2, 1, 5)]:
        inputs = {"y": float32_values(rng, *shape), "target": float32_values(rng, *shape)}
        upstream = {"loss": float32_values(rng, *(shape if reduction == "none" else ()))}
        attributes = {"reduction": reduction, "factor": factor}
        assert worst_excess(op, squares, inputs, attributes, upstream, scalar) <= 1
        if shape:
            assert directional_gap(op, inputs, attributes) < 2.0**-98


@pytest.mark.parametrize("scalar", ["float32", "double-double", "spread", "noisy"])
@pytest.mark.parametrize("name", ["cross_entropy", "nll"])
def test_batch_is_indifferent(name: str, scalar: str) -> None:
    inputs, _ = problem(name, (3, 4, 2), "mean")
    assert batch_is_indifferent(ops.all_ops()[name], inputs, {}, scalar)


@pytest.mark.parametrize(
    ("name", "shapes", "target", "message"),
    [
        ("nll", {"log_probabilities": (4, 3), "target": (3,)}, None, "target: expected shape (4,)"),
        ("cross_entropy", {"logits": (4, 3, 2), "target": (4,)}, None, "target: expected shape (4, 2) for logits"),
        ("cross_entropy", {"logits": (), "target": ()}, None, "logits: expected at least one axis, found shape ()"),
        ("cross_entropy", {"logits": (2, 3), "target": (2,)}, [1, 3], "target: expected classes 0 to 2, found [3]"),
        ("nll", {"log_probabilities": (2, 3), "target": (2,)}, [-1, 0], "target: expected classes 0 to 2, found [-1]"),
        ("squared_error", {"y": (2, 3), "target": (3,)}, None, "target: expected the shape of y, (2, 3), found (3,)"),
    ],
)
def test_bad_shapes(name: str, shapes: dict[str, tuple[int, ...]], target: Any, message: str) -> None:
    op = ops.all_ops()[name]
    values = {} if target is None else {"target": np.array(target)}
    with pytest.raises(OpError) as raised:
        op.shapes(shapes, values, op.complete({}))
    assert str(raised.value).startswith(message)
