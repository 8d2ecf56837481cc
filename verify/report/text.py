"""Lines of styled text, so that a report is composed once and printed with or without colour."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

LABEL = 14  # columns of the labels at the left


class Span(NamedTuple):
    """A piece of a line and its style: a colour name as rich knows it, or empty."""

    text: str
    style: str = ""


Line = list[Span]


def plain(lines: list[Line]) -> str:
    """The lines without styles."""
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def safe(text: str) -> str:
    """`text` on one line, without characters that would move the cursor or colour the screen of whoever reads it."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def cells(text: str) -> int:
    """Columns that `text` takes on a terminal."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def pad(text: str, width: int) -> str:
    """`text` filled up with spaces to `width` columns."""
    return text + " " * (width - cells(text))


def shorten(text: str, width: int) -> str:
    """At most `width` columns of `text`, its middle left out: names differ at both ends."""
    if cells(text) <= width:
        return text
    head, tail = text[: len(text) // 3], text[len(text) // 3 :]
    while tail and cells(head) + cells(tail) + 1 > width:
        head, tail = (head[:-1], tail) if len(head) > len(tail) // 2 else (head, tail[1:])
    return f"{head}…{tail}"


def wrap(text: str, width: int) -> list[str]:
    """`text` broken at spaces into lines of at most `width` columns; a longer word is broken where it must."""
    lines: list[str] = [""]
    for word in text.split():
        for piece in _pieces(word, width):
            if lines[-1] and cells(lines[-1]) + 1 + cells(piece) > width:
                lines.append(piece)
            else:
                lines[-1] += f" {piece}" if lines[-1] else piece
    return lines


def labelled(label: str, sentences: Sequence[str], width: int) -> list[Line]:
    """A label and its sentences beside it, each broken to the width."""
    parts = [part for sentence in sentences for part in wrap(sentence, width - LABEL)]
    return [[Span(pad("" if i else label, LABEL), "bold"), Span(part)] for i, part in enumerate(parts)]


def _pieces(word: str, width: int) -> list[str]:
    """A word cut into pieces of at most `width` columns."""
    pieces = [""]
    for character in word:
        if cells(pieces[-1]) + cells(character) > width:
            pieces.append("")
        pieces[-1] += character
    return pieces


def number(x: float | str | None, digits: int = 2) -> str:
    """A number as short as `digits` significant digits allow: 3.0e-8, 0.15, 12."""
    if x is None:
        return "-"
    value = float(x)
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    rounded = f"{value:.{digits - 1}e}"
    mantissa, power = rounded.split("e")
    exponent = int(power)
    if not -3 <= exponent < 5:
        return f"{mantissa}e{exponent}"
    return f"{float(rounded):.{max(0, digits - 1 - exponent)}f}"


def listed(names: list[str], most: int = 4) -> str:
    """Names in a row: a, b and c; with many, the first ones and how many more."""
    shown = [safe(name) for name in names]
    if len(shown) > most:
        return f"{', '.join(shown[: most - 1])} and {len(shown) - most + 1} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)
