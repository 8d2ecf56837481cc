"""The scalars a kernel can run on: what C++ calls them and how they lie in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scalar:
    """A scalar type. In memory `components` numbers of dtype `base`, on a last axis where there is more than one."""

    name: str
    cpp: str
    base: np.dtype
    components: int = 1

    @property
    def splits_sums(self) -> bool:
        """Whether several threads may share one sum: not where a sum keeps track of its own roundings."""
        return self.name not in ("spread", "noisy")


SCALARS = {
    s.name: s
    for s in (
        Scalar("float32", "float", np.dtype(np.float32)),
        Scalar("float64", "double", np.dtype(np.float64)),
        Scalar("double-double", "dd", np.dtype(np.float64), 2),
        Scalar("dual", "dual<double>", np.dtype(np.float64), 2),
        Scalar("dual-double-double", "dual<dd>", np.dtype(np.float64), 4),
        Scalar("spread", "spread", np.dtype(np.float64), 2),
        Scalar("noisy", "noisy", np.dtype(np.float64), 2),
        Scalar("bound", "bound", np.dtype(np.float64), 2),
        Scalar("lowered", "lowered", np.dtype(np.float64)),
    )
}
