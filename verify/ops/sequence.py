"""Recurrent layers over time: gru and rnn. Products with x and the weight gradients are hoisted out of the time loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradjury.kernels import modes
from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Tensor
from gradjury.verify.ops import gru_step, rnn_step
from gradjury.verify.ops.base import Attribute, Example, Op, Shape, Slot, Values, Variant, expect
from gradjury.verify.ops.gru_step import GRU_ATTRIBUTES, WEIGHTS, check_step_shapes, example_weights
from gradjury.verify.ops.rnn_step import RNN_ATTRIBUTES


class Recurrent(Op):
    """x (time, batch, in), h0 (batch, H) or none, lengths (batch) -> y (time, batch, H), h_n (batch, H).

    Sequence i ends after lengths[i] steps: its later y are 0 and h_n is its state at the end.
    """

    inputs = (
        Slot("x", paddle="time"),
        Slot("h0", optional=True),
        *WEIGHTS,
        Slot("lengths", optional=True, differentiable=False, integer=True),
    )
    outputs = ("y", "h_n")
    paddle_outputs = {"y": "time"}
    gates: int

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        x = shapes["x"]
        expect(len(x) == 3, f"x: expected (time, batch, features), found shape {x}")
        check_step_shapes(shapes, self.gates, states=("h0",))
        batch, hidden = x[1], shapes["weight_hh"][1]
        lengths = shapes.get("lengths")
        expect(lengths is None or lengths == (batch,), f"lengths: expected shape ({batch},), found {lengths}")
        known = values.get("lengths")
        if known is not None:
            good = not known.size or (known.min() >= 0 and known.max() <= x[0])
            expect(good, f"lengths: expected 0 to {x[0]}, found {list(known)[:4]}")
        return {"y": (x[0], batch, hidden), "h_n": shapes.get("h0", (batch, hidden))}

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        source, hidden = x["x"], x["weight_hh"].shape[1]
        steps, batch, features = source.shape
        state = x["h0"].reshape(batch, hidden) if x["h0"] is not None else k.zeros(source.cases, (batch, hidden))
        gx = k.matmul(source.reshape(steps * batch, features), x["weight_ih"], transpose_b=True, bias=x["bias_ih"])
        gx = gx.reshape(steps, batch, -1)
        alive = _alive(x["lengths"], steps, batch)
        states, saved, outputs = [], [], []
        for t in range(steps):
            states.append(state)
            following, kept = self.step(k, _at(k, gx, t), state, x, attributes, t)
            saved.append(kept)
            outputs.append(_where(k, alive, t, following, None))
            state = _where(k, alive, t, following, state)
        y = _joined(k, outputs) if steps else k.empty(source.cases, (0, batch, hidden))
        final = state.reshape(*x["h0"].shape) if x["h0"] is not None else state
        return {"y": y, "h_n": final}, (states, saved, alive)

    def backward(
        self,
        k: Kernels,
        x: Values,
        attributes: Mapping[str, Any],
        saved: Any,
        upstream: Mapping[str, Tensor | None],
        wanted: set[str],
    ) -> dict[str, Tensor]:
        states, kept, alive = saved
        source, hidden = x["x"], x["weight_hh"].shape[1]
        steps, batch, features = source.shape
        y_flow = upstream.get("y")
        last = upstream.get("h_n")
        flow = modes.flatten(last).reshape(batch, hidden) if last is not None else k.zeros(source.cases, (batch, hidden))
        parts: list[tuple[Tensor, Tensor]] = []
        for t in reversed(range(steps)):
            into = flow if y_flow is None else k.add(flow, _at(k, modes.flatten(y_flow), t))
            dgx, dgh, dh = self.step_back(k, kept[t], states[t], x, _where(k, alive, t, into, None), attributes, t)
            parts.append((dgx, dgh))
            flow = _where(k, alive, t, dh, flow)
        parts.reverse()
        if not parts:
            return {slot: k.zeros(source.cases, x[slot].shape) for slot in wanted} | (
                {"h0": flow.reshape(*x["h0"].shape)} if "h0" in wanted else {}
            )
        dgx = _joined(k, [p[0] for p in parts]).reshape(steps * batch, -1)
        dgh = _joined(k, [p[1] for p in parts]).reshape(steps * batch, -1)
        makers = {
            "x": lambda: k.matmul(dgx, x["weight_ih"]).reshape(*source.shape),
            "h0": lambda: flow.reshape(*x["h0"].shape),
            "weight_ih": lambda: k.matmul(dgx, source.reshape(steps * batch, features), transpose_a=True),
            "weight_hh": lambda: self.recurrent_gradient(k, kept, _joined(k, states).reshape(steps * batch, hidden), dgh, attributes),
            "bias_ih": lambda: k.column_sum(dgx),
            "bias_hh": lambda: k.column_sum(dgh),
        }
        return {slot: makers[slot]() for slot in wanted}

    def step(
        self, k: Kernels, gx: Tensor, h: Tensor, x: Values, attributes: Mapping[str, Any], t: int
    ) -> tuple[Tensor, Any]:
        """One step forward from gx = W_ih x + b_ih: the next state, and what its backward needs."""
        raise NotImplementedError

    def step_back(
        self, k: Kernels, kept: Any, h: Tensor, x: Values, flow: Tensor, attributes: Mapping[str, Any], t: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One step backward: gradients of gx, of gh and of h."""
        raise NotImplementedError

    def recurrent_gradient(self, k: Kernels, kept: list[Any], h: Tensor, dgh: Tensor, attributes: Mapping[str, Any]) -> Tensor:
        """dW_hh over all steps at once: h and dgh are (time·batch, …)."""
        raise NotImplementedError

    def composed(self, framework: Any, x: Values, attributes: Mapping[str, Any], step: Any, stack: Any) -> dict[str, Any]:
        """The layer as a loop over a framework's elementary functions."""
        source, hidden = x["x"], x["weight_hh"].shape[1]
        steps, batch = source.shape[0], source.shape[1]
        state = x["h0"].reshape([batch, hidden]) if x["h0"] is not None else source[0, :, :1] * 0 + x["weight_hh"][:1] * 0
        outputs = []
        for t in range(steps):
            following = step(framework, source[t], state, x, attributes)
            if x["lengths"] is not None:
                alive = (x["lengths"] > t).reshape([batch, 1]).astype(source.dtype) if framework.__name__ == "paddle" else (
                    x["lengths"] > t
                ).reshape(batch, 1).to(source.dtype)
                outputs.append(following * alive)
                state = following * alive + state * (1 - alive)
            else:
                outputs.append(following)
                state = following
        final = state.reshape(list(x["h0"].shape)) if x["h0"] is not None else state
        return {"y": stack(outputs), "h_n": final}

    def example(self, rng: np.random.Generator) -> Example:
        x, h0 = rng.standard_normal((4, 3, 2)), rng.standard_normal((3, 5))
        return Example({"x": x, "h0": h0, **example_weights(rng, self.gates, 2, 5), "lengths": np.array([4, 2, 3])})


class Gru(Recurrent):
    """gru_step over time."""

    name = "gru"
    gates = 3
    attributes = GRU_ATTRIBUTES

    def step(
        self, k: Kernels, gx: Tensor, h: Tensor, x: Values, attributes: Mapping[str, Any], t: int
    ) -> tuple[Tensor, Any]:
        return gru_step.step_forward(k, gx, h, x["weight_hh"], x["bias_hh"], attributes)

    def step_back(
        self, k: Kernels, kept: Any, h: Tensor, x: Values, flow: Tensor, attributes: Mapping[str, Any], t: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        return gru_step.step_backward(k, kept, h, x["weight_hh"], flow, attributes)

    def recurrent_gradient(self, k: Kernels, kept: list[Any], h: Tensor, dgh: Tensor, attributes: Mapping[str, Any]) -> Tensor:
        recurrent = _joined(k, [gates.recurrent for gates in kept])
        whole = replace(kept[0], recurrent=recurrent.reshape(h.shape[0], -1))
        return gru_step.recurrent_weight_gradient(k, whole, h, dgh, attributes)

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        biases = (x["bias_ih"], x["bias_hh"])
        plain = attributes == {"reset": "after", "update": "keeps-previous"} and x["lengths"] is None
        if plain and (biases[0] is None) == (biases[1] is None):
            return _torch_layer(torch, torch._VF.gru, x)
        return self.composed(torch, x, attributes, gru_step.composed_step, torch.stack)

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return self.composed(paddle, x, attributes, gru_step.composed_step, paddle.stack)

    def variants(self, attributes: Mapping[str, Any]) -> Sequence[Variant]:
        return gru_step.gru_variants(attributes)


class Rnn(Recurrent):
    """rnn_step over time."""

    name = "rnn"
    gates = 1
    attributes: Mapping[str, Attribute] = RNN_ATTRIBUTES

    def step(
        self, k: Kernels, gx: Tensor, h: Tensor, x: Values, attributes: Mapping[str, Any], t: int
    ) -> tuple[Tensor, Any]:
        step = rnn_step.step_forward(k, gx, h, x, attributes, None, None)
        return step.after, step

    def step_back(
        self, k: Kernels, kept: Any, h: Tensor, x: Values, flow: Tensor, attributes: Mapping[str, Any], t: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        da = rnn_step.step_backward(k, kept, flow, attributes, None, None)
        return da, da, k.matmul(da, x["weight_hh"])

    def recurrent_gradient(self, k: Kernels, kept: list[Any], h: Tensor, dgh: Tensor, attributes: Mapping[str, Any]) -> Tensor:
        return k.matmul(dgh, h, transpose_a=True)

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        if x["lengths"] is None and (x["bias_ih"] is None) == (x["bias_hh"] is None):
            return _torch_layer(torch, getattr(torch._VF, f"rnn_{attributes['activation']}"), x)
        return self.composed(torch, x, attributes, rnn_step.composed_step, torch.stack)

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return self.composed(paddle, x, attributes, rnn_step.composed_step, paddle.stack)


def _torch_layer(torch: Any, function: Any, x: Values) -> dict[str, Any]:
    """torch's own layer: one layer, one direction, time first."""
    batch, hidden = x["x"].shape[1], x["weight_hh"].shape[1]
    h0 = x["h0"].reshape(1, batch, hidden) if x["h0"] is not None else x["x"].new_zeros(1, batch, hidden)
    weights = [w for w in (x["weight_ih"], x["weight_hh"], x["bias_ih"], x["bias_hh"]) if w is not None]
    y, final = function(x["x"], h0, weights, x["bias_ih"] is not None, 1, 0.0, True, False, False)
    return {"y": y, "h_n": final.reshape(x["h0"].shape) if x["h0"] is not None else final[0]}


def _at(k: Kernels, x: Tensor, t: int) -> Tensor:
    """Step t of (time, …)."""
    return Tensor(k.xp.ascontiguousarray(x.data[:, t]), x.scalar)


def _joined(k: Kernels, steps: list[Tensor]) -> Tensor:
    """Steps stacked along a time axis, first after the cases."""
    return Tensor(k.xp.stack([s.data for s in steps], axis=1), k.scalar)


def _alive(lengths: Any, steps: int, batch: int) -> np.ndarray | None:
    """(time, batch): whether sequence i has step t."""
    if lengths is None:
        return None
    first = lengths[0].get() if hasattr(lengths, "get") else lengths[0]
    return np.asarray(np.arange(steps)[:, None] < np.asarray(first)[None, :])


def _where(k: Kernels, alive: np.ndarray | None, t: int, new: Tensor, old: Tensor | None) -> Tensor:
    """`new` for the sequences that have step t, `old` (or 0) for the others: data movement, nothing is rounded."""
    if alive is None or alive[t].all():
        return new
    data = k.xp.zeros_like(new.data) if old is None else old.data.copy()
    rows = np.flatnonzero(alive[t])
    data[:, rows] = new.data[:, rows]
    return Tensor(data, k.scalar)
