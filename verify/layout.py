"""Between a witness's layout and the canonical one (PyTorch's), by what the ops declare."""

from __future__ import annotations

import numpy as np

from gradjury.verify import ops
from gradjury.verify.case import Case, Witness
from gradjury.verify.graph import consumers, producers


def to_canonical(case: Case, witness: Witness, tensor: str, array: np.ndarray) -> np.ndarray:
    """`array`, a value or gradient (or part of one) of `tensor` as `witness` stores it, in canonical layout.

    Only declared layouts are undone: nothing is transposed because a shape would fit better.
    """
    if _transposed(case, witness, tensor):
        matrix = _without_leading_ones(array)
        return np.transpose(matrix) if matrix.ndim == 2 else array
    if _batch_first(case, witness, tensor) and array.ndim >= 2:
        return np.swapaxes(array, 0, 1)
    return array


def from_canonical(case: Case, witness: Witness, tensor: str, array: np.ndarray) -> np.ndarray:
    """The inverse of `to_canonical`: both exchange two axes."""
    return to_canonical(case, witness, tensor, array)


def _without_leading_ones(array: np.ndarray) -> np.ndarray:
    """The array as a matrix where its further axes have length one: a transpose has to find the two that count."""
    while array.ndim > 2 and array.shape[0] == 1:
        array = array[0]
    return array


def _transposed(case: Case, witness: Witness, tensor: str) -> bool:
    """Whether every consumer takes the tensor as what PaddlePaddle stores the other way round.

    A weight shared with another op (a tied embedding) can have one layout only, and PaddlePaddle code then writes the
    product out: the tensor is stored as the other op has it.
    """
    return witness.layout == "paddle" and _roles(case, tensor) == {"transposed"}


def _batch_first(case: Case, witness: Witness, tensor: str) -> bool:
    return witness.time_axis == 1 and "time" in _roles(case, tensor)


def _roles(case: Case, tensor: str) -> set[str | None]:
    """What the ops around a tensor declare about its layout."""
    roles: set[str | None] = set()
    for node, name in consumers(case, tensor):
        op = ops.get(node.op)
        roles |= {slot.paddle for slot in op.inputs if slot.name == name} if op is not None else {None}
    node_before = producers(case).get(tensor)
    op = ops.get(node_before.op) if node_before is not None else None
    if node_before is not None and op is not None:
        roles |= {
            op.paddle_outputs[slot]
            for slot, name in node_before.outputs.items()
            if name == tensor and slot in op.paddle_outputs
        }
    return roles
