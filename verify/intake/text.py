"""The report on two logs, as it stands on a terminal."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradjury.verify.intake.compare import Layer, LogReport, Pair


def render(report: LogReport, width: int) -> str:
    """One screen: decision, a line per layer, what follows, and what to record."""
    steps = list(dict.fromkeys(pair.step for layer in report.layers for pair in layer.pairs))
    first, second = report.parties
    lines = [f"{report.source} · {first} and {second}, {len(report.layers)} layers, {len(steps)} steps aligned", ""]
    lines += textwrap.wrap(_headline(report), width)
    lines += ["", *_table(report, steps)]
    for hypothesis in report.hypotheses:
        word = "Fits" if hypothesis["fits"] else "Refuted"
        lines += ["", f"{word} [{hypothesis['cause']}]"]
        lines += textwrap.wrap(hypothesis["why"] + ".", width, initial_indent="  ", subsequent_indent="  ")
    if report.decision == "undecided":
        lines += ["", *_wanted(report, width)]
    lines += [f"Noted         {note}" for note in report.data["notes"]]
    return "\n".join(lines)


def _headline(report: LogReport) -> str:
    if report.decision == "agree":
        return f"{report.parties[0]} AND {report.parties[1]} AGREE in every printed gradient, as far as its digits go."
    differing = [layer.first for layer in report.layers if not all(p.agrees for p in layer.pairs)]
    fits = [h["cause"] for h in report.hypotheses if h["fits"]]
    also = f" One explanation fits: {', '.join(fits)}." if fits else ""
    return f"UNDECIDED. {', '.join(differing)} differs; prints without weights cannot say who is wrong.{also}"


def _table(report: LogReport, steps: list[int | None]) -> list[str]:
    header = ["size", *report.parties, *("" if s is None else f"step {s}" for s in steps)]
    rows = [[str(layer.size), layer.first, layer.second, *_cells(layer, steps)] for layer in report.layers]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in [header, *rows]]


def _cells(layer: Layer, steps: list[int | None]) -> list[str]:
    by_step = {pair.step: pair for pair in layer.pairs}
    return [_cell(by_step[step]) if step in by_step else "-" for step in steps]


def _cell(pair: Pair) -> str:
    if pair.same:
        return "bit-equal"
    if pair.agrees:
        return "equal"
    return f"{pair.beyond} of {len(pair.first.values)} differ, by {pair.gap:.1e}"


def _wanted(report: LogReport, width: int) -> list[str]:
    sizes = sorted(layer.size for layer in report.layers)
    shape = f" ({sizes[0]} x {sizes[-1]})" if len(sizes) > 1 else ""
    text = (
        f"the layer's weight{shape}: dX = dY·W then says which print is this layer's part alone; or the part of the gradient that"
        " comes from the next step, which must be the difference."
    )
    return textwrap.wrap(text, width, initial_indent="To prove it   record ", subsequent_indent="              ")
