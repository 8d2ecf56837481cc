"""Binary ops with numpy's broadcasting: add, multiply, divide."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from gradjury.kernels import modes
from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Tensor
from gradjury.verify.ops.base import Example, Op, OpError, Shape, Slot, Values


class Binary(Op):
    """a, b -> y, broadcast against each other; gradients are summed over the axes that were repeated."""

    inputs = (Slot("a"), Slot("b"))
    operator: str

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        try:
            return {"y": np.broadcast_shapes(shapes["a"], shapes["b"])}
        except ValueError:
            raise OpError(f"b: shape {shapes['b']} does not broadcast with a of shape {shapes['a']}") from None

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        shape = np.broadcast_shapes(x["a"].shape, x["b"].shape)
        a, b = k.broadcast(x["a"], shape), k.broadcast(x["b"], shape)
        y = k.binary(self.name, a, b)
        return {"y": y}, (a, b, y)

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
        found = {}
        for slot in wanted:
            whole = self._flow(k, flow, slot, *saved)
            found[slot] = whole if whole.shape == x[slot].shape else k.unbroadcast(modes.flatten(whole), x[slot].shape)
        return found

    @abstractmethod
    def _flow(self, k: Kernels, flow: Tensor, slot: str, a: Tensor, b: Tensor, y: Tensor) -> Tensor:
        """The gradient of one operand before it is summed over repeated axes."""

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": getattr(torch, self.name)(x["a"], x["b"])}

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": getattr(paddle, self.name)(x["a"], x["b"])}

    def example(self, rng: np.random.Generator) -> Example:
        return Example({"a": rng.standard_normal((4, 3)), "b": rng.standard_normal(3)})


class Add(Binary):
    """a + b."""

    name = "add"

    def _flow(self, k: Kernels, flow: Tensor, slot: str, a: Tensor, b: Tensor, y: Tensor) -> Tensor:
        return flow


class Multiply(Binary):
    """a·b."""

    name = "multiply"

    def _flow(self, k: Kernels, flow: Tensor, slot: str, a: Tensor, b: Tensor, y: Tensor) -> Tensor:
        other = b if slot == "a" else a
        result = k.multiply(flow, other)
        return modes.times(flow, other.data[..., 0], result) if flow.modes else result


class Divide(Binary):
    """a/b; da = dy/b, db = −dy·y/b."""

    name = "divide"

    def _flow(self, k: Kernels, flow: Tensor, slot: str, a: Tensor, b: Tensor, y: Tensor) -> Tensor:
        part = k.binary("divide", modes.flatten(flow), b)
        return part if slot == "a" else k.unary("negate", k.multiply(part, y))

    def example(self, rng: np.random.Generator) -> Example:
        return Example({"a": rng.standard_normal((4, 3)), "b": 1 + rng.random(3)})
