"""y = x·Wᵀ + b over the last axis, any number of leading axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gradjury.kernels.calls import Kernels
from gradjury.kernels.modes import flatten
from gradjury.kernels.scalars import SCALARS
from gradjury.kernels.tensor import Mode, Tensor
from gradjury.verify.ops.base import Example, Op, Shape, Slot, Values, expect


class Linear(Op):
    """x (…, in), weight (out, in), bias (out) -> y (…, out)."""

    name = "linear"
    inputs = (Slot("x"), Slot("weight", paddle="transposed"), Slot("bias", optional=True))

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        x, weight, bias = shapes["x"], shapes["weight"], shapes.get("bias")
        expect(len(x) >= 1, f"x: expected at least one axis, found shape {x}")
        expect(len(weight) == 2, f"weight: expected (out, in), found shape {weight}")
        expect(weight[1] == x[-1], f"weight: expected (out, {x[-1]}) for x of shape {x}, found {weight}")
        expect(bias is None or bias == weight[:1], f"bias: expected shape {weight[:1]}, found {bias}")
        return {"y": (*x[:-1], weight[0])}

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        rows = x["x"].reshape(-1, x["x"].shape[-1])
        y = k.matmul(rows, x["weight"], transpose_b=True, bias=x["bias"])
        return {"y": y.reshape(*x["x"].shape[:-1], x["weight"].shape[0])}, None

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
        modes = _rows_of_modes(flow)
        whole = flatten(flow).reshape(-1, flow.shape[-1])
        own = flow.reshape(-1, flow.shape[-1])
        rows = x["x"].reshape(-1, x["x"].shape[-1])
        found: dict[str, Tensor] = {}
        if "x" in wanted:
            found["x"] = replace(k.matmul(whole, x["weight"]).reshape(*x["x"].shape), length=x["weight"].shape[0])
        if "weight" in wanted:
            found["weight"] = _with_modes(k, k.matmul(own, rows, transpose_a=True), modes, rows)
        if "bias" in wanted:
            found["bias"] = _with_modes(k, k.column_sum(own), modes, None)
        return found

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": torch.nn.functional.linear(x["x"], x["weight"], x["bias"])}

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": paddle.nn.functional.linear(x["x"], x["weight"].T, x["bias"])}

    def example(self, rng: np.random.Generator) -> Example:
        return Example(
            {"x": rng.standard_normal((5, 7)), "weight": rng.standard_normal((3, 7)), "bias": rng.standard_normal(3)}
        )


def _rows_of_modes(flow: Tensor) -> tuple[Mode, ...]:
    """Modes of a (rows, channels) gradient; with more axes they are left to `flatten`."""
    return flow.modes if len(flow.shape) == 2 else ()


def _with_modes(k: Kernels, gradient: Tensor, modes: tuple[Mode, ...], rows: Tensor | None) -> Tensor:
    """Adds to a parameter's variance what is common to a channel: (Σ_i X_id·direction_ic)²·variance_c, X = 1 for a bias."""
    if not modes:
        return gradient
    plain = Kernels(k.engine, SCALARS["float64"])
    data = gradient.data.copy()
    for mode in modes:
        direction = Tensor(mode.direction, plain.scalar)
        if rows is None:
            reach = plain.column_sum(direction).data
            data[..., 1] += reach**2 * mode.variance
        else:
            values = Tensor(k.xp.ascontiguousarray(rows.data[..., 0]), plain.scalar)
            reach = plain.matmul(direction, values, transpose_a=True).data
            data[..., 1] += reach**2 * mode.variance[..., None]
    return replace(gradient, data=data)
