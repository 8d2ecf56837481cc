"""One step of a plain recurrent layer against exact arithmetic, and its kink."""

from __future__ import annotations

from typing import Any

import exact
import numpy as np
import pytest
from problems import PLAIN, batch_is_indifferent, directional_gap, float32_values, kernels, worst_excess

from gradjury.verify import ops
from gradjury.verify.ops.base import OpError

OP = ops.all_ops()["rnn_step"]
ACTIVATIONS = [{"activation": "tanh"}, {"activation": "relu"}]


def problem(shape: tuple[int, int, int], seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    batch, features, hidden = shape
    shapes = {
        "x": (batch, features),
        "h": (batch, hidden),
        "weight_ih": (hidden, features),
        "weight_hh": (hidden, hidden),
        "bias_ih": (hidden,),
        "bias_hh": (hidden,),
    }
    return {name: float32_values(rng, *s) for name, s in shapes.items()}, {"h_next": float32_values(rng, batch, hidden)}


def formula(
    attributes: dict[str, Any], x: Any, h: Any, weight_ih: Any, weight_hh: Any, bias_ih: Any = 0, bias_hh: Any = 0
) -> Any:
    function = exact.tanh if attributes["activation"] == "tanh" else exact.relu
    return {"h_next": function(x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh)}


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("attributes", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 1, 1), (5, 2, 17)])
def test_exact(shape: tuple[int, int, int], attributes: dict[str, str], scalar: str) -> None:
    inputs, upstream = problem(shape)
    for absent in ((), ("bias_ih",), ("bias_ih", "bias_hh")):
        given = {name: a for name, a in inputs.items() if name not in absent}
        assert worst_excess(OP, formula, given, attributes, upstream, scalar) <= 1


@pytest.mark.parametrize("attributes", ACTIVATIONS)
def test_derivative_of_the_forward(attributes: dict[str, str]) -> None:
    inputs, _ = problem((3, 4, 5))
    assert directional_gap(OP, inputs, attributes) < 2.0**-98


@pytest.mark.parametrize("scalar", ["float32", "float64", "double-double", "spread", "noisy", "bound", "lowered"])
@pytest.mark.parametrize("attributes", ACTIVATIONS)
def test_batch_is_indifferent(attributes: dict[str, str], scalar: str) -> None:
    inputs, _ = problem((3, 4, 17))
    assert batch_is_indifferent(OP, inputs, attributes, scalar)


def test_kink() -> None:
    """A given mask decides in place of the sign, and an undecided unit opens what flows through it."""
    assert OP.kinked({"activation": "relu"})
    assert not OP.kinked({"activation": "tanh"})
    inputs, _ = problem((2, 3, 4))
    attributes = OP.complete({"activation": "relu"})
    mask = np.array([[1, 0, 0, 1], [0, 1, 1, 0]], np.uint8)
    undecided = np.zeros((2, 4))
    undecided[1, 2] = 0.25
    k = kernels("bound")
    x: dict[str, Any] = {name: k.tensor(a[None]) for name, a in inputs.items()}
    x |= {"kink.mask": k.mask(mask[None]), "kink.undecided": k.doubles(undecided[None])}
    outputs, saved = OP.forward(k, x, attributes)
    before = OP.kink_input(x, saved)
    assert before is not None
    y = outputs["h_next"].data[0]
    assert np.array_equal(y[..., 0], np.where(mask, before.data[0, ..., 0], 0))
    assert np.array_equal(y[..., 1], undecided)
    flow = k.tensor(np.full((1, 2, 4), -3.0))
    found = OP.backward(k, x, attributes, saved, {"h_next": flow}, {"bias_ih", "weight_ih"})
    assert np.array_equal(found["bias_ih"].data[0, :, 0], -3.0 * mask.sum(0))
    assert np.array_equal(found["bias_ih"].data[0, :, 1], [0, 0, 3, 0])
    assert np.array_equal(found["weight_ih"].data[0, 2, :, 1], 3 * np.abs(inputs["x"][1]))


def test_bad_shapes() -> None:
    good = {"x": (4, 5), "h": (4, 3), "weight_ih": (3, 5), "weight_hh": (3, 3)}
    assert OP.shapes(good, {}, OP.complete({})) == {"h_next": (4, 3)}
    with pytest.raises(OpError) as raised:
        OP.shapes(good | {"weight_hh": (9, 3)}, {}, OP.complete({}))
    assert str(raised.value) == "weight_hh: expected (3, 3), found (9, 3)"
