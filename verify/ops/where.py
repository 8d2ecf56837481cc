"""y = a where a condition holds, else b, by numpy's broadcasting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gradjury.kernels import modes
from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Tensor
from gradjury.verify.ops.base import Example, Op, OpError, Shape, Slot, Values
from gradjury.verify.ops.movement import first_case


class Where(Op):
    """condition (0 or not), a, b -> y. Elements of a and b laid end to end, moved: the condition is the same in all cases."""

    name = "where"
    inputs = (Slot("condition", differentiable=False, integer=True), Slot("a"), Slot("b"))

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        try:
            return {"y": np.broadcast_shapes(*(shapes[slot.name] for slot in self.inputs))}
        except ValueError:
            given = ", ".join(f"{slot.name} {shapes[slot.name]}" for slot in self.inputs)
            raise OpError(f"condition, a, b: expected shapes that broadcast, found {given}") from None

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        a, b = x["a"], x["b"]
        condition = np.asarray(first_case(x)["condition"]) != 0
        whole = np.broadcast_shapes(condition.shape, a.shape, b.shape)
        size = math.prod(a.shape)
        numbers_a = np.arange(size).reshape(a.shape)
        numbers_b = size + np.arange(math.prod(b.shape)).reshape(b.shape)
        index = np.ascontiguousarray(np.broadcast_to(np.where(condition, numbers_a, numbers_b), whole))
        both = k.xp.concatenate([_flat(a).data, _flat(b).data], axis=1)
        return {"y": k.gather(Tensor(both, k.scalar), index)}, index

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
        found: dict[str, Tensor] = {}
        size = math.prod(x["a"].shape)
        for slot, own in (("a", saved < size), ("b", saved >= size)):
            if slot in wanted:
                index = np.where(own, saved - (0 if slot == "a" else size), -1)
                found[slot] = k.scatter(modes.flatten(flow), index, x[slot].shape)
        return found

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": torch.where(x["condition"] != 0, x["a"], x["b"])}

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return self.torch(paddle, x, attributes)

    def example(self, rng: np.random.Generator) -> Example:
        condition = np.array([[1, 0, 1], [0, 0, 1]])
        return Example({"condition": condition, "a": rng.standard_normal((2, 3)), "b": rng.standard_normal((2, 1))})


def _flat(x: Tensor) -> Tensor:
    return x.reshape(math.prod(x.shape))
