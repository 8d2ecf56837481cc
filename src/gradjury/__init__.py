"""GradJury: which of two gradients is wrong, why, and where; or proof that the difference is rounding."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "record": "gradjury.verify.record",
    "judge": "gradjury.verify.api",
    "judge_case": "gradjury.verify.judge",
    "read_case": "gradjury.verify.case",
    "write_case": "gradjury.verify.case",
    "Case": "gradjury.verify.case",
    "Report": "gradjury.verify.report",
}

__all__ = ["__version__", *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'gradjury' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
