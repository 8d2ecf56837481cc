"""Records one training step of PaddlePaddle's dynamic graph: every call, every value, every gradient.

Nothing of the user's is changed: the calls pass through, gradients are seen by hooks that return nothing, and random
state that is drawn from to learn a dropout mask is put back.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle

from gradjury.verify.record.paddle_patch import Function, Patches
from gradjury.verify.record.tree import leaves, mapped
from gradjury.verify.witnesses.paddle import array as numbers

WEIGHTS = (".weight", ".weight_ih", ".weight_ih_l0")  # parameters whose layer names the call
Tensor = paddle.Tensor


@dataclass(frozen=True)
class Ref:
    """A tensor as an argument: the value it held (`name`), which object it was, and which of the call's tensors.

    `tracked`: gradient flows on to the recorded call that made it.
    """

    name: str
    key: int
    position: int
    tracked: bool


@dataclass
class Call:
    """One call of an operator; tensors among its arguments are Refs. `outputs`: values by name, `keys`: objects."""

    name: str
    op: str
    function: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[str] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    layer: tuple[Any, int] | None = None  # the innermost layer, and which of all layer calls this was
    mask: np.ndarray | None = None  # what dropout kept
    random: Any = None  # the generators' state before a call that draws

    def argument(self, index: int, keyword: str = "", default: Any = None) -> Any:
        """The argument at this place, or under this keyword."""
        return self.args[index] if len(self.args) > index else self.kwargs.get(keyword, default)

    @property
    def refs(self) -> list[Ref]:
        """The tensors among the arguments, in order."""
        return leaves((self.args, self.kwargs), Ref)


class Capture:
    """Records what happens inside the `with`. `inputs`: names for tensors that are no parameters."""

    def __init__(self, models: Sequence[Any], inputs: Mapping[str, Any] | None = None) -> None:
        self.calls: list[Call] = []
        self.values: dict[str, np.ndarray] = {}  # every value by name, as it was when it was first used or made
        self.dtypes: dict[str, str] = {}  # of the values; bfloat16 ones are kept as float32
        self.leaves: set[str] = set()  # names of values that gradients end in
        self.gradients: dict[str, np.ndarray] = {}
        self.roots: list[tuple[str, np.ndarray]] = []  # where backward passes started, with their upstream gradients
        self.notes: list[str] = []
        self.distrust = ""
        self._names: dict[int, str] = {}
        self._known: dict[int, tuple[str, int, bool]] = {}  # object -> value it holds, at which version, tracked
        self._alive: list[Any] = []  # so that no object's id is used twice
        self._counts: dict[str, int] = {}
        self._handles: list[Any] = []
        self._stack: list[tuple[Any, int]] = []
        self._entered = 0
        self._listening = False
        for i, model in enumerate(models):
            self._name_parameters(model, f"{i}." if len(models) > 1 else "")
        for name, tensor in (inputs or {}).items():
            self._names[id(tensor)] = name

    def __enter__(self) -> Capture:
        self._patches = Patches(self)
        self._listening = True
        return self

    def __exit__(self, *error: object) -> None:
        self._listening = False
        self._patches.restore()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # said of hooks that went with their graph
            for handle in self._handles:
                handle.remove()
        self._handles.clear()

    def _name_parameters(self, model: Any, prefix: str) -> None:
        for path, layer in model.named_sublayers(include_self=True):
            for name, parameter in layer._parameters.items():
                full = prefix + (f"{path}.{name}" if path else name)
                if parameter is None:
                    continue
                first = self._names.setdefault(id(parameter), full)
                owner = first.rpartition(".")[0]
                if first != full and owner and not full.startswith(f"{owner}."):  # a layer shares with its own parts
                    self.notes.append(f"{full} is the same parameter as {first}")

    # ---- what the patches report

    def enter(self, layer: Any) -> None:
        self._entered += 1
        self._stack.append((layer, self._entered))

    def leave(self) -> None:
        self._stack.pop()

    def backward(self, tensors: list[Any], gradients: list[Any]) -> None:
        if not self._listening:
            return
        self._listening = False
        try:
            for tensor, gradient in zip(tensors, gradients, strict=True):
                name = self._ref(tensor, 0).name
                ones = np.ones(tensor.shape, self.values[name].dtype)
                self.roots.append((name, ones if gradient is None else numbers(paddle, gradient)))
        finally:
            self._listening = True

    def call(self, op: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the operator; records it if a gradient could flow back through it."""
        if not self._listening or not paddle.is_grad_enabled():
            return function(*args, **kwargs)
        tensors = leaves((args, kwargs), Tensor)
        if all(tensor.stop_gradient for tensor in tensors):
            return function(*args, **kwargs)
        self._listening = False  # what an operator calls inside belongs to it
        try:
            return self._record(op, function, args, kwargs, tensors)
        finally:
            self._listening = True

    # ---- recording

    def _record(self, op: str, function: Function, args: Any, kwargs: Any, tensors: list[Any]) -> Any:
        refs = [self._ref(tensor, i) for i, tensor in enumerate(tensors)]
        versions = [tensor.inplace_version for tensor in tensors]
        queue = iter(refs)
        held_args, held_kwargs = mapped((args, kwargs), Tensor, lambda _: next(queue))
        call = Call("", op, function, held_args, held_kwargs, layer=self._stack[-1] if self._stack else None)
        self._learn_randomness(call, args, kwargs)
        if _autocast():
            self._distrust("autocast was on: calls ran in another dtype than their inputs; record without it")
        result = function(*args, **kwargs)
        made = made_by(op, result, args, tensors, versions)
        if any(not tensor.stop_gradient for tensor in made):
            self._name_call(call, refs)
            for i, tensor in enumerate(made):
                self._made(call, tensor, call.name + (".y" if len(made) == 1 else f".{i}"))
            self.calls.append(call)
        return result

    def _learn_randomness(self, call: Call, args: Any, kwargs: Any) -> None:
        """3.3 gives no dropout mask away: it is drawn on ones first, and the generator put back for the real call."""
        if call.op == "dropout" and not call.argument(3) and float(call.argument(2)) > 0:
            call.random = paddle.get_rng_state()
            with paddle.no_grad():
                drawn = call.function(paddle.ones_like(args[0]), *args[1:], **kwargs)
            call.mask = numbers(paddle, drawn) != 0
            paddle.set_rng_state(call.random)
        elif call.op == "rnn" and call.argument(5) and not call.argument(12):
            call.random = paddle.get_rng_state()

    def _name_call(self, call: Call, refs: list[Ref]) -> None:
        bases = [ref.name.split("#")[0] for ref in refs]
        layers = [base.rpartition(".")[0] for base in bases if base.endswith(WEIGHTS)]
        call.name = self._fresh(layers[0] if layers else call.op.strip("_"))

    def _made(self, call: Call, tensor: Any, name: str) -> None:
        """A value that the call made: named, kept, and its gradient listened for."""
        self._known[id(tensor)] = (name, tensor.inplace_version, not tensor.stop_gradient)
        self._alive.append(tensor)
        call.outputs.append(name)
        call.keys.append(id(tensor))
        if tensor._is_initialized():
            self._keep(name, tensor)
            if not tensor.stop_gradient:
                self._handles.append(tensor.register_hook(functools.partial(self._gradient, name)))

    def _ref(self, tensor: Any, position: int) -> Ref:
        """The value that the tensor holds now; a new one if we have not seen it made."""
        key, known = id(tensor), self._known.get(id(tensor))
        if known is not None and known[1] == tensor.inplace_version:
            return Ref(known[0], key, position, known[2])
        leaf = tensor.grad_fn is None or "Accumulation" in tensor.grad_fn.name()
        tracked = not tensor.stop_gradient and not leaf and known is not None
        if known is not None:
            name = self._fresh(known[0].split("#")[0])
            self.notes.append(f"{known[0]} was changed in place between two uses: {name}")
        else:
            name = self._fresh(self._names.get(key, "input" if tensor.is_floating_point() else "index"))
        self._known[key] = (name, tensor.inplace_version, tracked)
        self._alive.append(tensor)
        self._keep(name, tensor)
        if not tensor.stop_gradient:
            if not tracked:
                self.leaves.add(name)
            if not leaf and not tracked:
                self.notes.append(f"the graph enters at {name}: {tensor.grad_fn.name()} was not recorded")
            self._handles.append(tensor.register_hook(functools.partial(self._gradient, name)))
        return Ref(name, key, position, tracked)

    def _keep(self, name: str, tensor: Any) -> None:
        self.values[name] = numbers(paddle, tensor)
        self.dtypes[name] = str(tensor.dtype).rpartition(".")[2]

    def _gradient(self, name: str, gradient: Any) -> None:
        if gradient is None or not gradient._is_initialized():  # of an output that nothing uses
            return
        found = numbers(paddle, gradient)
        self.gradients[name] = self.gradients[name] + found if name in self.gradients else found

    def _distrust(self, why: str) -> None:
        self.distrust = self.distrust or why

    def _fresh(self, stem: str) -> str:
        count = self._counts[stem] = self._counts.get(stem, 0) + 1
        return stem if count == 1 else f"{stem}#{count}"


def made_by(op: str, result: Any, args: Sequence[Any], before: Sequence[Any], versions: Sequence[int]) -> list[Any]:
    """The tensors that a call made or changed in place; arguments that it merely handed back are not among them."""
    same = {id(tensor) for tensor, version in zip(before, versions, strict=True) if tensor.inplace_version == version}
    made = [tensor for tensor in leaves(result, Tensor) if id(tensor) not in same]
    if op == "_setitem_dygraph" and not any(tensor is args[0] for tensor in made):
        made.append(args[0])
    return made


def _autocast() -> bool:
    return bool(paddle.base.framework._dygraph_tracer()._amp_level != paddle.base.core.AmpLevel.O0)
