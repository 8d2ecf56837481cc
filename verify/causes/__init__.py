"""The search for what turns the reference into a testimony that is over the line."""

from __future__ import annotations

from collections.abc import Mapping

from gradjury.verify.causes import definition, partial, pattern, precision
from gradjury.verify.court import Court, Statement
from gradjury.verify.measure import Measurement
from gradjury.verify.verdict import Finding


def explain(
    court: Court, statement: Statement, measured: Mapping[str, Measurement], over: list[str], *, sound: bool
) -> list[Finding]:
    """Explanations of the tensors in `over`, tight ones first; each tensor is explained once at most.

    `sound`: whether the formula is not in question by another dtype of the same witness, so that arithmetic of lower
    precision may explain the error; a known mistake or definition that fits comes before it.
    """
    found = partial.explain(court, statement, measured, over)
    left = _without(over, found)
    if left:
        found += definition.explain(court, statement, left)
        left = _without(over, found)
    shapes = [f for key in left if (f := pattern.explain(statement, measured[key])) is not None]
    if left and sound and not shapes:
        lower = precision.explain(court, statement, measured, left)
        if lower is not None:
            return [*found, lower]
    return found + shapes


def _without(keys: list[str], found: list[Finding]) -> list[str]:
    explained = {key for finding in found for key in finding.tensors}
    return [key for key in keys if key not in explained]
