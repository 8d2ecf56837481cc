"""The whole tree is clean under ruff and mypy --strict, and the README's commands are those that CI runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def _run(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff() -> None:
    """No lint is left."""
    _run("ruff", "check", "--no-cache", ".")


def test_mypy() -> None:
    """Every function of the package is typed, strictly."""
    _run("mypy", "--no-incremental")


def test_ci_runs_the_readmes_second_command() -> None:
    """.ci/run holds the README's second command as it stands there."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    commands = [line for line in readme if line.startswith("python3 -m venv")]
    assert len(commands) == 2
    assert commands[1] in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
