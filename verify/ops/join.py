"""Several tensors as one: what stack and concatenate need beside `move`, which then puts the elements in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradjury.kernels import modes
from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Tensor
from gradjury.verify.ops.base import Example, Op, Shape, Slot, Values

MOST = 16  # inputs of one join; more are joined in a tree, which keeps their order


class Join(Op):
    """x0, x1, … (any shapes) -> y (elements): all elements of x0, then those of x1, and so on, flat."""

    name = "join"
    inputs = tuple(Slot(f"x{i}", optional=i > 0) for i in range(MOST))

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        return {"y": (sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes.values()),)}

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        parts = [x[slot].reshape(-1).data for slot in _given(x)]
        return {"y": Tensor(k.xp.concatenate(parts, axis=1), k.scalar)}, None

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
        whole = modes.flatten(flow)
        found, start = {}, 0
        for slot in _given(x):
            shape = x[slot].shape
            size = int(np.prod(shape, dtype=np.int64))
            if slot in wanted:
                own = k.xp.ascontiguousarray(whole.data[:, start : start + size])
                found[slot] = Tensor(own, whole.scalar).reshape(*shape)
            start += size
        return found

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": torch.cat([x[slot].reshape(-1) for slot in _given(x)])}

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": paddle.concat([x[slot].reshape([-1]) for slot in _given(x)])}

    def example(self, rng: np.random.Generator) -> Example:
        return Example({"x0": rng.standard_normal((2, 3)), "x1": rng.standard_normal(4), "x2": rng.standard_normal(())})


def _given(x: Values) -> list[str]:
    """The slots that hold a tensor, in order."""
    return [slot.name for slot in Join.inputs if x.get(slot.name) is not None]
