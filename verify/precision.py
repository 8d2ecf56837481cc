"""The precisions GradJury judges: unit roundoff, smallest subnormal, rounding to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradjury.kernels.arithmetic import Arithmetic


@dataclass(frozen=True)
class Precision:
    """A floating-point format: `bits` of significand, `least` the smallest subnormal, `largest` the largest finite value."""

    name: str
    bits: int
    least: float
    largest: float
    threshold: float  # τ of NUMERICS: what an alarm has to exceed, in units of the predicted error

    @property
    def u(self) -> float:
        """Unit roundoff 2^-bits."""
        return float(2.0**-self.bits)

    @property
    def coherence(self) -> float:
        """κ of NUMERICS section 2: how far the roundings of one sum point the same way."""
        return 1.0 if self.name == "float64" else 0.125

    def arithmetic(self, **changes: float | int) -> Arithmetic:
        """What the noise kernels are told about arithmetic at this precision."""
        settings: dict[str, float | int] = {"u": self.u, "kappa": self.coherence, "eta": self.least}
        return Arithmetic(**{**settings, **changes})  # type: ignore[arg-type]

    def round(self, x: np.ndarray) -> np.ndarray:
        """`x` rounded to nearest, as a witness that is handed wider values does; returned at float32 or float64."""
        if x.dtype.kind not in "f" or self.name == "float64":
            return x
        wide = x if self.name == "float32" else round_to_bits(x, self.bits, self.least)
        with np.errstate(over="ignore"):
            return wide.astype(np.float32)


PRECISIONS = {
    p.name: p
    for p in (
        Precision("float64", 53, 2.0**-1074, float(np.finfo(np.float64).max), 4.0),
        Precision("float32", 24, 2.0**-149, float(np.finfo(np.float32).max), 2.0),
        Precision("tfloat32", 11, 2.0**-136, float(np.finfo(np.float32).max), 2.0),
        Precision("float16", 11, 2.0**-24, 65504.0, 2.0),
        Precision("bfloat16", 8, 2.0**-133, (2 - 2.0**-7) * 2.0**127, 2.0),
    )
}
FLUSHED = 2.0**-126  # where subnormals are flushed to zero, the smallest number of float32 that survives
DOUBLE_DOUBLE_U = 2.0**-104


def round_to_bits(x: np.ndarray, bits: int, least: float) -> np.ndarray:
    """`x` rounded to nearest even at `bits` bits, on a grid no finer than `least`; float64."""
    wide = np.asarray(x, np.float64)
    with np.errstate(invalid="ignore"):
        _, exponent = np.frexp(wide)
        step = np.maximum(np.ldexp(1.0, exponent - bits), least)
        return np.where(np.isfinite(wide), np.rint(wide / step) * step, wide)
