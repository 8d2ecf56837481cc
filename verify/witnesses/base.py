"""What a witness is: whom to call, what it says, who it says it is, and how it may fail.

Imported both here and inside the witness's own process, so nothing but numpy and the standard library may be needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

FRAMEWORKS = ("torch", "paddle")  # each is a module of this package with a class Framework
KERNELS = "cuda"
LIVE_DTYPES = ("float64", "float32", "bfloat16", "float16")


class WitnessFailure(Exception):
    """A witness that could not be run: never a verdict. `kind`: `import`, `crash`, `timeout` or `error`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message


@dataclass
class Identity:
    """Who testifies. `backends`: short lower-case names of maths libraries (`mkl`, `onednn`, `cudnn`, …): two witnesses
    that name the same one are not independent. `flags`: settings that change arithmetic, such as threads or TF32."""

    name: str
    framework: str
    version: str
    device: str
    backends: list[str] = field(default_factory=list)
    flags: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The identity as plain JSON values."""
        return asdict(self)


@dataclass
class Evidence:
    """What one witness says at one dtype, in canonical layout.

    `gradients`: by tensor name, or by part key (`NAME@NODE`) where a tensor has several consumers. `forward`: values of
    the nodes' outputs. `absent`: tensors for which it returned None. `notes`: one-line remarks for the report.
    """

    gradients: dict[str, np.ndarray]
    forward: dict[str, np.ndarray]
    identity: Identity
    absent: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class WitnessSpec:
    """Whom to call: a framework (or our own kernels, `cuda`), under which name, in which Python, on which device."""

    name: str
    framework: str
    python: str | None = None  # None: the Python we run in
    device: str = "cpu"


def parse(text: str) -> WitnessSpec:
    """The witness that `text` asks for: `[NAME=]FRAMEWORK[-gpu][:/path/to/python]`. Raises ValueError.

    `torch`, `paddle-gpu`, `old=paddle:/opt/old/bin/python`.
    """
    name, equals, rest = text.partition("=")
    called, _, python = (rest if equals else text).partition(":")
    framework, device = (called[:-4], "gpu") if called.endswith("-gpu") else (called, "cpu")
    known = (*FRAMEWORKS, KERNELS)
    if framework not in known or (equals and not name):
        expected = "NAME=FRAMEWORK:/path/to/python (name and path optional)"
        raise ValueError(f"witness {text!r}: expected {expected}, FRAMEWORK one of {', '.join(known)}")
    if framework == KERNELS and (python or device != "cpu"):
        raise ValueError(f"witness {text!r}: our own kernels run in this process on its best engine; write {KERNELS}")
    return WitnessSpec(name if equals else called, framework, python or None, device)


class Framework(Protocol):
    """What a framework has to offer inside its own process; class `Framework` of `witnesses/NAME.py` (see worker.py).

    The constructor takes the device (`cpu` or `gpu`) and imports the framework, so that ImportError rises there.
    """

    module: Any  # the imported framework, handed to the ops

    def identity(self) -> Identity:
        """Who this is; `name` and `framework` are the framework's name."""

    def precision(self) -> AbstractContextManager[None]:
        """Full precision inside (no TF32, no autocast), and everything put back afterwards."""

    def tensor(self, array: np.ndarray, dtype: str | None, requires_grad: bool) -> Any:
        """A leaf on the device: of a float dtype (one of LIVE_DTYPES; the values fit it), or as it is where None."""

    def alias(self, tensor: Any) -> Any:
        """The same values as a new tensor of the autograd graph: each consumer gets one of its own."""

    def tracked(self, tensor: Any) -> bool:
        """Whether gradient flows to this tensor."""

    def watch(self, tensor: Any) -> None:
        """Asks that the gradient of this intermediate be kept."""

    def run(self, op: Any, inputs: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
        """The op (of verify/ops) in this framework: outputs by slot."""

    def array(self, tensor: Any) -> np.ndarray:
        """The tensor's values; bfloat16 as float32."""

    def backward(self, outputs: Sequence[Any], upstreams: Sequence[Any]) -> None:
        """One backward pass from all outputs at once."""
        if outputs:
            self.module.autograd.backward(list(outputs), list(upstreams))

    def gradient(self, tensor: Any) -> np.ndarray | None:
        """The gradient gathered in a leaf or a watched tensor; None if there is none. bfloat16 as float32."""
        return None if tensor.grad is None else self.array(tensor.grad)
