"""Ops element by element with one input: relu, tanh, sigmoid, exp, log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradjury.kernels import modes
from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Tensor
from gradjury.verify.ops.base import Example, Op, Shape, Slot, Values


class Pointwise(Op):
    """x -> y of the same shape."""

    inputs = (Slot("x"),)

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        return {"y": shapes["x"]}

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        y = k.unary(f"{self.name}_forward", x["x"])
        return {"y": y}, y

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": getattr(torch, self.name)(x["x"])}

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        function = getattr(paddle, self.name, None) or getattr(paddle.nn.functional, self.name)
        return {"y": function(x["x"])}

    def example(self, rng: np.random.Generator) -> Example:
        return Example({"x": rng.standard_normal((4, 6))})


class Relu(Pointwise):
    """max(x, 0); the gradient at 0 is 0."""

    name = "relu"
    kink = True
    kink_of_input = True

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        source = x["x"]
        y = k.empty(source.cases, source.shape)
        mask, undecided = x["kink.mask"], x["kink.undecided"]
        k.elementwise("relu_forward", source.cases, _size(source), source, mask, undecided, y)
        return {"y": y}, None

    def backward(
        self,
        k: Kernels,
        x: Values,
        attributes: Mapping[str, Any],
        saved: Any,
        upstream: Mapping[str, Tensor | None],
        wanted: set[str],
    ) -> dict[str, Tensor]:
        source, flow = x["x"], upstream["y"]
        assert flow is not None
        dx = k.empty(source.cases, source.shape)
        mask, undecided = x["kink.mask"], x["kink.undecided"]
        k.elementwise("relu_backward", source.cases, _size(source), source, mask, undecided, flow, dx)
        if not flow.modes:
            return {"x": dx}
        active = mask.reshape(source.data.shape[:-1]) if mask is not None else source.data[..., 0] > 0
        return {"x": modes.times(flow, active, dx)}

    def kink_input(self, x: Values, saved: Any) -> Tensor | None:
        source: Tensor = x["x"]
        return source


class FromValue(Pointwise):
    """Ops whose derivative is a function of their own value: kernel NAME_backward(y, dy, dx)."""

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
        return {"x": k.binary(f"{self.name}_backward", saved, modes.flatten(flow))}


class Tanh(FromValue):
    """tanh x; dx = dy·(1 − y²)."""

    name = "tanh"


class Sigmoid(FromValue):
    """1/(1 + exp(−x)); dx = dy·y·(1 − y)."""

    name = "sigmoid"


class Exp(FromValue):
    """exp x; dx = dy·y."""

    name = "exp"

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
        return {"x": k.multiply(modes.flatten(flow), saved)}


class Log(Pointwise):
    """log x; dx = dy/x."""

    name = "log"

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
        return {"x": k.binary("divide", modes.flatten(flow), x["x"])}

    def example(self, rng: np.random.Generator) -> Example:
        return Example({"x": np.exp(rng.standard_normal((4, 6)))})


def _size(tensor: Tensor) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64))
