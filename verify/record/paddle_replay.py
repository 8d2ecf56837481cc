"""Runs a recorded step again, on fresh leaves: at its own dtype to check the recording, at another for the ladder."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle

from gradjury.verify.record.paddle_capture import Call, Capture, Ref, Tensor, made_by
from gradjury.verify.record.tree import leaves, mapped
from gradjury.verify.witnesses.paddle import array as numbers

FLOATS = (paddle.float16, paddle.bfloat16, paddle.float32, paddle.float64)
Part = tuple[str, int]  # a call's name, and which of its tensors


@dataclass
class Replay:
    """What a replay gave: forward values and gradients by name, parts by call and position of its tensor."""

    forward: dict[str, np.ndarray] = field(default_factory=dict)
    gradients: dict[str, np.ndarray] = field(default_factory=dict)
    parts: dict[Part, np.ndarray] = field(default_factory=dict)


def replay(capture: Capture, dtype: str, *, parts: bool = False, pinned: Collection[str] = ()) -> Replay:
    """The recorded step at `dtype`.

    `parts`: also what each consumer sends back to a tensor with several. `pinned`: calls whose results are taken from
    the recording, so that what follows sees the same values at every dtype; gradient flows through them all the same.
    """
    run = _Run(capture, dtype, parts, pinned)
    state = paddle.get_rng_state()
    try:
        with paddle.amp.auto_cast(enable=False), paddle.enable_grad():
            for call in capture.calls:
                run.call(call)
            run.backward()
    finally:
        paddle.set_rng_state(state)
    return run.found


class _Run:
    def __init__(self, capture: Capture, dtype: str, parts: bool, pinned: Collection[str]) -> None:
        self.capture, self.dtype, self.pinned = capture, dtype, pinned
        self.found = Replay()
        self.leaves: dict[str, Any] = {}
        self.objects: dict[int, Any] = {}  # what each recorded object is here
        self.live: dict[str, Any] = {}  # outputs by name
        uses: dict[str, int] = {}
        for call in capture.calls:
            for ref in call.refs:
                uses[ref.name] = uses.get(ref.name, 0) + 1
        self.shared = {name for name, count in uses.items() if count > 1} if parts else set()

    def call(self, call: Call) -> None:
        args, kwargs = mapped((call.args, call.kwargs), Ref, functools.partial(self._argument, call))
        rule = None if self._own(call) else ELSEWHERE.get(call.op)
        made = rule(call, args) if rule is not None else self._run(call, args, kwargs)
        for name, key, tensor in zip(call.outputs, call.keys, made, strict=rule is None):
            if not tensor._is_initialized():
                continue
            recorded = self.capture.values[name]
            if call.name in self.pinned and tensor.is_floating_point() and not tensor.stop_gradient:
                tensor = _Pinned.apply(tensor, self._up(recorded))  # noqa: PLW2901
            self.objects[key] = self.live[name] = tensor
            self.found.forward[name] = numbers(paddle, tensor)
            if not tensor.stop_gradient:
                tensor.register_hook(functools.partial(_add, self.found.gradients, name))

    def backward(self) -> None:
        for name, leaf in self.leaves.items():
            leaf.register_hook(functools.partial(_add, self.found.gradients, name))
        roots = self.capture.roots
        for i, (name, gradient) in enumerate(roots):  # one pass for each recorded one, so that sums form in that order
            tensor = self.live[name] if name in self.live else self.leaves[name]
            start = self._up(gradient).reshape(tensor.shape)
            paddle.autograd.backward([tensor], [start], retain_graph=i < len(roots) - 1)

    def _argument(self, call: Call, ref: Ref) -> Any:
        if ref.name in self.capture.leaves:
            if ref.name not in self.leaves:
                self.leaves[ref.name] = self._up(self.capture.values[ref.name])
                self.leaves[ref.name].stop_gradient = False
            tensor = self.leaves[ref.name]
        elif ref.tracked:
            tensor = self.objects[ref.key]
        else:
            return self._up(self.capture.values[ref.name])
        if ref.name in self.shared and not _in_place(call):
            tensor = paddle._C_ops.assign(tensor)
            tensor.register_hook(functools.partial(_add, self.found.parts, (call.name, ref.position)))
        return tensor

    def _own(self, call: Call) -> bool:
        """Whether this replay is at the dtype in which the call was recorded."""
        return self.capture.dtypes[call.outputs[0]] == self.dtype

    def _run(self, call: Call, args: Any, kwargs: Any) -> list[Any]:
        own = getattr(paddle, self.dtype)
        args, kwargs = mapped((args, kwargs), type(own), lambda dtype: own if dtype in FLOATS else dtype)
        if call.random is not None:
            paddle.set_rng_state(call.random)
        return run_call(call, args, kwargs)

    def _up(self, value: np.ndarray) -> Any:
        """The value at this replay's dtype; integers as they are."""
        tensor = paddle.to_tensor(value)
        return tensor.astype(self.dtype) if tensor.is_floating_point() else tensor


class _Pinned(paddle.autograd.PyLayer):  # type: ignore[misc]
    """Another value with the gradient of the one computed."""

    @staticmethod
    def forward(context: Any, computed: Any, value: Any) -> Any:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient


def _dropout(call: Call, args: Any) -> list[Any]:
    """The recorded mask again: what is drawn may depend on the dtype."""
    if call.mask is None:
        return run_call(call, args, {})
    kept = args[0] * paddle.to_tensor(call.mask).astype(args[0].dtype)
    return [kept / (1 - float(call.argument(2))) if call.argument(4) == "upscale_in_train" else kept]


def _batch_norm(call: Call, args: Any) -> list[Any]:
    x, mean, variance, weight, bias, test, _, epsilon, data_format, *rest = args
    training = not (test or (rest and rest[0]))
    channel = 1 if data_format.startswith("NC") or x.ndim == 2 else x.ndim - 1
    shape = [-1 if axis == channel else 1 for axis in range(x.ndim)]
    if not training:
        y = (x - mean.reshape(shape)) / paddle.sqrt(variance.reshape(shape) + epsilon)
        return [_affine(y, weight, bias, shape)]
    axes = [axis for axis in range(x.ndim) if axis != channel]
    return [_affine(_normalised(x, axes, epsilon), weight, bias, shape)]


def _layer_norm(call: Call, args: Any) -> list[Any]:
    x, weight, bias, epsilon, first = args[:5]
    return [_affine(_normalised(x, list(range(first, x.ndim)), epsilon), weight, bias, x.shape[first:])]


def _nll_loss(call: Call, args: Any) -> list[Any]:
    """3.3's sum and mean write past their memory at float64 when a target is ignored: reduced here."""
    x, target, weight, ignored, reduction = args[:5]
    each = paddle._C_ops.nll_loss(x, target, weight, ignored, "none")[0]
    if reduction == "none" or weight is not None:
        return [each] if reduction == "none" else run_call(call, args, {})
    counted = (target != ignored).astype(each.dtype).sum()
    return [each.sum() / counted if reduction == "mean" else each.sum()]


def _normalised(x: Any, axes: list[int], epsilon: float) -> Any:
    centred = x - x.mean(axes, keepdim=True)
    return centred / paddle.sqrt((centred * centred).mean(axes, keepdim=True) + epsilon)


def _affine(x: Any, weight: Any, bias: Any, shape: list[int]) -> Any:
    scaled = x if weight is None else x * weight.reshape(shape)
    return scaled if bias is None else scaled + bias.reshape(shape)


# What stands for an operator at another dtype than the recorded one. Paddle's own normalisations round epsilon to
# float32 even at float64, which is another function than the one recorded.
ELSEWHERE: dict[str, Callable[[Call, Any], list[Any]]] = {
    "dropout": _dropout,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "nll_loss": _nll_loss,
}
COMPOSED = ("batch_norm", "layer_norm")


def run_call(call: Call, args: Any, kwargs: Any) -> list[Any]:
    """Calls the recorded operator with other tensors: what it makes or changes, in the order of `call.outputs`."""
    before = leaves((args, kwargs), Tensor)
    versions = [tensor.inplace_version for tensor in before]
    return made_by(call.op, call.function(*args, **kwargs), args, before, versions)


def differences(capture: Capture, again: Replay) -> list[str]:
    """Values and gradients that a replay at the run's own dtype did not give bit for bit."""
    wrong = [name for name, value in again.forward.items() if not _same(value, capture.values[name])]
    wrong += [
        f"the gradient of {name}"
        for name, gradient in capture.gradients.items()
        if name not in again.gradients or not _same(gradient, again.gradients[name])
    ]
    return wrong


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _in_place(call: Call) -> bool:
    """Whether the call writes into its argument, which then may not be an alias of the value."""
    return call.op == "_setitem_dygraph" or (call.op.endswith("_") and not call.op.endswith("__"))


def _add(found: dict[Any, np.ndarray], key: Any, gradient: Any) -> None:
    if gradient is not None and gradient._is_initialized():
        value = numbers(paddle, gradient)
        found[key] = found[key] + value if key in found else value
