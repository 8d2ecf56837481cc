"""Progress: nothing where nobody watches, a bar where it takes long."""

from __future__ import annotations

import io
import sys
import time

import pytest

from gradjury.verify import progress as module
from gradjury.verify.progress import progress


class Terminal(io.StringIO):
    """A standard error that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch, patience: float, seconds: float) -> str:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(module, "PATIENCE", patience)
    with progress(2, "first.npz") as advance:
        time.sleep(seconds)
        advance("second.npz")
        time.sleep(seconds)
    return screen.getvalue()


def test_silent_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    with progress(1, "case") as advance:
        advance("done")
    assert capsys.readouterr() == ("", "")


def test_silent_if_it_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(monkeypatch, patience=60.0, seconds=0.0) == ""


def test_a_bar_if_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = watched(monkeypatch, patience=0.01, seconds=0.3)
    assert "first.npz" in shown
    assert "1/2" in shown
