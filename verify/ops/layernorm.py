"""Layer normalisation over the trailing axes that weight has, else over the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradjury.kernels import modes
from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Tensor
from gradjury.verify.ops.base import Attribute, Example, Op, Shape, Slot, Values, Variant, expect
from gradjury.verify.ops.batchnorm import normalise, normalise_backward


class Layernorm(Op):
    """x (…, features), weight and bias (features) -> y. Ba, Kiros & Hinton 2016 (arXiv:1607.06450), biased variance."""

    name = "layernorm"
    inputs = (Slot("x"), Slot("weight", optional=True), Slot("bias", optional=True))
    attributes: Mapping[str, Attribute] = {"epsilon": Attribute(1e-5, kind=(float, int))}

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        x, features = shapes["x"], _features(shapes["x"], shapes.get("weight"), shapes.get("bias"))
        expect(len(x) >= 1, f"x: expected at least one axis, found shape {x}")
        for slot in ("weight", "bias"):
            found = shapes.get(slot)
            expect(
                found is None or found == features, f"{slot}: expected the last axes of x, {features}, found {found}"
            )
        expect(attributes["epsilon"] >= 0, f"attribute epsilon: expected 0 or more, found {attributes['epsilon']}")
        return {"y": x}

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        source = x["x"]
        normal, statistics = normalise(k, source, self._layout(x), None, None, attributes)
        y = self._affine(k, x, normal, x["weight"], x["bias"])
        return {"y": y}, (normal, statistics)

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
        flow = modes.flatten(flow)
        normal, statistics = saved
        found = {}
        if "x" in wanted:
            inner = self._affine(k, x, flow, x["weight"], None)
            dx, _, _ = normalise_backward(k, source, self._layout(x), None, statistics, inner, raw_moments=True)
            found["x"] = _flat_rows(dx, source)
        if "weight" in wanted:
            found["weight"] = k.unbroadcast(k.multiply(flow, normal), x["weight"].shape)
        if "bias" in wanted:
            found["bias"] = k.unbroadcast(flow, x["bias"].shape)
        return found

    def _affine(self, k: Kernels, x: Values, values: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """values·weight + bias, of the shape of x."""
        if weight is None and bias is None:
            return values
        cases, _, rows, features = self._layout(x)
        y = k.empty(cases, values.shape)
        if cases * rows * features:
            k.launch(
                "affine_rows",
                (min(cases * rows, 65535), 1, 1),
                k.engine.reduction_threads(k.scalar),
                cases,
                rows,
                features,
                values,
                weight,
                bias,
                y,
            )
        return y

    def _layout(self, x: Values) -> tuple[int, int, int, int]:
        """Every row of features is a channel of its own: (cases, 1, rows, features)."""
        source = x["x"]
        features = _features(source.shape, *(None if x[s] is None else x[s].shape for s in ("weight", "bias")))
        size = int(np.prod(features, dtype=np.int64))
        rows = int(np.prod(source.shape[: len(source.shape) - len(features)], dtype=np.int64))
        return source.cases, 1, rows, size

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        shape = _features(
            tuple(x["x"].shape), *(None if x[s] is None else tuple(x[s].shape) for s in ("weight", "bias"))
        )
        y = torch.nn.functional.layer_norm(x["x"], shape, x["weight"], x["bias"], eps=attributes["epsilon"])
        return {"y": y}

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        shape = _features(
            tuple(x["x"].shape), *(None if x[s] is None else tuple(x[s].shape) for s in ("weight", "bias"))
        )
        weight, bias = (None if x[s] is None else x[s].flatten() for s in ("weight", "bias"))
        y = paddle.nn.functional.layer_norm(x["x"], list(shape), weight, bias, epsilon=attributes["epsilon"])
        return {"y": y}

    def example(self, rng: np.random.Generator) -> Example:
        return Example(
            {"x": rng.standard_normal((4, 6)), "weight": rng.uniform(0.5, 1.5, 6), "bias": rng.standard_normal(6)}
        )

    def variants(self, attributes: Mapping[str, Any]) -> Sequence[Variant]:
        epsilon = attributes["epsilon"]
        others = [e for e in (1e-3, 1e-5, 1e-6, 1e-8, 1e-12, 0.0) if e != epsilon]
        return [
            Variant("layernorm.epsilon", "definition", {"epsilon": e}, f"epsilon {e:g} in place of {epsilon:g}")
            for e in others
        ]


def _features(x: Shape, *parameters: Shape | None) -> Shape:
    known = next((p for p in parameters if p is not None), None)
    return x[-1:] if known is None else x[len(x) - len(known) :]


def _flat_rows(dx: Tensor, source: Tensor) -> Tensor:
    """What the rows' elements have in common, added to their variances: nothing downstream keeps it apart."""
    if not dx.modes:
        return dx
    data = dx.data.copy()
    for mode in dx.modes:
        if not mode.included:
            rows = mode.direction.reshape(source.cases, mode.variance.shape[1], -1) ** 2 * mode.variance[..., None]
            data[..., 1] += rows.reshape(source.cases, *source.shape)
    return replace(dx, data=data, modes=())
