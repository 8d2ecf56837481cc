"""Dropout with a given mask: y = x·mask/(1 − rate)."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from gradjury.kernels import modes
from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Tensor
from gradjury.verify.ops.base import Attribute, Example, Op, Shape, Slot, Values, expect


class Dropout(Op):
    """x and mask of one shape (mask 0 where dropped) -> y. Srivastava et al. 2014, inverted form."""

    name = "dropout"
    inputs = (Slot("x"), Slot("mask", differentiable=False))
    attributes: Mapping[str, Attribute] = {"rate": Attribute(0.5, kind=(float, int))}

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        expect(shapes["mask"] == shapes["x"], f"mask: expected the shape of x, {shapes['x']}, found {shapes['mask']}")
        rate = attributes["rate"]
        expect(0 <= rate <= 1, f"attribute rate: expected 0 to 1, found {rate}")
        return {"y": shapes["x"]}

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        return {"y": _apply(k, x["x"], x["mask"], attributes["rate"])}, None

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
        dx = _apply(k, flow, x["mask"], attributes["rate"])
        if not flow.modes:
            return {"x": dx}
        kept = 1 - float(attributes["rate"]) or np.inf
        return {"x": modes.times(flow, x["mask"].data[..., 0] / kept, dx)}

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": x["x"] * x["mask"] / (1 - attributes["rate"]) if attributes["rate"] < 1 else x["x"] * 0}

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return self.torch(paddle, x, attributes)

    def example(self, rng: np.random.Generator) -> Example:
        mask = (rng.random((5, 6)) >= 0.25).astype(np.float64)
        return Example({"x": rng.standard_normal((5, 6)), "mask": mask}, {"rate": 0.25})


def _apply(k: Kernels, x: Tensor, mask: Tensor, rate: float) -> Tensor:
    if rate == 1:
        return k.zeros(x.cases, x.shape)
    kept = 1 - Fraction(rate)
    high = float(kept)
    return k.binary("dropout", x, mask, high, float(kept - Fraction(high)))
