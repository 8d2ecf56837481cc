"""Kernels whose arrays lie between stretches of NaN, and the ways to run one launch that may not change a bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np

from gradjury.kernels.arithmetic import Arithmetic
from gradjury.kernels.calls import Kernels
from gradjury.kernels.engine import engine
from gradjury.kernels.host_engine import HostEngine
from gradjury.kernels.scalars import SCALARS
from gradjury.kernels.tensor import Tensor

MARGIN = 64  # elements of NaN on either side: more than a pack, so that a load or store that runs over meets them
FORWARD = tuple(SCALARS)  # scalars of the kernels that every scalar has
BACKWARD = tuple(name for name in SCALARS if not name.startswith("dual"))
NEARLY_NOISELESS = Arithmetic(u=2.0**-1000, eta=0.0)


class Guarded(Kernels):
    """Kernels for tests: whatever is read past an input is NaN, results start as NaN, writes past a result show.

    The noise of `noisy` is of the order of 2^-1000 unless an arithmetic is given: a whole number off it is a mistake.
    """

    def __init__(self, scalar: str, arithmetic: Arithmetic | None = None) -> None:
        own = NEARLY_NOISELESS if scalar == "noisy" else Arithmetic()
        super().__init__(engine("host"), SCALARS[scalar], arithmetic or own, poison=True)
        self._fences: list[tuple[np.ndarray, np.ndarray]] = []

    def _between(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64))
        memory = np.full(size + 2 * MARGIN, np.nan, dtype)
        self._fences.append((memory[:MARGIN], memory[MARGIN + size :]))
        return np.asarray(memory[MARGIN : MARGIN + size].reshape(shape))

    def tensor(self, values: np.ndarray, second: np.ndarray | None = None) -> Tensor:
        plain = super().tensor(values, second)
        data = self._between(plain.data.shape, plain.data.dtype)
        data[...] = plain.data
        return Tensor(data, plain.scalar)

    def empty(self, cases: int, shape: Sequence[int]) -> Tensor:
        plain = super().empty(cases, shape)
        return Tensor(self._between(plain.data.shape, plain.data.dtype), plain.scalar)

    def whole(self, tensor: Tensor) -> np.ndarray:
        """The values of a result that has to be whole numbers, without the noise of `noisy`."""
        values = self.values(tensor)
        return np.asarray(np.rint(values)) if self.scalar.name == "noisy" else values

    def intact(self) -> bool:
        """Whether nothing was written around any tensor so far."""
        return all(bool(np.all(np.isnan(side))) for fence in self._fences for side in fence)


@contextmanager
def launches(*, seed: int = -1, threads: int = 0) -> Iterator[None]:
    """Blocks and threads in an order drawn from `seed` (below 0: in order), on `threads` OS threads."""
    host = HostEngine()
    host.set_order(seed)
    host.set_threads(threads)
    try:
        yield
    finally:
        host.set_order(-1)
        host.set_threads(0)


def same_bits_however_launched(compute: Callable[[], Tensor]) -> bool:
    """Whether two shuffled orders, one and two OS threads give the same bits."""
    found = set()
    for setting in ({"seed": -1}, {"seed": 0}, {"seed": 1}, {"threads": 1}, {"threads": 2}):
        with launches(**setting):
            found.add(compute().data.tobytes())
    return len(found) == 1


def whole_numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Small integers, whose sums and products every scalar holds exactly."""
    return np.asarray(rng.integers(-4, 5, shape), np.float64)


def rest(tensor: Tensor) -> np.ndarray:
    """The components behind the value: (…, 0) where there are none."""
    return np.asarray(tensor.data[..., 1:] if tensor.scalar.components > 1 else tensor.data[..., None][..., 1:])


def fused(a: float, b: float, c: float, bits: int) -> float:
    """a·b + c rounded once to `bits` significant bits, ties to even; no subnormals."""
    return nearest(Fraction(a) * Fraction(b) + Fraction(c), bits)


def nearest(x: Fraction, bits: int) -> float:
    """x to `bits` significant bits, ties to even."""
    if x == 0:
        return 0.0
    exponent = x.numerator.bit_length() - x.denominator.bit_length() - bits
    scaled = x / Fraction(2) ** exponent
    if abs(scaled) >= 2**bits:
        exponent, scaled = exponent + 1, scaled / 2
    if abs(scaled) < 2 ** (bits - 1):
        exponent, scaled = exponent - 1, scaled * 2
    return float(round(scaled) * Fraction(2) ** exponent)
