"""softmax and log_softmax along one axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradjury.kernels import modes
from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Tensor
from gradjury.verify.ops.base import Attribute, Example, Op, Shape, Slot, Values, expect


class Softmax(Op):
    """exp(x − max)/Σ along `axis`; dx = y·(dy − Σdy·y)."""

    name = "softmax"
    inputs = (Slot("x"),)
    attributes: Mapping[str, Attribute] = {"axis": Attribute(-1, kind=int)}

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        axis, x = attributes["axis"], shapes["x"]
        expect(-len(x) <= axis < len(x), f"attribute axis: expected an axis of x of shape {x}, found {axis}")
        return {"y": x}

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        y = k.empty(x["x"].cases, x["x"].shape)
        k.each_row(f"{self.name}_forward", *rows_along(x["x"], attributes["axis"]), x["x"], y)
        return {"y": y}, y

    def backward(
        self,
        k: Kernels,
        x: Values,
        attributes: Mapping[str, Any],
        saved: Any,
        upstream: Mapping[str, Tensor | None],
        wanted: set[str],
    ) -> dict[str, Tensor]:
        flow = upstream["y"]
        assert flow is not None
        dx = k.empty(saved.cases, saved.shape)
        rows = rows_along(saved, attributes["axis"])
        k.each_row(f"{self.name}_backward", *rows, saved, modes.flatten(flow), dx)
        return {"x": dx}

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": getattr(torch, self.name)(x["x"], dim=attributes["axis"])}

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": getattr(paddle.nn.functional, self.name)(x["x"], axis=attributes["axis"])}

    def example(self, rng: np.random.Generator) -> Example:
        return Example({"x": rng.standard_normal((4, 5))})


class LogSoftmax(Softmax):
    """(x − max) − log Σexp(x − max) along `axis`; dx = dy − exp(y)·Σdy."""

    name = "log_softmax"


def rows_along(x: Tensor, axis: int) -> tuple[int, int, int]:
    """(outer with the cases, count, inner) of an axis of one case."""
    axis %= len(x.shape)
    outer = x.cases * int(np.prod(x.shape[:axis], dtype=np.int64))
    return outer, x.shape[axis], int(np.prod(x.shape[axis + 1 :], dtype=np.int64))
