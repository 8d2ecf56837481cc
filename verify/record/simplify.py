"""Several recorded nodes that are one op of ours: a dropout written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gradjury.verify.case import Case, Node


def simplify(case: Case) -> Case:
    """The case with home-made dropouts as single nodes: x·mask/(1 − p) in either order, or x·(mask already divided)."""
    uses: dict[str, int] = {}
    for node in case.graph:
        for name in node.inputs.values():
            uses[name] = uses.get(name, 0) + 1
    makers = {name: node for node in case.graph for name in node.outputs.values()}
    changed: dict[str, Node | None] = {}
    for node in case.graph:
        found = _dropout(node, makers, uses, case)
        if found is not None:
            gone, dropout = found
            changed[node.name] = dropout
            changed |= dict.fromkeys(gone)
    graph = [changed.get(node.name, node) for node in case.graph]
    kept = [node for node in graph if node is not None]
    used = {name for node in kept for name in node.inputs.values()}
    values = {name: value for name, value in case.values.items() if name in used}
    return replace(case, graph=kept, values=values)


def _dropout(
    node: Node, makers: Mapping[str, Node], uses: Mapping[str, int], case: Case
) -> tuple[list[str], Node] | None:
    """The node as a dropout, with the names of nodes that it replaces; None if it is none."""
    if node.op == "divide":
        kept = case.values.get(node.inputs["b"])
        product = makers.get(node.inputs["a"])
        if kept is None or kept.ndim or product is None or product.op != "multiply" or uses[node.inputs["a"]] != 1:
            return None
        return _from_product(product, float(kept), node, case)
    if node.op == "multiply":
        for x, other in (("a", "b"), ("b", "a")):
            mask = case.values.get(node.inputs[other])
            if mask is not None and mask.ndim and _is_scaled_mask(mask):
                return None  # a mask that is already divided is an exact constant: multiply says the same
            scale = case.values.get(node.inputs[other])
            product = makers.get(node.inputs[x])
            whole = scale is not None and scale.ndim == 0 and float(scale) > 1
            if whole and product is not None and product.op == "multiply" and uses[node.inputs[x]] == 1:
                return _from_product(product, 1 / float(scale), node, case)  # type: ignore[arg-type]
    return None


def _from_product(product: Node, kept: float, node: Node, case: Case) -> tuple[list[str], Node] | None:
    """x·mask, then divided by `kept` = 1 − p."""
    if not 0 < kept < 1:
        return None
    for x, other in (("a", "b"), ("b", "a")):
        mask = case.values.get(product.inputs[other])
        if mask is not None and mask.ndim and bool(np.isin(mask, (0, 1)).all()):
            inputs = {"x": product.inputs[x], "mask": product.inputs[other]}
            return [product.name], Node(node.name, "dropout", inputs, node.outputs, {"rate": 1 - kept}, node.step)
    return None


def _is_scaled_mask(mask: np.ndarray) -> bool:
    levels = np.unique(mask)
    return len(levels) <= 2 and bool((levels == 0).any())
