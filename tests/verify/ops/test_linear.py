"""The linear op against its definition: any leading axes, with and without bias, errors common to a channel."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guards import BACKWARD, Guarded, whole_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import PLAIN, directional_gap, float32_values, kernels, run, worst_excess

from gradjury.kernels.modes import total_variance
from gradjury.kernels.tensor import Mode
from gradjury.verify import ops
from gradjury.verify.ops.base import OpError

OP = ops.all_ops()["linear"]
SIZES = [((5,), 7, 3), ((2, 3), 4, 9), ((1,), 1, 1), ((), 6, 2), ((33,), 17, 18), ((2, 1, 3), 1, 5)]


def formula(attributes: dict[str, Any], x: Any, weight: Any, bias: Any = None) -> Any:
    y = x @ weight.T
    return {"y": y if bias is None else y + bias}


def problem(leading: tuple[int, ...], features: int, out: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    inputs = {
        "x": float32_values(rng, *leading, features),
        "weight": float32_values(rng, out, features),
        "bias": float32_values(rng, out),
    }
    return inputs, {"y": float32_values(rng, *leading, out)}


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_exact(size: tuple[tuple[int, ...], int, int], biased: bool, scalar: str) -> None:
    inputs, upstream = problem(*size)
    if not biased:
        del inputs["bias"]
    assert worst_excess(OP, formula, inputs, {}, upstream, scalar) <= 1


@pytest.mark.parametrize("size", SIZES)
def test_derivative_of_the_forward(size: tuple[tuple[int, ...], int, int]) -> None:
    assert directional_gap(OP, problem(*size)[0], {}) < 2.0**-98


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 5), max_size=3),
    st.integers(0, 20),
    st.integers(0, 20),
    st.sampled_from(BACKWARD),
    st.integers(0, 99),
)
def test_any_shape(leading: list[int], features: int, out: int, scalar: str, seed: int) -> None:
    """Every scalar on whole numbers, empty axes included, between stretches of NaN."""
    rng = np.random.default_rng(seed)
    x, weight = whole_numbers(rng, *leading, features), whole_numbers(rng, out, features)
    bias, dy = whole_numbers(rng, out), whole_numbers(rng, *leading, out)
    k = Guarded(scalar)
    found = run(OP, {"x": x, "weight": weight, "bias": bias}, {}, {"y": dy}, k, cases=2)
    rows, flow = x.reshape(math.prod(leading), features), dy.reshape(math.prod(leading), out)
    expected = {"x": (flow @ weight).reshape(x.shape), "weight": flow.T @ rows, "bias": flow.sum(0)}
    for case in range(2):
        np.testing.assert_array_equal(k.whole(found.outputs["y"])[case], x @ weight.T + bias)
        for slot, gradient in expected.items():
            np.testing.assert_array_equal(k.whole(found.gradients[slot])[case], gradient)
    assert k.intact()


def test_lengths() -> None:
    """How many terms each gradient sums, for those who add to it."""
    inputs, upstream = problem((2, 3), 4, 9)
    found = run(OP, inputs, {}, upstream, kernels("float64")).gradients
    assert {slot: found[slot].length for slot in found} == {"x": 9, "weight": 6, "bias": 6}


def with_common_errors(leading: tuple[int, ...], channels: int) -> tuple[Any, ...]:
    """Inputs, an upstream gradient without and with a common error, its direction and its variance per channel.

    Whole numbers, and a gradient of 0: its own rounding errors are too small to change one bit of the common ones.
    """
    k, rng = kernels("spread"), np.random.default_rng(1)
    inputs = {"x": whole_numbers(rng, *leading, 4), "weight": whole_numbers(rng, 3, 4), "bias": whole_numbers(rng, 3)}
    x: dict[str, Any] = {slot: k.tensor(a[None]) for slot, a in inputs.items()}
    plain = k.zeros(1, (*leading, 3))
    direction, variance = whole_numbers(rng, 1, *leading, 3), abs(whole_numbers(rng, 1, channels)) + 1
    common = replace(plain, modes=(Mode(direction, variance, included=False),))
    return k, inputs, x, plain, common, direction[0], variance[0]


def gained(k: Any, x: Any, plain: Any, common: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """By how much a common error in the upstream gradient widens each variance, and the gradients with it."""
    wanted = {"x", "weight", "bias"}
    with_modes = OP.backward(k, x, {}, None, {"y": common}, wanted)
    without = OP.backward(k, x, {}, None, {"y": plain}, wanted)
    gains = {s: total_variance(with_modes[s])[0] - total_variance(without[s])[0] for s in wanted}
    return gains, with_modes


def test_errors_common_to_an_output() -> None:
    """Of (rows, channels), each output is a channel: its error passes (Σ_i X_id·direction_ic)²·variance_c on."""
    k, inputs, x, plain, common, direction, variance = with_common_errors((6,), 3)
    gains, _ = gained(k, x, plain, common)
    np.testing.assert_array_equal(gains["x"], (direction**2 * variance) @ inputs["weight"] ** 2)
    np.testing.assert_array_equal(gains["weight"], (direction.T @ inputs["x"]) ** 2 * variance[:, None])
    np.testing.assert_array_equal(gains["bias"], direction.sum(0) ** 2 * variance)


def test_errors_common_to_a_middle_axis() -> None:
    """With more axes channels are axis 1: each one's error passes on by itself, and stays common in dx."""
    k, inputs, x, plain, common, direction, variance = with_common_errors((2, 5, 3), 5)
    gains, gradients = gained(k, x, plain, common)
    reach = np.einsum("nclo,ncld->cod", direction, inputs["x"])
    np.testing.assert_array_equal(gains["x"], (direction @ inputs["weight"]) ** 2 * variance[:, None, None])
    np.testing.assert_array_equal(gains["weight"], np.einsum("cod,c->od", reach**2, variance))
    np.testing.assert_array_equal(gains["bias"], np.einsum("co,c->o", direction.sum((0, 2)) ** 2, variance))
    (mode,) = gradients["x"].modes
    assert mode.variance is common.modes[0].variance


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (5, 7), "weight": (7, 3)}, "weight: expected (out, 7) for x of shape (5, 7), found (7, 3)"),
        ({"x": (5, 7), "weight": (7,)}, "weight: expected (out, in), found shape (7,)"),
        ({"x": (), "weight": (1, 1)}, "x: expected at least one axis, found shape ()"),
        ({"x": (5, 7), "weight": (3, 7), "bias": (7,)}, "bias: expected shape (3,), found (7,)"),
    ],
)
def test_bad_shapes(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(OpError) as raised:
        OP.shapes(shapes, {}, {})
    assert str(raised.value) == message
