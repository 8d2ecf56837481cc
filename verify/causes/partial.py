"""Gradients of a tensor with several consumers: a part taken for the whole, or the whole for a part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from gradjury.verify.case import Case
from gradjury.verify.court import Court, Statement
from gradjury.verify.graph import consumers, part_key, split_part
from gradjury.verify.measure import Measurement, measure
from gradjury.verify.reference import Exact, Reference
from gradjury.verify.verdict import Finding


def explain(court: Court, statement: Statement, measured: Mapping[str, Measurement], over: list[str]) -> list[Finding]:
    """Every tensor of `over` that is one consumer's part (or the total where a part was asked), and what follows from it."""
    found = []
    left = list(over)
    for key in over:
        finding = _of_tensor(court, statement, key, left)
        if finding is not None:
            found.append(finding)
            left = [k for k in left if k not in finding.tensors]
    return found + _unseen(court, statement, left)


def _of_tensor(court: Court, statement: Statement, key: str, over: list[str]) -> Finding | None:
    reference = court.reference_for(statement)
    tensor, node, _ = split_part(court.case, key)
    if node is not None:
        if _equals(court, statement, key, tensor, reference):
            text = f"equals the whole gradient of {tensor}, where only the part from {node} was asked"
            return _finding(statement, "accumulate.includes-more", "harness", [key], text, "agrees")
        return None
    for part in part_keys(court.case, tensor):
        if not _equals(court, statement, key, part, reference):
            continue
        behind = [k for k in over if k != key and split_part(court.case, k)[0] in ancestors(court.case, tensor)]
        source = part.removeprefix(f"{tensor}@")
        if not behind:
            text = f"equals the part of {tensor} that flows back from {source} alone; all that lies behind is right"
            return _finding(statement, "accumulate.partial", "harness", [key], text, "agrees")
        follows = _follow(court, statement, tensor, _values(reference.gradient(part)), behind)
        text = f"equals the part that flows back from {source} alone, and {len(follows)} tensors behind follow from it"
        return _finding(statement, "accumulate.partial", "mistake", [key, *follows], text, "wrong")
    return None


def _unseen(court: Court, statement: Statement, over: list[str]) -> list[Finding]:
    """A fork whose own gradient nobody recorded, but behind which everything follows from one part of it."""
    reference = court.reference_for(statement)
    for tensor in forks(court.case):
        behind = [k for k in over if split_part(court.case, k)[0] in ancestors(court.case, tensor)]
        if not behind or tensor in statement.gradients:
            continue
        for name, gradient in _lesser(court.case, tensor, reference):
            follows = _follow(court, statement, tensor, gradient, behind)
            if len(follows) == len(behind):
                text = f"everything behind {tensor} follows from {name} alone"
                return [_finding(statement, "accumulate.overwritten", "mistake", follows, text, "wrong")]
    return []


def _lesser(case: Case, tensor: str, reference: Reference) -> Iterator[tuple[str, np.ndarray]]:
    """Each part of a gradient, and (with more than two) the total without each part."""
    total = reference.gradient(tensor)
    parts = {key: reference.gradient(key) for key in part_keys(case, tensor)}
    for key, part in parts.items():
        if part is not None:
            yield f"the part from {key.removeprefix(f'{tensor}@')}", part.high
    if total is not None and len(parts) > 2:
        for key, part in parts.items():
            if part is not None:
                yield f"the gradient without the part from {key.removeprefix(f'{tensor}@')}", total.high - part.high


def _follow(court: Court, statement: Statement, tensor: str, gradient: np.ndarray, keys: list[str]) -> list[str]:
    """Which of `keys` are right once `gradient` is taken as the gradient of `tensor`."""
    changed = court.make(court.case, statement.dtype, replace={tensor: gradient})
    held = {key: court.fits(statement, key, changed) for key in keys}
    return [key for key, m in held.items() if m is not None and m.within]


def _equals(court: Court, statement: Statement, key: str, other: str, reference: Reference) -> bool:
    """Whether the testimony for `key` is the reference gradient called `other`, within that one's budget."""
    exact, array = reference.gradient(other), statement.gradients[key]
    if exact is None or exact.high.shape != array.shape or not exact.high.any():
        return False
    found = measure(reference, other, array, printed=statement.printed(array))
    return found is not None and found.within


def part_keys(case: Case, tensor: str) -> list[str]:
    """The part keys of a tensor with several consumers; none if it has one."""
    uses = consumers(case, tensor)
    return [part_key(case, tensor, node.name, slot) for node, slot in uses] if len(uses) > 1 else []


def forks(case: Case) -> list[str]:
    """Tensors with more than one consumer."""
    names = dict.fromkeys(name for node in case.graph for name in node.inputs.values())
    return [name for name in names if len(consumers(case, name)) > 1]


def ancestors(case: Case, tensor: str) -> set[str]:
    """Everything that a tensor was computed from: what lies behind it for its gradient."""
    producer = {name: node for node in case.graph for name in node.outputs.values()}
    found: set[str] = set()
    waiting = [tensor]
    while waiting:
        node = producer.get(waiting.pop())
        fresh = set() if node is None else set(node.inputs.values()) - found
        found |= fresh
        waiting += fresh
    return found


def _values(exact: Exact | None) -> np.ndarray:
    assert exact is not None
    return exact.high


def _finding(statement: Statement, code: str, kind: str, keys: list[str], evidence: str, verdict: str) -> Finding:
    return Finding(statement.witness.name, statement.dtype, code, kind, keys, evidence, verdict)
