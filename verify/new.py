"""`gradjury case new`: a small valid case to start from."""

from __future__ import annotations

from difflib import get_close_matches

import numpy as np

from gradjury.verify import graph, ops
from gradjury.verify.case import Case, Node, Testimony, Witness
from gradjury.verify.errors import CaseError
from gradjury.verify.ops.base import Op
from gradjury.verify.witnesses import cuda
from gradjury.verify.witnesses.base import WitnessFailure

WITNESS, DTYPE = "mine", "float32"


def new_case(name: str, seed: int = 0) -> Case:
    """A case of one op with its example inputs, and gradients by our own kernels under the witness `mine`.

    Raises CaseError for an op that is not known.
    """
    op = ops.get(name)
    if op is None:
        close = get_close_matches(name, ops.all_ops(), 1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(ops.all_ops())}"
        raise CaseError(f"op {name!r} is unknown; {hint}")
    case = _example(op, np.random.default_rng(seed))
    try:
        said = cuda.evidence(case, DTYPE, WITNESS)
    except WitnessFailure as failure:
        case.notes.append(f"no gradients yet: {failure.message}")
        return case
    inputs = [key for key in said.gradients if key in case.values and graph.differentiable(case, key)]
    case.testimonies[WITNESS, DTYPE] = Testimony(WITNESS, DTYPE, {key: said.gradients[key] for key in inputs})
    return case


def _example(op: Op, rng: np.random.Generator) -> Case:
    example = op.example(rng)
    values = {s: _narrow(value) for s, value in example.inputs.items() if value is not None}
    node = Node(op.name, op.name, {slot: slot for slot in values}, {o: o for o in op.outputs}, dict(example.attributes))
    node.outputs = {slot: slot if slot not in values else f"{slot}_out" for slot in op.outputs}
    case = Case(f"{op.name}-example", [node], values, witnesses={WITNESS: Witness(WITNESS)})
    shapes = graph.check(case)
    case.upstream = {
        name: rng.standard_normal(shapes[name]).astype(np.float32)
        for name in node.outputs.values()
        if shapes[name] != () or len(node.outputs) > 1
    }
    return graph.complete(case, shapes)


def _narrow(value: np.ndarray) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.kind == "f" else array
