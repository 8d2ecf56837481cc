"""Losses over classes and squares, with their reductions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Tensor
from gradjury.verify.ops.base import Attribute, Example, Op, Shape, Slot, Values, expect

REDUCTION = {"reduction": Attribute("mean", choices=("mean", "sum", "none"))}


class Nll(Op):
    """−log_probabilities[target]: classes on axis 1, or the last of two (or of one). The mean is over targets not ignored."""

    name = "nll"
    inputs: tuple[Slot, ...] = (Slot("log_probabilities"), Slot("target", differentiable=False, integer=True))
    outputs = ("loss",)
    attributes: Mapping[str, Attribute] = {**REDUCTION, "ignore_index": Attribute(-100, kind=int)}

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        slot = self.inputs[0].name
        x, target = shapes[slot], shapes["target"]
        expect(len(x) >= 1, f"{slot}: expected at least one axis, found shape {x}")
        expected = () if len(x) == 1 else (x[0], *x[2:])
        expect(target == expected, f"target: expected shape {expected} for {slot} of shape {x}, found {target}")
        known, classes = values.get("target"), x[0 if len(x) == 1 else 1]
        if known is not None:
            bad = (known != attributes["ignore_index"]) & ((known < 0) | (known >= classes))
            expect(not bad.any(), f"target: expected classes 0 to {classes - 1}, found {known[bad].ravel()[:1]}")
        return {"loss": target if attributes["reduction"] == "none" else ()}

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        log_probabilities = self._log_probabilities(k, x)
        target = x["target"]
        loss = k.empty(log_probabilities.cases, target.shape[1:])
        rows = _classes(log_probabilities)
        k.each_row("nll_forward", *rows, attributes["ignore_index"], log_probabilities, target, loss)
        count = _valid(target, attributes)
        return {"loss": _reduce(k, loss, attributes["reduction"], count)}, (log_probabilities, count)

    def backward(
        self,
        k: Kernels,
        x: Values,
        attributes: Mapping[str, Any],
        saved: Any,
        upstream: Mapping[str, Tensor | None],
        wanted: set[str],
    ) -> dict[str, Tensor]:
        log_probabilities, count = saved
        flow = upstream["loss"]
        assert flow is not None
        each = _spread_out(k, flow, x["target"].shape[1:], attributes["reduction"], count)
        dx = k.empty(log_probabilities.cases, log_probabilities.shape)
        self._to_input(
            k, _classes(log_probabilities), attributes["ignore_index"], log_probabilities, x["target"], each, dx
        )
        return {self.inputs[0].name: dx}

    def _log_probabilities(self, k: Kernels, x: Values) -> Tensor:
        given: Tensor = x["log_probabilities"]
        return given

    def _to_input(
        self, k: Kernels, rows: tuple[int, int, int], ignored: int, y: Tensor, target: Any, each: Tensor, dx: Tensor
    ) -> None:
        k.each_row("nll_backward", *rows, ignored, target, each, dx)

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        function = getattr(torch.nn.functional, {"nll": "nll_loss"}.get(self.name, self.name))
        return {"loss": function(x[self.inputs[0].name], x["target"], **attributes)}

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        scores = x[self.inputs[0].name]
        lone = scores.ndim == 1
        scores, target = (scores.unsqueeze(0), x["target"].unsqueeze(0)) if lone else (scores, x["target"])
        # Paddle 3.3's own sum and mean write past their memory at float64 when a target is ignored.
        each = paddle.nn.functional.nll_loss(scores, target, ignore_index=attributes["ignore_index"], reduction="none")
        if attributes["reduction"] == "none":
            return {"loss": each.squeeze(0) if lone else each}
        counted = (target != attributes["ignore_index"]).astype(each.dtype).sum()
        return {"loss": each.sum() / counted if attributes["reduction"] == "mean" else each.sum()}

    def example(self, rng: np.random.Generator) -> Example:
        x = rng.standard_normal((6, 4))
        x -= np.log(np.exp(x).sum(1, keepdims=True))
        return Example({self.inputs[0].name: x, "target": np.array([0, 3, 1, -100, 2, 2])})


class CrossEntropy(Nll):
    """nll of log_softmax(logits); dlogits = (softmax − one-hot)·dloss."""

    name = "cross_entropy"
    inputs = (Slot("logits"), Slot("target", differentiable=False, integer=True))

    def _log_probabilities(self, k: Kernels, x: Values) -> Tensor:
        y = k.empty(x["logits"].cases, x["logits"].shape)
        k.each_row("log_softmax_forward", *_classes(x["logits"]), x["logits"], y)
        return y

    def _to_input(
        self, k: Kernels, rows: tuple[int, int, int], ignored: int, y: Tensor, target: Any, each: Tensor, dx: Tensor
    ) -> None:
        k.each_row("cross_entropy_backward", *rows, ignored, y, target, each, dx)

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        axis = 0 if x["logits"].ndim == 1 else 1
        logits = x["logits"].unsqueeze(0) if axis == 0 else x["logits"]
        target = x["target"].unsqueeze(0) if axis == 0 else x["target"]
        loss = paddle.nn.functional.cross_entropy(logits, target, axis=1, **attributes)
        return {"loss": loss.reshape(x["target"].shape) if attributes["reduction"] == "none" else loss}


class SquaredError(Op):
    """factor·reduction((y − target)²); dy = 2·factor·(y − target)·dloss."""

    name = "squared_error"
    inputs = (Slot("y"), Slot("target"))
    outputs = ("loss",)
    attributes: Mapping[str, Attribute] = {
        "reduction": Attribute("sum", choices=("sum", "mean", "none")),
        "factor": Attribute(1.0, kind=(float, int)),
    }

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        expect(
            shapes["target"] == shapes["y"], f"target: expected the shape of y, {shapes['y']}, found {shapes['target']}"
        )
        return {"loss": shapes["y"] if attributes["reduction"] == "none" else ()}

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        squares = k.binary("squared_error_forward", x["y"], x["target"])
        size = int(np.prod(squares.shape, dtype=np.int64))
        reduced = _reduce(k, squares, attributes["reduction"], [size] * squares.cases)
        return {"loss": k.unary("multiply_by", reduced, float(attributes["factor"]))}, size

    def backward(
        self,
        k: Kernels,
        x: Values,
        attributes: Mapping[str, Any],
        saved: Any,
        upstream: Mapping[str, Tensor | None],
        wanted: set[str],
    ) -> dict[str, Tensor]:
        flow = upstream["loss"]
        assert flow is not None
        each = _spread_out(k, flow, x["y"].shape, attributes["reduction"], [saved] * flow.cases)
        dy = k.empty(x["y"].cases, x["y"].shape)
        factor = float(attributes["factor"])
        k.elementwise("squared_error_backward", dy.cases, saved, factor, x["y"], x["target"], each, dy)
        found = {"y": dy}
        if "target" in wanted:
            found["target"] = k.unary("negate", dy)
        return {slot: gradient for slot, gradient in found.items() if slot in wanted}

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        squares = (x["y"] - x["target"]) ** 2
        reduced = squares if attributes["reduction"] == "none" else getattr(squares, attributes["reduction"])()
        return {"loss": reduced * attributes["factor"]}

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return self.torch(paddle, x, attributes)

    def example(self, rng: np.random.Generator) -> Example:
        return Example({"y": rng.standard_normal((3, 4)), "target": rng.standard_normal((3, 4))}, {"factor": 0.5})


def _classes(x: Tensor) -> tuple[int, int, int]:
    """(outer with the cases, classes, inner): classes on axis 1, or on the only one."""
    shape = (1, *x.shape) if len(x.shape) == 1 else x.shape
    return x.cases * shape[0], shape[1], int(np.prod(shape[2:], dtype=np.int64))


def _valid(target: Any, attributes: Mapping[str, Any]) -> list[int]:
    """Per case, how many targets are not ignored."""
    kept = target != attributes["ignore_index"]
    return [int(n) for n in kept.reshape(len(target), -1).sum(axis=1)]


def _reduce(k: Kernels, each: Tensor, reduction: str, counts: list[int]) -> Tensor:
    if reduction == "none":
        return each
    total = k.sum_axes(each, range(len(each.shape)))
    return total if reduction == "sum" else _divide(k, total, counts)


def _spread_out(k: Kernels, flow: Tensor, shape: Shape, reduction: str, counts: list[int]) -> Tensor:
    """The gradient of every position's loss from that of the reduced loss."""
    if reduction == "mean":
        flow = _divide(k, flow, counts)
    return flow if reduction == "none" else k.broadcast(flow, shape)


def _divide(k: Kernels, x: Tensor, counts: list[int]) -> Tensor:
    """Every case by its own count."""
    shape = (len(counts), *(1,) * len(x.shape))
    divisors = k.tensor(np.broadcast_to(np.array(counts, np.float64).reshape(shape), (x.cases, *x.shape)))
    return k.binary("divide", x, divisors)
