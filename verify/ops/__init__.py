"""The ops. Each file in this folder that defines an Op subclass adds one; nothing else has to be told."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from gradjury.verify.ops.base import Op


@cache
def all_ops() -> dict[str, Op]:
    """Every op by name."""
    found: dict[str, Op] = {}
    for module in pkgutil.iter_modules(__path__):
        for thing in vars(import_module(f"{__name__}.{module.name}")).values():
            if isinstance(thing, type) and issubclass(thing, Op) and "name" in vars(thing):
                found[thing.name] = thing()
    return dict(sorted(found.items()))


def get(name: str) -> Op | None:
    """The op called `name`; None if it is unknown."""
    return all_ops().get(name)
