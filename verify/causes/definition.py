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
    """The variants of one node's attributes (as the op declares them) under which all of `over` is right."""
    for node, variant in variants(court.case):
        altered = changed_case(court.case, node, variant)
        if not _makes_sense(altered):
            continue
        changed = court.make(altered, statement.dtype)
        held = {key: court.fits(statement, key, changed) for key in statement.gradients}
        if all(m is None or m.within for m in held.values()) and any(held[key] is not None for key in over):
            before = max(m.excess for key in over if (m := court.measure(statement, key)) is not None)
            after = max(m.excess for m in held.values() if m is not None)
            theirs, _, ours = variant.sentence.partition(" in place of ")
            details = {
                "node": node.name,
                "step": node.step,
                "attributes": dict(variant.attributes),
                "definitions": {"case": ours, "witness": theirs},
                "excess": _excesses(court, statement.dtype, changed),
            }
            evidence = f"{variant.sentence} at {node.name}: excess {before:.2g} -> {after:.2g}"
            name, dtype = statement.witness.name, statement.dtype
            return [Finding(name, dtype, variant.code, variant.kind, list(over), evidence, details=details)]
    return []


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
