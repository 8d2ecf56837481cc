"""How the witnesses group by mutual agreement on a tensor, and how independent their voices are.

The vote is shown beside the verdict, apart from the proof. It decides only where there is no reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

import numpy as np

from gradjury.verify.court import Court, Statement
from gradjury.verify.measure import hopeless
from gradjury.verify.precision import PRECISIONS

ONE_VOICE = 0.9  # correlation of rounding errors from which two witnesses count as one voice

Agree = Callable[[Statement, Statement, str], bool]


def groups(court: Court, key: str) -> list[list[str]]:
    """Witnesses by mutual agreement on one gradient, the largest group first; each witness stands in one group."""
    speaking = _speaking(court, key)
    return _cliques([s.witness.name for s in speaking], _pairs(speaking, key, lambda a, b, k: agree(court, a, b, k)))


def agree(court: Court, a: Statement, b: Statement, key: str) -> bool:
    """Whether two testimonies may both be right: they differ by at most the sum of their budgets, everywhere."""
    x, y = a.gradients[key], b.gradients[key]
    if x.shape != y.shape or not np.array_equal(np.isfinite(x), np.isfinite(y)):
        return False
    references = [court.reference_for(s) for s in (a, b)]
    if any(r.gradient(key) is None for r in references):
        return _agree_blindly(a, b, x, y)
    printed = a.printed(x) + b.printed(y)
    gap = np.abs(x - y)
    for replicas in (False, True):
        allowed = printed + sum(r.budget(key, replicas=replicas) for r in references)
        with np.errstate(invalid="ignore", divide="ignore"):
            excess = np.where((gap == 0) | ~np.isfinite(x), 0.0, gap / allowed)
        if not excess.size or excess.max() <= 1:
            return True
        worst = np.unravel_index(int(np.argmax(excess)), excess.shape)
        if hopeless(float(excess[worst]), float(references[0].scale(key)[worst])):
            return False
    return False


def _agree_blindly(a: Statement, b: Statement, x: np.ndarray, y: np.ndarray) -> bool:
    """Without inputs there is no budget: then digits lost in a print-out and the size of the tensor have to do.

    Rounding of n terms of the size of the largest element: √n·u, with n the number of elements at most.
    """
    u = max(PRECISIONS[s.dtype].u for s in (a, b))
    size = float(np.max(np.abs(x), initial=0.0))
    allowed = 2 * PRECISIONS[a.dtype].threshold * u * np.sqrt(x.size + 1) * size
    with np.errstate(invalid="ignore"):
        difference = np.abs(np.asarray(x, np.float64) - y)
    return bool((~(difference > allowed + a.printed(x) + b.printed(y))).all())


def independence(court: Court, key: str) -> dict[str, str | float]:
    """Per pair of witnesses, `bit-equal` or the correlation of their rounding errors; declared backends in common."""
    found: dict[str, str | float] = {}
    for a, b in combinations(_speaking(court, key), 2):
        exact = court.reference_for(a).gradient(key)
        x, y = a.gradients[key], b.gradients[key]
        pair = f"{a.witness.name}~{b.witness.name}"
        if a.dtype != b.dtype or x.shape != y.shape:
            continue
        if np.array_equal(x, y):
            found[pair] = "bit-equal"
        elif exact is not None and x.size >= 16:
            value = _correlation(exact.difference(x), exact.difference(y))
            if value is not None:
                found[pair] = round(value, 2)
    return found


def voices(court: Court, key: str, group: list[str]) -> int:
    """How many independent voices a group has: shared backends and correlated errors make one of two."""
    alike = independence(court, key)
    parent = {name: name for name in group}

    def root(name: str) -> str:
        return name if parent[name] == name else root(parent[name])

    for a, b in combinations(group, 2):
        measured = alike.get(f"{a}~{b}", alike.get(f"{b}~{a}"))
        same = measured == "bit-equal" or (isinstance(measured, float) and measured > ONE_VOICE)
        backends = [set(court.case.witnesses[name].backend) for name in (a, b)]
        if same or backends[0] & backends[1]:
            parent[root(a)] = root(b)
    return len({root(name) for name in group})


def _speaking(court: Court, key: str) -> list[Statement]:
    """One statement per witness that testifies to `key`: the most precise dtype that most of them share."""
    statements = [s for s in court.statements if key in s.gradients]
    by_dtype: dict[str, list[Statement]] = {}
    for statement in statements:
        by_dtype.setdefault(statement.dtype, []).append(statement)
    ranked = sorted(by_dtype, key=lambda d: (len(by_dtype[d]), PRECISIONS[d].bits), reverse=True)
    chosen: dict[str, Statement] = {}
    for dtype in ranked:
        for statement in by_dtype[dtype]:
            chosen.setdefault(statement.witness.name, statement)
    return list(chosen.values())


def _pairs(speaking: list[Statement], key: str, agreeing: Agree) -> Mapping[frozenset[str], bool]:
    return {
        frozenset((a.witness.name, b.witness.name)): agreeing(a, b, key) for a, b in combinations(speaking, 2)
    }


def _cliques(names: list[str], agreeing: Mapping[frozenset[str], bool]) -> list[list[str]]:
    """Largest set of mutually agreeing names, then the largest among the rest, and so on."""
    left, found = list(names), []
    while left:
        group = next(
            list(chosen)
            for size in range(len(left), 0, -1)
            for chosen in combinations(left, size)
            if all(agreeing[frozenset(pair)] for pair in combinations(chosen, 2))
        )
        found.append(group)
        left = [name for name in left if name not in group]
    return found


def _correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    x, y = a.ravel(), b.ravel()
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / size if np.isfinite(size) and size > 0 else None
