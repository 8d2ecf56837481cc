"""The recorded step again, at another dtype: fresh leaves, the same random draws, no autocast, nothing of the user's touched."""

from __future__ import annotations

import contextlib
import functools

import torch

from gradjury.verify.record.torch_capture import Call, Capture
from gradjury.verify.record.torch_draws import Draws
from gradjury.verify.record.torch_memory import alike
from gradjury.verify.record.tree import Ref, leaves, mapped

Tensors = dict[str, torch.Tensor]


def replay(capture: Capture, dtype: torch.dtype | None) -> tuple[Tensors, Tensors]:
    """(forward values, gradients) by name. `dtype` None: every tensor at its own."""
    run = _Replay(capture, dtype)
    devices = {t.device.type for t in capture.values.values()}
    with torch.enable_grad(), contextlib.ExitStack() as stack:
        for device in devices:
            stack.enter_context(torch.autocast(device, enabled=False))
        for call in capture.calls:
            run.forward(call)
        run.backward()
    return run.values, run.gradients | {n: t.grad.detach() for n, t in run.leaves.items() if t.grad is not None}


def differs(capture: Capture) -> str | None:
    """Why the recording cannot be trusted: the first value or gradient that a replay at its own dtype does not repeat
    bit for bit (a hook that edits gradients, double backward, a call that was not seen). None if all are equal."""
    mixed = [call.name for call in capture.calls if call.autocast]
    if mixed:
        named = f"{', '.join(mixed[:5])}{' …' if len(mixed) > 5 else ''}"
        return f"recorded under autocast ({named}), which mixes precisions: record the step without it to have it judged"
    values, gradients = replay(capture, None)
    for name, value in values.items():
        if not _same(value, capture.values[name]):
            return f"replayed at its own dtype, the value of {name} differs from what was recorded"
    for name, gradient in capture.gradients.items():
        if name not in gradients or not _same(gradients[name], gradient):
            return f"replayed at its own dtype, the gradient of {name} differs from what was recorded"
    return None


class _Replay:
    def __init__(self, capture: Capture, dtype: torch.dtype | None) -> None:
        self.capture, self.dtype = capture, dtype
        self.values: Tensors = {}
        self.gradients: Tensors = {}
        self.leaves: Tensors = {}
        self._alive: dict[int, torch.Tensor] = {}
        self._named: Tensors = {}

    def forward(self, call: Call) -> None:
        given = mapped((call.args, call.kwargs), Ref, self._get)
        args, kwargs = mapped(given, torch.dtype, self._dtype)
        before = leaves((args, kwargs), torch.Tensor)
        versions = [t._version for t in before]
        with Draws(call.draws) if call.draws else contextlib.nullcontext():
            result = call.function(*args, **kwargs)
        unchanged = [t for t, v in zip(before, versions, strict=True) if t._version == v]
        outputs = [t for t in leaves(result, torch.Tensor) if not any(t is u for u in unchanged)]
        outputs += [
            t
            for t, v in zip(before, versions, strict=True)
            if t._version != v and t.requires_grad and not any(t is o for o in outputs)
        ]
        for name, key, output in zip(call.outputs, call.output_keys, outputs, strict=False):
            self._alive[key] = self._named[name] = output
            self.values[name] = output.detach().clone()
            if output.requires_grad and output.grad_fn is not None:
                output.register_hook(functools.partial(self._total, name))

    def backward(self) -> None:
        """One call per recorded backward, so that sums form in the same order."""
        roots = [(self._named.get(name, self.leaves.get(name)), flow) for name, flow in self.capture.roots]
        live = [(tensor, flow) for tensor, flow in roots if tensor is not None and tensor.requires_grad]
        for i, (tensor, flow) in enumerate(live):
            torch.autograd.backward(tensor, flow.to(tensor.dtype), retain_graph=i < len(live) - 1)

    def _get(self, ref: Ref) -> torch.Tensor:
        if ref.name in self.capture.leaves:
            if ref.name not in self.leaves:
                self.leaves[ref.name] = self._cast(self.capture.values[ref.name]).requires_grad_()
            return self.leaves[ref.name]
        if ref.tracked and ref.key in self._alive:
            return self._alive[ref.key]
        return self._cast(self.capture.values[ref.name])

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.dtype is None or not tensor.is_floating_point():
            return alike(tensor)
        return tensor.to(self.dtype, copy=True)

    def _dtype(self, dtype: torch.dtype) -> torch.dtype:
        return self.dtype if self.dtype is not None and dtype.is_floating_point else dtype

    def _total(self, name: str, gradient: torch.Tensor) -> None:
        before = self.gradients.get(name)
        self.gradients[name] = gradient.detach().clone() if before is None else before + gradient


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and bool(torch.equal(a.isnan(), b.isnan()) and torch.equal(_filled(a), _filled(b)))
    )


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    """NaN, which equals nothing, as zero; all else as it is."""
    return torch.nan_to_num(tensor, nan=0.0, posinf=torch.inf, neginf=-torch.inf)
