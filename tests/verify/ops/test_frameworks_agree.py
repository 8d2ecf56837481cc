"""torch and paddle compute the definition that an op states, in all its conventions."""

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
REDUCTIONS = ["mean", "sum", "none"]
CUBE = np.sin(np.arange(24.0)).astype(np.float32).astype(np.float64).reshape(2, 3, 4)
SPECIAL = {"batchnorm", "layernorm", "cross_entropy"}  # paddle rounds epsilon, and counts ignored targets
PLAIN = sorted(set(ops.all_ops()) - SPECIAL)
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
    *((name, {}, {}) for name in PLAIN),
    ("linear", {}, {"bias": None}),
    ("linear", {}, {"x": np.arange(-14.0, 14.0).reshape(2, 2, 7) / 8}),
    ("relu", {}, {"x": np.array([0.0, -0.0, 1.0, -1.0])}),
    *(("dropout", {"rate": rate}, {}) for rate in (0.0, 0.1, 1.0)),
    *((name, {"axis": axis}, {"x": CUBE}) for name in ("softmax", "log_softmax") for axis in (0, 1, -1)),
    *(
        (name, {"axis": a, "keepdims": k}, {})
        for name in ("sum", "mean")
        for a in (None, 0, [0, -1])
        for k in (False, True)
    ),
    *((name, {}, {"a": np.ones((3, 1)) / 3, "b": np.arange(1.0, 5.0)}) for name in ("add", "multiply", "divide")),
    ("matmul", {}, {"a": CUBE, "b": CUBE[0].T}),
    ("matmul", {}, {"a": CUBE[0, 0], "b": CUBE[0].T}),
    ("matmul", {}, {"a": CUBE, "b": CUBE[0, 0]}),
    ("matmul", {}, {"a": CUBE[0, 0], "b": CUBE[0, 0]}),
    *(("embedding", {"padding_idx": padding}, {}) for padding in (None, 2, -1)),
    ("transpose", {"axes": None}, {}),
    ("where", {}, {"condition": np.array([2, 0, 1]), "a": np.array(0.5)}),
    ("slice", {"axis": -1, "start": None, "step": -2}, {}),
    *(("squared_error", {"reduction": r, "factor": f}, {}) for r in REDUCTIONS for f in (1.0, 0.5)),
    *(
        (name, {"reduction": r, "ignore_index": i}, change)
        for name, slot in (("cross_entropy", "logits"), ("nll", "log_probabilities"))
        for r in REDUCTIONS
        for i in (1, 7)
        for change in (
            {"target": np.array([0, 3, 1, i, 2, 2])},
            {slot: CUBE, "target": np.array([[0, 2, 1, 1], [2, 2, 0, 1]])},
            {slot: CUBE[0, 0], "target": np.array(3)},
        )
    ),
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


def test_every_op_is_compared() -> None:
    assert {name for name, *_ in PROBLEMS} == set(ops.all_ops())


@pytest.mark.parametrize(("call", "counted"), [(call_torch, 5), (call_paddle, 6)])
def test_ignored_targets_in_a_mean(call: Any, counted: int) -> None:
    """torch divides by the targets that count, paddle 3.3 by all of them where ignore_index is negative."""
    op = ops.all_ops()["cross_entropy"]
    inputs = op.example(np.random.default_rng(2)).inputs
    total = call(op, inputs, {"reduction": "sum"}, {"loss": np.array(1.0)})
    mean = call(op, inputs, {"reduction": "mean"}, {"loss": np.array(float(counted))})
    truth = run(
        op, inputs, {"reduction": "sum"}, {"loss": np.array(1.0)}, Kernels(engine("host"), SCALARS["double-double"])
    )
    noise = run(
        op, inputs, {"reduction": "mean"}, {"loss": np.array(5.0)}, Kernels(engine("host"), SCALARS["spread"], WIDE)
    )
    exact = exact_numbers(truth.gradients["logits"])
    for found in (total, mean):
        assert excess(found["logits"], exact, total_variance(noise.gradients["logits"])[0], U["float64"]) <= 1


@pytest.mark.parametrize("call", [call_torch, call_paddle])
@pytest.mark.parametrize(("name", "attributes", "change"), PROBLEMS)
def test_same_definition(name: str, attributes: dict[str, Any], change: dict[str, Any], call: Any) -> None:
    """float64 outputs and gradients inside the budget around double-double."""
    op, rng = ops.all_ops()[name], np.random.default_rng(2)
    example = op.example(rng)
    attributes = example.attributes | attributes
    inputs = {n: a for n, a in (example.inputs | change).items() if a is not None}
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
