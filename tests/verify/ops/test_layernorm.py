"""Layernorm against its definition, in all scalars."""

from __future__ import annotations

import math
from typing import Any

import exact
import numpy as np
import pytest
from problems import PLAIN, batch_is_indifferent, directional_gap, float32_values, kernels, run, worst_excess

from gradjury.kernels.modes import total_variance
from gradjury.verify import ops
from gradjury.verify.ops.base import OpError

OP = ops.all_ops()["layernorm"]
SHAPES = [((5, 7), (7,)), ((3, 2, 19), (19,)), ((2, 3, 4), (3, 4)), ((9,), (9,)), ((4, 1), (1,)), ((1, 33), (33,))]


def problem(
    shape: tuple[int, ...], features: tuple[int, ...], offset: float = 0.0
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    x = (float32_values(rng, *shape) + offset).astype(np.float32).astype(np.float64)
    inputs = {"x": x, "weight": float32_values(rng, *features), "bias": float32_values(rng, *features)}
    return inputs, {"y": float32_values(rng, *shape)}


def formula(attributes: dict[str, Any], x: Any, weight: Any = None, bias: Any = None) -> Any:
    """Ba, Kiros & Hinton 2016, equation 3."""
    features = x.shape[-1:] if weight is None and bias is None else (weight if weight is not None else bias).shape
    rows = x.reshape(-1, math.prod(features))
    y = []
    for row in rows:
        d = row - row.sum() / len(row)
        y.append(d * exact.rsqrt(d @ d / len(row) + exact.Exact(attributes.get("epsilon", 1e-5))))
    normal = np.array(y, dtype=object).reshape(x.shape)
    scaled = normal if weight is None else normal * weight
    return {"y": scaled if bias is None else scaled + bias}


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize(("shape", "features"), SHAPES)
def test_exact(shape: tuple[int, ...], features: tuple[int, ...], scalar: str) -> None:
    inputs, upstream = problem(shape, features)
    assert worst_excess(OP, formula, inputs, {}, upstream, scalar) <= 1


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("absent", [("weight",), ("bias",), ("weight", "bias")])
def test_without_parameters(absent: tuple[str, ...], scalar: str) -> None:
    inputs, upstream = problem((4, 6), (6,))
    given = {name: a for name, a in inputs.items() if name not in absent}
    assert worst_excess(OP, formula, given, {"epsilon": 0.5}, upstream, scalar) <= 1


@pytest.mark.parametrize("scalar", PLAIN)
def test_far_from_zero(scalar: str) -> None:
    inputs, upstream = problem((5, 16), (16,), 1000.0)
    assert worst_excess(OP, formula, inputs, {}, upstream, scalar) <= 1


def test_derivative_of_the_forward() -> None:
    for shape, features in SHAPES[:3]:
        inputs, _ = problem(shape, features)
        assert directional_gap(OP, inputs, {}) < 2.0**-98


@pytest.mark.parametrize("scalar", ["float32", "float64", "double-double", "spread", "noisy", "bound", "lowered"])
def test_batch_is_indifferent(scalar: str) -> None:
    inputs, _ = problem((5, 19), (19,))
    assert batch_is_indifferent(OP, inputs, {}, scalar)


def test_replicas_stay_under_the_spread() -> None:
    """The spread allows for a backward from raw moments, which the kernels do not use, and so may be far larger."""
    for offset in (0.0, 30.0):
        inputs, upstream = problem((6, 12), (12,), offset)
        spread = run(OP, inputs, {}, upstream, kernels("spread"))
        true = run(OP, inputs, {}, upstream, kernels("float64"))
        noisy = run(OP, inputs, {}, upstream, kernels("noisy"), cases=1000)
        for name, tensor in noisy.gradients.items():
            errors = (tensor.data[..., 0] - true.gradients[name].data) * np.sqrt(3) * 2.0**24
            assert np.max(np.mean(errors**2, axis=0) / total_variance(spread.gradients[name])[0]) < 2, name
        assert not spread.gradients["x"].modes


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (4, 3), "weight": (4,)}, "weight: expected the last axes of x, (3,), found (4,)"),
        ({"x": (4, 3), "weight": (3,), "bias": (4, 3)}, "bias: expected the last axes of x, (3,), found (4, 3)"),
        ({"x": (3,), "weight": (2, 3)}, "weight: expected the last axes of x, (3,), found (2, 3)"),
        ({"x": ()}, "x: expected at least one axis, found shape ()"),
    ],
)
def test_bad_shapes(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(OpError) as raised:
        OP.shapes(shapes, {}, OP.complete({}))
    assert str(raised.value) == message
