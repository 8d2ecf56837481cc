"""A report as text: one screen that says who is wrong, why, where and what to do (DESIGN section 7)."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any, TextIO

from gradjury.verify.report import definition, text, words
from gradjury.verify.report.table import rows, table, worst
from gradjury.verify.report.text import Line, Span, safe

if TYPE_CHECKING:
    from gradjury.verify.report.report import Report

WIDTH = 88  # of a report that is not printed on a terminal
NARROWEST = 78  # columns that the table needs
FEW = 3  # sentences under one label that still fit one screen


def show(report: Report, *, verbose: bool = False, stream: TextIO | None = None) -> None:
    """Prints the report on `stream` (standard output), in colour where that is a terminal."""
    from rich.console import Console
    from rich.text import Text

    stream = stream or sys.stdout
    console = Console(file=stream, highlight=False, soft_wrap=True)
    width = min(shutil.get_terminal_size((WIDTH, 24)).columns, 110) if console.is_terminal else WIDTH
    with console.capture() as styled:
        for line in report.lines(verbose=verbose, width=width):
            styled_text = Text.assemble(*[(span.text, span.style) for span in line])
            styled_text.rstrip()
            console.print(styled_text)
    stream.write(styled.get())  # in one piece, by us: rich ends the program when a pipe breaks


def compose(report: Report, *, verbose: bool, width: int) -> list[Line]:
    """The lines of a report, none wider than `width` (at least NARROWEST)."""
    data, width = report.data, max(width, NARROWEST)
    found = rows(data)
    lines = _title(data, found, width)
    lines += _headline(data, found, width)
    lines += definition.compose(data, report.case, width)
    start = words.where(data, found, report.case)
    lines += _section("Starts", [start] if start else [], width)
    lines += _failures(data, width)
    lines.append([])
    if found:
        shown = sorted(found, key=lambda r: (r.place, r.tensor, r.witness, r.dtype)) if verbose else worst(found)
        lines += list(table(shown, width, most=None)) if verbose else list(table(shown, width))
        lines.append([])
    few = None if verbose else FEW
    lines += _section("Why", words.why(data, found), width, few)
    lines += _looks_wrong(found, report, width)
    lines += _section("What to do", words.advice(data, found, report.case), width, few)
    lines += _section("Vote", words.vote(data) if verbose or data["decision"] != "agree" else [], width, few)
    lines += _section("Not judged", _opaque(data), width, few)
    lines += _section("Noted", [safe(note) for note in dict.fromkeys(data.get("notes", []))], width, few)
    lines += _section("Checked", [words.checked(data, found)], width)
    if verbose:
        lines += _details(data, width)
    return lines


def _title(data: dict[str, Any], found: list[Any], width: int) -> list[Line]:
    dtypes = sorted({row.dtype for row in found})
    parts = [safe(data["case"]), words.witnesses(data), ", ".join(dtypes)]
    return [[Span(line, "dim")] for line in text.wrap(" · ".join(part for part in parts if part), width)] + [[]]


def _headline(data: dict[str, Any], found: list[Any], width: int) -> list[Line]:
    sentence, style, codes = words.headline(data, found)
    lines: list[Line] = [[Span(line, style)] for line in text.wrap(sentence, width)]
    code = f"[{', '.join(map(safe, codes))}]" if codes else ""
    room = width - text.cells(lines[-1][0].text) - text.cells(code)
    if code and room >= 2:
        lines[-1] += [Span(" " * room), Span(code, "cyan")]
    elif code:
        lines += [[Span(line, "cyan")] for line in text.wrap(code, width)]
    return lines


def _section(label: str, sentences: list[str], width: int, few: int | None = None) -> list[Line]:
    """A label and its sentences beside it, of which at most `few` are shown."""
    if few is not None and len(sentences) > few + 1:
        sentences = [*sentences[:few], f"({len(sentences) - few} more: -v)"]
    return text.labelled(label, sentences, width)


def _failures(data: dict[str, Any], width: int) -> list[Line]:
    said = [
        f"{safe(f['witness'])} could not be run ({safe(f['kind'])}): {safe(f['message'])}" for f in data["failures"]
    ]
    return _section("Failed", said, width, FEW)


def _looks_wrong(found: list[Any], report: Report, width: int) -> list[Line]:
    tensors, sentences, _ = words.looks_wrong(found, report.case)
    if not tensors:
        return []
    verb = "look" if len(tensors) > 1 else "looks"
    title = f"Why {text.listed(tensors)} {verb} wrong"
    lines: list[Line] = [[Span(line, "bold")] for line in text.wrap(title, width)]
    return lines + [[Span(f"  {line}")] for sentence in sentences for line in text.wrap(sentence, width - 2)]


def _opaque(data: dict[str, Any]) -> list[str]:
    nodes = data.get("opaque", [])
    return (
        [f"{text.listed(nodes)}: no kernel here knows this op; what lies behind it was only compared"] if nodes else []
    )


def _details(data: dict[str, Any], width: int) -> list[Line]:
    """For -v: the audit of the kernels, and who the witnesses are."""
    audit = data["audit"]
    agree = {True: "yes", False: "NO", None: "not compared"}[audit.get("kernels_agree")]
    lines = _section("Kernels", [f"two sets agree: {agree}. {safe(audit.get('kernels_why') or '')}"], width)
    for name, about in data.get("witnesses", {}).items():
        known = about.get("identity") or {}
        facts = [
            f"{key} {value}" for key, value in {**about, **known}.items() if value and key not in ("identity", "name")
        ]
        lines += _section("Witness", [f"{safe(name)}: {safe(', '.join(facts))}"], width)
    return lines
