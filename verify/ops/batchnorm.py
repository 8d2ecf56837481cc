"""Batch normalisation over all axes but the second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradjury.kernels import modes
from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Mode, Tensor
from gradjury.verify.ops.base import Attribute, Example, Op, Shape, Slot, Values, Variant, expect

PARAMETERS = ("weight", "bias", "running_mean", "running_var")


@dataclass(frozen=True)
class Statistics:
    """Mean and (var + ε)^-½ per channel, as the forward computed them."""

    mean: Tensor
    rstd: Tensor


class Batchnorm(Op):
    """x (batch, channels, …) -> y. Training: batch statistics, biased variance; else running_mean and running_var."""

    name = "batchnorm"
    inputs = (
        Slot("x"),
        Slot("weight", optional=True),
        Slot("bias", optional=True),
        Slot("running_mean", optional=True, differentiable=False),
        Slot("running_var", optional=True, differentiable=False),
    )
    attributes: Mapping[str, Attribute] = {
        "epsilon": Attribute(1e-5, kind=(float, int)),
        "training": Attribute(True, kind=bool),
    }

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        x = shapes["x"]
        expect(len(x) >= 2, f"x: expected (batch, channels, …), found shape {x}")
        for slot in PARAMETERS:
            found = shapes.get(slot)
            expect(found is None or found == (x[1],), f"{slot}: expected shape ({x[1]},), found {found}")
        if not attributes["training"]:
            for slot in ("running_mean", "running_var"):
                expect(slot in shapes, f"{slot}: expected where training is false, found none")
        expect(attributes["epsilon"] >= 0, f"attribute epsilon: expected 0 or more, found {attributes['epsilon']}")
        return {"y": x}

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        if attributes["training"]:
            y, statistics = normalise(k, x["x"], channels(x["x"]), x["weight"], x["bias"], attributes)
            return {"y": y}, statistics
        source = x["x"]
        y = k.empty(source.cases, source.shape)
        fixed = (source, x["running_mean"], x["running_var"], x["weight"], x["bias"], y)
        _launch(k, "batchnorm_fixed_forward", channels(source), float(attributes["epsilon"]), *fixed)
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
        flow = modes.flatten(flow)
        if attributes["training"]:
            dx, dweight, dbias = normalise_backward(
                k, source, channels(source), x["weight"], saved, flow, bool(attributes.get("hypothesis.raw_moments"))
            )
        else:
            dx, dweight, dbias = k.empty(source.cases, source.shape), *_parameter_gradients(k, source)
            fixed = (source, x["running_mean"], x["running_var"], x["weight"], flow, dx, dweight, dbias)
            _launch(k, "batchnorm_fixed_backward", channels(source), float(attributes["epsilon"]), *fixed)
        length = source.shape[0] * int(np.prod(source.shape[2:], dtype=np.int64))
        found = {"x": dx, "weight": replace(dweight, length=length), "bias": replace(dbias, length=length)}
        return {slot: gradient for slot, gradient in found.items() if slot in wanted}

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        training = attributes["training"]
        statistics = (None, None) if training else (x["running_mean"], x["running_var"])
        function = torch.nn.functional.batch_norm
        return {
            "y": function(x["x"], *statistics, x["weight"], x["bias"], training=training, eps=attributes["epsilon"])
        }

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        source, training = x["x"], attributes["training"]
        size = [source.shape[1]]
        mean = paddle.zeros(size, source.dtype) if training else x["running_mean"]
        variance = paddle.ones(size, source.dtype) if training else x["running_var"]
        weight = x["weight"] if x["weight"] is not None else paddle.ones(size, source.dtype)
        bias = x["bias"] if x["bias"] is not None else paddle.zeros(size, source.dtype)
        function = paddle.nn.functional.batch_norm
        y = function(source, mean, variance, weight, bias, training=training, epsilon=attributes["epsilon"])
        return {"y": y}

    def example(self, rng: np.random.Generator) -> Example:
        return Example(
            {"x": rng.standard_normal((6, 3, 2)), "weight": rng.uniform(0.5, 1.5, 3), "bias": rng.standard_normal(3)}
        )

    def variants(self, attributes: Mapping[str, Any]) -> Sequence[Variant]:
        epsilon = attributes["epsilon"]
        rounded = float(np.float32(epsilon))
        others = [e for e in (1e-3, 1e-5, 1e-8, 1e-12, 0.0) if e != epsilon]
        found = [
            Variant("batchnorm.epsilon", "definition", {"epsilon": e}, f"epsilon {e:g} in place of {epsilon:g}")
            for e in others
        ]
        if rounded != epsilon:
            sentence = f"epsilon {epsilon:g} stored as float32"
            found.insert(0, Variant("batchnorm.epsilon", "precision", {"epsilon": rounded}, sentence))
        if attributes["training"]:
            sentence = "running statistics, as constants, in place of the batch's"
            return [*found, Variant("batchnorm.eval-statistics", "mistake", {"training": False}, sentence)]
        sentence = "the batch's statistics in place of the running ones"
        return [*found, Variant("batchnorm.train-statistics", "mistake", {"training": True}, sentence)]


def channels(x: Tensor) -> tuple[int, int, int, int]:
    """(outer, rows, channels, inner) of a tensor with channels on axis 1; outer is the cases."""
    return x.cases, x.shape[0], x.shape[1], int(np.prod(x.shape[2:], dtype=np.int64))


def normalise(
    k: Kernels,
    x: Tensor,
    layout: tuple[int, int, int, int],
    weight: Tensor | None,
    bias: Tensor | None,
    attributes: Mapping[str, Any],
) -> tuple[Tensor, Statistics]:
    """Normalises over rows and inner of `layout`; weight and bias have an element per (outer, channel)."""
    y = k.empty(x.cases, x.shape)
    statistics = Statistics(*(k.empty(layout[0], (layout[2],)) for _ in range(2)))
    epsilon = float(attributes["epsilon"])
    results = (x, weight, bias, statistics.mean, statistics.rstd, y)
    if k.scalar.name == "spread":
        one_pass = int(bool(attributes.get("hypothesis.one_pass")))
        _launch_spread(k, "batchnorm_spread_forward", layout, epsilon, one_pass, *results)
    elif _columns(k, layout):
        _launch(k, "batchnorm_columns_forward", layout[:3], epsilon, *results)
    else:
        _launch(k, "batchnorm_forward", layout, epsilon, *results)
    return y, statistics


def normalise_backward(
    k: Kernels,
    x: Tensor,
    layout: tuple[int, int, int, int],
    weight: Tensor | None,
    statistics: Statistics,
    flow: Tensor,
    raw_moments: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """dx, and per (outer, channel) dweight and dbias."""
    outer, _, count, _ = layout
    dx, dweight, dbias = k.empty(x.cases, x.shape), k.empty(outer, (count,)), k.empty(outer, (count,))
    given = (x, weight, statistics.mean, statistics.rstd, flow, dx, dweight, dbias)
    if k.scalar.name != "spread":
        if _columns(k, layout):
            _launch(k, "batchnorm_columns_backward", layout[:3], *given)
        else:
            _launch(k, "batchnorm_backward", layout, *given)
        return dx, dweight, dbias
    variances, normal = k.doubles(np.zeros((3, outer, count))), k.doubles(np.zeros((x.cases, *x.shape)))
    _launch_spread(k, "batchnorm_spread_backward", layout, int(raw_moments), *given, variances, normal)
    common = (
        Mode(k.xp.ones_like(normal), variances[0], included=False),
        Mode(normal, variances[1], included=True),
        Mode(k.xp.ascontiguousarray(dx.data[..., 0]), variances[2], included=True),
    )
    return replace(dx, modes=common), dweight, dbias


def _parameter_gradients(k: Kernels, x: Tensor) -> tuple[Tensor, Tensor]:
    return k.empty(x.cases, x.shape[1:2]), k.empty(x.cases, x.shape[1:2])


def _columns(k: Kernels, layout: tuple[int, int, int, int]) -> bool:
    """Whether channels are columns that may be taken together: not for scalars whose sums keep more than a value."""
    return layout[3] == 1 and layout[2] > 1 and k.scalar.name in ("float32", "float64", "double-double")


def _launch(k: Kernels, kernel: str, layout: tuple[int, ...], *arguments: Any) -> None:
    blocks = layout[0] * layout[2]
    if blocks:
        k.launch(kernel, (min(blocks, 65535), 1, 1), k.engine.reduction_threads(k.scalar), *layout, *arguments)


def _launch_spread(k: Kernels, kernel: str, layout: tuple[int, ...], *arguments: Any) -> None:
    blocks = layout[0] * layout[2]
    if blocks:
        k.launch(kernel, (min(blocks, 65535), 1, 1), 1, *layout, *arguments)
