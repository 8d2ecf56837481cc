"""Reads gradients that training code printed, as people paste them.

Two formats: PaddlePaddle v1's gradient evaluator (`layer=NAME new grad matrix:`) and fluid's Print (`Tensor[NAME@GRAD]`,
`shape:`, `data:`). A paste may carry line numbers in front, and a wrapped line leaves its gutter behind: a run of spaces
inside a number that was cut, one space more where the cut fell between two numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradjury.verify.errors import CaseError

HEADING = re.compile(r"\bstep\s*[-_#:=]?\s*(\d{1,18})", re.IGNORECASE)
EVALUATOR = re.compile(r"layer=(\S+) new grad matrix:")
EVALUATOR_DATA = re.compile(r"Evaluator\.cpp:\d+\] (?=[\s\d+\-.naif])(.*)$")
FLUID = re.compile(r"Tensor\[([^\]\s]+)\]")
SHAPE = re.compile(r"shape:\s*\[([\d,\s]*)\]")
FLUID_DATA = re.compile(r"\bdata:\s*(.*)$")
CONTINUED = re.compile(r"^[\s\d+\-.,eEnaif\]]+$")
GUTTER = re.compile(r"(?<=\S)( {2,})(?=\S)")
NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|nan|inf)", re.IGNORECASE)
LONGEST_LINE = 16 * 2**20  # characters: a longer line is no print-out of a gradient


class LogError(CaseError):
    """The log cannot be read; one line: what was expected, what was found, where."""


@dataclass(frozen=True)
class Print:
    """One printed gradient. `digits`: significant digits of its widest literal; `expected`: elements its shape declares."""

    format: str
    tensor: str
    step: int | None
    values: np.ndarray
    digits: int
    line: int
    expected: int | None = None

    @property
    def cut(self) -> bool:
        """Whether fewer numbers were printed than the shape declares."""
        return self.expected is not None and len(self.values) < self.expected


@dataclass
class _Block:
    """A gradient being read: everything from its header to the next."""

    format: str
    tensor: str
    step: int | None
    line: int
    shape: tuple[int, ...] | None = None
    text: str | None = None


def read_log(path: str | Path) -> list[Print]:
    """All gradients printed in a log file. Raises LogError if it cannot be read or holds none."""
    path = Path(path)
    try:
        with path.open(encoding="utf-8", errors="strict", newline=None) as stream:
            found = parse(stream, str(path))
    except IsADirectoryError:
        raise LogError(f"{path}: expected a log file, found a directory") from None
    except FileNotFoundError:
        raise LogError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise LogError(f"{path}: expected UTF-8 text, found byte {error.object[error.start]:#04x}") from None
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}") from None
    if not found:
        raise LogError(
            f"{path}: no printed gradient found; known are 'layer=NAME new grad matrix:' and 'Tensor[NAME@GRAD] … data:'"
        )
    return found


def parse(lines: Iterator[str] | list[str], source: str = "log") -> list[Print]:
    """The gradients in the lines of a log, in the order of printing."""
    found: list[Print] = []
    block: _Block | None = None
    step: int | None = None
    for number, line in enumerate(lines, start=1):
        if len(line) > LONGEST_LINE:
            raise LogError(f"{source}:{number}: a line of {len(line)} characters is no printed gradient")
        text = line.rstrip("\n")
        header = EVALUATOR.search(text) or FLUID.search(text)
        if header is not None:
            found += _finish(block, source)
            kind = "v1" if header.re is EVALUATOR else "fluid"
            block = _Block(kind, header.group(1), step, number)
        elif block is not None and _fill(block, text):
            continue
        else:
            found += _finish(block, source)
            block = None
            heading = HEADING.search(text)
            step = int(heading.group(1)) if heading else step
    return found + _finish(block, source)


def _fill(block: _Block, line: str) -> bool:
    """Takes a line into the block; False if it does not belong there."""
    shape = SHAPE.search(line)
    if block.format == "fluid" and shape is not None:
        block.shape = tuple(int(n) for n in re.findall(r"\d{1,18}", shape.group(1)))
        return True
    data = (FLUID_DATA if block.format == "fluid" else EVALUATOR_DATA).search(line)
    if block.text is None:
        block.text = None if data is None else data.group(1)
        return data is not None or not line.strip() or "dtype:" in line
    if line.strip() and CONTINUED.match(line):
        block.text += line
        return True
    return False


def _finish(block: _Block | None, source: str) -> list[Print]:
    if block is None or block.text is None:
        return []
    expected = math.prod(block.shape) if block.shape is not None else None
    text = block.text.split("]")[0]
    tokens = _split_commas(text) if block.format == "fluid" else _split_spaces(text)
    literals = [token for token in tokens if NUMBER.fullmatch(token)]
    if len(literals) < len(tokens):
        bad = next(token for token in tokens if not NUMBER.fullmatch(token))
        raise LogError(f"{source}:{block.line}: {block.tensor}: expected numbers, found {bad[:40]!r}")
    if not literals:
        return []
    values = np.array([float(token) for token in literals])
    digits = max(_significant(token) for token in literals)
    return [Print(block.format, block.tensor, block.step, values, digits, block.line, expected)]


def _split_commas(text: str) -> list[str]:
    return [token for token in re.sub(r"\s+", "", text).split(",") if token]


def _split_spaces(text: str) -> list[str]:
    """Numbers separated by single spaces, where wrapping has put its gutter into some numbers and between others."""
    runs = {len(run) for run in GUTTER.findall(text.strip())}
    if not runs:
        return text.split()
    gutter = min(runs)
    if len(runs) == 1 and not _joins(text, gutter):
        return text.split()
    return re.sub(rf"(?<=\S) {{{gutter}}}(?=\S)", "", text.strip()).split()


def _joins(text: str, gutter: int) -> bool:
    """Whether every run of `gutter` spaces can be taken out and leave numbers no longer than the others."""
    whole = re.split(rf" {{{gutter}}}", text.strip())
    joined = re.sub(rf"(?<=\S) {{{gutter}}}(?=\S)", "", text.strip()).split()
    longest = max((_significant(t) for part in whole for t in part.split()[1:-1] if NUMBER.fullmatch(t)), default=0)
    return all(NUMBER.fullmatch(t) and _significant(t) <= max(longest, 6) for t in joined)


def _significant(literal: str) -> int:
    mantissa = re.split(r"[eE]", literal)[0].lstrip("+-").replace(".", "").lstrip("0")
    return len(mantissa) if mantissa else 1
