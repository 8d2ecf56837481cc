"""The result of a judgement: one object for the terminal, for scripts and for test suites."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradjury.verify.case import Case, write_case
from gradjury.verify.report.text import Line, plain

_collectors: list[list[Report]] = []


@contextmanager
def collect() -> Iterator[list[Report]]:
    """Gathers every report made inside, in order; their `show` prints nothing there."""
    reports: list[Report] = []
    _collectors.append(reports)
    try:
        yield reports
    finally:
        _collectors.remove(reports)


class Report:
    """A judgement. `data` is the JSON object of docs/verdicts.md; `case` is what was judged, where it can be saved."""

    def __init__(self, data: dict[str, Any], case: Case | None = None) -> None:
        self.data = data
        self.case = case
        for reports in _collectors:
            reports.append(self)

    @property
    def decision(self) -> str:
        """`agree`, `wrong` or `undecided`."""
        return str(self.data["decision"])

    @property
    def wrong(self) -> list[str]:
        """The witnesses that are wrong."""
        return list(self.data["wrong"])

    @property
    def json(self) -> str:
        """The report as one JSON object."""
        return json.dumps(self.data, ensure_ascii=False, allow_nan=False)

    def text(self, *, verbose: bool = False, width: int | None = None) -> str:
        """The report as it stands on a terminal, without colours."""
        from gradjury.verify.report.terminal import WIDTH

        return plain(self.lines(verbose=verbose, width=width or WIDTH))

    def lines(self, *, verbose: bool, width: int) -> list[Line]:
        """The report as lines of styled text, none wider than `width` columns."""
        from gradjury.verify.report.terminal import compose

        return compose(self, verbose=verbose, width=width)

    def __str__(self) -> str:
        return self.text()

    def show(self, *, verbose: bool = False) -> None:
        """Prints the report, in colour where the terminal has it. Under `gradjury check` the command does that."""
        if _collectors:
            return
        from gradjury.verify.report.terminal import show

        show(self, verbose=verbose)

    def assert_ok(self) -> None:
        """Raises AssertionError with the report unless the decision is that nobody is wrong."""
        __tracebackhide__ = True
        if self.decision != "agree":
            raise AssertionError(f"\n{self}")

    def save(self, path: str | Path) -> None:
        """Writes the judged case as `.npz` or `.safetensors`. Raises CaseError."""
        if self.case is None:
            raise ValueError("this report was made without a case, so there is nothing to save")
        write_case(self.case, path)
