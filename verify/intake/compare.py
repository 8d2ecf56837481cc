"""Two parties' printed gradients side by side: aligned by layer and step, and what can be judged from prints alone.

Prints carry neither weights nor inputs, so nobody can be proved wrong by them. What they can do is agree, differ in a
pattern, and refute or fit an explanation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from gradjury.verify.intake.logs import LogError, Print, read_log
from gradjury.verify.measure import printed_half_unit
from gradjury.verify.report import Report
from gradjury.verify.report.text import Line, Span, safe

PRINTS_TOTAL = {"v1": True, "fluid": False}  # whether a format prints a tensor's whole gradient or one consumer's part
UNIT = 2.0**-24  # prints are of float32
PARTIES = 2


@dataclass(frozen=True)
class Pair:
    """One layer at one step in both logs. `gap` is the largest difference, `beyond` how many elements no printing explains."""

    step: int | None
    first: Print
    second: Print
    gap: float
    beyond: int
    same: bool

    @property
    def agrees(self) -> bool:
        return self.beyond == 0

    @property
    def lone(self) -> int | None:
        """The index of the only non-zero element, in both; None if there are more."""
        places = [np.flatnonzero(p.values) for p in (self.first, self.second)]
        alone = all(len(place) == 1 for place in places) and places[0][0] == places[1][0]
        return int(places[0][0]) if alone else None


@dataclass(frozen=True)
class Layer:
    """A tensor under both parties' names, and its pairs from the last step to the first."""

    first: str
    second: str
    size: int
    pairs: list[Pair]


class LogReport(Report):
    """What two logs say together. `data` is the JSON object, as of a judgement."""

    def __init__(self, source: str, parties: tuple[str, str], layers: list[Layer], unpaired: list[str]) -> None:
        self.source, self.parties, self.layers, self.unpaired = source, parties, layers, unpaired
        self.hypotheses = explain(parties, layers)
        super().__init__(_data(self))

    def lines(self, *, verbose: bool, width: int) -> list[Line]:
        from gradjury.verify.intake.text import render

        return [[Span(safe(line))] for line in render(self, width).splitlines()]


def compare(first: str | Path, second: str | Path | None = None) -> LogReport:
    """Reads one log that holds both parties, or one log each. Raises LogError if they cannot be told apart or paired."""
    if second is None:
        prints = read_log(first)
        formats = list(dict.fromkeys(p.format for p in prints))
        if len(formats) != PARTIES:
            found = f"only {formats[0]} prints" if len(formats) == 1 else f"{len(formats)} formats"
            raise LogError(f"{first}: expected the prints of two parties, found {found}; give the other's log as a second file")
        sides = [[p for p in prints if p.format == name] for name in formats]
        names = (formats[0], formats[1])
        source = Path(first).name
    else:
        sides = [read_log(first), read_log(second)]
        formats = [side[0].format for side in sides]
        stems = [Path(first).stem, Path(second).stem]
        distinct = formats if formats[0] != formats[1] else stems if stems[0] != stems[1] else ["first", "second"]
        names = (distinct[0], distinct[1])
        source = f"{Path(first).name}, {Path(second).name}"
    layers, unpaired = align(_numbered(sides[0]), _numbered(sides[1]))
    if not layers:
        raise LogError(f"{source}: no tensor of {names[0]} has the size of one of {names[1]}: nothing to compare")
    return LogReport(source, names, layers, unpaired)


def align(first: list[Print], second: list[Print]) -> tuple[list[Layer], list[str]]:
    """Pairs tensors of equal size, the most alike first, and their steps by number. Also the names left over."""
    by_name = [_by_tensor(side) for side in (first, second)]
    candidates = []
    for (name, mine), (other, theirs) in product(by_name[0].items(), by_name[1].items()):
        steps = sorted(set(mine) & set(theirs), key=lambda s: -1 if s is None else s, reverse=True)
        pairs = [_pair(step, mine[step], theirs[step]) for step in steps if _fits(mine[step], theirs[step])]
        if pairs:
            alike = sum(pair.agrees for pair in pairs)
            candidates.append((alike, len(pairs), Layer(name, other, _size(pairs[0].first, pairs[0].second), pairs)))
    candidates.sort(key=lambda c: c[:2], reverse=True)
    chosen: list[Layer] = []
    for _, _, layer in candidates:
        if all(layer.first != c.first and layer.second != c.second for c in chosen):
            chosen.append(layer)
    taken = {c.first for c in chosen} | {c.second for c in chosen}
    left = [name for side in by_name for name in side if name not in taken]
    return sorted(chosen, key=lambda c: (not all(p.agrees for p in c.pairs), c.size)), left


def explain(parties: tuple[str, str], layers: list[Layer]) -> list[dict[str, Any]]:
    """Explanations that the prints refute or fit, where a layer agrees at the last step and differs before."""
    found: list[dict[str, Any]] = []
    for layer in layers:
        if len(layer.pairs) > 1 and layer.pairs[0].agrees and not any(p.agrees for p in layer.pairs[1:]):
            found += [*_weights_updated(layer, layers), _partial(parties, layer)]
    return found


def _weights_updated(layer: Layer, layers: list[Layer]) -> list[dict[str, Any]]:
    """Parameters updated between the steps: refuted where the update cannot have touched the row of W that shows."""
    for other in layers:
        rows = {pair.step: pair.lone for pair in other.pairs if pair.agrees}
        last = layer.pairs[0].step
        shown = [(p.step, rows.get(p.step)) for p in layer.pairs[1:]]
        if rows.get(last) is None or not shown or any(row is None or row == rows[last] for _, row in shown):
            continue
        step, row = shown[0]
        why = (
            f"the gradient of {other.first} has one non-zero element: index {rows[last]} at step {last}, {row} at step {step};"
            f" so dX = dY·W shows row {rows[last]} of W, then row {row}. A plain SGD update made from step {last}'s gradient"
            f" changes row {rows[last]} only and cannot explain step {step} (momentum or weight decay could)"
        )
        return [{"cause": "step.weights-updated", "kind": "mistake", "fits": False, "tensors": [layer.first], "why": why}]
    return []


def _partial(parties: tuple[str, str], layer: Layer) -> dict[str, Any]:
    formats = (layer.pairs[0].first.format, layer.pairs[0].second.format)
    whole, part = parties
    known = PRINTS_TOTAL.get(formats[0]) is not PRINTS_TOTAL.get(formats[1])
    if known and not PRINTS_TOTAL[formats[0]]:
        whole, part = part, whole
    says = f"{whole} prints" if known else f"one of them (say {whole}) prints"
    why = (
        f"{says} the whole gradient of the state, from this layer and from the next time step; {part} prints the part of"
        f" this layer alone. They agree at the last step because no step comes after it"
    )
    return {"cause": "accumulate.partial", "kind": "harness", "fits": True, "tensors": [layer.first], "why": why}


def _pair(step: int | None, first: Print, second: Print) -> Pair:
    n = min(len(first.values), len(second.values))
    a, b = first.values[:n], second.values[:n]
    gap = np.abs(a - b)
    lost = printed_half_unit(a, first.digits) + printed_half_unit(b, second.digits)
    size = float(np.max(np.abs(a), initial=0.0))
    allowed = lost + 4 * UNIT * np.sqrt(n + 1) * size  # two honest float32 sums of as many terms
    beyond = int((~(gap <= allowed)).sum())
    return Pair(step, first, second, float(np.max(gap, initial=0.0)), beyond, bool(np.array_equal(a, b)))


def _fits(first: Print, second: Print) -> bool:
    sizes = [p.expected or len(p.values) for p in (first, second)]
    return sizes[0] == sizes[1] or first.cut or second.cut


def _size(first: Print, second: Print) -> int:
    return max(p.expected or len(p.values) for p in (first, second))


def _numbered(prints: list[Print]) -> list[Print]:
    """Where a log says no steps, the n-th print of a tensor is its step n."""
    if any(p.step is not None for p in prints):
        return prints
    seen: Counter[str] = Counter()
    numbered = []
    for p in prints:
        seen[p.tensor] += 1
        numbered.append(Print(p.format, p.tensor, seen[p.tensor], p.values, p.digits, p.line, p.expected))
    return numbered


def _by_tensor(prints: list[Print]) -> dict[str, dict[int | None, Print]]:
    found: dict[str, dict[int | None, Print]] = {}
    for p in prints:
        found.setdefault(p.tensor, {})[p.step] = p
    return found


def _data(report: LogReport) -> dict[str, Any]:
    """The JSON object: a pair that agrees is a vote, one that differs stays undecided without weights."""
    tensors = {}
    for layer in report.layers:
        for pair in layer.pairs:
            key = layer.first if pair.step is None else f"{layer.first}, step {pair.step}"
            verdict = {"verdict": "agrees" if pair.agrees else "undecided", "difference": pair.gap, "outside": pair.beyond}
            said = {name: {"float32": dict(verdict)} for name in report.parties}
            groups = [list(report.parties)] if pair.agrees else [[name] for name in report.parties]
            tensors[key] = {
                "scale": None, "exact_zero": None, "testimony": said, "vote": groups, "bit_equal": pair.same,
                "names": [layer.first, layer.second], "step": pair.step, "shape": [layer.size],
            }
    undecided = any(not pair.agrees for layer in report.layers for pair in layer.pairs)
    return {
        "gradjury": 1, "case": report.source, "decision": "undecided" if undecided else "agree", "wrong": [],
        "tensors": tensors, "causes": [], "hypotheses": report.hypotheses, "findings": [], "first_wrong": None,
        "forward": {}, "failures": [], "by_vote_alone": True, "notes": [f"{name}: no counterpart" for name in report.unpaired],
        "audit": {"kernels_agree": None, "kernels_why": "prints carry no inputs", "directional_excess": None},
    }
