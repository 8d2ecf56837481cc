"""Batchnorm against its definition, in all scalars; and what its errors have in common."""

from __future__ import annotations

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

from gradjury.kernels.modes import total_variance
from gradjury.verify import ops
from gradjury.verify.ops.base import OpError

OP = ops.all_ops()["batchnorm"]
SHAPES = [(5, 3, 7), (2, 1), (17, 19), (64, 33), (4, 2, 5, 8), (3, 2, 35), (1, 2, 9)]


def problem(
    shape: tuple[int, ...], seed: int = 0, offset: float = 0.0
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    x = (float32_values(rng, *shape) + offset).astype(np.float32).astype(np.float64)
    inputs = {"x": x, "weight": float32_values(rng, shape[1]), "bias": float32_values(rng, shape[1])}
    return inputs, {"y": float32_values(rng, *shape)}


def formula(
    attributes: dict[str, Any],
    x: Any,
    weight: Any = None,
    bias: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
) -> Any:
    """Ioffe & Szegedy 2015, algorithm 1, with numpy's means."""
    lift = (1, -1, *(1,) * (x.ndim - 2))
    axes = (0, *range(2, x.ndim))
    mean, variance = running_mean, running_var
    if attributes.get("training", True):
        mean = x.sum(axes) / (x.size // x.shape[1])
        variance = ((x - mean.reshape(lift)) * (x - mean.reshape(lift))).sum(axes) / (x.size // x.shape[1])
    y = (x - mean.reshape(lift)) * exact.rsqrt(variance + exact.Exact(attributes.get("epsilon", 1e-5))).reshape(lift)
    y = y if weight is None else y * weight.reshape(lift)
    return {"y": y if bias is None else y + bias.reshape(lift)}


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("shape", SHAPES)
def test_exact(shape: tuple[int, ...], scalar: str) -> None:
    inputs, upstream = problem(shape)
    assert worst_excess(OP, formula, inputs, {}, upstream, scalar) <= 1


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("shape", [(6, 2, 3), (9, 5)])
@pytest.mark.parametrize("absent", [("weight",), ("bias",), ("weight", "bias")])
def test_without_parameters(shape: tuple[int, ...], absent: tuple[str, ...], scalar: str) -> None:
    inputs, upstream = problem(shape)
    given = {name: a for name, a in inputs.items() if name not in absent}
    assert worst_excess(OP, formula, given, {"epsilon": 0.5}, upstream, scalar) <= 1


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("shape", [(16, 3), (4, 3, 20)])
def test_far_from_zero(shape: tuple[int, ...], scalar: str) -> None:
    inputs, upstream = problem(shape, offset=1000.0)
    assert worst_excess(OP, formula, inputs, {}, upstream, scalar) <= 1


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("shape", [(5, 3), (3, 2, 18)])
def test_evaluation(shape: tuple[int, ...], scalar: str) -> None:
    inputs, upstream = problem(shape)
    rng = np.random.default_rng(1)
    inputs["running_mean"] = float32_values(rng, shape[1])
    inputs["running_var"] = np.abs(float32_values(rng, shape[1])) + 0.5
    assert worst_excess(OP, formula, inputs, {"training": False}, upstream, scalar) <= 1


@pytest.mark.parametrize("scalar", ["float32", "float64", "double-double"])
def test_one_value_per_channel(scalar: str) -> None:
    """The exact dx of a single value is zero, whatever conventions frameworks have."""
    inputs, upstream = problem((1, 4))
    result = run(OP, inputs, {}, upstream, kernels(scalar))
    assert not result.gradients["x"].data.any()
    assert not result.gradients["weight"].data.any()


def test_derivative_of_the_forward() -> None:
    for shape in ((5, 3, 7), (9, 5)):
        inputs, _ = problem(shape)
        assert directional_gap(OP, inputs, {}) < 2.0**-98
        evaluated = inputs | {"running_mean": inputs["bias"], "running_var": np.abs(inputs["weight"]) + 0.5}
        assert directional_gap(OP, evaluated, {"training": False}) < 2.0**-98


@pytest.mark.parametrize("scalar", ["float32", "float64", "double-double", "spread", "noisy", "bound", "lowered"])
def test_batch_is_indifferent(scalar: str) -> None:
    for shape in ((5, 3, 19), (9, 21)):
        inputs, _ = problem(shape)
        assert batch_is_indifferent(OP, inputs, {}, scalar)
    evaluated = inputs | {"running_mean": inputs["bias"], "running_var": np.abs(inputs["weight"]) + 0.5}
    assert batch_is_indifferent(OP, evaluated, {"training": False}, scalar)


def test_lowered_without_limits_is_float64() -> None:
    inputs, upstream = problem((6, 3, 5))
    plain, lowered = (run(OP, inputs, {}, upstream, kernels(scalar)) for scalar in ("float64", "lowered"))
    rough = run(OP, inputs, {}, upstream, kernels("lowered", storage_bits=8))
    for name, gradient in plain.gradients.items():
        step = np.max(np.abs(gradient.data))
        assert np.max(np.abs(lowered.gradients[name].data - gradient.data)) < 2.0**-48 * step
        assert np.max(np.abs(rough.gradients[name].data - gradient.data)) > 2.0**-12 * step


def test_bound_is_silent_without_doubt() -> None:
    inputs, upstream = problem((6, 3, 5))
    for gradient in run(OP, inputs, {}, upstream, kernels("bound")).gradients.values():
        assert not gradient.data[..., 1].any()


REPLICAS = 1000


def replica_errors(inputs: dict[str, np.ndarray], upstream: dict[str, np.ndarray], slot: str) -> np.ndarray:
    """Errors of noisy replicas in units of √V: uniform draws have a third of their bound's square as variance."""
    noisy = run(OP, inputs, {}, upstream, kernels("noisy"), cases=REPLICAS).gradients[slot]
    true = run(OP, inputs, {}, upstream, kernels("float64")).gradients[slot]
    return np.asarray((noisy.data[..., 0] - true.data) * np.sqrt(3) * 2.0**24)


@pytest.mark.parametrize("shape", [(64, 3), (8, 3, 8)])
@pytest.mark.parametrize("offset", [0.0, 30.0, 1000.0])
def test_modes_hold_what_is_common_to_a_channel(shape: tuple[int, ...], offset: float) -> None:
    """Per channel the mean error of dx is that of the constant mode; independent errors would hide it."""
    inputs, upstream = problem(shape, 4, offset)
    dx = run(OP, inputs, {}, upstream, kernels("spread")).gradients["x"]
    axes = (0, *range(2, len(shape)))
    assert [mode.included for mode in dx.modes] == [False, True, True]
    assert np.all(dx.modes[0].direction == 1)
    reach = [mode.direction[0].sum(axes) ** 2 * mode.variance[0] for mode in dx.modes]
    predicted = dx.data[0, ..., 1].sum(axes) + sum(reach)
    errors = replica_errors(inputs, upstream, "x").sum(axis=tuple(a + 1 for a in axes))
    measured = np.mean(errors**2, axis=0)
    assert np.all(measured < 1.5 * predicted)
    if offset == 1000.0:
        assert np.max(reach[0] / dx.data[0, ..., 1].sum(axes)) > 2


@pytest.mark.parametrize("slot", ["x", "weight", "bias"])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_replicas_stay_under_the_spread(slot: str, offset: float) -> None:
    """Within a factor of two: V(dx) adds r's part in x̂·m2 and in dx as if independent, and they share their sign."""
    inputs, upstream = problem((16, 3, 2), 7, offset)
    spread = total_variance(run(OP, inputs, {}, upstream, kernels("spread")).gradients[slot])[0]
    measured = np.mean(replica_errors(inputs, upstream, slot) ** 2, axis=0)
    assert np.all(measured < 2 * spread)
    assert np.median(measured / spread) > 0.01


def test_hypotheses_widen() -> None:
    inputs, upstream = problem((16, 3), 2, 100.0)
    base = run(OP, inputs, {}, upstream, kernels("spread"))
    one_pass = run(OP, inputs, {"hypothesis.one_pass": True}, upstream, kernels("spread"))
    raw = run(OP, inputs, {"hypothesis.raw_moments": True}, upstream, kernels("spread"))
    assert np.median(total_variance(one_pass.outputs["y"]) / total_variance(base.outputs["y"])) > 100
    assert np.median(total_variance(raw.gradients["weight"]) / total_variance(base.gradients["weight"])) > 10
    assert np.array_equal(raw.outputs["y"].data, base.outputs["y"].data)
    for run_ in (one_pass, raw):
        assert np.array_equal(run_.gradients["x"].data[..., 0], base.gradients["x"].data[..., 0])


def test_parameters_remember_how_many_terms_they_sum() -> None:
    inputs, upstream = problem((4, 2, 5, 8))
    found = run(OP, inputs, {}, upstream, kernels("spread")).gradients
    assert (found["weight"].length, found["bias"].length) == (160, 160)


def test_epsilon_is_the_double_it_is_given_as() -> None:
    inputs, upstream = problem((6, 2))
    epsilon = 1e-5
    true = formula({"epsilon": epsilon}, **{n: exact.variables(a) for n, a in inputs.items()})["y"]
    found = exact_numbers(run(OP, inputs, {"epsilon": epsilon}, upstream, kernels("double-double")).outputs["y"])
    assert max(abs(found - exact.values(true)).ravel()) < 2.0**-95


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ({"x": (4,)}, {}, "x: expected (batch, channels, …), found shape (4,)"),
        ({"x": (4, 3), "weight": (4,)}, {}, "weight: expected shape (3,), found (4,)"),
        ({"x": (4, 3)}, {"training": False}, "running_mean: expected where training is false, found none"),
        ({"x": (4, 3)}, {"epsilon": -1.0}, "attribute epsilon: expected 0 or more, found -1.0"),
    ],
)
def test_bad_shapes(shapes: dict[str, tuple[int, ...]], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(OpError) as raised:
        OP.shapes(shapes, {}, OP.complete(attributes))
    assert str(raised.value) == message
