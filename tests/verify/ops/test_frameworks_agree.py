"""torch and paddle compute the definition that an op states: normalisation and recurrence in all their conventions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from problems import WIDE, U, exact_numbers, excess, float32_values, run

from gradjury.kernels.calls import Kernels
from gradjury.kernels.engine import engine
from gradjury.kernels.modes import total_variance
from gradjury.kernels.scalars import SCALARS
from gradjury.verify import ops

EPSILON = 2.0**-16  # paddle rounds epsilon to float32
GRU = [{"reset": r, "update": u} for r in ("after", "before") for u in ("keeps-previous", "keeps-candidate")]
RNN = [{"activation": "tanh"}, {"activation": "relu"}]
PROBLEMS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("batchnorm", {"epsilon": EPSILON}, {}),
    ("batchnorm", {"epsilon": EPSILON}, {"weight": None, "bias": None}),
    (
        "batchnorm",
        {"epsilon": EPSILON, "training": False},
        {"running_mean": np.ones(3), "running_var": np.arange(1.0, 4.0)},
    ),
    ("layernorm", {"epsilon": EPSILON}, {}),
    ("layernorm", {"epsilon": EPSILON}, {"weight": None, "bias": None}),
    ("layernorm", {"epsilon": EPSILON}, {"weight": np.arange(1.0, 25.0).reshape(4, 6) / 8, "bias": np.ones((4, 6))}),
    *(("gru_step", a, {}) for a in GRU),
    *(("rnn_step", a, {}) for a in RNN),
    ("gru_step", GRU[0], {"bias_ih": None}),
    ("rnn_step", RNN[1], {"bias_ih": None, "bias_hh": None}),
    *((op, a, {}) for op, definitions in (("gru", GRU), ("rnn", RNN)) for a in definitions),
    *(
        (op, a, {"lengths": None, "h0": None})
        for op, definitions in (("gru", GRU[:1]), ("rnn", RNN))
        for a in definitions
    ),
    ("gru", GRU[0], {"lengths": np.array([4, 0, 3]), "bias_hh": None}),
    ("rnn", RNN[0], {"lengths": np.array([4, 0, 3])}),
]


def differentiable(op: ops.Op) -> set[str]:
    return {slot.name for slot in op.inputs if slot.differentiable}


def call_torch(
    op: ops.Op, inputs: Mapping[str, np.ndarray], attributes: Mapping[str, Any], upstream: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    torch = pytest.importorskip("torch")
    x = {name: torch.tensor(a, requires_grad=name in differentiable(op)) for name, a in inputs.items()}
    outputs = op.torch(torch, {slot.name: x.get(slot.name) for slot in op.inputs}, op.complete(attributes))
    torch.autograd.backward([outputs[name] for name in upstream], [torch.tensor(a) for a in upstream.values()])
    found = {name: t.grad.numpy() for name, t in x.items() if t.grad is not None}
    return found | {f"out.{name}": t.detach().numpy() for name, t in outputs.items()}


def call_paddle(
    op: ops.Op, inputs: Mapping[str, np.ndarray], attributes: Mapping[str, Any], upstream: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    paddle = pytest.importorskip("paddle")
    x = {name: paddle.to_tensor(a, stop_gradient=name not in differentiable(op)) for name, a in inputs.items()}
    outputs = op.paddle(paddle, {slot.name: x.get(slot.name) for slot in op.inputs}, op.complete(attributes))
    paddle.autograd.backward([outputs[name] for name in upstream], [paddle.to_tensor(a) for a in upstream.values()])
    found = {name: t.grad.numpy() for name, t in x.items() if t.grad is not None}
    return found | {f"out.{name}": t.numpy() for name, t in outputs.items()}


@pytest.mark.parametrize("call", [call_torch, call_paddle])
@pytest.mark.parametrize(("name", "attributes", "change"), PROBLEMS)
def test_same_definition(name: str, attributes: dict[str, Any], change: dict[str, Any], call: Any) -> None:
    """float64 outputs and gradients inside the budget around double-double."""
    op, rng = ops.all_ops()[name], np.random.default_rng(2)
    inputs = {n: a for n, a in (op.example(rng).inputs | change).items() if a is not None}
    if name == "layernorm" and "weight" in change and change["weight"] is not None:
        inputs["x"] = float32_values(rng, 2, 4, 6)
    shapes = op.shapes({n: a.shape for n, a in inputs.items()}, {}, op.complete(attributes))
    upstream = {n: float32_values(rng, *shape) for n, shape in shapes.items()}
    host = engine("host")
    true = run(op, inputs, attributes, upstream, Kernels(host, SCALARS["double-double"]))
    noise = run(
        op, inputs, attributes | {"hypothesis.raw_moments": True}, upstream, Kernels(host, SCALARS["spread"], WIDE)
    )
    found = call(op, inputs, attributes, upstream)
    for key, gradient in true.gradients.items():
        assert found[key].shape == gradient.shape, key
        assert (
            excess(found[key], exact_numbers(gradient), total_variance(noise.gradients[key])[0], U["float64"]) <= 1
        ), key
    for key, output in true.outputs.items():
        assert found[f"out.{key}"].shape == output.shape, key
        assert (
            excess(found[f"out.{key}"], exact_numbers(output), total_variance(noise.outputs[key])[0], U["float64"]) <= 1
        ), key
