"""What is true: the gradients of a case from exactly the inputs a testimony had, and how far honest rounding can be off.

Everything here is for one precision of testimony. The formulas are those of docs/numerics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gradjury.kernels.arithmetic import Arithmetic
from gradjury.kernels.calls import Kernels
from gradjury.kernels.engine import Engine
from gradjury.kernels.modes import total_variance
from gradjury.kernels.scalars import SCALARS
from gradjury.kernels.tensor import Tensor
from gradjury.verify import execute, graph, ops
from gradjury.verify.case import Case
from gradjury.verify.execute import Backward, Forward, Kink
from gradjury.verify.precision import DOUBLE_DOUBLE_U, PRECISIONS, Precision

ALARM = 1e-6  # α: probability of a false alarm per tensor that the budget is built for
REPLICAS = 16
REPLICA_U = 2.0**-40  # float64 noise is replayed at this size, where float64 itself can show it


@dataclass(frozen=True)
class Assumptions:
    """What is assumed about a witness's arithmetic beyond its precision; part of the budget's meaning."""

    eta: float | None = None
    function_error: float | None = None
    u: float | None = None
    one_pass: bool = False
    raw_moments: bool = False

    def arithmetic(self, precision: Precision, **changes: float | int) -> Arithmetic:
        declared = {"u": self.u, "eta": self.eta, "function_error": self.function_error}
        return precision.arithmetic(**{k: v for k, v in declared.items() if v is not None} | changes)

    @property
    def attributes(self) -> dict[str, Any]:
        return {"hypothesis.one_pass": self.one_pass, "hypothesis.raw_moments": self.raw_moments}


@dataclass(frozen=True)
class Exact:
    """A reference tensor: `high` + `low` (None where float64 is enough)."""

    high: np.ndarray
    low: np.ndarray | None = None

    def difference(self, x: np.ndarray) -> np.ndarray:
        """`x` minus the reference, float64, without losing the low part; NaN where that is undefined."""
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray((np.asarray(x, np.float64) - self.high) - (0.0 if self.low is None else self.low))


def confidence(elements: int) -> float:
    """λ of NUMERICS section 1: how many standard deviations the largest of `elements` errors may reach."""
    return float(np.sqrt(2 * np.log(2 * max(elements, 1) / ALARM)))


class Reference:
    """Reference values, gradients and budgets of one case at one precision.

    `masks`: for kinks (relu), the active units of the testimony to be judged; absent ones follow the exact values.
    Gradients are looked up by tensor name or part key (`h@left`), forward values by tensor name.
    """

    def __init__(
        self,
        case: Case,
        precision: Precision,
        engine: Engine,
        asked: Collection[str],
        *,
        masks: Mapping[str, np.ndarray] | None = None,
        replace: Mapping[str, np.ndarray] | None = None,
        assumptions: Assumptions = Assumptions(),
    ) -> None:
        self.case, self.precision, self.engine, self.asked = case, precision, engine, set(asked)
        self.masks = dict(masks or {})
        self.replace = dict(replace or {})
        self.assumptions = assumptions
        self._emulations: dict[tuple[tuple[str, int], ...], dict[str, np.ndarray]] = {}
        self._inputs = {name: precision.round(value) for name, value in case.values.items()}
        self._upstream = {name: precision.round(value) for name, value in case.upstream.items()}

    # ---- the truth

    @cached_property
    def double(self) -> tuple[Forward, Backward]:
        """Forward and backward in float64."""
        return self._run("float64", self.precision.arithmetic(), self._given_kinks)

    @cached_property
    def double_double(self) -> tuple[Forward, Backward]:
        """Forward and backward in double-double."""
        return self._run("double-double", self.precision.arithmetic(), self._given_kinks)

    @property
    def exact(self) -> tuple[Forward, Backward]:
        return self.double_double if self.precision.name == "float64" else self.double

    @property
    def u(self) -> float:
        """Unit roundoff of the reference itself."""
        return DOUBLE_DOUBLE_U if self.precision.name == "float64" else PRECISIONS["float64"].u

    def gradient(self, key: str) -> Exact | None:
        """The reference gradient; None where it cannot be computed from what the case gives."""
        return self._exact(self.exact[1].get(key))

    def value(self, name: str) -> Exact | None:
        """The reference forward value; None where it cannot be computed."""
        value = self.exact[0].values.get(name)
        return self._exact(value if isinstance(value, Tensor) else None)

    def emulated(self, changes: Mapping[str, int]) -> dict[str, np.ndarray]:
        """Gradients as arithmetic of lower precision gives them; `changes`: fields of Arithmetic such as operand_bits."""
        key = tuple(sorted(changes.items()))
        if key not in self._emulations:
            _, back = self._run("lowered", self.precision.arithmetic(**changes), self._given_kinks)
            self._emulations[key] = {name: self._primal(t) for name, t in (back.whole | back.parts).items()}
        return self._emulations[key]

    # ---- the reference cross-examined

    @property
    def differentiable_inputs(self) -> list[str]:
        """Graph inputs of which the reference has a gradient through all their uses (a dropout's mask has none)."""
        return [name for name in self._inputs if name in self.exact[1].whole and graph.differentiable(self.case, name)]

    def input_value(self, name: str) -> np.ndarray:
        """A graph input as this precision rounds it."""
        return self._inputs[name]

    def directional_derivative(self, directions: Mapping[str, np.ndarray]) -> np.ndarray:
        """d/dε ⟨upstream, outputs(inputs + ε·directions)⟩ by the forward kernels on dual numbers: terms yet to be summed."""
        k = self._kernels("dual-double-double" if self.precision.name == "float64" else "dual", self.precision.arithmetic())
        inputs = execute.load(self.case, k, self._inputs)
        for name, direction in directions.items():
            inputs[name] = k.tensor(np.asarray(self._inputs[name], np.float64)[None], direction[None])
        run = execute.forward(self.case, k, inputs, self._decided_kinks, self.assumptions.attributes)
        found = [np.zeros(0)]
        for name, gradient in self._upstream.items():
            if name in run.values:
                weighted = k.multiply(run.values[name], k.tensor(np.ascontiguousarray(gradient[None])))
                found.append(_host(weighted.data)[..., weighted.scalar.components // 2 :].ravel())
        return np.concatenate(found)

    def rounding_of(self, terms: np.ndarray) -> float:
        """How far the last roundings of two computations at the reference's own precision may move the sum of `terms`."""
        with np.errstate(over="ignore", invalid="ignore"):
            return 2 * PRECISIONS["float64"].threshold * self.u * float(np.sum(np.abs(terms)))

    def own_bound(self, key: str) -> np.ndarray:
        """How far two honest computations at the reference's own precision may differ, per element."""
        scale = self.scale(key)
        return 2 * PRECISIONS["float64"].threshold * confidence(scale.size) * self.u * scale

    # ---- how far rounding can be off

    def scale(self, key: str, *, forward: bool = False, replicas: bool = False) -> np.ndarray:
        """√V per element, in units of the unit roundoff; with `replicas` the larger of both estimates."""
        propagated: np.ndarray = np.sqrt(self._variance(key, forward))
        if not replicas:
            return propagated
        return np.asarray(np.maximum(propagated, np.sqrt(3) * self._replica_deviation[_slot(key, forward)]))

    def bound(self, key: str, *, forward: bool = False, replicas: bool = False) -> np.ndarray:
        """B of NUMERICS section 1 with its allowance for the reference's own rounding, without τ."""
        scale = self.scale(key, forward=forward, replicas=replicas)
        u = self._noise_u
        return confidence(scale.size) * u * scale * (1 + self.u / u)

    def budget(self, key: str, *, forward: bool = False, replicas: bool = False) -> np.ndarray:
        """The largest honest error per element, apart from what a print-out lost."""
        eta = self.assumptions.eta or self.precision.least
        allowed = self.bound(key, forward=forward, replicas=replicas) + self._branch(key, forward) + 4 * eta
        return self.precision.threshold * allowed

    def exactly_zero(self, key: str) -> bool:
        """Whether the exact gradient is zero: every element is below the rounding of double-double itself."""
        rough = self._exact(self.double[1].get(key))
        if rough is None or not np.isfinite(rough.high).all():
            return False
        noise = confidence(rough.high.size) * self.scale(key)
        if (np.abs(rough.high) > 4 * PRECISIONS["float64"].u * noise).any():
            return False
        fine = self._exact(self.double_double[1].get(key))
        assert fine is not None
        return bool((np.abs(fine.high) <= 4 * DOUBLE_DOUBLE_U * noise).all())

    @property
    def _noise_u(self) -> float:
        return self.assumptions.u or self.precision.u

    # ---- the runs behind

    def _kernels(self, scalar: str, arithmetic: Arithmetic) -> Kernels:
        return Kernels(self.engine, SCALARS[scalar], arithmetic)

    def _run(
        self, scalar: str, arithmetic: Arithmetic, kinks: Mapping[str, Kink], rows: int = 1
    ) -> tuple[Forward, Backward]:
        k = self._kernels(scalar, arithmetic)
        inputs = execute.load(self.case, k, self._inputs, rows)
        extra = self.assumptions.attributes
        run = execute.forward(self.case, k, inputs, kinks, extra)
        flow = {
            name: k.tensor(np.ascontiguousarray(np.broadcast_to(g, (rows, *g.shape))))
            for name, g in self._upstream.items()
            if name in run.values
        }
        replace = {name: k.tensor(np.ascontiguousarray(g[None])) for name, g in self.replace.items()}
        return run, execute.backward(
            self.case, k, run, flow, kinks, asked=self.asked, replace=replace, attributes=extra
        )

    @property
    def _given_kinks(self) -> dict[str, Kink]:
        return {node: Kink(mask) for node, mask in self.masks.items()}

    @cached_property
    def _decided_kinks(self) -> dict[str, Kink]:
        """The masks of the reference itself, fixed, so that noise does not flip a unit."""
        return {node: Kink(mask) for node, mask in self.active_units.items()}

    @cached_property
    def active_units(self) -> dict[str, np.ndarray]:
        """Per kink node, the units that pass gradient in the reference."""
        run, found = self.double[0], dict(self.masks)
        for node in self.case.graph:
            op = ops.get(node.op)
            if op is not None and op.kinked(op.complete(node.attributes)) and node.name in run.saved and node.name not in found:
                output = node.outputs[op.outputs[0]]
                found[node.name] = (self._primal(run.values[output]) > 0).astype(np.uint8)
        return found

    def could_flip(self, masks: Mapping[str, np.ndarray]) -> bool:
        """Whether rounding alone can turn the reference's active units into these."""
        for node, mask in masks.items():
            flipped = mask != self.active_units[node]
            doubt = self._undecided[node].undecided if node in self._undecided else None
            if flipped.any() and (doubt is None or (doubt[flipped] == 0).any()):
                return False
        return True

    @cached_property
    def _spread(self) -> tuple[Forward, Backward]:
        return self._run("spread", self.assumptions.arithmetic(self.precision), self._decided_kinks)

    def _variance(self, key: str, forward: bool) -> np.ndarray:
        run, back = self._spread
        tensor = run.values[key] if forward else back.get(key)
        assert isinstance(tensor, Tensor)
        return np.asarray(total_variance(tensor)[0])

    @cached_property
    def _replica_deviation(self) -> dict[str, np.ndarray]:
        """σ_rep of NUMERICS section 3 by slot, in units of u: the larger of independent and coherent function errors."""
        u = REPLICA_U if self.precision.name == "float64" else self._noise_u
        worst: dict[str, np.ndarray] = {}
        for coherent in (0, 1):
            arithmetic = self.assumptions.arithmetic(self.precision, u=u, coherent=coherent)
            noisy = self._run("noisy", arithmetic, self._decided_kinks, rows=REPLICAS)
            for slot, tensor, exact in _paired(noisy, self.double):
                with np.errstate(over="ignore", invalid="ignore"):
                    deviation = _root_mean_square(self._primal_rows(tensor) - self._primal(exact)) / u
                worst[slot] = np.maximum(worst.get(slot, 0.0), deviation)
        return worst

    @cached_property
    def _undecided(self) -> dict[str, Kink]:
        """Kinks of which rounding at this precision cannot tell the side, with the change that the other side makes."""
        run, _ = self._spread
        found: dict[str, Kink] = {}
        for node in self.case.graph:
            op = ops.get(node.op)
            if op is None or node.name not in self.active_units or node.name in self.masks:
                continue
            before = op.kink_input(execute.node_inputs(node, run.values, self._spread_kernels, None), run.saved[node.name])
            if before is None:
                continue
            y = np.abs(self._primal(before))
            doubt = confidence(y.size) * self._noise_u * np.sqrt(np.asarray(total_variance(before))[0])
            near = y <= doubt
            if near.any():
                found[node.name] = Kink(self.active_units[node.name], np.where(near, y + doubt, 0.0))
        return found

    @cached_property
    def _spread_kernels(self) -> Kernels:
        return self._kernels("spread", self.assumptions.arithmetic(self.precision))

    @cached_property
    def _bounded(self) -> tuple[Forward, Backward] | None:
        if not self._undecided:
            return None
        return self._run("bound", self.precision.arithmetic(), {**self._decided_kinks, **self._undecided})

    def _branch(self, key: str, forward: bool) -> np.ndarray | float:
        """What undecided kinks may change (NUMERICS section 4), per element."""
        if self._bounded is None:
            return 0.0
        tensor = self._bounded[0].values[key] if forward else self._bounded[1].get(key)
        assert isinstance(tensor, Tensor)
        return np.asarray(_host(tensor.data)[..., 1][0])

    # ---- reading tensors

    def _exact(self, tensor: Tensor | None) -> Exact | None:
        if tensor is None:
            return None
        data = _host(tensor.data)[0]
        return Exact(data[..., 0], data[..., 1]) if tensor.scalar.components == 2 else Exact(data)

    def _primal(self, tensor: Tensor) -> np.ndarray:
        return np.asarray(self._primal_rows(tensor)[0])

    def _primal_rows(self, tensor: Tensor) -> np.ndarray:
        data = _host(tensor.data)
        return data[..., 0] if tensor.scalar.components > 1 else data


def _host(array: Any) -> np.ndarray:
    get: Callable[[], np.ndarray] | None = getattr(array, "get", None)
    return get() if get is not None else np.asarray(array)


def _slot(key: str, forward: bool) -> str:
    return f"value {key}" if forward else key


def _paired(noisy: tuple[Forward, Backward], exact: tuple[Forward, Backward]) -> list[tuple[str, Tensor, Tensor]]:
    """Tensors of two runs side by side: gradients, parts and forward values."""
    pairs = []
    for (_, a), (_, b) in ((noisy, exact),):
        pairs += [(key, a.get(key), b.get(key)) for key in (*a.whole, *a.parts)]
    forward = [(_slot(name, True), value, exact[0].values[name]) for name, value in noisy[0].values.items()]
    return [(slot, t, e) for slot, t, e in pairs + forward if isinstance(t, Tensor) and isinstance(e, Tensor)]


def _root_mean_square(rows: np.ndarray) -> np.ndarray:
    """√mean over axis 0, each element scaled by its largest so that squares of tiny numbers do not vanish."""
    largest = np.max(np.abs(rows), axis=0, initial=0.0)
    known = (largest > 0) & np.isfinite(largest)
    unit = np.where(known, largest, 1.0)
    return np.asarray(np.where(known, unit * np.sqrt(np.mean((rows / unit) ** 2, axis=0)), 0.0))
