"""An array of scalars on an engine, with what its rounding errors have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gradjury.kernels.scalars import Scalar


@dataclass(frozen=True)
class Mode:
    """A rounding error common to a channel: `direction` (cases, *shape), times a number per channel of this variance.

    `variance` (cases, channels) lies along `axis` of the tensor (1: channels second). `included`: whether the tensor's
    elementwise variance already holds direction²·variance.
    """

    direction: Any
    variance: Any
    included: bool


@dataclass(frozen=True)
class Tensor:
    """`data`: (cases, *shape), with a last axis of components where the scalar has more than one.

    `length`: of how many terms each element was summed, for gradients that are accumulated. `modes`: for `spread` only.
    """

    data: Any
    scalar: Scalar
    length: int = 1
    modes: tuple[Mode, ...] = ()

    @property
    def cases(self) -> int:
        return int(self.data.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one case."""
        full = self.data.shape[:-1] if self.scalar.components > 1 else self.data.shape
        return tuple(int(n) for n in full[1:])

    def reshape(self, *shape: int) -> Tensor:
        """The same elements in another shape of one case; `shape` may hold one -1. Modes do not survive."""
        tail = (self.scalar.components,) if self.scalar.components > 1 else ()
        if -1 in shape:
            known = 1
            for n in shape:
                known *= n if n != -1 else 1
            size = 1
            for n in self.shape:
                size *= n
            shape = tuple(size // known if n == -1 and known else n for n in shape)
        return replace(self, data=self.data.reshape(self.cases, *shape, *tail), modes=())
