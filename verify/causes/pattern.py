"""What the error of a single tensor looks like: its values zero, scaled, flipped, transposed, or wrong in few places."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gradjury.verify.court import Statement
from gradjury.verify.measure import Measurement
from gradjury.verify.verdict import Finding

SCALED = "scale.constant"
LEAST = 4  # a factor is one free parameter: it has to explain more elements than that


def structured(statement: Statement, measured: Measurement) -> Finding | None:
    """The testimony as a whole is the gradient changed in one way: rounding does not do that."""
    return _first((_zero, _flipped, _transposed, _reversed, _scaled), statement, measured)


def located(statement: Statement, measured: Measurement) -> Finding | None:
    """The error is confined to one element or to few rows."""
    return _first((_single_element, _rows), statement, measured)


def noise_of_scaled(
    statement: Statement, measured: Mapping[str, Measurement], scaled: list[str], left: list[str]
) -> list[Finding]:
    """The tensors of `left` that are exactly zero and whose noise has grown by the factor of the tensors in `scaled`."""
    largest = max((abs(_factor(measured[key])) for key in scaled), default=0.0)
    keys = [key for key in left if (m := measured[key]).zero and bool((np.abs(m.error) <= largest * m.budget).all())]
    evidence = "exactly zero: its noise grew by the factor of the other gradients"
    return [Finding(statement.witness.name, statement.dtype, SCALED, "mistake", [key], evidence) for key in keys]


Pattern = Callable[[Measurement], tuple[str, str] | None]


def _first(patterns: tuple[Pattern, ...], statement: Statement, measured: Measurement) -> Finding | None:
    for pattern in patterns:
        match = pattern(measured)
        if match is not None:
            code, evidence = match
            return Finding(statement.witness.name, statement.dtype, code, "mistake", [measured.key], evidence)
    return None


def _zero(m: Measurement) -> tuple[str, str] | None:
    return ("value.zero", f"all {m.testimony.size} values are zero") if not m.testimony.any() else None


def _flipped(m: Measurement) -> tuple[str, str] | None:
    return ("sign.flipped", "minus the testimony is within the budget") if _fits(m, -m.testimony) else None


def _transposed(m: Measurement) -> tuple[str, str] | None:
    square = m.testimony.ndim == 2 and m.testimony.shape[0] == m.testimony.shape[1] > 1
    return ("layout.transposed", "the transpose is within the budget") if square and _fits(m, m.testimony.T) else None


def _reversed(m: Measurement) -> tuple[str, str] | None:
    backward = m.testimony.ndim == 3 and len(m.testimony) > 1
    if not backward or not _fits(m, m.testimony[::-1]):
        return None
    return "time.reversed", "in reversed order of time it is within the budget"


def _scaled(m: Measurement) -> tuple[str, str] | None:
    g = m.exact.high
    if int((np.abs(g) > m.budget).sum()) < LEAST:
        return None
    factor = _factor(m)
    if factor == 0 or not _fits(m, m.testimony / factor):
        return None
    return SCALED, f"{factor:.6g} times the exact gradient"


def _factor(m: Measurement) -> float:
    """The multiple of the exact gradient (not zero) that comes nearest to the testimony."""
    g = m.exact.high
    return float(np.vdot(g, m.testimony) / np.vdot(g, g))


def _single_element(m: Measurement) -> tuple[str, str] | None:
    outside = np.asarray(m.outside)
    if m.testimony.size == 1 or int(outside.sum()) != 1:
        return None
    index = tuple(int(i) for i in np.argwhere(outside)[0])
    return "value.single-element", f"element {index} alone is off, by {float(np.abs(m.error[index])):.3g}"


def _rows(m: Measurement) -> tuple[str, str] | None:
    if m.testimony.ndim < 2:
        return None
    rows = np.asarray(m.outside.reshape(len(m.testimony), -1).any(axis=1))
    count = int(rows.sum())
    if 2 * count > len(rows):
        return None
    listed = ", ".join(str(i) for i in np.flatnonzero(rows)[:6]) + (", …" if count > 6 else "")
    return "value.rows", f"{count} of {len(rows)} rows are off: {listed}"


def _fits(m: Measurement, candidate: np.ndarray) -> bool:
    return bool((np.abs(m.exact.difference(candidate)) <= m.budget).all())
