"""Runs an op on the kernels at any scalar, and compares with exact numbers inside the budget of docs/numerics.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import exact
import numpy as np
from mpmath import mpf

from gradjury.kernels.arithmetic import Arithmetic
from gradjury.kernels.calls import Kernels
from gradjury.kernels.engine import engine
from gradjury.kernels.host_engine import HostEngine
from gradjury.kernels.modes import total_variance
from gradjury.kernels.scalars import SCALARS
from gradjury.kernels.tensor import Tensor
from gradjury.verify.ops.base import Op

PLAIN = ("float32", "float64", "double-double")
U = {"float32": 2.0**-24, "float64": 2.0**-53, "double-double": 2.0**-102}
WIDE = Arithmetic(u=2.0**-53, kappa=1.0, eta=5e-324)


def float32_values(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal numbers that float32 holds exactly, so that every scalar starts from the same inputs."""
    return rng.standard_normal(shape).astype(np.float32).astype(np.float64)


def kernels(scalar: str, **changes: Any) -> Kernels:
    """Kernels that start every result as NaN; `spread` stands for float32 unless told otherwise."""
    return Kernels(engine("host"), SCALARS[scalar], Arithmetic(**changes), poison=True)


def exact_numbers(tensor: Tensor, case: int = 0) -> np.ndarray:
    """One case of a tensor, high and low parts together, as mpf."""
    data = tensor.data[case]
    parts = [data[..., 0], data[..., 1]] if tensor.scalar.name == "double-double" else [data]
    return np.asarray(sum(np.frompyfunc(lambda x: mpf(float(x)), 1, 1)(part) for part in parts), object)


def excess(found: np.ndarray, true: np.ndarray, variance: np.ndarray, u: float) -> float:
    """Largest |found − true| in units of the budget 2·λ·u·√V; infinite where V is 0 and the error is not, or at NaN."""
    error = np.asarray(np.frompyfunc(abs, 1, 1)(found - true), object)
    limit = 2 * np.sqrt(2 * np.log(2 * max(error.size, 1) / 1e-6)) * u * np.sqrt(variance)
    ratios = [
        0.0 if e == 0 else float("inf") if not e > 0 or not b > 0 else float(e / b)
        for e, b in zip(np.ravel(error), np.ravel(limit), strict=True)
    ]
    return max(ratios, default=0.0)


@dataclass
class Run:
    """What one run of an op gave."""

    k: Kernels
    outputs: dict[str, Tensor]
    gradients: dict[str, Tensor]


def run(
    op: Op,
    inputs: Mapping[str, np.ndarray],
    attributes: Mapping[str, Any],
    upstream: Mapping[str, np.ndarray],
    k: Kernels,
    *,
    cases: int = 1,
    tangents: Mapping[str, np.ndarray] | None = None,
    others: np.random.Generator | None = None,
    place: int = 0,
    only: set[str] | None = None,
) -> Run:
    """The op forward, and backward where the scalar has a backward, over `cases` equal cases.

    `others`: all cases but that at `place` get other values, drawn from it. `only`: the gradients wanted; None: all.
    """
    integers = {slot.name for slot in op.inputs if slot.integer}

    def spread_out(a: np.ndarray) -> np.ndarray:
        rows = np.ascontiguousarray(np.broadcast_to(a, (cases, *a.shape)))
        if others is not None and a.dtype.kind == "f":
            rows *= others.uniform(0.5, 2.0, rows.shape)
            rows[place] = a
        return rows

    x: dict[str, Any] = {slot.name: None for slot in op.inputs} | {"kink.mask": None, "kink.undecided": None}
    for name, value in inputs.items():
        tangent = None if tangents is None or name not in tangents else spread_out(tangents[name])
        x[name] = k.integers(spread_out(value)) if name in integers else k.tensor(spread_out(value), tangent)
    complete = op.complete(attributes)
    outputs, saved = op.forward(k, x, complete)
    if k.scalar.name.startswith("dual"):
        return Run(k, outputs, {})
    flow = {name: k.tensor(spread_out(upstream[name])) if name in upstream else None for name in op.outputs}
    wanted = {slot.name for slot in op.inputs if slot.differentiable and slot.name in inputs}
    return Run(k, outputs, op.backward(k, x, complete, saved, flow, wanted if only is None else only))


Formula = Callable[..., dict[str, np.ndarray]]


def worst_excess(
    op: Op,
    formula: Formula,
    inputs: Mapping[str, np.ndarray],
    attributes: Mapping[str, Any],
    upstream: Mapping[str, np.ndarray],
    scalar: str,
) -> float:
    """Largest excess over all outputs and gradients of `op` against the plain formula(attributes, **inputs)."""
    differentiable = {slot.name for slot in op.inputs if not slot.integer}
    exact_inputs = {name: exact.variables(a) if name in differentiable else a for name, a in inputs.items()}
    outputs = formula(attributes, **exact_inputs)
    true = exact.gradients(outputs, upstream, {n: a for n, a in exact_inputs.items() if n in differentiable})
    here = run(op, inputs, attributes, upstream, kernels(scalar))
    noise = run(
        op,
        inputs,
        attributes,
        upstream,
        Kernels(engine("host"), SCALARS["spread"], WIDE if scalar != "float32" else Arithmetic()),
    )
    found = [0.0]
    for name, output in here.outputs.items():
        found.append(
            excess(
                exact_numbers(output), exact.values(outputs[name]), total_variance(noise.outputs[name])[0], U[scalar]
            )
        )
    for name, gradient in here.gradients.items():
        assert gradient.shape == inputs[name].shape, name
        found.append(excess(exact_numbers(gradient), true[name], total_variance(noise.gradients[name])[0], U[scalar]))
    return max(found)


def directional_gap(op: Op, inputs: Mapping[str, np.ndarray], attributes: Mapping[str, Any], seed: int = 0) -> float:
    """|derivative by dual numbers − ⟨gradient, direction⟩| over the sum of the absolute terms, in double-double."""
    rng = np.random.default_rng(seed)
    differentiable = {slot.name for slot in op.inputs if slot.differentiable}
    directions = {name: float32_values(rng, *a.shape) for name, a in inputs.items() if name in differentiable}
    moved = run(op, inputs, attributes, {}, kernels("dual-double-double"), tangents=directions)
    upstream = {name: float32_values(rng, *output.shape) for name, output in moved.outputs.items()}
    still = run(op, inputs, attributes, upstream, kernels("double-double"))
    terms: list[Any] = []
    for name, gradient in still.gradients.items():
        terms += list(np.ravel(exact_numbers(gradient) * directions[name]))
    for name, output in moved.outputs.items():
        derivative = np.frompyfunc(lambda high, low: mpf(float(high)) + mpf(float(low)), 2, 1)(
            *np.moveaxis(output.data[0][..., 2:], -1, 0)
        )
        terms += list(np.ravel(-derivative * upstream[name]))
    return float(abs(sum(terms)) / sum(abs(t) for t in terms))


def batch_is_indifferent(op: Op, inputs: Mapping[str, np.ndarray], attributes: Mapping[str, Any], scalar: str) -> bool:
    """Whether a case's bits are the same alone and among other cases, in any order of threads."""
    rng = np.random.default_rng(5)
    shapes = op.shapes(
        {n: a.shape for n, a in inputs.items()}, {n: inputs.get(n) for n in ("lengths",)}, op.complete(attributes)
    )
    upstream = {name: float32_values(rng, *shape) for name, shape in shapes.items()}
    alone = run(op, inputs, attributes, upstream, kernels(scalar))
    host, place = HostEngine(), 0 if scalar == "noisy" else 2  # replicas differ by their row
    try:
        host.set_order(11)
        among = run(op, inputs, attributes, upstream, kernels(scalar), cases=3, others=rng, place=place)
    finally:
        host.set_order(-1)
    pairs = [(a, among.outputs[n]) for n, a in alone.outputs.items()] + [
        (a, among.gradients[n]) for n, a in alone.gradients.items()
    ]
    return all(a.data[0].tobytes() == b.data[place].tobytes() for a, b in pairs)
