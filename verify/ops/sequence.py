"""Recurrent layers over time: gru and rnn. Products with x and weight gradients are hoisted out of the time loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gradjury.kernels import modes
from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Tensor
from gradjury.verify.ops import gru_step, rnn_step
from gradjury.verify.ops.base import Attribute, Example, Op, Shape, Slot, Values, Variant, expect
from gradjury.verify.ops.gru_step import GRU_ATTRIBUTES, WEIGHTS, check_recurrent_shapes, example_weights
from gradjury.verify.ops.rnn_step import RNN_ATTRIBUTES


@dataclass(frozen=True)
class Unrolled:
    """What the backward needs. `source`: x, zero after each sequence's end; `states`: the state before each step."""

    source: Tensor
    states: list[Tensor]
    kept: list[Any]
    alive: Any


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
    paddle_outputs: Mapping[str, str] = {"y": "time"}
    gates: int

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        x = shapes["x"]
        expect(len(x) == 3, f"x: expected (time, batch, features), found shape {x}")
        check_recurrent_shapes(shapes, self.gates, "h0")
        batch, hidden = x[1], shapes["weight_hh"][1]
        lengths = shapes.get("lengths")
        expect(lengths is None or lengths == (batch,), f"lengths: expected shape ({batch},), found {lengths}")
        known = values.get("lengths")
        if known is not None:
            outside = known[(known < 0) | (known > x[0])]
            expect(not outside.size, f"lengths: expected 0 to {x[0]}, found {outside[:1].tolist()}")
        return {"y": (x[0], batch, hidden), "h_n": shapes.get("h0", (batch, hidden))}

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        steps, batch, features = x["x"].shape
        hidden, alive = x["weight_hh"].shape[1], _alive(k, x["lengths"], steps)
        source = _where(k, alive, x["x"], None)
        state = x["h0"].reshape(batch, hidden) if x["h0"] is not None else k.zeros(source.cases, (batch, hidden))
        gx = k.matmul(source.reshape(steps * batch, features), x["weight_ih"], transpose_b=True, bias=x["bias_ih"])
        gx = gx.reshape(steps, batch, x["weight_ih"].shape[0])
        states, saved, outputs = [], [], []
        for t in range(steps):
            states.append(state)
            following, kept = self.step(k, _at(k, gx, t), state, x, attributes, t)
            saved.append(kept)
            running = None if alive is None else alive[:, t]
            outputs.append(_where(k, running, following, None))
            state = _where(k, running, following, state)
        y = _joined(outputs) if steps else k.empty(source.cases, (0, batch, hidden))
        final = state.reshape(*x["h0"].shape) if x["h0"] is not None else state
        return {"y": y, "h_n": final}, Unrolled(source, states, saved, alive)

    def backward(
        self,
        k: Kernels,
        x: Values,
        attributes: Mapping[str, Any],
        saved: Any,
        upstream: Mapping[str, Tensor | None],
        wanted: set[str],
    ) -> dict[str, Tensor]:
        source, states, kept = saved.source, saved.states, saved.kept
        steps, batch, features = source.shape
        hidden = x["weight_hh"].shape[1]
        y_flow = upstream.get("y")
        last = upstream.get("h_n")
        flow = (
            modes.flatten(last).reshape(batch, hidden) if last is not None else k.zeros(source.cases, (batch, hidden))
        )
        parts: list[tuple[Tensor, Tensor]] = []
        for t in reversed(range(steps)):
            into = flow if y_flow is None else k.add(flow, _at(k, modes.flatten(y_flow), t))
            running = None if saved.alive is None else saved.alive[:, t]
            dgx, dgh, dh = self.step_back(k, kept[t], states[t], x, _where(k, running, into, None), attributes, t)
            parts.append((dgx, dgh))
            flow = _where(k, running, dh, flow)
        parts.reverse()
        if not parts:
            return {slot: k.zeros(source.cases, x[slot].shape) for slot in wanted} | (
                {"h0": flow.reshape(*x["h0"].shape)} if "h0" in wanted else {}
            )
        dgx = _joined([p[0] for p in parts]).reshape(steps * batch, x["weight_ih"].shape[0])
        dgh = _joined([p[1] for p in parts]).reshape(steps * batch, x["weight_ih"].shape[0])
        makers = {
            "x": lambda: k.matmul(dgx, x["weight_ih"]).reshape(*source.shape),
            "h0": lambda: flow.reshape(*x["h0"].shape),
            "weight_ih": lambda: k.matmul(dgx, source.reshape(steps * batch, features), transpose_a=True),
            "weight_hh": lambda: self.recurrent_gradient(
                k, kept, _joined(states).reshape(steps * batch, hidden), dgh, attributes
            ),
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

    def recurrent_gradient(
        self, k: Kernels, kept: list[Any], h: Tensor, dgh: Tensor, attributes: Mapping[str, Any]
    ) -> Tensor:
        """dW_hh over all steps at once: h and dgh are (time·batch, …)."""
        raise NotImplementedError

    def composed(
        self, framework: Any, x: Values, attributes: Mapping[str, Any], step: Any, stack: Any
    ) -> dict[str, Any]:
        """The layer as a loop over a framework's elementary functions."""
        source, hidden = x["x"], x["weight_hh"].shape[1]
        steps, batch = source.shape[0], source.shape[1]
        state = (
            x["h0"].reshape([batch, hidden]) if x["h0"] is not None else source[0, :, :1] * 0 + x["weight_hh"][:1] * 0
        )
        outputs = []
        for t in range(steps):
            following = step(framework, source[t], state, x, attributes)
            if x["lengths"] is not None:
                alive = (
                    (x["lengths"] > t).reshape([batch, 1]).astype(source.dtype)
                    if framework.__name__ == "paddle"
                    else (x["lengths"] > t).reshape(batch, 1).to(source.dtype)
                )
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

    def recurrent_gradient(
        self, k: Kernels, kept: list[Any], h: Tensor, dgh: Tensor, attributes: Mapping[str, Any]
    ) -> Tensor:
        recurrent = _joined([gates.recurrent for gates in kept])
        whole = replace(kept[0], recurrent=recurrent.reshape(h.shape[0], recurrent.shape[-1]))
        return gru_step.recurrent_weight_gradient(k, whole, h, dgh, attributes)

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        if gru_step.is_framework_convention(attributes) and _fits_torch(x):
            return _torch_layer(torch, torch._VF.gru, x)
        return self.composed(torch, x, attributes, gru_step.composed_step, torch.stack)

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        if gru_step.is_framework_convention(attributes):
            return _paddle_layer(paddle, paddle.nn.GRU, x)
        return self.composed(paddle, x, attributes, gru_step.composed_step, paddle.stack)

    def variants(self, attributes: Mapping[str, Any]) -> Sequence[Variant]:
        return gru_step.gru_variants(attributes)


class Rnn(Recurrent):
    """rnn_step over time."""

    name = "rnn"
    gates = 1
    attributes: Mapping[str, Attribute] = RNN_ATTRIBUTES
    kink = True

    def step(
        self, k: Kernels, gx: Tensor, h: Tensor, x: Values, attributes: Mapping[str, Any], t: int
    ) -> tuple[Tensor, Any]:
        step = rnn_step.step_forward(k, gx, h, x, attributes, *_kink_at(k, x, t))
        return step.after, step

    def step_back(
        self, k: Kernels, kept: Any, h: Tensor, x: Values, flow: Tensor, attributes: Mapping[str, Any], t: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        da = rnn_step.step_backward(k, kept, flow, attributes, *_kink_at(k, x, t))
        return da, da, k.matmul(da, x["weight_hh"])

    def recurrent_gradient(
        self, k: Kernels, kept: list[Any], h: Tensor, dgh: Tensor, attributes: Mapping[str, Any]
    ) -> Tensor:
        return k.matmul(dgh, h, transpose_a=True)

    def kinked(self, attributes: Mapping[str, Any]) -> bool:
        return bool(attributes["activation"] == "relu")

    def kink_input(self, x: Values, saved: Any) -> Tensor | None:
        return _joined([step.before for step in saved.kept]) if saved.kept else None

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        if _fits_torch(x):
            return _torch_layer(torch, getattr(torch._VF, f"rnn_{attributes['activation']}"), x)
        return self.composed(torch, x, attributes, rnn_step.composed_step, torch.stack)

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return _paddle_layer(paddle, partial(paddle.nn.SimpleRNN, activation=attributes["activation"]), x)


def _fits_torch(x: Values) -> bool:
    """torch's layers take both biases or none, and no empty sequences."""
    both = (x["bias_ih"] is None) == (x["bias_hh"] is None)
    return both and (x["lengths"] is None or bool((x["lengths"] > 0).all())) and x["x"].shape[0] > 0


def _torch_layer(torch: Any, function: Any, x: Values) -> dict[str, Any]:
    """torch's own layer: one layer, one direction, time first; with lengths over a packed sequence."""
    batch, hidden = x["x"].shape[1], x["weight_hh"].shape[1]
    h0 = x["h0"].reshape(1, batch, hidden) if x["h0"] is not None else x["x"].new_zeros(1, batch, hidden)
    weights = [w for w in (x["weight_ih"], x["weight_hh"], x["bias_ih"], x["bias_hh"]) if w is not None]
    settings = (weights, x["bias_ih"] is not None, 1, 0.0, True, False)
    if x["lengths"] is None:
        y, final = function(x["x"], h0, *settings, False)
    else:
        run = torch.nn.utils.rnn
        packed = run.pack_padded_sequence(x["x"], x["lengths"].cpu(), enforce_sorted=False)
        data, final = function(packed.data, packed.batch_sizes, h0[:, packed.sorted_indices], *settings)
        y, _ = run.pad_packed_sequence(packed._replace(data=data), total_length=x["x"].shape[0])
        final = final[:, packed.unsorted_indices]
    return {"y": y, "h_n": final.reshape(x["h0"].shape) if x["h0"] is not None else final[0]}


def _paddle_layer(paddle: Any, layer: Any, x: Values) -> dict[str, Any]:
    """paddle's own layer on these weights in place of its parameters."""
    source, (rows, hidden) = x["x"], x["weight_hh"].shape
    h0 = x["h0"].reshape([1, source.shape[1], hidden]) if x["h0"] is not None else None
    weights = [paddle.zeros([rows], source.dtype) if x[slot.name] is None else x[slot.name] for slot in WEIGHTS]
    for i, weight in enumerate(weights):
        if weight.stop_gradient:  # the layer's backward fails where a weight takes no gradient
            weights[i] = weight.detach()
            weights[i].stop_gradient = False
    whole = layer(source.shape[2], hidden, time_major=True)
    whole._all_weights = weights
    y, final = whole(source, h0, x["lengths"])
    return {"y": y, "h_n": final.reshape(list(x["h0"].shape)) if x["h0"] is not None else final[0]}


def _at(k: Kernels, x: Tensor, t: int) -> Tensor:
    """Step t of (time, …)."""
    return Tensor(k.xp.ascontiguousarray(x.data[:, t]), x.scalar)


def _joined(steps: list[Tensor]) -> Tensor:
    """Steps stacked along a time axis, first after the cases."""
    return Tensor(np.stack([step.data for step in steps], axis=1), steps[0].scalar)


def _kink_at(k: Kernels, x: Values, t: int) -> tuple[Any, Any]:
    """The mask and the undecided units of step t, of arrays over (cases, time, batch, H) or None."""
    given = (x["kink.mask"], x["kink.undecided"])
    mask, undecided = (None if whole is None else k.xp.ascontiguousarray(whole[:, t]) for whole in given)
    return mask, undecided


def _alive(k: Kernels, lengths: Any, steps: int) -> Any:
    """(cases, time, batch): whether sequence i has step t; None where all have all."""
    return None if lengths is None else k.xp.arange(steps)[None, :, None] < lengths[:, None, :]


def _where(k: Kernels, alive: Any, new: Tensor, old: Tensor | None) -> Tensor:
    """`new` where `alive` (its leading axes) holds, `old` (or 0) elsewhere: data movement, nothing is rounded."""
    if alive is None:
        return new
    condition = alive.reshape(*alive.shape, *(1,) * (new.data.ndim - alive.ndim))
    other = k.xp.zeros((), new.data.dtype) if old is None else old.data
    return Tensor(k.xp.where(condition, new.data, other), k.scalar)
