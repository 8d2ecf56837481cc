"""A progress bar on standard error for whatever takes longer than a second."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Timer

PATIENCE = 1.0  # seconds before the bar appears

Advance = Callable[[str], None]


@contextmanager
def progress(total: int, first: str) -> Iterator[Advance]:
    """Yields a function that says one of `total` steps is done and what comes next. Silent unless on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False)
    task = bar.add_task(first, total=total)
    lock, ended = Lock(), False

    def start() -> None:
        with lock:
            if not ended:
                bar.start()

    timer = Timer(PATIENCE, start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda description: bar.update(task, advance=1, description=description)
    finally:
        timer.cancel()
        with lock:
            ended = True
        bar.stop()
