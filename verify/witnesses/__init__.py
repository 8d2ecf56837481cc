"""Witnesses: whoever says what the gradients of a case are. Frameworks run in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradjury.verify import graph
from gradjury.verify.case import Case, Testimony, Witness
from gradjury.verify.witnesses import callable as functions
from gradjury.verify.witnesses import cuda
from gradjury.verify.witnesses.base import (
    FRAMEWORKS,
    KERNELS,
    Evidence,
    Identity,
    WitnessFailure,
    WitnessSpec,
    parse,
)
from gradjury.verify.witnesses.process import TIME_LIMIT, ask, process_for
from gradjury.verify.witnesses.protocol import Label

__all__ = [
    "Evidence",
    "Identity",
    "Listed",
    "WitnessFailure",
    "WitnessSpec",
    "call",
    "evidence",
    "live",
    "parse",
    "witnesses",
]

LADDER = ("float32", "float64")
Asked = str | WitnessSpec | Callable[..., Any]


def evidence(case: Case, spec: WitnessSpec, dtype: str, time_limit: float = TIME_LIMIT) -> Evidence:
    """What a framework, or our own kernels, say about a complete case at `dtype`. Raises WitnessFailure."""
    if spec.framework == KERNELS:
        return cuda.evidence(case, dtype, spec.name)
    arrays: dict[Label, np.ndarray] = {("value", name): value for name, value in case.values.items()}
    arrays |= {("upstream", name): value for name, value in case.upstream.items()}
    nodes = [
        {"name": n.name, "op": n.op, "inputs": n.inputs, "outputs": n.outputs, "attributes": n.attributes}
        for n in graph.order(case)
    ]
    answer, found, who = ask(spec, {"ask": "evidence", "dtype": dtype, "nodes": nodes}, arrays, time_limit)
    said = Evidence({}, {}, who, answer["absent"])
    inputs = {(node.name, slot): tensor for node in case.graph for slot, tensor in node.inputs.items()}
    for (kind, *names), array in found.items():
        if kind == "forward":
            said.forward[names[0]] = array
        elif kind == "gradient":
            said.gradients[names[0]] = array
        else:
            node, slot = names
            said.gradients[graph.part_key(case, inputs[node, slot], node, slot)] = array
    return said


def live(
    case: Case, asked: Sequence[Asked], dtypes: Iterable[str] = LADDER, *, time_limit: float = TIME_LIMIT
) -> tuple[list[tuple[Testimony, Evidence]], list[dict[str, str]]]:
    """Testimonies, in canonical layout, of witnesses that run now; and who could not be run, which is never a verdict.

    `asked`: `torch`, `old=paddle:/path/to/python`, `cuda`, a WitnessSpec, or a Python function (see callable.py).
    Frameworks run at the same time, each in its own process. Raises CaseError for a case that contradicts itself.
    """
    complete = graph.complete(case, graph.check(case))
    named = _named(asked, set(case.witnesses))
    told = list(dtypes)
    for _, witness in named:  # their frameworks import side by side
        if isinstance(witness, WitnessSpec) and witness.framework != KERNELS:
            _start(witness)
    with ThreadPoolExecutor(max(1, len(named))) as pool:
        asking = {
            name: pool.submit(_at_each, complete, witness, told, time_limit)
            for name, witness in named
            if isinstance(witness, WitnessSpec) and witness.framework != KERNELS
        }
        answers = [
            (name, asking[name].result() if name in asking else _at_each(complete, witness, told, time_limit, name))
            for name, witness in named
        ]
    testimonies, failures = [], []
    for name, (said, failed) in answers:
        testimonies += [(Testimony(name, dtype, e.gradients, e.forward), e) for dtype, e in said.items()]
        failures += [{"witness": name, "kind": f.kind, "message": f.message} for f in failed]
    return testimonies, failures


def call(
    case: Case, asked: Sequence[Asked], dtypes: Iterable[str] = LADDER, *, time_limit: float = TIME_LIMIT
) -> tuple[Case, dict[str, dict[str, Any]], list[dict[str, str]]]:
    """The case with live witnesses' testimonies added, their identities by name, and the failures (see `live`)."""
    testimonies, failures = live(case, asked, dtypes, time_limit=time_limit)
    found = replace(case, witnesses=dict(case.witnesses), testimonies=dict(case.testimonies), notes=list(case.notes))
    identities: dict[str, dict[str, Any]] = {}
    for testimony, said in testimonies:
        name = testimony.witness
        found.testimonies[name, testimony.dtype] = testimony
        before = found.witnesses.get(name, Witness(name, backend=tuple(said.identity.backends)))
        absent = dict.fromkeys((*before.absent, *said.absent))
        found.witnesses[name] = replace(before, absent=tuple(absent))
        identities[name] = said.identity.to_json()
        found.notes += [note for note in said.notes if note not in found.notes]
    return found, identities, failures


@dataclass(frozen=True)
class Listed:
    """A witness that this machine can call, or why it cannot and how to get it."""

    name: str
    identity: Identity | None
    failure: WitnessFailure | None = None
    how: str = ""


def witnesses(asked: Sequence[str] = (*FRAMEWORKS, KERNELS), *, time_limit: float = 60.0) -> list[Listed]:
    """What this machine can call. Each framework is tried in a process of its own, all at the same time."""
    specs = [parse(text) for text in asked]
    with ThreadPoolExecutor(max(1, len(specs))) as pool:
        return list(pool.map(lambda spec: _listed(spec, time_limit), specs))


def _listed(spec: WitnessSpec, time_limit: float) -> Listed:
    try:
        if spec.framework == KERNELS:
            return Listed(spec.name, cuda.here(spec.name))
        return Listed(spec.name, process_for(spec).identity(time_limit))
    except WitnessFailure as failure:
        missing = failure.kind == "import"
        return Listed(spec.name, None, failure, _how(spec) if missing else "")


def _how(spec: WitnessSpec) -> str:
    if spec.framework == KERNELS:
        return "reinstall gradjury, or pip install 'gradjury[cuda13]' for a GPU"
    if spec.python is not None:
        return f"{spec.python} -m pip install {'paddlepaddle' if spec.framework == 'paddle' else spec.framework}"
    return f"pip install 'gradjury[{spec.framework}]'"


def _named(asked: Sequence[Asked], taken: set[str]) -> list[tuple[str, WitnessSpec | Callable[..., Any]]]:
    """Every witness under a name of its own: `torch@live` where the case already has a `torch`."""
    named: list[tuple[str, WitnessSpec | Callable[..., Any]]] = []
    used = set(taken)
    for witness in asked:
        spec = parse(witness) if isinstance(witness, str) else witness
        wanted = spec.name if isinstance(spec, WitnessSpec) else functions.name_of(spec)
        name, count = wanted, 1
        while name in used:
            name = f"{wanted}@live" if count == 1 else f"{wanted}@live{count}"
            count += 1
        used.add(name)
        named.append((name, replace(spec, name=name) if isinstance(spec, WitnessSpec) else spec))
    return named


def _start(spec: WitnessSpec) -> None:
    try:
        process_for(spec)
    except WitnessFailure:  # said again, and reported, when the witness is asked
        return


def _at_each(
    case: Case, witness: WitnessSpec | Callable[..., Any], dtypes: Sequence[str], time_limit: float, name: str = ""
) -> tuple[dict[str, Evidence], list[WitnessFailure]]:
    """Evidence at each dtype. A failure at one dtype loses no other; one that every dtype would repeat is kept once."""
    said: dict[str, Evidence] = {}
    failures: list[WitnessFailure] = []
    for dtype in dtypes:
        try:
            if isinstance(witness, WitnessSpec):
                said[dtype] = evidence(case, witness, dtype, time_limit)
            else:
                said[dtype] = functions.evidence(case, witness, dtype, name)
        except WitnessFailure as failure:
            if failure.message not in [f.message for f in failures]:
                failures.append(failure)
            if failure.kind == "import":
                break
    return said, failures
