"""One step of a plain recurrent layer: h' = f(W_ih x + b_ih + W_hh h + b_hh), f tanh or relu."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradjury.kernels import modes
from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Tensor
from gradjury.verify.ops.base import Attribute, Example, Op, Shape, Slot, Values
from gradjury.verify.ops.gru_step import WEIGHTS, check_step_shapes, example_weights, paddle_cell

RNN_ATTRIBUTES: Mapping[str, Attribute] = {"activation": Attribute("tanh", choices=("tanh", "relu"))}


@dataclass(frozen=True)
class Activation:
    """The pre-activation and the state that came of it."""

    before: Tensor
    after: Tensor


class RnnStep(Op):
    """x (batch, in), h (batch, H), weight_ih (H, in), weight_hh (H, H), biases (H) -> h_next. Elman 1990."""

    name = "rnn_step"
    inputs = (Slot("x"), Slot("h"), *WEIGHTS)
    outputs = ("h_next",)
    attributes = RNN_ATTRIBUTES
    kink = True

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        check_step_shapes(shapes, gates=1)
        return {"h_next": shapes["h"]}

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        gx = k.matmul(x["x"], x["weight_ih"], transpose_b=True, bias=x["bias_ih"])
        step = step_forward(k, gx, x["h"], x, attributes, x["kink.mask"], x["kink.undecided"])
        return {"h_next": step.after}, step

    def backward(
        self,
        k: Kernels,
        x: Values,
        attributes: Mapping[str, Any],
        saved: Any,
        upstream: Mapping[str, Tensor | None],
        wanted: set[str],
    ) -> dict[str, Tensor]:
        flow = upstream["h_next"]
        assert flow is not None
        da = step_backward(k, saved, modes.flatten(flow), attributes, x["kink.mask"], x["kink.undecided"])
        makers = {
            "x": lambda: k.matmul(da, x["weight_ih"]),
            "h": lambda: k.matmul(da, x["weight_hh"]),
            "weight_ih": lambda: k.matmul(da, x["x"], transpose_a=True),
            "weight_hh": lambda: k.matmul(da, x["h"], transpose_a=True),
            "bias_ih": lambda: k.column_sum(da),
            "bias_hh": lambda: k.column_sum(da),
        }
        return {slot: makers[slot]() for slot in wanted}

    def kinked(self, attributes: Mapping[str, Any]) -> bool:
        return bool(attributes["activation"] == "relu")

    def kink_input(self, x: Values, saved: Any) -> Tensor | None:
        before: Tensor = saved.before
        return before

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        if (x["bias_ih"] is None) == (x["bias_hh"] is None):
            cell = getattr(torch._VF, f"rnn_{attributes['activation']}_cell")
            return {"h_next": cell(x["x"], x["h"], *(x[slot.name] for slot in WEIGHTS))}
        return {"h_next": composed_step(torch, x["x"], x["h"], x, attributes)}

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        cell = paddle.nn.SimpleRNNCell(x["x"].shape[1], x["h"].shape[1], activation=attributes["activation"])
        return {"h_next": paddle_cell(cell, x)}

    def example(self, rng: np.random.Generator) -> Example:
        return Example(
            {"x": rng.standard_normal((4, 5)), "h": rng.standard_normal((4, 3)), **example_weights(rng, 1, 5, 3)}
        )


def step_forward(
    k: Kernels, gx: Tensor, h: Tensor, weights: Values, attributes: Mapping[str, Any], mask: Any, undecided: Any
) -> Activation:
    """The state after h from gx = W_ih x + b_ih (batch, H)."""
    before = k.add(gx, k.matmul(h, weights["weight_hh"], transpose_b=True, bias=weights["bias_hh"]))
    if attributes["activation"] == "tanh":
        return Activation(before, k.unary("tanh_forward", before))
    after = k.empty(before.cases, before.shape)
    size = int(np.prod(before.shape, dtype=np.int64))
    k.elementwise("relu_forward", before.cases, size, before, mask, undecided, after)
    return Activation(before, after)


def step_backward(
    k: Kernels, step: Activation, flow: Tensor, attributes: Mapping[str, Any], mask: Any, undecided: Any
) -> Tensor:
    """The gradient of the pre-activation."""
    if attributes["activation"] == "tanh":
        return k.binary("tanh_backward", step.after, flow)
    da = k.empty(flow.cases, flow.shape)
    size = int(np.prod(flow.shape, dtype=np.int64))
    k.elementwise("relu_backward", flow.cases, size, step.before, mask, undecided, flow, da)
    return da


def composed_step(framework: Any, x: Any, h: Any, weights: Values, attributes: Mapping[str, Any]) -> Any:
    """The step in a framework's elementary functions."""
    linear, paddle = framework.nn.functional.linear, framework.__name__ == "paddle"

    def product(value: Any, weight: Any, bias: Any) -> Any:
        return linear(value, weight.T if paddle else weight, bias)

    gx, gh = (product(v, weights[f"weight_{s}"], weights[f"bias_{s}"]) for v, s in ((x, "ih"), (h, "hh")))
    before = gx + gh
    return framework.tanh(before) if attributes["activation"] == "tanh" else framework.nn.functional.relu(before)
