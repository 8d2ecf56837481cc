"""y = x·Wᵀ + b over the last axis, any number of leading axes."""

from __future__ import annotations

import math
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
        rows = _rows(x["x"])
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
        rows, found = _rows(x["x"]), {}
        if "x" in wanted:
            found["x"] = _input_gradient(k, flow, x["weight"], x["x"].shape)
        if "weight" in wanted:
            own = k.matmul(_rows(flow), rows, transpose_a=True)
            found["weight"] = _with_modes(k, own, flow, x["x"])
        if "bias" in wanted:
            found["bias"] = _with_modes(k, k.column_sum(_rows(flow)), flow, None)
        return found

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": torch.nn.functional.linear(x["x"], x["weight"], x["bias"])}

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": paddle.nn.functional.linear(x["x"], x["weight"].T, x["bias"])}

    def example(self, rng: np.random.Generator) -> Example:
        return Example(
            {"x": rng.standard_normal((5, 7)), "weight": rng.standard_normal((3, 7)), "bias": rng.standard_normal(3)}
        )


def _rows(x: Tensor) -> Tensor:
    """All leading axes as one."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _input_gradient(k: Kernels, flow: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    """dy·W. What is common to a channel: channels of (rows, channels) are mixed; any others stay apart, direction·W."""
    if len(shape) <= 2 or not flow.modes:
        return replace(k.matmul(_rows(flatten(flow)), weight).reshape(*shape), length=weight.shape[0])
    plain = Kernels(k.engine, SCALARS["float64"])
    values = Tensor(k.xp.ascontiguousarray(weight.data[..., 0]), plain.scalar)
    dx = k.matmul(_rows(flow), weight).reshape(*shape)
    modes = []
    for mode in flow.modes:
        direction = plain.matmul(_rows(Tensor(mode.direction, plain.scalar)), values)
        modes.append(Mode(direction.reshape(*shape).data, mode.variance, included=False))
    return replace(dx, length=weight.shape[0], modes=tuple(modes))


def _with_modes(k: Kernels, gradient: Tensor, flow: Tensor, x: Tensor | None) -> Tensor:
    """Adds to a parameter's variance what is common to a channel: Σ_c (Σ_i X_id·direction_io)²·variance_c, i in channel c.

    X is 1 for a bias. Of (rows, channels) each output o is a channel; with more axes the channels are axis 1.
    """
    if not flow.modes:
        return gradient
    plain = Kernels(k.engine, SCALARS["float64"])
    data = gradient.data.copy()
    ones = plain.xp.ones((*flow.data.shape[:-2], 1))
    values = Tensor(ones if x is None else x.data[..., 0], plain.scalar)
    for mode in flow.modes:
        direction, variance = Tensor(mode.direction, plain.scalar), mode.variance[..., None]
        if len(flow.shape) == 2:
            found = plain.matmul(direction, _contiguous(k, values), transpose_a=True).data ** 2 * variance
        else:
            reach = plain.matmul(_by_channel(k, direction), _by_channel(k, values), transpose_a=True).data
            found = (reach.reshape(*mode.variance.shape, *reach.shape[1:]) ** 2 * variance[..., None]).sum(1)
        data[..., 1] += found.reshape(data[..., 1].shape)
    return replace(gradient, data=data)


def _contiguous(k: Kernels, x: Tensor) -> Tensor:
    return replace(x, data=k.xp.ascontiguousarray(x.data))


def _by_channel(k: Kernels, x: Tensor) -> Tensor:
    """Numbers (cases, n, channels, …, last) as one matrix (n·…, last) a case and channel."""
    data = k.xp.ascontiguousarray(k.xp.moveaxis(x.data, 2, 1))
    return replace(x, data=data.reshape(-1, math.prod(data.shape[2:-1]), data.shape[-1]))
