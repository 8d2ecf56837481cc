"""Runs a case's graph forward and backward on the kernels, at any scalar.

Every gradient is kept whole and per consumer. What cannot be computed (an unknown op, a value nobody gave) is left
out of the results instead of being guessed: a name that is absent is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Tensor
from gradjury.verify import ops
from gradjury.verify.case import Case, Node
from gradjury.verify.graph import order, part_key

ONLY_INTEGER_KINDS = "iub"


@dataclass(frozen=True)
class Kink:
    """Which units of a kink (relu) are taken as active, and which of them the precision cannot decide.

    `mask`: uint8, shape of the node's output; None: decided by the values themselves.
    `undecided`: float64, the largest change of the output that the other decision would make, 0 where decided.
    """

    mask: np.ndarray | None = None
    undecided: np.ndarray | None = None


@dataclass
class Forward:
    """Values of all tensors that can be computed, and what each node keeps for its backward."""

    values: dict[str, Any]
    saved: dict[str, Any] = field(default_factory=dict)


@dataclass
class Backward:
    """Gradients by tensor name (`whole`) and by part key such as `h@left` (`parts`). Unknown ones are absent."""

    whole: dict[str, Tensor] = field(default_factory=dict)
    parts: dict[str, Tensor] = field(default_factory=dict)

    def get(self, key: str) -> Tensor | None:
        return self.whole.get(key, self.parts.get(key))


def integer_names(case: Case) -> set[str]:
    """Graph tensors that some op reads as integers (targets, indices, lengths)."""
    found = set()
    for node in case.graph:
        op = ops.get(node.op)
        if op is not None:
            integer = {slot.name for slot in op.inputs if slot.integer}
            found |= {name for slot, name in node.inputs.items() if slot in integer}
    return found


def load(case: Case, k: Kernels, values: Mapping[str, np.ndarray], rows: int = 1) -> dict[str, Any]:
    """The graph's inputs on the engine, each repeated over `rows` rows of the case axis."""
    integers = integer_names(case)
    loaded: dict[str, Any] = {}
    for name, value in values.items():
        repeated = np.broadcast_to(value, (rows, *value.shape))
        if name in integers:
            loaded[name] = k.integers(np.ascontiguousarray(repeated, dtype=np.int64))
        else:
            wide = repeated if repeated.dtype in (np.float32, np.float64) else repeated.astype(np.float64)
            loaded[name] = k.tensor(np.ascontiguousarray(wide))
    return loaded


def forward(
    case: Case, k: Kernels, inputs: Mapping[str, Any], kinks: Mapping[str, Kink], attributes: Mapping[str, Any] | None = None
) -> Forward:
    """Runs every node whose inputs are known, in topological order.

    `attributes` are added to those of every node: the hypotheses of NUMERICS (one-pass variance, raw moments).
    """
    run = Forward(dict(inputs))
    for node in order(case):
        op = ops.get(node.op)
        if op is None or any(name not in run.values for name in node.inputs.values()):
            continue
        x = node_inputs(node, run.values, k, kinks.get(node.name))
        outputs, run.saved[node.name] = op.forward(k, x, node_attributes(node, attributes))
        for slot, name in node.outputs.items():
            run.values[name] = outputs[slot]
    return run


def backward(
    case: Case,
    k: Kernels,
    run: Forward,
    upstream: Mapping[str, Tensor],
    kinks: Mapping[str, Kink],
    *,
    asked: Collection[str] | None = None,
    replace: Mapping[str, Tensor] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> Backward:
    """Gradients of Σ⟨upstream, output⟩ with respect to every tensor that is asked for.

    `asked`: tensor names wanted (None: all). `replace`: gradients to take in place of the computed total of a tensor,
    for all that lies behind it. A tensor to which no gradient flows gets zeros; without an upstream nothing is known.
    """
    needed = _needed(case, asked)
    result = Backward()
    if not upstream:
        return result
    sums: dict[str, Tensor] = dict(upstream)
    unknown: set[str] = set()
    replace = replace or {}
    for node in reversed(order(case)):
        flowing = {}
        for slot, name in node.outputs.items():
            if name in sums and name not in unknown:
                result.whole[name] = sums[name]
                flowing[slot] = replace.get(name, sums[name])
        lost = any(name in unknown for name in node.outputs.values())
        if not flowing and not lost:
            continue
        wanted = _wanted(node, needed)
        if lost or node.name not in run.saved:
            unknown |= {node.inputs[slot] for slot in wanted}
            continue
        parts = _node_backward(node, k, run, kinks, flowing, wanted, attributes)
        for slot in wanted:
            name, part = node.inputs[slot], parts[slot]
            key, together = part_key(case, name, node.name, slot), f"{name}@{node.name}"
            result.parts[key] = part
            if key != together:  # the node uses this tensor in several inputs
                before = result.parts.get(together)
                result.parts[together] = part if before is None else k.accumulate(before, part)
            sums[name] = k.accumulate(sums[name], part) if name in sums else part
    produced = {name for node in case.graph for name in node.outputs.values()}
    result.whole |= {name: total for name, total in sums.items() if name not in produced}
    for name in unknown:
        result.whole.pop(name, None)
    _fill_zeros(case, k, run, needed - unknown, result)
    return result


def node_inputs(node: Node, values: Mapping[str, Any], k: Kernels, kink: Kink | None) -> dict[str, Any]:
    """The op's input slots, absent ones as None, with the kink's mask where the op has one."""
    op = ops.get(node.op)
    assert op is not None
    x: dict[str, Any] = {slot.name: None for slot in op.inputs}
    x |= {slot: values[name] for slot, name in node.inputs.items()}
    if op.kink:
        kink = kink or Kink()
        x["kink.mask"] = None if kink.mask is None else k.mask(_rows(kink.mask, k, x))
        x["kink.undecided"] = None if kink.undecided is None else k.doubles(_rows(kink.undecided, k, x))
    return x


def _rows(array: np.ndarray, k: Kernels, x: Mapping[str, Any]) -> np.ndarray:
    """Repeats a per-problem array over the case axis of the node's tensors."""
    rows = next(value.cases for value in x.values() if isinstance(value, Tensor))
    return np.ascontiguousarray(np.broadcast_to(array, (rows, *array.shape)))


def node_attributes(node: Node, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The node's attributes, completed by the op's defaults and by the hypotheses in `extra`."""
    op = ops.get(node.op)
    assert op is not None
    defaults = {name: attribute.default for name, attribute in op.attributes.items()}
    return {**defaults, **node.attributes, **(extra or {})}


def _node_backward(
    node: Node,
    k: Kernels,
    run: Forward,
    kinks: Mapping[str, Kink],
    flowing: dict[str, Tensor],
    wanted: set[str],
    attributes: Mapping[str, Any] | None,
) -> dict[str, Tensor]:
    op = ops.get(node.op)
    assert op is not None
    x = node_inputs(node, run.values, k, kinks.get(node.name))
    flow: dict[str, Tensor | None] = {slot: flowing.get(slot) for slot in op.outputs}
    return op.backward(k, x, node_attributes(node, attributes), run.saved[node.name], flow, wanted)


def _wanted(node: Node, needed: set[str]) -> set[str]:
    op = ops.get(node.op)
    if op is None:
        return {slot for slot, name in node.inputs.items() if name in needed}
    return {slot.name for slot in op.inputs if slot.differentiable and node.inputs.get(slot.name) in needed}


def _needed(case: Case, asked: Collection[str] | None) -> set[str]:
    """Tensors whose gradient has to be computed: those asked for, and all through which gradient flows to them."""
    everything = {name for node in case.graph for name in (*node.inputs.values(), *node.outputs.values())}
    if asked is None:
        return everything
    needed = set(asked) & everything
    for node in order(case):
        if needed & set(node.inputs.values()):
            needed |= set(node.outputs.values())
    return needed


def _fill_zeros(case: Case, k: Kernels, run: Forward, names: set[str], result: Backward) -> None:
    integers = integer_names(case)
    for name in names:
        value = run.values.get(name)
        if name not in result.whole and isinstance(value, Tensor) and name not in integers:
            result.whole[name] = k.tensor(np.zeros((value.cases, *value.shape)))
