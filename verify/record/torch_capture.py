"""Watches a training step of PyTorch from outside: every ATen call, every value, every gradient and its parts.

A TorchFunctionMode sees calls before autograd and before composite ops fall apart, so gru or batch_norm stay whole.
Gradients come from hooks on tensors (totals) and on the consumers' grad_fn (parts); the user's graph gets no node more.
Everything is taken back on leaving: hooks, patches, modes. Random state and buffers are not touched.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from gradjury.verify.record.torch_draws import MAY_DRAW, Draw, Draws
from gradjury.verify.record.torch_memory import alike
from gradjury.verify.record.tree import Ref, leaves, mapped

_ATTRIBUTES = (
    "shape dtype device grad requires_grad data grad_fn is_leaf ndim layout is_cuda _version names _backward_hooks is_sparse"
    " is_quantized output_nr retains_grad is_nested is_mps is_meta _grad is_cpu itemsize nbytes"
)
_QUESTIONS = (
    "size dim numel item detach is_floating_point is_complex stride __len__ __repr__ __format__ requires_grad_ retain_grad"
    " register_hook backward numpy tolist __bool__ __set__ is_contiguous data_ptr storage_offset element_size __hash__"
)
_NOT_CALLS = {f"get_{name}" for name in _ATTRIBUTES.split()} | set(_QUESTIONS.split())
REENTRANT = (
    "torch.utils.checkpoint with use_reentrant=True runs forward again inside backward, where it cannot be recorded:"
    " call it with use_reentrant=False"
)
_PARAMETERS = (".weight", ".weight_ih", ".weight_ih_l0")


@dataclass
class Call:
    """One recorded ATen call: tensors in its arguments are Refs."""

    name: str
    step: int
    function: Any
    called: str
    args: Any
    kwargs: Any
    autocast: bool
    draws: list[Draw]
    outputs: list[str] = field(default_factory=list)
    output_keys: list[int] = field(default_factory=list)


class _Mode(TorchFunctionMode):  # type: ignore[misc]  # torch is not seen by mypy
    def __init__(self, capture: Capture) -> None:
        super().__init__()
        self.capture = capture

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.capture.call(func, args, kwargs or {})


class Capture:
    """What happened between entering and leaving, as calls, values and gradients by name."""

    def __init__(self, models: Sequence[Any], inputs: Mapping[str, Any]) -> None:
        self.calls: list[Call] = []
        self.values: dict[str, torch.Tensor] = {}  # snapshots
        self.leaves: dict[str, int] = {}  # tensors that gradient accumulates in
        self.gradients: dict[str, torch.Tensor] = {}
        self.parts: dict[tuple[str, str], dict[int, list[torch.Tensor]]] = {}  # (tensor, call) -> argument -> gradients
        self.roots: list[tuple[str, torch.Tensor]] = []  # what backward started from, in order
        self.notes: list[str] = []
        self.refused = ""  # why the step cannot be replayed without disturbing the user's model
        self._given = _parameter_names(models, self.notes) | {id(tensor): name for name, tensor in inputs.items()}
        self._known: dict[int, Ref] = {}
        self._version: dict[int, int] = {}
        self._alive: list[torch.Tensor] = []  # ids stay theirs while recorded
        self._count: dict[str, int] = {}
        self._hooks: list[Any] = []
        self._hooked_leaves: list[tuple[torch.Tensor, Any]] = []
        self._functions: set[Any] = set()  # grad_fns of known values: where the search for parts stops
        self._stack = contextlib.ExitStack()

    # ---- entering and leaving

    def __enter__(self) -> Capture:
        for module in (torch.nn.functional, torch.functional, torch._tensor):
            for name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
                if name in vars(module):  # let F.* run its Python body, so that the mode sees what it calls
                    self._patch(module, name, functools.partial(_overridden, vars(module)[name]))
        self._patch(torch.autograd, "backward", self._watched(torch.autograd.backward))
        self._patch(torch.autograd, "grad", self._watched(torch.autograd.grad))
        self._patch(torch.autograd.Function, "apply", classmethod(self._custom_apply()))
        if hasattr(torch.compiler, "set_stance"):
            self._stack.enter_context(torch.compiler.set_stance("force_eager"))
        self._stack.enter_context(_Mode(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        for hook in self._hooks:
            hook.remove()
        for tensor, before in self._hooked_leaves:
            if before is None:
                tensor._backward_hooks = None  # else an empty dictionary stays behind
        self._alive.clear()

    def _patch(self, owner: Any, name: str, value: Any) -> None:
        before = vars(owner)[name]
        setattr(owner, name, value)
        self._stack.callback(setattr, owner, name, before)

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """backward or grad, noting what it starts from. Both take (outputs, …) first; only the gradients' place differs."""
        place = 1 if function is torch.autograd.backward else 2
        keyword = "grad_tensors" if place == 1 else "grad_outputs"

        def watched(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            given = args[place - 1] if len(args) >= place else kwargs.get(keyword)
            self._start_from(outputs, given)
            with torch._C.DisableTorchFunction():
                return function(outputs, *args, **kwargs)

        return watched

    def _custom_apply(self) -> Callable[..., Any]:
        """torch.autograd.Function.apply, recorded as one call."""
        apply = vars(torch.autograd.Function)["apply"].__func__

        def recorded(cls: type, *args: Any, **kwargs: Any) -> Any:
            if cls is CheckpointFunction:
                self.refused = REENTRANT
            function = functools.partial(apply, cls)
            function.__name__ = f"custom.{cls.__name__}"  # type: ignore[attr-defined]
            with torch._C.DisableTorchFunction():
                return self.call(function, args, kwargs)

        return recorded

    # ---- one call

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Runs an ATen call and records it if gradient flows through it."""
        called = _name_of(function)
        tensors = leaves((args, kwargs), torch.Tensor)
        if not torch.is_grad_enabled() or called in _NOT_CALLS or not any(t.requires_grad for t in tensors):
            return function(*args, **kwargs)
        refs = {id(t): self._ref(t) for t in tensors}
        edges = {_edge(t): refs[id(t)].name for t in tensors if t.requires_grad}
        given = [mapped(part, torch.Tensor, lambda t: refs[id(t)]) for part in (args, kwargs)]
        draws: list[Draw] = []
        if called in MAY_DRAW or called.startswith("custom."):
            with Draws() as noted:
                result = function(*args, **kwargs)
            draws = noted.seen
        else:
            result = function(*args, **kwargs)
        outputs = self._changed(result, tensors, refs)
        if any(t.requires_grad for t in outputs):
            autocast = torch.is_autocast_enabled(tensors[0].device.type)
            self._keep(function, called, given, autocast, draws, outputs, edges)
        return result

    def _changed(self, result: Any, tensors: list[torch.Tensor], refs: Mapping[int, Ref]) -> list[torch.Tensor]:
        """New tensors among the results, and arguments that were changed in place."""
        outputs = [t for t in leaves(result, torch.Tensor) if id(t) not in refs or self._version[id(t)] != t._version]
        for t in tensors:
            if t._version != self._version[id(t)] and t.requires_grad and not any(t is o for o in outputs):
                outputs.append(t)
        return outputs

    def _keep(
        self,
        function: Any,
        called: str,
        given: list[Any],
        autocast: bool,
        draws: list[Draw],
        outputs: list[torch.Tensor],
        edges: Mapping[Any, str],
    ) -> None:
        stem = self._stem(given[0]) or called.strip("_")
        name = self._fresh(stem)
        call = Call(name, self._count[stem] - 1, function, called, given[0], given[1], autocast, draws)
        for i, output in enumerate(outputs):
            label = f"{name}.y" if len(outputs) == 1 else f"{name}.{i}"
            self._know(output, label, output.requires_grad)
            call.outputs.append(label)
            call.output_keys.append(id(output))
            if output.requires_grad and output.grad_fn is not None:
                output.register_hook(functools.partial(self._total, label))
        self.calls.append(call)
        self._hook_parts(name, outputs, edges)
        self._functions.update(o.grad_fn for o in outputs if o.grad_fn is not None)

    # ---- names

    def _ref(self, tensor: torch.Tensor) -> Ref:
        """The name of the value that a tensor holds now; snapshots it if it is new."""
        known = self._known.get(id(tensor))
        if known is not None and self._version[id(tensor)] == tensor._version:
            return known
        made = tensor.requires_grad and not tensor.is_leaf
        if known is not None and made:
            self._count.setdefault(known.name, 1)
            name = self._fresh(known.name)
            self.notes.append(
                f"{known.name} was changed in place through a view: it is {name} from there on, and its gradient is partial"
            )
            made = False
        else:
            kind = "input" if tensor.requires_grad or tensor.is_floating_point() else "index"
            name = self._fresh(known.name.split("#")[0] if known is not None else self._given.get(id(tensor), kind))
        if known is None and made:
            self.notes.append(f"the graph enters at {name}: {tensor.grad_fn.name()} was not recorded")
            made = False
        if known is not None and tensor.is_leaf and tensor.requires_grad:
            self.notes.append(f"{known.name} was updated between two uses: the second is {name}")
        ref = self._know(tensor, name, made)
        if tensor.requires_grad:
            self._watch_leaf(tensor, name, again=known is not None)
        return ref

    def _watch_leaf(self, tensor: torch.Tensor, name: str, *, again: bool) -> None:
        self.leaves[name] = id(tensor)
        if again and tensor.is_leaf:
            return  # one hook a leaf; its gradient belongs to the version last used
        if tensor.is_leaf:
            self._hooked_leaves.append((tensor, tensor._backward_hooks))
            self._hooks.append(tensor.register_hook(lambda g: self._total(self._known[id(tensor)].name, g)))
        else:
            self._hooks.append(tensor.register_hook(functools.partial(self._total, name)))

    def _know(self, tensor: torch.Tensor, name: str, tracked: bool) -> Ref:
        ref = self._known[id(tensor)] = Ref(id(tensor), name, tracked)
        self._version[id(tensor)] = tensor._version
        self._alive.append(tensor)
        self.values[name] = alike(tensor)
        return ref

    def _fresh(self, stem: str) -> str:
        count = self._count[stem] = self._count.get(stem, 0) + 1
        return stem if count == 1 else f"{stem}#{count}"

    def _stem(self, args: Any) -> str:
        """The module that a call belongs to, by the parameter it uses."""
        names = (ref.name.split("#")[0] for ref in leaves(args, Ref))
        return next((name.rpartition(".")[0] for name in names if name.endswith(_PARAMETERS)), "")

    # ---- gradients

    def _start_from(self, outputs: Any, given: Any) -> None:
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        given = [given] * len(outputs) if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
        with torch._C.DisableTorchFunction():
            for output, gradient in zip(outputs, given, strict=True):
                flow = torch.ones_like(output) if gradient is None else gradient
                self.roots.append((self._ref(output).name, alike(flow)))

    def _total(self, name: str, gradient: torch.Tensor) -> None:
        before = self.gradients.get(name)
        self.gradients[name] = gradient.detach().clone() if before is None else before + gradient

    def _hook_parts(self, call: str, outputs: list[torch.Tensor], edges: Mapping[Any, str]) -> None:
        """Hooks every node of the call's own autograd graph that hands gradient to one of its arguments."""
        waiting, seen = [o.grad_fn for o in outputs if o.grad_fn is not None], set()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            hits = []
            for i, (following, number) in enumerate(node.next_functions):
                if following is None:
                    continue
                if (following, number) in edges:
                    hits.append((i, edges[following, number]))
                elif type(following).__name__ != "AccumulateGrad" and following not in self._functions:
                    waiting.append(following)
            if hits:
                node.register_hook(functools.partial(self._part, call, tuple(hits)))

    def _part(self, call: str, hits: tuple[tuple[int, str], ...], inputs: Any, outputs: Any) -> None:
        for i, name in hits:
            if i < len(inputs) and inputs[i] is not None:
                self.parts.setdefault((name, call), {}).setdefault(i, []).append(inputs[i].detach().clone())


def _parameter_names(models: Sequence[Any], notes: list[str]) -> dict[int, str]:
    names: dict[int, str] = {}
    filled = []
    for i, model in enumerate(models):
        for path, parameter in model.named_parameters(remove_duplicate=False):
            name = path if len(models) == 1 else f"{i}.{path}"
            if id(parameter) in names:
                notes.append(f"{name} is tied to {names[id(parameter)]}: one tensor under the latter's name")
            else:
                names[id(parameter)] = name
                if parameter.grad is not None and bool(parameter.grad.any()):
                    filled.append(name)
    if filled:
        some = f"{', '.join(filled[:3])}{' …' if len(filled) > 3 else ''}"
        notes.append(f"{some}: .grad was not empty when recording began: unless emptied, it then holds more than this step")
    return names


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", str(function))
    return f"get_{getattr(function.__self__, '__name__', '')}" if name == "__get__" else str(name)


def _edge(tensor: torch.Tensor) -> tuple[Any, int]:
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def _overridden(original: Any, *args: Any) -> bool:
    """Whether a tensor subclass of the user's takes part: only such may still override F.*."""
    return any(_is_subclass(t) for t in _arguments(args))


def _arguments(args: Any) -> Iterator[Any]:
    yield from args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args


def _is_subclass(tensor: Any) -> bool:
    plain = (torch.Tensor, torch.nn.Parameter)
    if not isinstance(tensor, torch.Tensor) or type(tensor) in plain:
        return False
    own = type(tensor).__torch_function__
    return own is not torch.Tensor.__torch_function__ and own is not torch._C._disabled_torch_function_impl
