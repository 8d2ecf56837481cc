"""mean and sum over axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradjury.kernels import modes
from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Tensor
from gradjury.verify.ops.base import Attribute, Example, Op, Shape, Slot, Values, expect


class Sum(Op):
    """Σ over `axis` (one, a list, or None: all)."""

    name = "sum"
    inputs = (Slot("x"),)
    attributes: Mapping[str, Attribute] = {
        "axis": Attribute(None, kind=(int, list, tuple, type(None))),
        "keepdims": Attribute(False, kind=bool),
    }

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        x = shapes["x"]
        given = attributes["axis"]
        for axis in [] if given is None else given if isinstance(given, (list, tuple)) else [given]:
            known = isinstance(axis, int) and -len(x) <= axis < len(x)
            expect(known, f"attribute axis: expected axes of x of shape {x}, found {axis}")
        axes = _axes(x, given)
        if attributes["keepdims"]:
            return {"y": tuple(1 if i in axes else n for i, n in enumerate(x))}
        return {"y": tuple(n for i, n in enumerate(x) if i not in axes)}

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        axes = _axes(x["x"].shape, attributes["axis"])
        total = k.sum_axes(x["x"], axes, keepdims=attributes["keepdims"])
        return {"y": self._finish(k, total, x["x"].shape, axes)}, axes

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
        shape = x["x"].shape
        each = self._finish(k, modes.flatten(flow), shape, saved)
        kept = tuple(1 if i in saved else n for i, n in enumerate(shape))
        return {"x": k.broadcast(each.reshape(*kept), shape)}

    def _finish(self, k: Kernels, total: Tensor, shape: Shape, axes: list[int]) -> Tensor:
        return total

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        axes = _axes(tuple(x["x"].shape), attributes["axis"])
        return {"y": getattr(torch, self.name)(x["x"], dim=axes, keepdim=attributes["keepdims"]) if axes else x["x"] * 1}

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        axes = _axes(tuple(x["x"].shape), attributes["axis"])
        return {"y": getattr(paddle, self.name)(x["x"], axis=axes, keepdim=attributes["keepdims"]) if axes else x["x"] * 1}

    def example(self, rng: np.random.Generator) -> Example:
        return Example({"x": rng.standard_normal((4, 3, 2))}, {"axis": 1})


class Mean(Sum):
    """The sum divided by the number of elements summed."""

    name = "mean"

    def _finish(self, k: Kernels, total: Tensor, shape: Shape, axes: list[int]) -> Tensor:
        count = int(np.prod([shape[i] for i in axes], dtype=np.int64))
        return k.unary("divide_by", total, float(count))


def _axes(shape: Shape, axis: Any) -> list[int]:
    if axis is None:
        return list(range(len(shape)))
    return sorted({a % len(shape) for a in ([axis] if isinstance(axis, int) else axis)})
