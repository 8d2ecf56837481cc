"""A captured PyTorch step as a case: calls become nodes, snapshots become values and testimonies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gradjury.verify.case import Case, CaseError, Node, Testimony, Witness
from gradjury.verify.record.simplify import simplify
from gradjury.verify.record.torch_capture import Call, Capture
from gradjury.verify.record.torch_ops import MOVES, known
from gradjury.verify.record.torch_replay import differs, replay
from gradjury.verify.record.tree import Ref, leaves, mapped
from gradjury.verify.witnesses.torch import array, identity

JOINED = 16


def to_case(capture: Capture, name: str) -> Case:
    """The case with the testimony of `torch` at the step's own dtype and, replayed, at float64.

    Raises CaseError for a step that cannot be replayed.
    """
    if capture.refused:
        raise CaseError(capture.refused)
    case = Case(name, [], notes=list(dict.fromkeys(capture.notes)))
    for call in capture.calls:
        _add(case, capture, call)
    _add_inputs(case, capture)
    for root, flow in capture.roots:
        before = case.upstream.get(root)
        case.upstream[root] = array(torch, flow) if before is None else before + array(torch, flow)
    case = simplify(case)
    backends = tuple(identity(torch).backends)
    case.witnesses["torch"] = Witness("torch", layout="torch", backend=backends)
    _testify(case, capture.values, capture.gradients, _parts(case, capture))
    values, gradients = replay(capture, torch.float64)
    _testify(case, values, gradients, {})
    case.distrust = differs(capture) or ""
    return case


def _add(case: Case, capture: Capture, call: Call) -> None:
    """The nodes of one call: an op of ours, an index map, or something that is only compared."""
    found = known(call)
    if found is not None:
        inputs = {slot: _name(case, f"{call.name}.{slot}", value) for slot, value in found.inputs.items() if value is not None}
        outputs = dict(zip(found.outputs, call.outputs, strict=False))
        node = Node(call.name, found.op, inputs, outputs, found.attributes, call.step or None)
        case.graph += _time_first(node) if found.batch_first else [node]
    elif not (call.called in MOVES and _add_move(case, capture, call)):
        inputs = {f"i{i}": ref.name for i, ref in enumerate(leaves((call.args, call.kwargs), Ref))}
        outputs = {f"o{i}": name for i, name in enumerate(call.outputs)}
        case.graph.append(Node(call.name, f"aten.{call.called.strip('_')}", inputs, outputs, {}, call.step or None))


def _time_first(node: Node) -> list[Node]:
    """A recurrent layer that has the batch first, as one that has time first, between two transpositions."""
    x, y = f"{node.name}.x.time-first", f"{node.name}.y.time-first"
    swap = {"axes": [1, 0, 2]}
    return [
        Node(f"{node.name}.x", "transpose", {"x": node.inputs["x"]}, {"y": x}, swap, node.step),
        replace(node, inputs={**node.inputs, "x": x}, outputs={**node.outputs, "y": y}),
        Node(f"{node.name}.y", "transpose", {"x": y}, {"y": node.outputs["y"]}, dict(swap), node.step),
    ]


def _add_move(case: Case, capture: Capture, call: Call) -> bool:
    """Pure data movement as index maps, found by letting the call move the numbers of its elements."""
    offset, sources = 0, dict[str, int]()

    def numbered(ref: Ref) -> torch.Tensor:
        nonlocal offset
        value = capture.values[ref.name]
        if not value.is_floating_point():
            return value
        if ref.name not in sources:
            sources[ref.name] = offset
            offset += value.numel()
        start = sources[ref.name]
        return torch.arange(start, start + value.numel(), device=value.device).view(value.shape)

    args, kwargs = mapped((call.args, call.kwargs), Ref, numbered)
    with torch.no_grad(), torch._C.DisableTorchFunction():
        moved = leaves(call.function(*args, **kwargs), torch.Tensor)
    shapes = [tuple(capture.values[output].shape) for output in call.outputs]
    if not sources or len(sources) > JOINED or [tuple(m.shape) for m in moved] != shapes:
        return False
    source = next(iter(sources))
    if len(sources) > 1:
        joined = f"{call.name}.joined"
        case.graph.append(Node(joined, "join", {f"x{i}": name for i, name in enumerate(sources)}, {"y": joined}))
        source = joined
    for i, (output, index) in enumerate(zip(call.outputs, moved, strict=True)):
        node = call.name if len(moved) == 1 else f"{call.name}.{i}"
        places = _name(case, f"{node}.index", index)
        case.graph.append(Node(node, "move", {"x": source, "index": places}, {"y": output}, {}, call.step or None))
    return True


def _name(case: Case, label: str, value: Any) -> str:
    """The tensor's name; a constant becomes a value of the case under `label`."""
    if isinstance(value, Ref):
        return value.name
    case.values[label] = array(torch, value) if isinstance(value, torch.Tensor) else np.asarray(value, np.float64)
    return label


def _add_inputs(case: Case, capture: Capture) -> None:
    made = {name for node in case.graph for name in node.outputs.values()}
    used = {name for node in case.graph for name in node.inputs.values()}
    for name in sorted(used - made - set(case.values)):
        case.values[name] = array(torch, capture.values[name])


def _testify(
    case: Case, values: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor], parts: Mapping[str, torch.Tensor]
) -> None:
    """Files values and gradients under the dtype each of them has, as far as the graph still knows their names."""
    made = {name for node in case.graph for name in node.outputs.values()}
    seen = made | {name for node in case.graph for name in node.inputs.values()}
    for name, gradient in {**gradients, **parts}.items():
        if name in seen or name in parts:
            _at(case, gradient).gradients[name] = array(torch, gradient)
    for name, value in values.items():
        if name in made and value.is_floating_point():
            _at(case, value).forward[name] = array(torch, value)


def _at(case: Case, tensor: torch.Tensor) -> Testimony:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return case.testimonies.setdefault(("torch", dtype), Testimony("torch", dtype))


def _parts(case: Case, capture: Capture) -> dict[str, torch.Tensor]:
    """Each consumer's part of a gradient, where a tensor has several consumers, by part key."""
    nodes: dict[str, Node] = {node.name: node for node in case.graph}
    uses: dict[str, int] = {}
    for node in case.graph:
        for name in node.inputs.values():
            uses[name] = uses.get(name, 0) + 1
    found = {}
    for (name, call), by_argument in capture.parts.items():
        consumer = nodes.get(call)
        slots = [] if consumer is None else [slot for slot, tensor in consumer.inputs.items() if tensor == name]
        totals = [_total(by_argument[i]) for i in sorted(by_argument)]
        if uses.get(name, 0) < 2 or not slots:
            continue
        if len(slots) == 1:
            found[f"{name}@{call}"] = _total(totals)
        elif len(slots) == len(totals):
            found |= {f"{name}@{call}.{slot}": total for slot, total in zip(slots, totals, strict=True)}
    return found


def _total(gradients: list[torch.Tensor]) -> torch.Tensor:
    total = gradients[0]
    for gradient in gradients[1:]:
        total = total + gradient
    return total
