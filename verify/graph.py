"""The graph of a case: checked, ordered, and asked who uses what."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import numpy as np

from gradjury.verify import ops
from gradjury.verify.case import Case, CaseError, Node
from gradjury.verify.ops.base import Op, OpError

Shape = tuple[int, ...]


def check(case: Case) -> dict[str, Shape]:
    """Shapes of all tensors that can be known. Raises CaseError for what contradicts itself.

    Inputs without a value are allowed: what depends on them is then judged by comparison alone.
    """
    _check_names(case)
    _check_slots(case)
    ordered = order(case)
    shapes: dict[str, Shape] = {}
    for name, value in case.values.items():
        _expect(name in _names(case), case, f"value/{name}: no node uses this tensor{_suggest(name, _names(case))}")
        _expect(name not in producers(case), case, f"value/{name}: node {_maker(case, name)} computes this tensor")
        shapes[name] = value.shape
    _check_integers(case)
    for node in ordered:
        shapes |= _output_shapes(case, node, shapes)
    _check_upstream(case, shapes)
    _check_testimonies(case)
    return shapes


def order(case: Case) -> list[Node]:
    """The nodes, each after those whose outputs it uses; otherwise as written. Raises CaseError for a cycle."""
    made = producers(case)
    placed: dict[str, Node] = {}
    waiting = list(case.graph)
    while waiting:
        ready = [n for n in waiting if all(t not in made or made[t].name in placed for t in n.inputs.values())]
        if not ready:
            raise CaseError(f"{case.name}: the graph has a cycle through {', '.join(n.name for n in waiting[:4])}")
        for node in ready:
            placed[node.name] = node
        waiting = [n for n in waiting if n.name not in placed]
    return list(placed.values())


def producers(case: Case) -> dict[str, Node]:
    """The node that computes each tensor; graph inputs are absent."""
    return {name: node for node in case.graph for name in node.outputs.values()}


def consumers(case: Case, tensor: str) -> list[tuple[Node, str]]:
    """The nodes and slots that a tensor goes into, as far as gradient can flow back from them."""
    found = []
    for node in case.graph:
        op = ops.get(node.op)
        for slot, name in node.inputs.items():
            if name == tensor and _differentiable(op, slot):
                found.append((node, slot))
    return found


def part_key(case: Case, tensor: str, node: str, slot: str) -> str:
    """The key of the part of a gradient that flows back from one use: NAME@NODE, or NAME@NODE.SLOT if NODE has several."""
    uses = [s for n, s in consumers(case, tensor) if n.name == node]
    return f"{tensor}@{node}.{slot}" if len(uses) > 1 else f"{tensor}@{node}"


def split_part(case: Case, key: str) -> tuple[str, str | None, str | None]:
    """(tensor, node, slot) of a gradient's key. The last @… is a part only if it names a consumer of what is before it."""
    tensor, at, place = key.rpartition("@")
    if at:
        for node, slot in consumers(case, tensor):
            if place == node.name:
                return tensor, node.name, None
            if place == f"{node.name}.{slot}":
                return tensor, node.name, slot
    return key, None, None


def opaque(case: Case) -> list[Node]:
    """Nodes whose op nobody here knows: judged by comparison alone."""
    return [node for node in case.graph if ops.get(node.op) is None]


def _check_names(case: Case) -> None:
    seen: set[str] = set()
    for node in case.graph:
        _expect(node.name not in seen, case, f"node {node.name}: two nodes have this name")
        seen.add(node.name)
    made: dict[str, str] = {}
    for node in case.graph:
        for name in node.outputs.values():
            _expect(name not in made, case, f"tensor {name}: computed by both {made.get(name)} and {node.name}")
            made[name] = node.name


def _check_slots(case: Case) -> None:
    for node in case.graph:
        op = ops.get(node.op)
        if op is None:
            close = get_close_matches(node.op, ops.all_ops(), 1)
            if close and "." not in node.op:
                case.notes.append(f"node {node.name}: op {node.op!r} is unknown (did you mean {close[0]!r}?)")
            continue
        known = {slot.name for slot in op.inputs}
        for slot in node.inputs:
            _expect(slot in known, case, f"node {node.name}: {op.name} has no input {slot!r}; it takes {', '.join(sorted(known))}")
        for declared in op.inputs:
            there = declared.optional or declared.name in node.inputs
            _expect(there, case, f"node {node.name}: {op.name} needs the input {declared.name!r}")
        for slot in node.outputs:
            _expect(slot in op.outputs, case, f"node {node.name}: {op.name} has no output {slot!r}; it gives {', '.join(op.outputs)}")
        try:
            op.check_attributes(node.attributes)
        except OpError as error:
            raise CaseError(f"{case.name}: node {node.name}: {error}") from None


def _check_integers(case: Case) -> None:
    for node in case.graph:
        op = ops.get(node.op)
        for slot in op.inputs if op is not None else ():
            value = case.values.get(node.inputs.get(slot.name, ""))
            if slot.integer and value is not None and value.dtype.kind not in "iub":
                whole = value.dtype.kind == "f" and bool(np.isfinite(value).all()) and bool((value == np.rint(value)).all())
                _expect(whole, case, f"node {node.name}: {slot.name}: expected integers, found {value.dtype}")
                case.values[node.inputs[slot.name]] = value.astype(np.int64)


def _output_shapes(case: Case, node: Node, shapes: dict[str, Shape]) -> dict[str, Shape]:
    op = ops.get(node.op)
    if op is None or any(name not in shapes for name in node.inputs.values()):
        return {}
    given = {slot: shapes[name] for slot, name in node.inputs.items()}
    values: dict[str, Any] = {s.name: case.values.get(node.inputs.get(s.name, "")) for s in op.inputs if s.integer}
    try:
        found = op.shapes(given, values, op.complete(node.attributes))
    except OpError as error:
        raise CaseError(f"{case.name}: node {node.name}: {error}") from None
    return {name: found[slot] for slot, name in node.outputs.items()}


def _check_upstream(case: Case, shapes: dict[str, Shape]) -> None:
    for name, gradient in case.upstream.items():
        _expect(name in producers(case), case, f"upstream/{name}: no node computes this tensor{_suggest(name, producers(case))}")
        shape = shapes.get(name)
        if shape is not None and gradient.shape != shape:
            squeezed = tuple(n for n in gradient.shape if n != 1) == tuple(n for n in shape if n != 1)
            _expect(squeezed, case, f"upstream/{name}: expected shape {shape}, found {gradient.shape}")
            case.upstream[name] = gradient.reshape(shape)
    if case.graph and not case.upstream:
        used = {name for node in case.graph for name in node.inputs.values()}
        loose = [name for name in producers(case) if name not in used]
        scalar = len(loose) == 1 and shapes.get(loose[0], ()) == ()
        if not scalar and all(name in shapes for name in loose):
            shown = ", ".join(f"{name} {shapes[name]}" for name in loose[:3])
            raise CaseError(f"{case.name}: no upstream gradient is given for {shown}; add upstream/NAME")


def _check_testimonies(case: Case) -> None:
    names = _names(case)
    for testimony in case.testimonies.values():
        for kind, found in (("grad", testimony.gradients), ("forward", testimony.forward)):
            for key in found:
                tensor = split_part(case, key)[0] if kind == "grad" else key
                where = f"{kind}/{testimony.witness}/{testimony.dtype}/{key}"
                _expect(not names or tensor in names, case, f"{where}: the graph has no tensor {tensor!r}{_suggest(tensor, names)}")


def _names(case: Case) -> set[str]:
    return {name for node in case.graph for name in (*node.inputs.values(), *node.outputs.values())}


def _maker(case: Case, name: str) -> str:
    return producers(case)[name].name


def _differentiable(op: Op | None, slot: str) -> bool:
    return op is None or any(s.name == slot and s.differentiable for s in op.inputs)


def _suggest(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _expect(condition: bool, case: Case, message: str) -> None:
    if not condition:
        raise CaseError(f"{case.name}: {message}")
