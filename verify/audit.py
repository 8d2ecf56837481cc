"""The reference cross-examined: its backward must match its own forward.

The forward kernels run on dual numbers give the exact directional derivative of Σ⟨upstream, output⟩, which must equal
⟨gradient, direction⟩ within the rounding of both (DESIGN section 4; NUMERICS section 5, point 6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gradjury.verify.reference import Reference


@dataclass(frozen=True)
class Audit:
    """`directional_excess`: |derivative − ⟨gradient, direction⟩| in units of what rounding may do; None if it cannot run."""

    directional_excess: float | None
    why: str | None = None

    @property
    def disputed(self) -> bool:
        """Whether the reference contradicts itself, so that nobody may be accused by it."""
        return self.directional_excess is not None and not self.directional_excess <= 1


def directional(reference: Reference) -> Audit:
    """Checks the gradients of all graph inputs at once along one direction with elements ±1, scaled per tensor."""
    names = reference.differentiable_inputs
    if not names:
        return Audit(None, "no graph input has a gradient that can be computed")
    directions = {name: _direction(name, reference) for name in names}
    derivative = reference.directional_derivative(directions)
    terms = derivative.tolist()
    allowed = reference.rounding_of(derivative)
    with np.errstate(invalid="ignore", over="ignore"):
        for name in names:
            exact = reference.gradient(name)
            assert exact is not None
            for part in (exact.high, exact.low):
                terms += [] if part is None else (-part * directions[name]).ravel().tolist()
            allowed += float(np.sum(np.abs(directions[name]) * reference.own_bound(name)))
    if not np.isfinite(terms).all():
        return Audit(None, "the exact gradient is not finite")
    gap = abs(math.fsum(terms))  # exact: directions are powers of two, so no product rounds
    return Audit(gap / allowed if allowed > 0 else (0.0 if gap == 0 else math.inf))


def _direction(name: str, reference: Reference) -> np.ndarray:
    """±1 at the size of the tensor's variation, from a generator seeded by its name: the same on every machine."""
    value = reference.input_value(name)
    seed = int.from_bytes(name.encode()[:8].ljust(8, b"\0"), "little")
    signs = np.random.Generator(np.random.Philox(seed)).integers(0, 2, value.shape) * 2.0 - 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        size = float(np.ptp(value.astype(np.float64))) if value.size else 0.0
    size = size if size > 0 else float(np.max(np.abs(value), initial=0.0))
    return np.asarray(signs * (2.0 ** np.floor(np.log2(size)) if np.isfinite(size) and size > 0 else 1.0))
