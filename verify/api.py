"""Judging from Python: an op or a graph, its inputs, and whoever has something to say about the gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gradjury.verify import ops
from gradjury.verify.case import Case, CaseError, Node, Witness
from gradjury.verify.judge import judge_case
from gradjury.verify.report import Report
from gradjury.verify.witnesses import call, recorded

Said = Mapping[str, Any]  # gradients by tensor name: arrays of any framework


def judge(
    op_or_graph: str | Sequence[Mapping[str, Any]],
    *,
    inputs: Mapping[str, Any],
    upstream: Mapping[str, Any] | Any = None,
    witnesses: Sequence[str | Callable[..., Any]] | Mapping[str, Said | str | Callable[..., Any]] = ("torch", "paddle"),
    attributes: Mapping[str, Any] | None = None,
    dtypes: Sequence[str] = ("float32", "float64"),
    name: str = "judged",
    strict: bool = False,
) -> Report:
    """Judges gradients of an op (by name) or of a graph (nodes as in a case file).

    `inputs`: values by slot (for an op) or by tensor name. `upstream`: the gradient of the output, or by output name;
    a scalar output needs none. `witnesses`: frameworks (`"torch"`), functions (inputs, upstream, dtype) -> gradients,
    or, as a mapping by name, gradients that are already there. Raises CaseError for what contradicts itself.
    """
    case = _case(op_or_graph, inputs, upstream, attributes or {}, name)
    named = dict(witnesses) if isinstance(witnesses, Mapping) else {_name(w): w for w in witnesses}
    identities: dict[str, Any] = {}
    failures: list[dict[str, str]] = []
    for witness, said in named.items():
        if isinstance(said, Mapping):
            _testify(case, witness, said)
        else:
            case, identity, failed = call(case, [_renamed(said, witness)], dtypes)
            identities |= identity
            failures += failed
    return judge_case(case, strict=strict, identities=identities, failures=failures)


def _case(
    op_or_graph: str | Sequence[Mapping[str, Any]],
    inputs: Mapping[str, Any],
    upstream: Mapping[str, Any] | Any,
    attributes: Mapping[str, Any],
    name: str,
) -> Case:
    if isinstance(op_or_graph, str):
        op = ops.get(op_or_graph)
        if op is None:
            raise CaseError(f"op {op_or_graph!r} is unknown; known are {', '.join(ops.all_ops())}")
        graph = [Node(op.name, op.name, {slot: slot for slot in inputs}, {o: o for o in op.outputs}, dict(attributes))]
        if upstream is not None and not isinstance(upstream, Mapping):
            upstream = {op.outputs[0]: upstream}
        flow = dict(upstream or {})
    else:
        text = {"gradjury": 1, "name": name, "graph": [dict(node) for node in op_or_graph]}
        graph = Case.from_parts(text, {}, name).graph
        flow = dict(upstream or {})
    values = {key: _array(value) for key, value in inputs.items()}
    return Case(name, graph, values, {key: _array(value) for key, value in flow.items()})


def _testify(case: Case, witness: str, said: Said) -> None:
    """Files gradients that are already there."""
    testimony, absent = recorded.testimony(witness, said)
    case.witnesses[witness] = Witness(witness, absent=tuple(absent))
    case.testimonies[witness, testimony.dtype] = testimony


def _array(value: Any) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else recorded.as_array(value)[0]


def _name(witness: Any) -> str:
    return witness if isinstance(witness, str) else str(getattr(witness, "__name__", "yours"))


def _renamed(witness: str | Callable[..., Any], name: str) -> str | Callable[..., Any]:
    """The witness under the name it was given."""
    if isinstance(witness, str):
        return witness if "=" in witness or witness == name else f"{name}={witness}"

    def function(*arguments: Any) -> Any:
        return witness(*arguments)

    function.__name__ = name
    return function
