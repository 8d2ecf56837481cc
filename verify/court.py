"""Everything a judgement needs from one case: canonical testimonies, and the references they are held against."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gradjury.kernels.engine import Engine
from gradjury.verify import ops
from gradjury.verify.case import Case, Witness
from gradjury.verify.graph import split_part
from gradjury.verify.layout import to_canonical
from gradjury.verify.measure import Measurement, measure, printed_half_unit
from gradjury.verify.precision import PRECISIONS
from gradjury.verify.reference import Assumptions, Reference


@dataclass
class Statement:
    """One witness at one dtype, in canonical layout; `misshapen` holds what has no place in the graph's shapes."""

    witness: Witness
    dtype: str
    gradients: dict[str, np.ndarray] = field(default_factory=dict)
    forward: dict[str, np.ndarray] = field(default_factory=dict)
    misshapen: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def printed(self, array: np.ndarray) -> np.ndarray | float:
        """What a print-out lost of `array`, 0 where the numbers are whole."""
        digits = self.witness.printed_digits
        return 0.0 if digits is None else printed_half_unit(array, digits)


class Court:
    """References of a case by dtype, by the active units of a testimony, and by what is assumed about arithmetic."""

    def __init__(self, case: Case, engine: Engine, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.case, self.engine, self.shapes = case, engine, shapes
        self.statements = [_statement(case, shapes, name, dtype) for name, dtype in sorted(case.testimonies)]
        self._references: dict[object, Reference] = {}

    @cached_property
    def keys(self) -> list[str]:
        """Every gradient some witness says something about, in a stable order."""
        found: dict[str, None] = {}
        for statement in self.statements:
            found |= dict.fromkeys((*statement.gradients, *statement.misshapen))
        for witness in self.case.witnesses.values():
            found |= dict.fromkeys(witness.absent)
        return list(found)

    @cached_property
    def asked(self) -> set[str]:
        """Tensors whose gradient the kernels have to compute."""
        return {split_part(self.case, key)[0] for key in self.keys}

    def reference(self, dtype: str, assumptions: Assumptions = Assumptions()) -> Reference:
        """The reference at `dtype` with the masks that the exact values give."""
        key = (dtype, assumptions)
        if key not in self._references:
            self._references[key] = self.make(self.case, dtype, assumptions=assumptions)
        return self._references[key]

    def make(
        self,
        case: Case,
        dtype: str,
        *,
        masks: Mapping[str, np.ndarray] | None = None,
        replace: Mapping[str, np.ndarray] | None = None,
        assumptions: Assumptions = Assumptions(),
    ) -> Reference:
        """A reference of its own: for a changed case, other masks, or a replaced gradient."""
        return Reference(
            case, PRECISIONS[dtype], self.engine, self.asked, masks=masks, replace=replace, assumptions=assumptions
        )

    def reference_for(self, statement: Statement, assumptions: Assumptions | None = None) -> Reference:
        """The reference with the testimony's own active units, where it recorded them and rounding can explain them."""
        taken = assumptions if assumptions is not None else declared_assumptions(statement.witness, statement.dtype)
        base = self.reference(statement.dtype, taken)
        masks = self._own_masks(statement, base.active_units)
        if not masks:
            return base
        if all(np.array_equal(mask, base.active_units[node]) for node, mask in masks.items()):
            return _certain_of(base, masks)
        if not base.could_flip(masks):
            return base
        key = (statement.dtype, taken, tuple((node, mask.tobytes()) for node, mask in sorted(masks.items())))
        if key not in self._references:
            self._references[key] = self.make(self.case, statement.dtype, masks=masks, assumptions=taken)
        return self._references[key]

    def fits(self, statement: Statement, key: str, hypothesis: Reference) -> Measurement | None:
        """Holds one gradient of `statement` against a hypothesis, under the lower bound of the budget alone."""
        array = statement.gradients[key]
        return measure(hypothesis, key, array, printed=statement.printed(array), replicas=False)

    def measure(self, statement: Statement, key: str) -> Measurement | None:
        """Holds one gradient of `statement` against its reference.

        Where it recorded no forward, another's branches at the kinks are tried first: rounding allows them, and what is
        right under them needs no allowance for undecided ones.
        """
        array = statement.gradients[key]
        printed = statement.printed(array)
        for borrowed in self._borrowed(statement):
            found = measure(borrowed, key, array, printed=printed, replicas=False)
            if found is not None and found.within:
                return found
        return measure(self.reference_for(statement), key, array, printed=printed)

    def _borrowed(self, statement: Statement) -> list[Reference]:
        """References with the active units that others recorded at this dtype, for a statement that recorded none."""
        base = self.reference(statement.dtype, declared_assumptions(statement.witness, statement.dtype))
        if not base.active_units or self._own_masks(statement, base.active_units):
            return []
        others = [s for s in self.statements if s.dtype == statement.dtype and s is not statement]
        return [self.reference_for(s) for s in others if self._own_masks(s, base.active_units)]

    def measure_forward(self, statement: Statement, name: str) -> Measurement | None:
        """Holds one recorded forward value against the reference."""
        array = statement.forward[name]
        base = self.reference(statement.dtype, declared_assumptions(statement.witness, statement.dtype))
        return measure(base, name, array, forward=True, printed=statement.printed(array))

    def _own_masks(self, statement: Statement, known: Collection[str]) -> dict[str, np.ndarray]:
        masks = {}
        for node in self.case.graph:
            op = ops.get(node.op)
            if op is None or node.name not in known:
                continue
            for name in (node.outputs[op.outputs[0]], node.inputs.get("x") if op.kink_of_input else None):
                if name is not None and name in statement.forward:
                    masks[node.name] = (statement.forward[name] > 0).astype(np.uint8)
                    break
        return masks


def declared_assumptions(witness: Witness, dtype: str) -> Assumptions:
    """What a witness declares about its arithmetic, as the budget has to know it."""
    declared = witness.arithmetic
    if not declared:
        return Assumptions()
    storage = declared.get("storage", {})
    names = [declared.get("operands"), declared.get("accumulator")]
    names += list(storage.values()) if isinstance(storage, dict) else [storage]
    u = max([PRECISIONS[dtype].u, *(PRECISIONS[name].u for name in names if name in PRECISIONS)])
    errors = [float(declared[f]) for f in ("tanh", "sigmoid", "exp", "log", "rsqrt") if f in declared]
    return Assumptions(
        u=u,
        function_error=max([4.0, *(error / u for error in errors)]),
        eta=2.0**-126 if declared.get("flush_to_zero") else None,
        one_pass=declared.get("variance") == "one-pass",
    )


def _certain_of(base: Reference, masks: Mapping[str, np.ndarray]) -> Reference:
    """The same reference, knowing that the testimony took the same branches at the kinks in `masks`."""
    certain = copy.copy(base)
    certain.masks = {**base.masks, **masks}
    for name in ("_undecided", "_bounded"):
        certain.__dict__.pop(name, None)
    return certain


def _statement(case: Case, shapes: Mapping[str, tuple[int, ...]], name: str, dtype: str) -> Statement:
    testimony = case.testimonies[name, dtype]
    statement = Statement(case.witnesses[name], dtype)
    for key, array in testimony.gradients.items():
        tensor = split_part(case, key)[0]
        canonical = to_canonical(case, statement.witness, tensor, array)
        _place(statement, statement.gradients, key, canonical, shapes.get(tensor))
    for key, array in testimony.forward.items():
        canonical = to_canonical(case, statement.witness, key, array)
        _place(statement, statement.forward, key, canonical, shapes.get(key))
    return statement


def _place(
    statement: Statement, kept: dict[str, np.ndarray], key: str, array: np.ndarray, shape: tuple[int, ...] | None
) -> None:
    """Keeps the array at the graph's shape; axes of length one are squeezed and noted, anything else is misshapen."""
    array = np.asarray(array, np.float64)
    if shape is None or array.shape == shape:
        kept[key] = array
    elif tuple(n for n in array.shape if n != 1) == tuple(n for n in shape if n != 1):
        kept[key] = array.reshape(shape)
        statement.notes.append(f"{statement.witness.name}: {key} has shape {array.shape}, taken as {shape}")
    else:
        statement.misshapen[key] = f"shape {array.shape} where the gradient of {key} has {shape}"
