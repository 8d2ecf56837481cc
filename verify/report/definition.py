"""The part of a report that shows another definition: both formulas, the evidence for each, and how to settle it."""

from __future__ import annotations

from typing import Any

from gradjury.verify.case import Case, Node
from gradjury.verify.report.text import LABEL, Line, Span, cells, labelled, number, pad, safe, wrap

Json = dict[str, Any]


def shown(data: Json) -> list[Json]:
    """The causes that this part tells, so that the rest of the report need not."""
    return [cause for cause in data["causes"] if cause["kind"] == "definition" and cause.get("definitions")]


def compose(data: Json, case: Case | None, width: int) -> list[Line]:
    """Formulas, evidence and fixes of every other definition."""
    lines: list[Line] = []
    for cause in shown(data):
        lines += _formulas(cause, width) + _evidence(cause, width) + _fixes(cause, case, width)
    return lines


def _formulas(cause: Json, width: int) -> list[Line]:
    definitions = cause["definitions"]
    said = [("the case", definitions["case"]), (safe(cause["witness"]), definitions["witness"])]
    label = max(LABEL - 2, *(cells(name) + 1 for name, _ in said))
    lines: list[Line] = []
    for name, formula in said:
        parts = wrap(safe(formula), max(width - label - 2, 20))
        lines += [
            [Span(pad(f"  {name if i == 0 else ''}", label + 2)), Span(part, "cyan")] for i, part in enumerate(parts)
        ]
    return lines


def _evidence(cause: Json, width: int) -> list[Line]:
    """A row for each definition, a column for each witness: the largest excess of its gradients."""
    columns = list(cause["excess"].items())[:5]
    rows = [("under the case's definition", 0), (f"under {safe(cause['witness'])}'s", 1)]
    label = min(max(cells(text) for text, _ in rows) + 4, width // 2)
    head: Line = [Span(pad("Evidence", LABEL), "bold"), Span(pad("(1 = rounding)", label - LABEL))]
    lines = [[*head, *(Span(pad(safe(name)[:11], 12)) for name, _ in columns)]]
    for text, i in rows:
        numbers = [Span(pad(number(both[i], 1), 12), "" if float(both[i]) <= 1 else "red") for _, both in columns]
        lines.append([Span(pad(f"  {text}"[: label - 1], label)), *numbers])
    return lines


def _fixes(cause: Json, case: Case | None, width: int) -> list[Line]:
    node = next((n for n in case.graph if n.name == cause.get("node")), None) if case is not None else None
    said = []
    if cause["cause"] == "gru.update-convention":
        said += ["code: swap z and 1-z where h' is made", _negated_rows(case, node)]
    elif cause["cause"] == "gru.reset-placement":
        said += ["code: move the reset gate; no change of weights does it"]
    elif cause["cause"].endswith(".epsilon"):
        said += [f"code: use one epsilon; {safe(cause['witness'])} has {cause['attributes']['epsilon']:g}"]
    if node is not None:
        family = node.op.removesuffix("_step")
        options = " ".join(f"--define {family}.{key}={value}" for key, value in cause["attributes"].items())
        said.append(f"accept: gradjury verify CASE {safe(options)}")
    lines = labelled("Fix one", [text for text in said if text], width)
    return lines + labelled("Ruled out", [safe(", ".join(cause["ruled_out"]))] if cause.get("ruled_out") else [], width)


def _negated_rows(case: Case | None, node: Node | None) -> str:
    """sigmoid(−a) = 1 − sigmoid(a): minus the update gate's rows turns one convention into the other."""
    if case is None or node is None or node.inputs.get("weight_hh") not in case.values:
        return ""
    hidden = case.values[node.inputs["weight_hh"]].shape[-1]
    names = [node.inputs[s] for s in ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if s in node.inputs]
    return f"weights: negate rows {hidden}:{2 * hidden} of {', '.join(map(safe, names))}"
