"""Errors that are honest arithmetic at a lower precision than the label says, or by a weak algorithm (NUMERICS section 5).

Tight explanations come first: arithmetic that is emulated has to leave almost nothing of the error. Only what looks
like rounding (spread over the elements, alike in all tensors, not parallel to the gradient) may be called so by size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from gradjury.verify.court import Court, Statement, declared_assumptions
from gradjury.verify.measure import TYPICAL, Measurement, measure
from gradjury.verify.precision import FLUSHED, PRECISIONS
from gradjury.verify.reference import Assumptions
from gradjury.verify.verdict import Finding

EMULATED = (
    ("tfloat32", {"operand_bits": 11}),
    ("tfloat32", {"operand_bits": 11, "operand_toward_zero": 1}),
    ("bfloat16", {"operand_bits": 8}),
    ("bfloat16", {"operand_bits": 8, "storage_bits": 8}),
    ("float16", {"operand_bits": 11, "storage_bits": 11}),
)
LEFT = 0.3  # share of the error that an emulation may leave, in the median over the tensors
ALIKE = 2.0**6  # how far the effective unit roundoff of two tensors of one testimony may differ
FORMATS = {"float32": ((9.5, 14.0, "float16"), (6.0, 9.5, "bfloat16")), "float64": ((20.0, 26.0, "float32"),)}
VACUOUS = 0.1  # a budget over this share of the gradient explains errors of any kind
WEAK_ALGORITHMS: dict[str, dict[str, bool]] = {
    "one-pass variance": {"one_pass": True},  # mean(x²) − mean(x)²: right in exact arithmetic, unstable at a large mean
    "raw moments in the backward": {"raw_moments": True},  # from Σdy·x instead of Σdy·(x − mean)
}


def tight(court: Court, statement: Statement, measured: Mapping[str, Measurement], over: list[str]) -> Finding | None:
    """Arithmetic that reproduces the error itself: nothing is widened, so it is believed before any other explanation."""
    attempts = (_exactly_float32,) if statement.dtype == "float64" else (_flushed, _emulated)
    return _first(attempts, court, statement, measured, over)


def loose(court: Court, statement: Statement, measured: Mapping[str, Measurement], over: list[str]) -> Finding | None:
    """A wider budget: of a weak algorithm, or of one lower unit roundoff for all tensors. Believed only if nothing
    structured explains the error. Where a weak algorithm would explain anything, its errors look like a lower precision
    too, so that neither is believed."""
    found = weak(court, statement, measured, over)
    if found is not None or any(_fits_algorithm(court, statement, over, taken) for taken in WEAK_ALGORITHMS.values()):
        return found
    return _by_size(court, statement, measured, over)


def weak(court: Court, statement: Statement, measured: Mapping[str, Measurement], keys: list[str]) -> Finding | None:
    """The weak algorithm within whose budget the tensors are, where that budget still says something."""
    for name, taken in WEAK_ALGORITHMS.items():
        held = _fits_algorithm(court, statement, keys, taken)
        if held and not any(m.resolution > VACUOUS and not m.zero for m in held):
            before, after = max(measured[key].excess for key in keys), max(m.excess for m in held)
            evidence = f"{name}: excess {before:.2g} -> {after:.2g}"
            return replace(_finding(statement, keys, name, evidence), verdict="unstable")
    return None


Attempt = Callable[[Court, Statement, Mapping[str, Measurement], list[str]], Finding | None]


def _first(
    attempts: tuple[Attempt, ...],
    court: Court,
    statement: Statement,
    measured: Mapping[str, Measurement],
    over: list[str],
) -> Finding | None:
    return next((found for attempt in attempts if (found := attempt(court, statement, measured, over))), None)


def _exactly_float32(
    court: Court, statement: Statement, measured: Mapping[str, Measurement], over: list[str]
) -> Finding | None:
    """Values that are exactly float32 and right at float32: the float64 path computes in float32."""
    narrow = court.reference("float32", declared_assumptions(statement.witness, "float32"))
    for key in over:
        array = statement.gradients[key]
        held = measure(narrow, key, array)
        if held is None or not held.within or not np.array_equal(array, array.astype(np.float32), equal_nan=True):
            return None
    return _finding(statement, over, "float32", "every value is exactly a float32, and right as float32")


def _flushed(
    court: Court, statement: Statement, measured: Mapping[str, Measurement], over: list[str]
) -> Finding | None:
    """Right once subnormal results may have been flushed to zero."""
    if all(np.abs(measured[key].exact.high).max(initial=0.0) > 1e-20 for key in over):
        return None
    taken = replace(declared_assumptions(statement.witness, statement.dtype), eta=FLUSHED)
    if _all_within(court, statement, over, taken):
        found = _finding(statement, over, "flush-to-zero", "within the budget once subnormal numbers count as zero")
        return replace(found, verdict="agrees")
    return None


def _emulated(
    court: Court, statement: Statement, measured: Mapping[str, Measurement], over: list[str]
) -> Finding | None:
    """Operands (and stored results) rounded to 11 or 8 bits, as emulated by our kernels, reproduce the error."""
    shown = [key for key in over if not measured[key].zero]
    for name, changes in EMULATED:
        left = dict(_shares_left(court, statement, measured, shown, changes))
        if left and float(np.median(list(left.values()))) < LEFT:
            covered = [key for key in over if left.get(key, 0.0) < 0.5]
            worst = max(left[key] for key in covered if key in left)
            evidence = f"{name} operands emulated leave {worst:.1%} of the error"
            return _finding(statement, covered, name, evidence)
    return None


def _shares_left(
    court: Court, statement: Statement, measured: Mapping[str, Measurement], keys: list[str], changes: Mapping[str, int]
) -> Iterator[tuple[str, float]]:
    emulation = court.reference_for(statement).emulated(changes)
    for key in keys:
        emulated = emulation.get(key)
        if emulated is not None:
            error = float(np.linalg.norm(measured[key].error))
            left = float(np.linalg.norm(statement.gradients[key] - emulated))
            yield key, left / error


def _fits_algorithm(
    court: Court, statement: Statement, keys: list[str], algorithm: Mapping[str, bool]
) -> list[Measurement] | None:
    """The tensors measured by the budget of a weak algorithm; None where one of them exceeds it."""
    if not any(node.op in ("batchnorm", "layernorm") for node in court.case.graph):
        return None
    taken = replace(declared_assumptions(statement.witness, statement.dtype), **algorithm)
    return _all_within(court, statement, keys, taken)


def _all_within(court: Court, statement: Statement, keys: list[str], taken: Assumptions) -> list[Measurement] | None:
    """The tensors measured under other assumptions; None where one of them exceeds its budget."""
    reference = court.reference_for(statement, taken)
    held = [m for key in keys if (m := court.fits(statement, key, reference)) is not None and m.within]
    return held if len(held) == len(keys) else None


def _by_size(
    court: Court, statement: Statement, measured: Mapping[str, Measurement], over: list[str]
) -> Finding | None:
    """One lower precision fits all tensors: errors of its size, within its budget, that look like rounding in each."""
    shown = {key: m for key, m in measured.items() if not m.zero and np.linalg.norm(m.scale) > 0}
    if not shown or not all(looks_like_rounding(shown[key]) for key in over if key in shown):
        return None
    sizes = {key: float(np.linalg.norm(m.error) / (TYPICAL * np.linalg.norm(m.scale))) for key, m in shown.items()}
    effective = float(np.median([sizes[key] for key in over if key in sizes] or [0.0]))
    if effective == 0 or max(sizes.values()) > effective * ALIKE or min(sizes.values()) < effective / ALIKE:
        return None
    bits = -np.log2(effective)
    for low, high, name in FORMATS.get(statement.dtype, ()):
        if low < bits <= high and _within_at(court, statement, over, PRECISIONS[name].u):
            return _finding(statement, over, name, f"the errors of all tensors fit one unit roundoff of 2^-{bits:.1f}")
    return None


def _within_at(court: Court, statement: Statement, over: list[str], u: float) -> bool:
    """Whether the tensors are within the budget of unit roundoff u, and that budget does not swallow any gradient."""
    taken = replace(declared_assumptions(statement.witness, statement.dtype), u=u)
    held = _all_within(court, statement, over, taken)
    return held is not None and all(m.zero or m.hidden < 1 for m in held)


def looks_like_rounding(m: Measurement) -> bool:
    """Spread over the elements, and not parallel to the gradient."""
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(m.scale > 0, np.abs(m.error) / m.scale, 0.0)
    size = float(np.sqrt(np.mean(relative**2)))
    if size == 0 or float(np.median(relative)) < 0.1 * size:
        return False
    g, e = m.exact.high.ravel(), m.error.ravel()
    if g.size < 16:
        return True
    cosine = float(e @ g) / float(np.linalg.norm(e) * np.linalg.norm(g))
    return cosine**2 < 0.5


def _finding(statement: Statement, keys: list[str], arithmetic: str, evidence: str) -> Finding:
    return Finding(
        witness=statement.witness.name,
        dtype=statement.dtype,
        code="precision",
        kind="precision",
        tensors=keys,
        evidence=evidence,
        verdict="low-precision",
        details={"arithmetic": arithmetic},
    )
