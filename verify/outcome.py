"""What a command found, case by case: one JSON object, one exit code (DESIGN section 6)."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradjury.verify.errors import CaseError

if TYPE_CHECKING:
    from gradjury.verify.report import Report

AGREE, WRONG, UNREADABLE, UNDECIDED, FAILED, BUG = 0, 1, 2, 3, 4, 70
WORST_FIRST = (WRONG, BUG, UNREADABLE, FAILED, UNDECIDED, AGREE)
TRACEBACK = "GRADJURY_TRACEBACK"


@dataclass(frozen=True)
class Outcome:
    """One case: its report, or one line that says why there is none."""

    case: str
    report: Report | None = None
    error: str = ""
    code: int = AGREE

    @property
    def json(self) -> dict[str, Any]:
        """The report's object, or `{"case": …, "error": …}`."""
        if self.report is None:
            return {"gradjury": 1, "case": self.case, "error": self.error}
        return self.report.data


def attempt(case: str, make: Callable[[], Report]) -> Outcome:
    """Makes one report: see `attempts`."""
    return attempts(case, lambda: [make()])[0]


def attempts(case: str, make: Callable[[], list[Report]]) -> list[Outcome]:
    """Makes reports. Bad input becomes a line; so does a fault of our own, said as such, never taken for a verdict."""
    from gradjury.kernels.engine import EngineMissing

    try:
        return [reported(case, report) for report in make()]
    except (CaseError, EngineMissing) as error:
        return [Outcome(case, error=str(error), code=UNREADABLE)]
    except Exception as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        said = " ".join(f"{type(error).__name__}: {error}".split())
        hint = f"a bug in gradjury, not a verdict; {TRACEBACK}=1 shows where"
        return [Outcome(case, error=f"{case}: {said} ({hint})", code=BUG)]


def reported(case: str, report: Report) -> Outcome:
    """The outcome of a finished report."""
    return Outcome(case, report, code=exit_code_of(report))


def exit_code_of(report: Report) -> int:
    """0 nobody is wrong, 1 somebody is, 3 undecided, 4 a witness failed to run and nobody is wrong."""
    if report.decision == "wrong":
        return WRONG
    if report.data.get("failures"):
        return FAILED
    return UNDECIDED if report.decision == "undecided" else AGREE


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """The worst of several."""
    codes = {outcome.code for outcome in outcomes}
    return next((code for code in WORST_FIRST if code in codes), AGREE)


def as_json(outcomes: Sequence[Outcome], *, single: bool) -> dict[str, Any]:
    """One object: the case's own if one was asked for, otherwise a list of them."""
    if single and len(outcomes) == 1:
        return outcomes[0].json
    return {"gradjury": 1, "cases": [outcome.json for outcome in outcomes]}
