"""Arguments of recorded calls: nested lists, tuples and dicts with tensors in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ref:
    """Stands for a tensor in recorded arguments. `tracked`: made by a recorded call, so that gradient flows through it."""

    key: int
    name: str
    tracked: bool


def leaves(x: Any, kind: type | tuple[type, ...]) -> list[Any]:
    """Everything of type `kind` in x, in order."""
    if isinstance(x, kind):
        return [x]
    if isinstance(x, (list, tuple)):
        return [leaf for item in x for leaf in leaves(item, kind)]
    if isinstance(x, dict):
        return [leaf for item in x.values() for leaf in leaves(item, kind)]
    return []


def mapped(x: Any, kind: type | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """x with everything of type `kind` changed."""
    if isinstance(x, kind):
        return change(x)
    if isinstance(x, (list, tuple)):
        items = [mapped(item, kind, change) for item in x]
        return items if type(x) is list else tuple(items) if type(x) is tuple else type(x)(items)
    if isinstance(x, dict):
        return {key: mapped(item, kind, change) for key, item in x.items()}
    return x
