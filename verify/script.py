"""`gradjury check FILE.py`: runs somebody's file and collects every judgement that it makes."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gradjury.verify.outcome import UNREADABLE, Outcome, reported
from gradjury.verify.progress import progress
from gradjury.verify.report.report import collect


def run_script(path: Path, arguments: Sequence[str] = (), *, verbose: bool = False) -> list[Outcome]:
    """The judgements of a Python file, and the error that ended it, if one did.

    The file runs as `python FILE.py ARGUMENTS` would. With `verbose` an error shows its traceback.
    """
    if not path.is_file():
        found = "a directory" if path.is_dir() else "no such file"
        return [Outcome(str(path), error=f"{path}: expected a Python file, found {found}", code=UNREADABLE)]
    with collect() as reports, progress(1, f"running {path.name}"):
        error = _run(path, arguments, verbose)
    outcomes = [reported(report.data["case"], report) for report in reports]
    asserted = error is not None and isinstance(error, AssertionError) and any(str(r) in str(error) for r in reports)
    if error is not None and not asserted:
        outcomes.append(Outcome(str(path), error=_described(path, error), code=UNREADABLE))
    if not outcomes:
        hint = "record with gradjury.record(model) and run.check({...}), or call gradjury.judge(...)"
        outcomes.append(Outcome(str(path), error=f"{path}: judges nothing; {hint}", code=UNREADABLE))
    return outcomes


def _run(path: Path, arguments: Sequence[str], verbose: bool) -> BaseException | None:
    try:
        with _as_program(path, arguments):
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as stop:
        return stop if stop.code not in (None, 0) else None
    except Exception as error:
        if verbose:
            traceback.print_exc()
        return error
    return None


@contextmanager
def _as_program(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Arguments and import path as they are for a program of its own."""
    before = sys.argv, sys.path[:]
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before


def _described(path: Path, error: BaseException) -> str:
    """The error in one line, with the line of the user's file where it happened."""
    if isinstance(error, SystemExit):
        return f"{path}: ended itself with exit code {error.code}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else None
    place = f"{path}:{line}" if line is not None else str(path)
    return f"{place}: {type(error).__name__}: {' '.join(str(error).split())[:300]} (-v shows the traceback)"
