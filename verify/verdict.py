"""From measurements to verdicts (docs/verdicts.md): first each tensor by itself, then what the dtypes say together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gradjury.verify.measure import Measurement

COARSE = 0.1  # a budget over a tenth of the gradient cannot tell a right gradient from a wrong one
LADDER = 2.0**7  # how far two excesses may differ and still be one error that shrinks with the unit roundoff


@dataclass(frozen=True)
class Verdict:
    """The finding for one tensor of one testimony. `why` is a sentence, `arithmetic` a precision that explains it."""

    verdict: str
    measurement: Measurement | None = None
    why: str = ""
    arithmetic: str | None = None


@dataclass
class Finding:
    """One explanation that covers several tensors of a witness: a cause, or a precision."""

    witness: str
    dtype: str
    code: str
    kind: str
    tensors: list[str]
    evidence: str
    verdict: str = "wrong"
    details: dict[str, Any] = field(default_factory=dict)


Table = dict[str, dict[str, Verdict]]  # dtype -> key -> verdict

GUILTY = ("wrong", "unstable", "nonfinite", "missing")


def of_one(measured: Measurement | None) -> Verdict:
    """The verdict that one measurement alone supports; `wrong` stands for everything over the line."""
    if measured is None:
        return Verdict("undecided", why="no reference: the case gives no inputs from which this gradient follows")
    if measured.undefined:
        return Verdict("undecided", measured, "the exact gradient or its budget is not finite here")
    if measured.mismatch:
        return Verdict("nonfinite", measured, _describe_mismatch(measured))
    if measured.excess > 1:
        return Verdict("wrong", measured)
    if measured.zero:
        return Verdict("zero-noise", measured, "the exact gradient is zero: what is printed is rounding")
    if measured.below_budget:
        return Verdict("zero-noise", measured, "the exact gradient is smaller than rounding everywhere")
    if measured.resolution > COARSE and measured.hidden > COARSE:
        return Verdict("undecided", measured, f"rounding may be {measured.resolution:.0%} of the gradient")
    return Verdict("agrees", measured)


def of_ladder(table: Table) -> Table:
    """Lets the dtypes of one witness speak together: float64 decides what float32 leaves open, and the other way round."""
    wide, narrow = table.get("float64", {}), table.get("float32", {})
    settled = {dtype: dict(verdicts) for dtype, verdicts in table.items()}
    for key, fine in wide.items():
        coarse = narrow.get(key)
        if fine.verdict == "agrees":
            for verdicts in settled.values():
                if verdicts.get(key) is not None and _open(verdicts[key]):
                    verdicts[key] = replace(verdicts[key], verdict="agrees", why="")
        if fine.verdict == "wrong" and coarse is not None and coarse.verdict == "wrong" and _shrinks(coarse, fine):
            why = "the error shrinks with the unit roundoff: a numerically weak algorithm, not a wrong formula"
            settled["float64"][key] = replace(fine, verdict="unstable", why=why)
            settled["float32"][key] = replace(coarse, verdict="unstable", why=why)
    return settled


def _open(verdict: Verdict) -> bool:
    measured = verdict.measurement
    return measured is not None and measured.within and not measured.zero and verdict.verdict != "agrees"


def _shrinks(coarse: Verdict, fine: Verdict) -> bool:
    assert coarse.measurement is not None and fine.measurement is not None
    ratio = coarse.measurement.excess / fine.measurement.excess
    return bool(np.isfinite(ratio)) and 1 / LADDER < ratio < LADDER


def _describe_mismatch(measured: Measurement) -> str:
    bad = ~np.isfinite(measured.testimony)
    if bad.any():
        return f"{int(bad.sum())} of {bad.size} elements are NaN or infinite where the exact gradient is finite"
    return "finite where the exact gradient is not"
