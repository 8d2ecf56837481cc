"""The table of a report: one row a gradient, the worst testimony about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gradjury.verify.report.text import Line, Span, cells, number, pad, safe, shorten

MOST = 7  # rows of a report that fits one screen

SEVERITY = ("zero-noise", "agrees", "low-precision", "undecided", "unstable", "missing", "nonfinite", "wrong")
WORDS = {
    "agrees": ("ok", "green"),
    "zero-noise": ("ok: noise", "green"),
    "low-precision": ("low precision", "yellow"),
    "undecided": ("undecided", "yellow"),
    "unstable": ("UNSTABLE", "bold red"),
    "missing": ("MISSING", "bold red"),
    "nonfinite": ("NOT FINITE", "bold red"),
    "wrong": ("WRONG", "bold red"),
}
FINE = ("agrees", "zero-noise")


@dataclass(frozen=True)
class Row:
    """What one witness says of one tensor at one dtype. `place`: `gradient` or `forward`."""

    place: str
    tensor: str
    witness: str
    dtype: str
    found: dict[str, Any]
    about: dict[str, Any]  # what holds for the tensor, whoever speaks

    @property
    def verdict(self) -> str:
        return str(self.found["verdict"])

    @property
    def fine(self) -> bool:
        return self.verdict in FINE

    @property
    def rank(self) -> tuple[int, float]:
        """The worse, the larger."""
        excess = self.found.get("excess")
        return SEVERITY.index(self.verdict), float(excess) if excess is not None else 0.0


def rows(data: dict[str, Any]) -> list[Row]:
    """Every finding of a report, forward values first."""
    found = [
        Row("forward", tensor, witness, dtype, finding, {})
        for tensor, witnesses in data.get("forward", {}).items()
        for witness, dtypes in witnesses.items()
        for dtype, finding in dtypes.items()
    ]
    for tensor, about in data.get("tensors", {}).items():
        for witness, dtypes in about["testimony"].items():
            found += [Row("gradient", tensor, witness, dtype, finding, about) for dtype, finding in dtypes.items()]
    return found


def worst(found: list[Row]) -> list[Row]:
    """Per tensor the worst testimony, and besides it every one that is not fine; the worst first."""
    kept: dict[tuple[str, str, str], Row] = {}
    for row in found:
        key = (row.place, row.tensor, "" if row.fine else row.witness)
        if key not in kept or row.rank > kept[key].rank:
            kept[key] = row
    troubled = {(place, tensor) for place, tensor, witness in kept if witness}
    chosen = [row for row in kept.values() if not row.fine or (row.place, row.tensor) not in troubled]
    return sorted(chosen, key=_by_interest)


def _by_interest(row: Row) -> tuple[bool, bool, bool, float]:
    """What is not fine first, then noise that looks wrong, then whole gradients before parts, large excess first."""
    severity, excess = row.rank
    order = 0 if row.fine else -severity
    return (
        row.fine,
        row.fine and row.verdict != "zero-noise",
        row.fine and ("@" in row.tensor or row.place == "forward"),
        order * 1e9 - min(excess, 1e8),
    )


def table(found: list[Row], width: int, *, most: int | None = MOST) -> Iterator[Line]:
    """The rows in columns that fit `width`; at most `most` of them, and how many were left out."""
    shown = found if most is None or len(found) <= most + 1 else found[:most]
    witnesses = {row.witness for row in found}
    several = len(witnesses) > 1
    dtypes = len({row.dtype for row in found}) > 1
    only = next(iter(witnesses)) if len(witnesses) == 1 else ""
    error = f"|{safe(only)}−exact|" if only and cells(only) <= 8 else "|error|"
    head = [
        "gradient",
        *(["witness"] if several else []),
        *(["dtype"] if dtypes else []),
        "max |g|",
        error,
        "allowed",
        "",
    ]
    body = [_cells(row, several, dtypes) for row in shown]
    widths = [max(cells(line[i]) for line in [head, *body]) for i in range(len(head))]
    gap = 2
    named = 2 if several else 1  # the columns of names share what the numbers leave
    room = width - sum(widths[named:]) - gap * (len(head) - 1)
    if several:
        widths[1] = min(widths[1], max(8, room // 3))
    widths[0] = min(widths[0], room - sum(widths[1:named]))
    yield _line(head, widths, gap, "dim", "dim")
    for row, line in zip(shown, body, strict=True):
        yield _line(line, widths, gap, "" if row.fine else "bold", WORDS[row.verdict][1])
    if len(shown) < len(found):
        yield [
            Span(
                f"({len(found) - len(shown)} more{' ok' if all(r.fine for r in found[len(shown) :]) else ''}: -v)",
                "dim",
            )
        ]


def _cells(row: Row, several: bool, dtypes: bool) -> list[str]:
    name = safe(row.tensor) + (" (forward)" if row.place == "forward" else "")
    size = row.about.get("max_abs")
    largest = "exact 0" if row.about.get("exact_zero") else number(row.found.get("max_abs") if size is None else size)
    word = WORDS[row.verdict][0]
    if row.verdict == "low-precision" and row.found.get("arithmetic"):
        word = safe(str(row.found["arithmetic"]))
    if row.verdict == "agrees" and float(row.found.get("excess") or 0) > 1:
        word = "ok: see why"
    return [
        name,
        *([safe(row.witness)] if several else []),
        *([row.dtype] if dtypes else []),
        largest,
        number(row.found.get("difference")),
        number(row.found.get("allowed")),
        word,
    ]


def _line(texts: list[str], widths: list[int], gap: int, name_style: str, word_style: str) -> Line:
    spans = [Span(pad(shorten(text, width), width + gap)) for text, width in zip(texts, widths, strict=True)]
    spans[0] = Span(spans[0].text, name_style)
    spans[-1] = Span(texts[-1], word_style)
    return spans
