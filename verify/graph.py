"""The graph of a case: its order, its consumers, the names of parts, and whether it makes sense."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from gradjury.verify import ops
from gradjury.verify.case import Case, Node
from gradjury.verify.errors import CaseError
from gradjury.verify.ops.base import Op, OpError

Shape = tuple[int, ...]


# ---- walking


def order(case: Case) -> list[Node]:
    """The nodes so that each comes after those whose outputs it uses, else as listed. Raises CaseError for a cycle."""
    producer = producers(case)
    waits_for: dict[str, set[str]] = {}
    serves: dict[str, list[Node]] = {}
    for node in case.graph:
        before = {producer[name].name for name in node.inputs.values() if name in producer}
        waits_for[node.name] = before
        for other in before:
            serves.setdefault(other, []).append(node)
    ready = [node for node in case.graph if not waits_for[node.name]]
    ordered: list[Node] = []
    while len(ordered) < len(ready):
        node = ready[len(ordered)]
        ordered.append(node)
        for after in serves.get(node.name, ()):
            waits_for[after.name].discard(node.name)
            if not waits_for[after.name]:
                ready.append(after)
    if len(ordered) < len(case.graph):
        stuck = {node.name for node in case.graph} - {node.name for node in ordered}
        raise CaseError(f"{case.name}: graph: a cycle runs through {_cycle(stuck, waits_for)}")
    return ordered


def _cycle(stuck: set[str], waits_for: Mapping[str, set[str]]) -> str:
    walk: list[str] = []
    name = min(stuck)
    while name not in walk:
        walk.append(name)
        name = min(waits_for[name] & stuck)
    return " <- ".join([*walk[walk.index(name) :], name])


def producers(case: Case) -> dict[str, Node]:
    """The node that computes each tensor; graph inputs are not in it."""
    return {name: node for node in case.graph for name in node.outputs.values()}


def tensors(case: Case) -> set[str]:
    """Every tensor name of the graph."""
    return {name for node in case.graph for name in (*node.inputs.values(), *node.outputs.values())}


def uses(case: Case, tensor: str) -> list[tuple[Node, str]]:
    """Where a tensor goes: node and input slot."""
    return [(node, slot) for node in case.graph for slot, name in node.inputs.items() if name == tensor]


def consumers(case: Case, tensor: str) -> list[tuple[Node, str]]:
    """The uses of a tensor from which gradient can flow back."""
    return [(node, slot) for node, slot in uses(case, tensor) if _differentiable(ops.get(node.op), slot)]


def differentiable(case: Case, tensor: str) -> bool:
    """Whether gradient can flow back from every use of a tensor."""
    return len(consumers(case, tensor)) == len(uses(case, tensor))


def _differentiable(op: Op | None, slot: str) -> bool:
    return op is None or any(s.name == slot and s.differentiable for s in op.inputs)


def opaque(case: Case) -> list[Node]:
    """Nodes whose op is unknown: they are judged only by comparing witnesses."""
    return [node for node in case.graph if ops.get(node.op) is None]


# ---- parts


def part_key(case: Case, tensor: str, node: str, slot: str) -> str:
    """The key of the part of `tensor`'s gradient that flows back from `slot` of the consumer `node`."""
    slots = [s for n, s in uses(case, tensor) if n.name == node]
    return f"{tensor}@{node}.{slot}" if len(slots) > 1 else f"{tensor}@{node}"


def split_part(case: Case, key: str) -> tuple[str, str | None, str | None]:
    """A gradient's key as (tensor, node, slot); node and slot are None where the whole gradient is meant.

    The last `@…` names a part only if it names a consumer; otherwise it belongs to the tensor's name (`x@GRAD`). `slot`
    is None if the key names none: then all inputs of that node are meant.
    """
    tensor, at, end = key.rpartition("@")
    if at:
        found = uses(case, tensor)
        if any(node.name == end for node, _ in found):
            return tensor, end, None
        for node, slot in found:
            if f"{node.name}.{slot}" == end:
                return tensor, node.name, slot
    return key, None, None


# ---- checking


def check(case: Case) -> dict[str, Shape]:
    """The shapes of all tensors that follow from the case's values. Raises CaseError for what makes no sense."""
    _check_names(case)
    shapes: dict[str, Shape] = {name: value.shape for name, value in case.values.items()}
    integers = _integers(case)
    for node in order(case):
        op = ops.get(node.op)
        if op is not None:
            _check_node(case, node, op)
            _infer(case, node, op, shapes)
    _check_values(case, integers)
    _check_upstream(case, shapes)
    _check_keys(case, integers)
    return shapes


def complete(case: Case, shapes: Mapping[str, Shape]) -> Case:
    """The case with what it leaves to be understood.

    Upstream gradients get the shapes of their tensors, and a scalar that is the only output nothing uses gets 1; whole
    numbers become integers where an op needs those; parts are named as `part_key` names them.
    """
    upstream = {name: gradient.reshape(shapes.get(name, gradient.shape)) for name, gradient in case.upstream.items()}
    integers = {name: case.values[name].astype(np.int64) for name in _integers(case) if name in case.values}
    unused = unused_outputs(case)
    if len(unused) == 1 and unused[0] not in upstream and _size(shapes.get(unused[0])) == 1:
        upstream[unused[0]] = np.ones(shapes[unused[0]])
    testimonies = {
        place: replace(said, gradients={_usual_key(case, key): array for key, array in said.gradients.items()})
        for place, said in case.testimonies.items()
    }
    return replace(case, upstream=upstream, values=case.values | integers, testimonies=testimonies)


def _usual_key(case: Case, key: str) -> str:
    tensor, node, slot = split_part(case, key)
    return key if node is None or slot is None else part_key(case, tensor, node, slot)


def remarks(case: Case) -> list[str]:
    """What a completed case lacks for a reference, and what it holds for nothing; one line each."""
    found = []
    if not case.upstream:
        example = (unused_outputs(case) or ["NAME"])[0]
        found.append(f"no upstream gradient, hence no reference: record upstream/{example}")
    produced = producers(case)
    inputs = {name for node in case.graph for name in node.inputs.values() if name not in produced}
    missing = sorted(inputs - set(case.values))
    if missing:
        found.append(f"no value of {_listed(missing)}: what depends on it has no reference")
    for node in opaque(case):
        close = get_close_matches(node.op, ops.all_ops(), 1)
        if close and "." not in node.op:
            found.append(f"node {node.name}: op {node.op} is unknown; did you mean {close[0]}?")
    unused = sorted(set(case.values) - tensors(case))
    if unused:
        found.append(f"value of {_listed(unused)}: not used by the graph")
    return found


def unused_outputs(case: Case) -> list[str]:
    """Tensors that some node computes and none uses."""
    used = {name for node in case.graph for name in node.inputs.values()}
    return [name for node in case.graph for name in node.outputs.values() if name not in used]


def define(case: Case, settings: Mapping[str, Any]) -> Case:
    """The case under another definition: `{"gru.update": "keeps-candidate"}` sets it in every gru and gru_step."""
    graph = list(case.graph)
    for setting, value in settings.items():
        family, dot, attribute = setting.rpartition(".")
        chosen = [i for i, node in enumerate(graph) if dot and node.op in (family, f"{family}_step")]
        if not chosen:
            found = ", ".join(sorted({node.op for node in graph}))
            raise CaseError(
                f"{case.name}: definition {setting}: expected OP.ATTRIBUTE with an op of the graph ({found})"
            )
        for i in chosen:
            graph[i] = replace(graph[i], attributes={**graph[i].attributes, attribute: value})
    return replace(case, graph=graph)


def _check_names(case: Case) -> None:
    names: set[str] = set()
    produced: dict[str, str] = {}
    for node in case.graph:
        if node.name in names:
            raise CaseError(f"{case.name}: graph: two nodes are called {node.name!r}")
        names.add(node.name)
        for name in node.outputs.values():
            if name in produced:
                raise CaseError(f"{case.name}: {name!r} is produced by {produced[name]!r} and again by {node.name!r}")
            if name in case.values and ops.get(node.op) is not None:
                raise CaseError(
                    f"{case.name}: {name!r} is given as value/{name} and produced by {node.name!r}; leave one out"
                )
            produced[name] = node.name


def _check_node(case: Case, node: Node, op: Op) -> None:
    where = f"{case.name}: node {node.name!r} ({node.op})"
    slots = [slot.name for slot in op.inputs]
    for slot in node.inputs:
        if slot not in slots:
            raise CaseError(f"{where}: input {slot!r}: unknown; {node.op} takes {', '.join(slots)}")
    for declared in op.inputs:
        if not declared.optional and declared.name not in node.inputs:
            raise CaseError(f"{where}: input {declared.name!r} is missing")
    for slot in node.outputs:
        if slot not in op.outputs:
            raise CaseError(f"{where}: output {slot!r}: unknown; {node.op} gives {', '.join(op.outputs)}")
    if not node.outputs:
        raise CaseError(f"{where}: expected at least one output ({', '.join(op.outputs)})")
    try:
        op.check_attributes(node.attributes)
    except OpError as error:
        raise CaseError(f"{where}: {error}") from None


def _infer(case: Case, node: Node, op: Op, shapes: dict[str, Shape]) -> None:
    if any(name not in shapes for name in node.inputs.values()):
        return
    by_slot = {slot: shapes[name] for slot, name in node.inputs.items()}
    integer = {slot.name for slot in op.inputs if slot.integer}
    values = {s: case.values[name] for s, name in node.inputs.items() if s in integer and name in case.values}
    try:
        outputs = op.shapes(by_slot, values, op.complete(node.attributes))
    except OpError as error:
        raise CaseError(f"{case.name}: node {node.name!r} ({node.op}): {error}") from None
    shapes |= {name: tuple(outputs[slot]) for slot, name in node.outputs.items()}


def _integers(case: Case) -> dict[str, str]:
    """Tensors that are read as integers, with the node that does."""
    return {name: node.name for node, slot, name in _uses(case) if slot is not None and slot.integer}


def _uses(case: Case) -> Iterator[tuple[Node, Any, str]]:
    for node in case.graph:
        op = ops.get(node.op)
        slots = {} if op is None else {slot.name: slot for slot in op.inputs}
        for slot, name in node.inputs.items():
            yield node, slots.get(slot), name


def _check_values(case: Case, integers: Mapping[str, str]) -> None:
    for name, reader in integers.items():
        value = case.values.get(name)
        if value is not None and not _whole(value):
            raise CaseError(
                f"{case.name}: value/{name}: node {reader!r} needs integers, found {value.dtype} with fractions"
            )
    for node, slot, name in _uses(case):
        if name in integers and slot is not None and not slot.integer:
            readers = f"as integers by {integers[name]!r} and as numbers by {node.name!r}"
            raise CaseError(f"{case.name}: {name!r} is read {readers}; use two names")


def _check_upstream(case: Case, shapes: Mapping[str, Shape]) -> None:
    produced = producers(case)
    for name, gradient in case.upstream.items():
        if name not in produced:
            outputs = _listed(unused_outputs(case)) or "none"
            raise CaseError(
                f"{case.name}: upstream/{name}: expected an output of the graph ({outputs}), found {name!r}"
            )
        shape = shapes.get(name)
        if shape is not None and _squeezed(gradient.shape) != _squeezed(shape):
            raise CaseError(f"{case.name}: upstream/{name}: expected shape {shape}, found {gradient.shape}")


def _check_keys(case: Case, integers: Mapping[str, str]) -> None:
    known = tensors(case)
    for (witness, dtype), testimony in case.testimonies.items():
        for key in testimony.gradients:
            _check_key(case, f"grad/{witness}/{dtype}/{key}", split_part(case, key)[0], known, integers)
        for key in testimony.forward:
            _check_key(case, f"forward/{witness}/{dtype}/{key}", key, known, {})
    for name, party in case.witnesses.items():
        for key in party.absent:
            _check_key(case, f"absent of witness {name!r}", split_part(case, key)[0], known, {})


def _check_key(case: Case, where: str, tensor: str, known: set[str], integers: Mapping[str, str]) -> None:
    if tensor not in known:
        close = get_close_matches(tensor, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {_listed(sorted(known))}"
        raise CaseError(f"{case.name}: {where}: {tensor!r} is no tensor of the graph; {hint}")
    if tensor in integers:
        raise CaseError(
            f"{case.name}: {where}: {tensor!r} holds integers (for {integers[tensor]!r}): they have no gradient"
        )


def _whole(value: np.ndarray) -> bool:
    return value.dtype.kind != "f" or bool((np.isfinite(value) & (value == np.rint(value))).all())


def _squeezed(shape: Shape) -> Shape:
    return tuple(n for n in shape if n != 1)


def _size(shape: Shape | None) -> int | None:
    return None if shape is None else int(np.prod(shape))


def _listed(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
