"""Where PaddlePaddle's eager calls can be seen: every way from Python into its C++ operators, replaced for a while."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Protocol

import paddle

core, _C_ops = paddle.base.core, paddle._C_ops
Function = Callable[..., Any]

# Methods that paddle.Tensor implements in C, without passing through _C_ops.
METHODS = (
    *(f"__{name}__" for name in ("add", "radd", "sub", "rsub", "mul", "rmul", "div", "truediv", "rdiv", "rtruediv")),
    *(f"__{name}__" for name in ("matmul", "rmatmul", "pow", "rpow", "mod", "floordiv")),
    *("_getitem_dygraph", "_setitem_dygraph", "clone", "contiguous"),
)


class Listener(Protocol):
    """Who wants to know."""

    def call(self, op: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator is called; returns what `function(*args, **kwargs)` does."""

    def backward(self, tensors: list[Any], gradients: list[Any]) -> None:
        """A backward pass starts from `tensors` with these upstream gradients (None: ones)."""

    def enter(self, layer: Any) -> None:
        """A layer is called."""

    def leave(self) -> None:
        """The layer last entered returns."""


class Patches:
    """Replaces attributes, and puts the old ones back."""

    def __init__(self, listener: Listener) -> None:
        self._undo: list[tuple[Any, str, Any]] = []
        self._operators(listener)
        self._engine(listener)
        self._layers(listener)
        self._custom(listener)

    def restore(self) -> None:
        """Leaves everything as it was found."""
        for owner, name, old in reversed(self._undo):
            if old is None:
                delattr(owner, name)
            else:
                setattr(owner, name, old)
        self._undo.clear()

    def _replace(self, owner: Any, name: str, new: Any) -> None:
        self._undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, new)

    def _operators(self, listener: Listener) -> None:
        for name, function, sites in _sites():
            wrapper = functools.partial(_called, listener, name, function)
            for owner, attribute in sites:
                self._replace(owner, attribute, wrapper)
        for name in METHODS:
            if hasattr(paddle.Tensor, name):
                self._replace(paddle.Tensor, name, _method(listener, name, getattr(paddle.Tensor, name)))

    def _engine(self, listener: Listener) -> None:
        whole, partial = core.eager.run_backward, core.eager.run_partial_grad

        def run_backward(tensors: Any, gradients: Any, *more: Any, **named: Any) -> Any:
            listener.backward(list(tensors), list(gradients or [None] * len(tensors)))
            return whole(tensors, gradients, *more, **named)

        def run_partial_grad(outputs: Any, inputs: Any, gradients: Any, *more: Any, **named: Any) -> Any:
            listener.backward(list(outputs), list(gradients or [None] * len(outputs)))
            return partial(outputs, inputs, gradients, *more, **named)

        self._replace(core.eager, "run_backward", run_backward)
        self._replace(core.eager, "run_partial_grad", run_partial_grad)

    def _layers(self, listener: Listener) -> None:
        original = paddle.nn.Layer.__call__

        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            listener.enter(layer)
            try:
                return original(layer, *args, **kwargs)
            finally:
                listener.leave()

        self._replace(paddle.nn.Layer, "__call__", call)

    def _custom(self, listener: Listener) -> None:
        base, raw = paddle.autograd.PyLayer, core.eager.PyLayer.__dict__["apply"]

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            return listener.call(f"custom.{cls.__name__}", raw.__get__(None, cls), args, kwargs)

        self._undo.append((base, "apply", base.__dict__.get("apply")))
        base.apply = classmethod(apply)


def _called(listener: Listener, op: str, function: Function, /, *args: Any, **kwargs: Any) -> Any:
    return listener.call(op, function, args, kwargs)


def _method(listener: Listener, op: str, function: Function) -> Function:
    def method(*args: Any, **kwargs: Any) -> Any:
        return listener.call(op, function, args, kwargs)

    return method


@functools.cache
def _sites() -> list[tuple[str, Function, list[tuple[Any, str]]]]:
    """Every operator of _C_ops with the places that hold it by name: modules of paddle, and paddle.Tensor."""
    names = [n for n in dir(_C_ops) if not n.startswith("__") and not n.endswith(("_grad", "_grad_"))]
    functions = {id(getattr(_C_ops, n)): n for n in names if callable(getattr(_C_ops, n))}
    found: dict[str, list[tuple[Any, str]]] = {}
    for owner in _owners():
        for attribute, value in list(vars(owner).items()):
            name = functions.get(id(value))
            if name is not None and attribute in (name, f"paddle_{name}"):
                found.setdefault(name, []).append((owner, attribute))
    for name in functions.values():
        if getattr(paddle.Tensor, name, None) is getattr(_C_ops, name):
            found.setdefault(name, []).append((paddle.Tensor, name))
    return [(name, getattr(_C_ops, name), sites) for name, sites in found.items()]


def _owners() -> list[Any]:
    """Modules of paddle that may hold operators; not the C++ library itself, nor the ones of the static graph."""
    return [
        module
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == "paddle" and module is not None and "libpaddle" not in name and "_pir_ops" not in name
    ]
