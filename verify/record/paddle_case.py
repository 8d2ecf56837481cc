"""A recorded PaddlePaddle step as a case: graph, values, and paddle's own testimony at its dtype and at float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle

from gradjury.verify import graph as graphs
from gradjury.verify.case import Case, CaseError, Testimony, Witness
from gradjury.verify.record.paddle_capture import Call, Capture
from gradjury.verify.record.paddle_graph import Graph
from gradjury.verify.record.paddle_ops import CELLS, convert, convert_cell
from gradjury.verify.record.paddle_replay import COMPOSED, Replay, differences, replay
from gradjury.verify.record.simplify import simplify
from gradjury.verify.witnesses.paddle import identity


def to_case(capture: Capture, name: str) -> Case:
    """The case of a recorded step. Raises CaseError if no backward pass ran inside the `with`."""
    if not capture.roots:
        raise CaseError(
            f"{name}: expected a backward pass inside the with block, found none: call loss.backward() there"
        )
    graph = Graph(capture.values, capture.dtypes, _linear_weights(capture))
    for group in _groups(capture.calls):
        if len(group) == 1 or not convert_cell(graph, group):
            for call in group:
                convert(graph, call)
    case = Case(name, graph.nodes, notes=list(capture.notes), distrust=capture.distrust)
    _add_values(case, capture, graph)
    for root, gradient in capture.roots:
        case.upstream[root] = case.upstream[root] + gradient if root in case.upstream else gradient
    case = simplify(case)
    _testify(case, capture, graph)
    return case


def _groups(calls: Sequence[Call]) -> list[list[Call]]:
    """The calls of one call of a cell together, all others by themselves."""
    groups: list[list[Call]] = []
    for call in calls:
        cell = call.layer is not None and type(call.layer[0]) in CELLS
        if cell and groups and groups[-1][0].layer == call.layer:
            groups[-1].append(call)
        else:
            groups.append([call])
    return groups


def _linear_weights(capture: Capture) -> set[str]:
    """Given values that only linear layers use, as weights: they are stored (in, out)."""
    made = {name for call in capture.calls for name in call.outputs}
    weights: set[str] = set()
    others: set[str] = set()
    for call in capture.calls:
        for ref in call.refs:
            is_weight = call.op == "linear" and ref is call.args[1]
            (weights if is_weight else others).add(ref.name)
    return weights - others - made


def _add_values(case: Case, capture: Capture, graph: Graph) -> None:
    """Values of what no node makes, in canonical layout; and of what no op can compute."""
    case.values = dict(graph.values)
    produced = graphs.producers(case)
    for node in case.graph:
        for name in node.inputs.values():
            if name not in produced and name not in case.values:
                value = capture.values[name]
                case.values[name] = np.ascontiguousarray(value.T) if name in graph.weights else value
    for node in graphs.opaque(case):
        case.values |= {name: capture.values[name] for name in node.outputs.values()}


def _testify(case: Case, capture: Capture, graph: Graph) -> None:
    """What paddle says: at its own dtype as it ran, at float64 and for the consumers' parts as replayed."""
    own = capture.dtypes[capture.roots[0][0]]
    again = replay(capture, own, parts=True, pinned=graph.opaque)
    if differences(capture, again):  # the aliases of the parts may have changed the order of a sum
        lost = differences(capture, replay(capture, own))
        if lost:
            why = f"the recording cannot be replayed bit for bit, first at {lost[0]}: something changed it unseen"
            case.distrust = case.distrust or why
    visible = graphs.tensors(case)
    produced = set(graphs.producers(case))
    who = identity(paddle)
    absent = tuple(sorted(name for name in capture.leaves & visible if name not in capture.gradients))
    case.witnesses["paddle"] = Witness("paddle", layout="paddle", backend=tuple(who.backends), absent=absent)
    told = {own: (capture.values, capture.gradients, again)}
    if own != "float64":
        composed = sorted({call.op for call in capture.calls if call.op in COMPOSED})
        if composed:
            case.notes.append(
                f"at float64 paddle's {' and '.join(composed)} is composed: its own rounds epsilon to float32"
            )
        wide = replay(capture, "float64", parts=True, pinned=graph.opaque)
        told["float64"] = (wide.forward, wide.gradients, wide)
    for dtype, (forward, gradients, replayed) in told.items():
        testimony = Testimony("paddle", dtype)
        testimony.forward = {name: value for name, value in forward.items() if name in produced}
        testimony.gradients = {name: value for name, value in gradients.items() if name in visible}
        testimony.gradients |= _parts(case, graph, replayed)
        case.testimonies["paddle", dtype] = testimony


def _parts(case: Case, graph: Graph, replayed: Replay) -> dict[str, np.ndarray]:
    """Parts by key, where every share of a part was seen and belongs to nothing else."""
    nodes = {node.name: node for node in case.graph}
    shares: dict[tuple[str, str], list[np.ndarray]] = {}
    for place, uses in graph.places.items():
        for use in uses:
            own = replayed.parts.get(place) if len(uses) == 1 else None
            shares.setdefault(use, []).extend([] if own is None else [own])
    found = {}
    for (node, slot), arrays in shares.items():
        tensor = nodes[node].inputs.get(slot, "") if node in nodes else ""  # simplified away
        if arrays and len(graphs.consumers(case, tensor)) > 1:
            found[graphs.part_key(case, tensor, node, slot)] = np.sum(arrays, axis=0, dtype=arrays[0].dtype)
    return found
