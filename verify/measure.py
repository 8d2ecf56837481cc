"""One tensor of one testimony against the reference: how large the error is, and how large honest rounding may be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradjury.verify.reference import Exact, Reference

TYPICAL = 0.45  # rms of a rounding error, in units of u times its scale (docs/numerics.md)


@dataclass(frozen=True)
class Measurement:
    """A comparison of one tensor. `excess` is the largest error in units of its budget: 1 is the line.

    `error` and `budget` are per element, in the units of the gradient; `mismatch` tells that the testimony is not
    finite where the reference is, or the other way round; `resolution` is ‖budget‖/‖reference‖, the relative size of a
    mistake that would have gone unseen.
    """

    key: str
    testimony: np.ndarray
    exact: Exact
    error: np.ndarray
    budget: np.ndarray
    scale: np.ndarray
    unit: float
    excess: float
    worst: tuple[int, ...]
    mismatch: bool
    undefined: bool
    zero: bool

    @property
    def within(self) -> bool:
        return not self.mismatch and not self.undefined and self.excess <= 1

    @property
    def difference(self) -> float:
        return float(np.abs(self.error[self.worst])) if self.error.size else 0.0

    @property
    def allowed(self) -> float:
        return float(self.budget[self.worst]) if self.budget.size else 0.0

    @property
    def resolution(self) -> float:
        size = float(np.linalg.norm(self.exact.high))
        noise = float(np.linalg.norm(self.budget))
        return noise / size if size > 0 else (0.0 if noise == 0 else float("inf"))

    @property
    def hidden(self) -> float:
        """The relative size of a mistake that this very testimony may hide: its error, and rounding of typical size.

        A larger one would need rounding to cancel it in all elements at once.
        """
        size = float(np.linalg.norm(self.exact.high))
        typical = TYPICAL * self.unit * float(np.linalg.norm(self.scale))
        return (float(np.linalg.norm(self.error)) + typical) / size if size > 0 else float("inf")

    @property
    def below_budget(self) -> bool:
        """Whether the exact gradient itself is smaller than its budget everywhere."""
        return bool((np.abs(self.exact.high) <= self.budget).all())

    @property
    def outside(self) -> np.ndarray:
        """Mask of the elements over the line."""
        with np.errstate(invalid="ignore"):
            return np.asarray(~(np.abs(self.error) <= self.budget))


def measure(
    reference: Reference,
    key: str,
    testimony: np.ndarray,
    *,
    forward: bool = False,
    printed: np.ndarray | float = 0.0,
    replicas: bool = True,
) -> Measurement | None:
    """Compares a canonical `testimony` with the reference; None where there is no reference.

    Cheap first: the propagated variance alone is a lower bound of the budget, so what passes under it has passed;
    replicas are run only for what does not, and is not hopeless. Hypotheses are held against the lower bound alone
    (`replicas` false). `printed` is half a unit in the last printed place.
    """
    exact = reference.value(key) if forward else reference.gradient(key)
    if exact is None:
        return None
    found = _compare(reference, key, testimony, exact, forward, printed, replicas=False)
    if not replicas or found.mismatch or found.undefined or found.excess <= 1 or hopeless(found.excess, found.scale[found.worst]):
        return found
    return _compare(reference, key, testimony, exact, forward, printed, replicas=True)


def hopeless(excess: float, scale: float) -> bool:
    """Whether no replica can bring an excess under the propagated variance back under the line; `scale` at its element.

    The two estimates differ by at most a few hundred (docs/numerics.md), unless the variance itself underflowed.
    """
    return excess > HOPELESS and scale > SQUARES_UNDERFLOW


HOPELESS = 1e6
SQUARES_UNDERFLOW = 1e-140  # below it a variance may have lost terms


def _compare(
    reference: Reference,
    key: str,
    testimony: np.ndarray,
    exact: Exact,
    forward: bool,
    printed: np.ndarray | float,
    replicas: bool,
) -> Measurement:
    budget = reference.budget(key, forward=forward, replicas=replicas) + printed
    error = exact.difference(testimony)
    expected = _nonfinite(_representable(exact.high, reference.precision.largest))
    mismatch = bool((_nonfinite(testimony) != expected).any())
    finite = expected == 0
    lost = mismatch and bool((expected != 0).any())
    undefined = lost or not bool(np.isfinite(budget[finite]).all())
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratio = np.where(error == 0, 0.0, np.abs(error) / budget)
    ratio = np.where(finite, ratio, 0.0)
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    index = np.unravel_index(int(np.argmax(ratio)), ratio.shape) if ratio.size else ()
    return Measurement(
        key=key,
        testimony=testimony,
        exact=exact,
        error=np.where(finite, error, 0.0),
        budget=np.where(finite, budget, 0.0),
        scale=reference.scale(key, forward=forward, replicas=replicas),
        unit=reference.precision.u,
        excess=float(ratio[index]) if ratio.size else 0.0,
        worst=tuple(int(i) for i in index),
        mismatch=mismatch,
        undefined=undefined,
        zero=not forward and reference.exactly_zero(key),
    )


def _representable(x: np.ndarray, largest: float) -> np.ndarray:
    """`x` as the testimony's dtype would hold it: beyond its largest value, infinite."""
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(x) > largest * (1 + 2.0**-9), np.sign(x) * np.inf, x)


def _nonfinite(x: np.ndarray) -> np.ndarray:
    """0 finite, 1 NaN, 2 +inf, 3 -inf."""
    return np.asarray(np.isnan(x) * 1 + np.isposinf(x) * 2 + np.isneginf(x) * 3)


def printed_half_unit(values: np.ndarray, digits: int) -> np.ndarray:
    """Half a unit in the last printed place of each value of a print-out with `digits` significant digits.

    A print-out with a fixed number of decimals shows small values with fewer digits: the widest literal of the tensor
    tells how many decimals there are, and no value can be known better than that.
    """
    x = np.asarray(values, np.float64)
    finite = np.isfinite(x) & (x != 0)
    place = np.floor(np.log10(np.abs(np.where(finite, x, 1.0)))) - (digits - 1)
    decimals = max((_decimals(v, digits) for v in x[finite].ravel()), default=0)
    fixed = 0.5 * 10.0**-decimals if int(finite.sum()) >= _ENOUGH_LITERALS else 0.0
    return np.maximum(np.where(finite, 0.5 * 10.0**place, 0.0), fixed)


_ENOUGH_LITERALS = 8  # fewer literals may all end in zeros by chance


def _decimals(value: float, digits: int) -> int:
    """Decimals of the shortest literal of `value` at `digits` significant digits."""
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    kept = len(mantissa.rstrip("0").split(".")[-1]) if "." in mantissa else 0
    return max(0, kept - int(exponent))
