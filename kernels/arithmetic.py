"""What the noise and low-precision scalars assume about the arithmetic they stand for (kernels/cuda/arithmetic.cuh)."""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from functools import cached_property


@dataclass(frozen=True)
class Arithmetic:
    """Settings of one launch; the fields of the C++ struct in its order, 8 bytes each."""

    u: float = 2.0**-24
    kappa: float = 0.125
    eta: float = 2.0**-149
    function_error: float = 4.0
    coherent: int = 0
    operand_bits: int = 0
    operand_toward_zero: int = 0
    storage_bits: int = 0
    accumulator_bits: int = 0

    @cached_property
    def packed(self) -> bytes:
        """The bytes of the C++ struct."""
        return struct.pack("<4d5q", *astuple(self))
