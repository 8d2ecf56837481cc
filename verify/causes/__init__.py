"""The search for what turns the reference into a testimony that is over the line.

Explanations that reproduce the numbers come first: a part taken for the whole, another definition, arithmetic that can be
emulated, a gradient changed as a whole. Then errors in few places. A wider budget is believed last, so that it never
swallows a small mistake.
"""

from __future__ import annotations

from collections.abc import Mapping

from gradjury.verify.causes import definition, partial, pattern, precision
from gradjury.verify.court import Court, Statement
from gradjury.verify.measure import Measurement
from gradjury.verify.verdict import Finding

FEW = 3  # elements over the line that are always few
FEW_SHARE = 0.001


def explain(
    court: Court, statement: Statement, measured: Mapping[str, Measurement], over: list[str], *, sound: bool
) -> list[Finding]:
    """Explanations of the tensors in `over`; each tensor is explained once at most.

    `sound`: whether the formula is not in question by another dtype of the same witness, so that arithmetic of lower
    precision may explain the error.
    """
    found = partial.explain(court, statement, measured, over)
    left = _without(over, found)
    if left:
        found += definition.explain(court, statement, left)
        left = _without(over, found)
    if left and sound:
        found += _some(precision.tight(court, statement, measured, left))
        left = _without(over, found)
    found += [f for key in left if (f := pattern.structured(statement, measured[key])) is not None]
    structured = len(left) > len(_without(left, found))
    left = _without(left, found)
    scaled = [key for f in found if f.code == pattern.SCALED for key in f.tensors]
    found += pattern.noise_of_scaled(statement, measured, scaled, left)
    left = _without(left, found)
    if left and sound and not structured and not _sparse(measured, left):
        found += _some(precision.loose(court, statement, measured, left))
        left = _without(left, found)
    return found + [f for key in left if (f := pattern.located(statement, measured[key])) is not None]


def weakness(
    court: Court, statement: Statement, measured: Mapping[str, Measurement], weak: list[str]
) -> Finding | None:
    """The name of the weak algorithm in `weak`, tensors whose error shrinks with the unit roundoff; None if unknown."""
    return precision.weak(court, statement, measured, weak)


def _sparse(measured: Mapping[str, Measurement], keys: list[str]) -> bool:
    """Whether few elements are over the line, in all tensors together: an error in places, not of arithmetic."""
    outside = sum(int(measured[key].outside.sum()) for key in keys)
    total = sum(measured[key].testimony.size for key in measured)
    return outside <= max(FEW, FEW_SHARE * total) and total > 2 * FEW


def _some(finding: Finding | None) -> list[Finding]:
    return [] if finding is None else [finding]


def _without(keys: list[str], found: list[Finding]) -> list[str]:
    explained = {key for finding in found for key in finding.tensors}
    return [key for key in keys if key not in explained]
