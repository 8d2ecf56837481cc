"""Matrix product by numpy's rules: leading axes broadcast, one-dimensional operands are vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gradjury.kernels import modes
from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Tensor
from gradjury.verify.ops.base import Example, Op, OpError, Shape, Slot, Values, expect


class Matmul(Op):
    """a (…, M, K), b (…, K, N) -> y (…, M, N); da = dy·bᵀ, db = aᵀ·dy."""

    name = "matmul"
    inputs = (Slot("a"), Slot("b"))

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        a, b = shapes["a"], shapes["b"]
        expect(len(a) >= 1 and len(b) >= 1, f"a and b: expected at least one axis each, found shapes {a} and {b}")
        wide_a, wide_b = _as_matrices(a, b)
        expect(wide_a[-1] == wide_b[-2], f"b: expected {a[-1]} rows for a of shape {a}, found shape {b}")
        try:
            leading = np.broadcast_shapes(wide_a[:-2], wide_b[:-2])
        except ValueError:
            raise OpError(f"b: leading axes of shape {b} do not broadcast with a of shape {a}") from None
        rows = () if len(a) == 1 else (a[-2],)
        columns = () if len(b) == 1 else (b[-1],)
        return {"y": (*leading, *rows, *columns)}

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        wide_a, wide_b = _as_matrices(x["a"].shape, x["b"].shape)
        leading = np.broadcast_shapes(wide_a[:-2], wide_b[:-2])
        a = _stacked(k.broadcast(x["a"].reshape(*wide_a), (*leading, *wide_a[-2:])))
        b = _stacked(k.broadcast(x["b"].reshape(*wide_b), (*leading, *wide_b[-2:])))
        y = _unstacked(k.matmul(a, b), x["a"].cases, leading)
        return {"y": y.reshape(*self.shapes({"a": x["a"].shape, "b": x["b"].shape}, {}, {})["y"])}, (a, b)

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
        a, b = saved
        dy = _stacked(modes.flatten(flow).reshape(a.cases // flow.cases, a.shape[0], b.shape[1]))
        found = {}
        if "a" in wanted:
            found["a"] = _to_operand(k, k.matmul(dy, b, transpose_b=True), x["a"], x, 0)
        if "b" in wanted:
            found["b"] = _to_operand(k, k.matmul(a, dy, transpose_a=True), x["b"], x, 1)
        return found

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": torch.matmul(x["a"], x["b"])}

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return self.torch(paddle, x, attributes)

    def example(self, rng: np.random.Generator) -> Example:
        return Example({"a": rng.standard_normal((2, 3, 4)), "b": rng.standard_normal((4, 5))})


def _as_matrices(a: Shape, b: Shape) -> tuple[Shape, Shape]:
    return (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b


def _stacked(x: Tensor) -> Tensor:
    """Leading axes joined to the case axis: one matrix a case."""
    tail = (x.scalar.components,) if x.scalar.components > 1 else ()
    matrices = x.cases * math.prod(x.shape[:-2])
    return replace(x, data=x.data.reshape(matrices, *x.shape[-2:], *tail))


def _unstacked(x: Tensor, cases: int, leading: Shape) -> Tensor:
    """The leading axes back from the case axis."""
    return replace(x, data=x.data.reshape(cases, *leading, *x.data.shape[1:]))


def _to_operand(k: Kernels, gradient: Tensor, operand: Tensor, x: Values, position: int) -> Tensor:
    """From one matrix per leading index back to the operand's shape, summed where it was broadcast."""
    matrices = _as_matrices(x["a"].shape, x["b"].shape)
    leading = np.broadcast_shapes(matrices[0][:-2], matrices[1][:-2])
    summed = k.unbroadcast(_unstacked(gradient, operand.cases, leading), matrices[position])
    repeated = math.prod(leading) // max(math.prod(matrices[position][:-2]), 1)
    return replace(summed.reshape(*operand.shape), length=gradient.length * repeated)
