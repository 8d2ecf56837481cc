"""The judgement of a case: which testimony is wrong, or proof that the differences are rounding (DESIGN section 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradjury.kernels.engine import engine
from gradjury.verify import audit as auditing
from gradjury.verify import causes, graph, vote
from gradjury.verify.audit import Audit
from gradjury.verify.case import Case
from gradjury.verify.court import Court, Statement
from gradjury.verify.report import Report
from gradjury.verify.summary import summarise
from gradjury.verify.verdict import GUILTY, Finding, Table, Verdict, of_ladder, of_one


@dataclass
class Judgement:
    """Everything found about a case, before it is put into words."""

    court: Court
    gradients: dict[str, Table] = field(default_factory=dict)  # witness -> dtype -> key -> verdict
    forward: dict[str, Table] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)
    audit: Audit = field(default_factory=lambda: Audit(None))
    by_vote_alone: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """Witnesses with a tensor that no rounding excuses."""
        return [name for name in self.court.case.witnesses if self._verdicts(name) & set(GUILTY)]

    @property
    def open(self) -> bool:
        return any("undecided" in self._verdicts(name) for name in self.court.case.witnesses)

    @property
    def doubtful(self) -> bool:
        """Whether nobody may be accused: the reference contradicts itself, or the recording could not be replayed."""
        return self.audit.disputed or bool(self.court.case.distrust)

    @property
    def decision(self) -> str:
        if self.doubtful:
            return "undecided"
        return "wrong" if self.wrong else "undecided" if self.open else "agree"

    def _verdicts(self, witness: str) -> set[str]:
        tables = [self.gradients.get(witness, {}), self.forward.get(witness, {})]
        return {v.verdict for table in tables for verdicts in table.values() for v in verdicts.values()}


def judge_case(
    case: Case,
    *,
    live: Sequence[str] = (),
    strict: bool = False,
    define: Mapping[str, Any] | None = None,
    identities: Mapping[str, Any] | None = None,
    failures: Sequence[dict[str, str]] = (),
) -> Report:
    """Judges every testimony of `case`, recorded or live.

    `live`: witnesses to run now, such as `torch` or `old=paddle:/path/to/python`. `strict`: low precision makes a
    witness wrong. `identities` and `failures`: of witnesses that were called before. Raises CaseError if the case
    contradicts itself, EngineMissing if no engine can run the kernels.
    """
    called: dict[str, Any] = dict(identities or {})
    failed = list(failures)
    case = graph.define(case, define or {})
    case = graph.complete(case, graph.check(case))
    if live:
        from gradjury.verify.witnesses import call

        case, found, missing = call(case, live)
        called |= found
        failed += missing
    shapes = graph.check(case)
    court = Court(case, engine(), shapes)
    judgement = Judgement(court, failures=failed, notes=graph.remarks(case))
    for statement in court.statements:
        judgement.notes += statement.notes
        _judge_forward(judgement, statement)
    for name in case.witnesses:
        _judge_witness(judgement, name)
    _decide_by_vote(judgement)
    _cross_examine(judgement)
    return Report(summarise(judgement, called, strict=strict), case)


def _judge_forward(judgement: Judgement, statement: Statement) -> None:
    court = judgement.court
    found: dict[str, Verdict] = {}
    for name in statement.forward:
        measured = court.measure_forward(statement, name)
        if measured is not None:
            verdict = of_one(measured)
            found[name] = replace(verdict, verdict="agrees") if verdict.verdict == "undecided" and measured.within else verdict
    if found:
        judgement.forward.setdefault(statement.witness.name, {})[statement.dtype] = found


def _judge_witness(judgement: Judgement, name: str) -> None:
    court = judgement.court
    statements = {s.dtype: s for s in court.statements if s.witness.name == name}
    table: Table = {dtype: _verdicts(court, statement) for dtype, statement in statements.items()}
    table = of_ladder(table)
    if name in judgement.forward:
        judgement.forward[name] = of_ladder(judgement.forward[name])
    for dtype in sorted(statements, key=lambda d: d != "float64"):
        wide = {v.verdict for v in table.get("float64", {}).values()}
        _explain(judgement, statements[dtype], table[dtype], sound=dtype == "float64" or "wrong" not in wide)
        if dtype != "float64" and "unstable" in wide and "wrong" not in wide:
            _share_weakness(table[dtype])
    judgement.gradients[name] = table


def _share_weakness(verdicts: dict[str, Verdict]) -> None:
    """An algorithm that float64 shows to be weak is weak in the tensors where only float32 shows it."""
    for key, verdict in verdicts.items():
        if verdict.verdict == "wrong":
            verdicts[key] = replace(verdict, verdict="unstable", why="as at float64: a numerically weak algorithm")


def _verdicts(court: Court, statement: Statement) -> dict[str, Verdict]:
    verdicts = {key: of_one(court.measure(statement, key)) for key in statement.gradients}
    for key, why in statement.misshapen.items():
        verdicts[key] = Verdict("missing", why=why)
    reference = court.reference_for(statement)
    for key in statement.witness.absent:
        if key not in verdicts:
            zero = reference.gradient(key) is not None and reference.exactly_zero(key)
            verdicts[key] = Verdict("zero-noise" if zero else "missing", why="no gradient (None)")
    return verdicts


def _explain(judgement: Judgement, statement: Statement, verdicts: dict[str, Verdict], *, sound: bool) -> None:
    """Searches for causes of what is over the line, and takes back what they excuse."""
    measured = {key: v.measurement for key, v in verdicts.items() if v.measurement is not None}
    over = [key for key in measured if verdicts[key].verdict == "wrong"]
    weak = [key for key in measured if verdicts[key].verdict == "unstable"]
    found = causes.explain(judgement.court, statement, measured, over, sound=sound) if over else []
    named = causes.weakness(judgement.court, statement, measured, weak) if weak else None
    for finding in found:
        arithmetic = finding.details.get("arithmetic")
        for key in finding.tensors:
            verdicts[key] = replace(verdicts[key], verdict=finding.verdict, why=finding.evidence, arithmetic=arithmetic)
    judgement.findings += found if named is None else [*found, named]


def _decide_by_vote(judgement: Judgement) -> None:
    """Where there is no reference, testimonies that agree with each other agree, and a lone dissenter stays undecided."""
    court = judgement.court
    for key in court.keys:
        unknown = [
            verdicts
            for table in judgement.gradients.values()
            for verdicts in table.values()
            if key in verdicts and verdicts[key].verdict == "undecided" and verdicts[key].measurement is None
        ]
        if not unknown:
            continue
        judgement.by_vote_alone = True
        found = vote.groups(court, key)
        unanimous = len(found) == 1 and len(found[0]) > 1
        for verdicts in unknown:
            if unanimous:
                verdicts[key] = Verdict("agrees", why="by vote alone: all witnesses agree; there is no reference")


def _cross_examine(judgement: Judgement) -> None:
    """Audits the reference at the precision of the accusation, or at float32 if there is none."""
    court = judgement.court
    dtypes = sorted({s.dtype for s in court.statements}, key=lambda d: d != "float64")
    accused = any(v.verdict in GUILTY for t in judgement.gradients.values() for v in t.get("float64", {}).values())
    if not dtypes:
        return
    judgement.audit = auditing.directional(court.reference(dtypes[0] if accused else dtypes[-1]))

