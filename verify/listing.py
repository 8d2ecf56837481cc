"""The ops as a table, from their declarations: `gradjury case ops`."""

from __future__ import annotations

import json

from gradjury.verify import ops
from gradjury.verify.ops.base import Attribute, Op, Slot

HEAD = ("op", "inputs", "outputs", "attributes [default]")


def ops_table() -> str:
    """One line an op; optional inputs carry a `?`, inputs that hold integers a `#`."""
    rows = [HEAD, *(_row(op) for op in ops.all_ops().values())]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join("  ".join([*map(str.ljust, row[:3], widths), row[3]]).rstrip() for row in rows)


def _row(op: Op) -> tuple[str, str, str, str]:
    slots = [_slot(slot) for slot in op.inputs]
    if len(slots) > 8:
        slots = [*slots[:2], f"… {slots[-1]}"]
    attributes = [f"{name} {_values(attribute)}" for name, attribute in op.attributes.items()]
    return op.name, ", ".join(slots), ", ".join(op.outputs), ", ".join(attributes)


def _slot(slot: Slot) -> str:
    return slot.name + "?" * slot.optional + "#" * slot.integer


def _values(attribute: Attribute) -> str:
    default = attribute.default if isinstance(attribute.default, str) else json.dumps(attribute.default)
    others = [str(choice) for choice in attribute.choices or () if choice != attribute.default]
    return "/".join([f"[{default}]", *others])
