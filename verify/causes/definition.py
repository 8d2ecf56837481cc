"""Other definitions of an op: the gradient may be exact for a forward that the case does not state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from gradjury.verify import graph, ops
from gradjury.verify.case import Case, CaseError, Node
from gradjury.verify.court import Court, Statement
from gradjury.verify.ops.base import Variant
from gradjury.verify.reference import Reference
from gradjury.verify.verdict import Finding


def explain(court: Court, statement: Statement, over: list[str]) -> list[Finding]:
    """The variants of one node's attributes (as the op declares them) under which all of `over` is right.

    The first that fits is the finding; the codes of those that do not fit are its `ruled_out`.
    """
    fitting: list[tuple[Node, Variant, Reference]] = []
    ruled_out: dict[str, None] = {}
    for node, variant in variants(court.case):
        altered = changed_case(court.case, node, variant)
        if not _makes_sense(altered):
            continue
        changed = court.make(altered, statement.dtype)
        if _fits(court, statement, over, changed):
            fitting.append((node, variant, changed))
        else:
            ruled_out[variant.code] = None
    if not fitting:
        return []
    node, variant, changed = fitting[0]
    others = [code for code in ruled_out if code not in {v.code for _, v, _ in fitting}]
    return [_finding(court, statement, over, node, variant, changed, others)]


def _fits(court: Court, statement: Statement, over: list[str], changed: Reference) -> bool:
    held = {key: court.fits(statement, key, changed) for key in statement.gradients}
    return all(m is None or m.within for m in held.values()) and any(held[key] is not None for key in over)


def _finding(
    court: Court, statement: Statement, over: list[str], node: Node, variant: Variant, changed: Reference, ruled_out: list[str]
) -> Finding:
    theirs, _, ours = variant.sentence.partition(" in place of ")
    excess = _excesses(court, statement.dtype, changed)
    details = {
        "node": node.name,
        "step": node.step,
        "attributes": dict(variant.attributes),
        "definitions": {"case": ours, "witness": theirs},
        "excess": excess,
        "ruled_out": ruled_out,
    }
    name, dtype = statement.witness.name, statement.dtype
    before, after = (float(x) for x in excess[name])
    evidence = f"{variant.sentence} at {node.name}: excess {before:.2g} -> {after:.2g}"
    return Finding(name, dtype, variant.code, variant.kind, list(over), evidence, details=details)


def _excesses(court: Court, dtype: str, changed: Reference) -> dict[str, list[float | str]]:
    """Per witness, the largest excess under the case's own definition and under the changed one."""
    found: dict[str, list[float | str]] = {}
    for statement in court.statements:
        if statement.dtype == dtype:
            own = [court.measure(statement, key) for key in statement.gradients]
            both = [own, [court.fits(statement, key, changed) for key in statement.gradients]]
            worst = [max((m.excess for m in held if m is not None), default=0.0) for held in both]
            found[statement.witness.name] = [x if math.isfinite(x) else str(x) for x in worst]
    return found


def _makes_sense(case: Case) -> bool:
    try:
        graph.check(case)
    except CaseError:
        return False
    return True


def variants(case: Case) -> Iterator[tuple[Node, Variant]]:
    """Every other definition that the case's ops declare, node by node."""
    for node in case.graph:
        op = ops.get(node.op)
        if op is not None:
            for variant in op.variants(op.complete(node.attributes)):
                yield node, variant


def changed_case(case: Case, node: Node, variant: Variant) -> Case:
    """The case with one node's attributes changed."""
    altered = replace(node, attributes={**node.attributes, **variant.attributes})
    return replace(case, graph=[altered if n is node else n for n in case.graph])
