"""A judgement as the JSON object of DESIGN section 6: what files, scripts and reports read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gradjury.verify import graph, vote
from gradjury.verify.case import Node
from gradjury.verify.verdict import GUILTY, Finding, Table, Verdict

if TYPE_CHECKING:
    from gradjury.verify.judge import Judgement

Json = dict[str, Any]


def summarise(judgement: Judgement, identities: Mapping[str, Any], *, strict: bool = False) -> Json:
    """The whole judgement as plain JSON types. With `strict`, low precision makes a witness wrong."""
    court, case = judgement.court, judgement.court.case
    wrong = list(judgement.wrong)
    if strict:
        careless = {name for name, table in judgement.gradients.items() if _has(table, "low-precision")}
        wrong = [name for name in case.witnesses if name in wrong or name in careless]
    decision = judgement.decision
    if strict and wrong and not judgement.doubtful:
        decision = "wrong"
    if decision != "wrong":
        wrong = []
    return {
        "gradjury": 1,
        "case": case.name,
        "decision": decision,
        "wrong": wrong,
        "tensors": {key: _tensor(judgement, key) for key in court.keys},
        "causes": [_cause(f) for f in _merged(judgement.findings) if f.code != "precision"],
        "findings": [_precision(f) for f in _merged(judgement.findings) if f.code == "precision"],
        "first_wrong": _first_wrong(judgement, wrong),
        "forward": _forward(judgement),
        "failures": judgement.failures,
        "audit": _audit(judgement),
        "witnesses": {name: _witness(judgement, name, identities.get(name)) for name in case.witnesses},
        "opaque": [f"{node.name} ({node.op})" for node in graph.opaque(case)],
        "by_vote_alone": judgement.by_vote_alone,
        "distrust": case.distrust,
        "notes": [*case.notes, *judgement.notes],
    }


def _has(table: Table, verdict: str) -> bool:
    return any(v.verdict == verdict for verdicts in table.values() for v in verdicts.values())


def _tensor(judgement: Judgement, key: str) -> Json:
    court = judgement.court
    testimony: Json = {}
    shown: Verdict | None = None
    for name, table in judgement.gradients.items():
        for dtype, verdicts in table.items():
            if key in verdicts:
                testimony.setdefault(name, {})[dtype] = _verdict(verdicts[key], dtype, judgement)
                shown = verdicts[key] if verdicts[key].measurement is not None else shown
    measured = shown.measurement if shown is not None else None
    groups = vote.groups(court, key)
    return {
        "scale": None if measured is None else _largest(measured.scale),
        "exact_zero": None if measured is None else measured.zero,
        "max_abs": None if measured is None else _largest(measured.exact.high),
        "shape": list(court.shapes.get(graph.split_part(court.case, key)[0], ())),
        "testimony": testimony,
        "vote": groups,
        "independence": vote.independence(court, key),
        "voices": [vote.voices(court, key, group) for group in groups],
    }


def _verdict(verdict: Verdict, dtype: str, judgement: Judgement) -> Json:
    m = verdict.measurement
    found: Json = {"verdict": verdict.verdict, "unit_roundoff": judgement.court.reference(dtype).precision.u}
    if m is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.abs(m.error) / np.abs(m.exact.high)
        found |= {
            "excess": _number(m.excess),
            "max_abs": _largest(m.testimony),
            "max_rel": None if m.zero else _number(float(np.max(relative[m.exact.high != 0], initial=0.0))),
            "worst_index": list(m.worst),
            "difference": _number(m.difference),
            "allowed": _number(m.allowed),
            "resolution": _number(m.resolution),
            "outside": int(m.outside.sum()),
            "size": int(m.testimony.size),
        }
    if verdict.why:
        found["why"] = verdict.why
    if verdict.arithmetic:
        found["arithmetic"] = verdict.arithmetic
    return found


def _forward(judgement: Judgement) -> Json:
    found: Json = {}
    for name, table in judgement.forward.items():
        for dtype, verdicts in table.items():
            for key, verdict in verdicts.items():
                found.setdefault(key, {}).setdefault(name, {})[dtype] = _verdict(verdict, dtype, judgement)
    return found


def _merged(findings: list[Finding]) -> list[Finding]:
    """One finding per witness and code, its tensors joined over dtypes and places."""
    merged: dict[tuple[str, str, str], Finding] = {}
    for f in findings:
        key = (f.witness, f.code, f.details.get("arithmetic", ""))
        if key in merged:
            merged[key].tensors = list(dict.fromkeys([*merged[key].tensors, *f.tensors]))
        else:
            merged[key] = Finding(**{**vars(f), "tensors": list(f.tensors)})
    return list(merged.values())


def _cause(f: Finding) -> Json:
    return {"witness": f.witness, "cause": f.code, "kind": f.kind, "tensors": f.tensors, "evidence": f.evidence, **f.details}


def _precision(f: Finding) -> Json:
    return {
        "witness": f.witness,
        "verdict": f.verdict,
        "arithmetic": f.details["arithmetic"],
        "tensors": f.tensors,
        "evidence": f.evidence,
    }


def _audit(judgement: Judgement) -> Json:
    audit = judgement.audit
    found: Json = {"kernels_agree": None, "kernels_why": "only one set of kernels is installed"}
    found["directional_excess"] = None if audit.directional_excess is None else _number(audit.directional_excess)
    if audit.why is not None:
        found["directional_why"] = audit.why
    return found


def _witness(judgement: Judgement, name: str, identity: Any) -> Json:
    witness = judgement.court.case.witnesses[name]
    dtypes = sorted({s.dtype for s in judgement.court.statements if s.witness.name == name})
    return {"layout": witness.layout, "dtypes": dtypes, "backend": list(witness.backend), "identity": identity}


def _first_wrong(judgement: Judgement, wrong: list[str]) -> Json | None:
    """Where the error enters: in backward order, the first node behind which a wrong gradient lies and before which none does."""
    case = judgement.court.case
    for name in wrong:
        forward = _guilty(judgement.forward.get(name, {}))
        for node in graph.order(case):
            if forward & set(node.outputs.values()):
                return _place(name, node)
        tensors = {graph.split_part(case, key)[0] for key in _guilty(judgement.gradients.get(name, {}))}
        for node in reversed(graph.order(case)):
            if tensors & set(node.inputs.values()) and not tensors & set(node.outputs.values()):
                return _place(name, node)
    return None


def _guilty(table: Table) -> set[str]:
    return {key for verdicts in table.values() for key, v in verdicts.items() if v.verdict in GUILTY}


def _place(witness: str, node: Node) -> Json:
    return {"witness": witness, "node": node.name, "step": node.step}


def _largest(x: np.ndarray) -> float | str:
    return _number(float(np.max(np.abs(x), initial=0.0)))


def _number(x: float) -> float | str:
    """JSON has no infinity and no NaN: they are written as text."""
    return x if np.isfinite(x) else str(x)
