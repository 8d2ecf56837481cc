"""Other definitions of an op: the gradient may be exact for a forward that the case does not state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradjury.verify import ops
from gradjury.verify.case import Case, Node
from gradjury.verify.court import Court, Statement
from gradjury.verify.ops.base import Variant
from gradjury.verify.verdict import Finding


def explain(court: Court, statement: Statement, over: list[str]) -> list[Finding]:
    """The variants of one node's attributes (as the op declares them) under which all of `over` is right."""
    for node, variant in variants(court.case):
        changed = court.make(changed_case(court.case, node, variant), statement.dtype)
        held = {key: court.measure(statement, key, changed) for key in statement.gradients}
        if all(m is None or m.within for m in held.values()) and any(held[key] is not None for key in over):
            before = max(m.excess for key in over if (m := court.measure(statement, key)) is not None)
            after = max(m.excess for m in held.values() if m is not None)
            evidence = f"{variant.sentence} at {node.name}: excess {before:.2g} -> {after:.2g}"
            return [
                Finding(
                    statement.witness.name, statement.dtype, variant.code, variant.kind, list(over), evidence,
                    details={"node": node.name, "step": node.step, "attributes": dict(variant.attributes)},
                )
            ]
    return []


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
