"""What an op declares about itself. Everything else (cases, sweeps, benches, documents) is built from declarations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Tensor

Shape = tuple[int, ...]
Values = Mapping[str, Any]  # slot -> Tensor, array of integers, or None


class OpError(ValueError):
    """Inputs or attributes that do not fit the op; one line: expected, found, where."""


@dataclass(frozen=True)
class Slot:
    """An input of an op. `paddle`: how PaddlePaddle stores it where that differs: `transposed`, or `time` (time first)."""

    name: str
    optional: bool = False
    differentiable: bool = True
    integer: bool = False
    paddle: str | None = None


@dataclass(frozen=True)
class Attribute:
    """A setting of an op: its default, and the values or the kind of value it may take."""

    default: Any
    choices: tuple[Any, ...] | None = None
    kind: type | tuple[type, ...] = object

    def check(self, name: str, value: Any) -> None:
        """Raises OpError unless `value` may stand here."""
        if self.choices is not None and value not in self.choices:
            raise OpError(f"attribute {name}: expected {' or '.join(map(repr, self.choices))}, found {value!r}")
        wanted = self.kind if isinstance(self.kind, tuple) else (self.kind,)
        if bool not in wanted and isinstance(value, bool) and object not in wanted:
            raise OpError(f"attribute {name}: expected {_names(wanted)}, found {value!r}")
        if not isinstance(value, wanted):
            raise OpError(f"attribute {name}: expected {_names(wanted)}, found {value!r}")


@dataclass(frozen=True)
class Variant:
    """Another definition of an op, or a known mistake in it, as a change of attributes. `sentence` says it to a person."""

    code: str
    kind: str
    attributes: Mapping[str, Any]
    sentence: str


@dataclass
class Example:
    """A small valid problem: inputs by slot, and attributes that differ from the defaults."""

    inputs: dict[str, np.ndarray]
    attributes: dict[str, Any] = field(default_factory=dict)


class Op(ABC):
    """One differentiable operation. Subclasses declare, and call kernels; they do no arithmetic of their own."""

    name: str
    inputs: tuple[Slot, ...]
    outputs: tuple[str, ...] = ("y",)
    attributes: Mapping[str, Attribute] = {}
    kink = False  # whether the derivative may jump where something changes sign (relu)
    paddle_outputs: Mapping[str, str] = {}  # outputs that PaddlePaddle stores otherwise: as Slot.paddle
    kink_of_input = False  # whether the kink's side can be read off the input x

    @abstractmethod
    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        """Output shapes for input shapes by slot. `values` holds integer inputs where known. Raises OpError."""

    @abstractmethod
    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        """Outputs by name, and what the backward needs."""

    @abstractmethod
    def backward(
        self,
        k: Kernels,
        x: Values,
        attributes: Mapping[str, Any],
        saved: Any,
        upstream: Mapping[str, Tensor | None],
        wanted: set[str],
    ) -> dict[str, Tensor]:
        """Gradients of the wanted slots, given those of the outputs (None: no gradient flows to that output)."""

    @abstractmethod
    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """The op in PyTorch: outputs by name. The module is handed in, so that nothing is imported here."""

    @abstractmethod
    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """The op in PaddlePaddle. Inputs are canonical."""

    @abstractmethod
    def example(self, rng: np.random.Generator) -> Example:
        """A small problem to start from, to test and to measure with."""

    def variants(self, attributes: Mapping[str, Any]) -> Sequence[Variant]:
        """Other definitions and known mistakes that are a change of attributes."""
        return ()

    def kinked(self, attributes: Mapping[str, Any]) -> bool:
        """Whether the derivative jumps under these attributes."""
        return self.kink

    def kink_input(self, x: Values, saved: Any) -> Tensor | None:
        """What the kink looks at the sign of."""
        return None

    def complete(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes with defaults filled in."""
        return {name: a.default for name, a in self.attributes.items()} | dict(attributes)

    def check_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Raises OpError for attributes that the op does not know or values that it does not take."""
        for name, value in attributes.items():
            if name not in self.attributes:
                known = ", ".join(self.attributes) or "none"
                raise OpError(f"attribute {name}: unknown; {self.name} takes {known}")
            self.attributes[name].check(name, value)


def expect(condition: bool, message: str) -> None:
    """Raises OpError with `message` unless the condition holds."""
    if not condition:
        raise OpError(message)


def flow_of(k: Kernels, upstream: Mapping[str, Tensor | None], output: str, like: Tensor) -> Tensor:
    """The gradient of an output, zeros where none flows."""
    flow = upstream.get(output)
    return flow if flow is not None else k.zeros(like.cases, like.shape)


def _names(kinds: tuple[type, ...]) -> str:
    return " or ".join({float: "a number", int: "an integer", str: "text"}.get(t, t.__name__) for t in kinds)
