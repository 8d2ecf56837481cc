"""The CPU engine against what one would otherwise call, one thread each: `python -m gradjury.bench.host_engine`.

Products of `linear` at 512³ against numpy's BLAS; batchnorm backward at 64x64x32x32 and a GRU step's backward at batch 128,
256 features and states against torch. A ratio is their time over ours in the same run. Our result is first held
against double-double, in units of its scale: where that shows more than rounding, no speed is reported.
"""

from __future__ import annotations

import os

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_threads] = "1"  # before numpy and torch are imported

import time  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

from gradjury.kernels.arithmetic import Arithmetic  # noqa: E402
from gradjury.kernels.calls import Kernels  # noqa: E402
from gradjury.kernels.host_engine import HostEngine  # noqa: E402
from gradjury.kernels.modes import total_variance  # noqa: E402
from gradjury.kernels.scalars import SCALARS  # noqa: E402
from gradjury.verify import ops  # noqa: E402

REPEATS = 15
WORST = 8.0  # times √V: far beyond it a result is not rounding but wrong (docs/numerics.md: λ is at most 8)
PRECISIONS = {"float32": Arithmetic(), "float64": Arithmetic(2.0**-53, 1.0, 2.0**-1074)}


@dataclass(frozen=True)
class Line:
    """One comparison: seconds of ours and of theirs, and the largest error of ours in units of √V·u."""

    what: str
    dtype: str
    ours: float
    theirs: float
    error: float

    @property
    def ratio(self) -> float:
        return self.theirs / self.ours


def measure() -> Iterator[Line]:
    """All comparisons, one after the other."""
    import torch

    torch.set_num_threads(1)
    engine = HostEngine()
    engine.set_threads(1)
    rng = np.random.default_rng(0)
    for dtype in ("float32", "float64"):
        yield from _products(engine, rng, dtype)
        yield _batchnorm(engine, rng, dtype, torch)
        yield _gru(engine, rng, dtype, torch)


def _products(engine: HostEngine, rng: np.random.Generator, dtype: str) -> Iterator[Line]:
    a, b = (rng.standard_normal((512, 512)).astype(dtype) for _ in range(2))
    forms = (
        ("x·Wᵀ", False, True, lambda: a @ b.T),
        ("dY·W", False, False, lambda: a @ b),
        ("dYᵀ·x", True, False, lambda: a.T @ b),
    )
    for name, left, right, theirs in forms:

        def run(scalar: str, left: bool = left, right: bool = right) -> Any:
            k = Kernels(engine, SCALARS[scalar], PRECISIONS[dtype])
            given = k.tensor(a[None]), k.tensor(b[None])
            return k, lambda: k.matmul(*given, transpose_a=left, transpose_b=right)

        k, ours = run(dtype)
        error = _error(k, ours(), run("double-double")[1](), run("spread")[1](), dtype)
        yield Line(f"linear {name} 512³ / numpy", dtype, *_times(ours, theirs), error)


def _batchnorm(engine: HostEngine, rng: np.random.Generator, dtype: str, torch: Any) -> Line:
    inputs = {"x": rng.standard_normal((64, 64, 32, 32)) + 3, "weight": rng.standard_normal(64), "bias": np.zeros(64)}
    return _op(engine, "batchnorm", inputs, rng.standard_normal((64, 64, 32, 32)), dtype, torch, "64x64x32x32")


def _gru(engine: HostEngine, rng: np.random.Generator, dtype: str, torch: Any) -> Line:
    weights = {"weight_ih": (768, 256), "weight_hh": (768, 256), "bias_ih": (768,), "bias_hh": (768,)}
    shapes = {"x": (128, 256), "h": (128, 256), **weights}
    inputs = {name: rng.uniform(-0.1, 0.1, shape) for name, shape in shapes.items()}
    return _op(engine, "gru_step", inputs, rng.standard_normal((128, 256)), dtype, torch, "B=128, H=256")


def _op(
    engine: HostEngine, name: str, inputs: dict[str, np.ndarray], upstream: np.ndarray, dtype: str, torch: Any, size: str
) -> Line:
    """Our backward from what the forward kept, against torch.autograd.grad on a kept graph."""
    op = ops.get(name)
    assert op is not None
    attributes = op.complete({})
    wanted = set(inputs)
    rounded = {slot: value.astype(dtype) for slot, value in inputs.items()}
    flow = upstream.astype(dtype)

    def prepared(scalar: str) -> tuple[Kernels, Callable[[], Any]]:
        k = Kernels(engine, SCALARS[scalar], PRECISIONS[dtype])
        x: dict[str, Any] = {slot.name: None for slot in op.inputs} | {s: k.tensor(v[None]) for s, v in rounded.items()}
        _, saved = op.forward(k, x, attributes)
        into = {op.outputs[0]: k.tensor(flow[None])}
        return k, lambda: op.backward(k, x, attributes, saved, into, wanted)

    k, ours = prepared(dtype)
    exact, spread = prepared("double-double")[1](), prepared("spread")[1]()
    error = max(_error(k, found, exact[slot], spread[slot], dtype) for slot, found in ours().items())
    tensors: dict[str, Any] = {slot.name: None for slot in op.inputs}
    tensors |= {slot: torch.tensor(value, requires_grad=True) for slot, value in rounded.items()}
    out = op.torch(torch, tensors, attributes)[op.outputs[0]]
    leaves = [tensors[slot] for slot in inputs]
    given = torch.tensor(flow)
    theirs = lambda: torch.autograd.grad(out, leaves, given, retain_graph=True)  # noqa: E731
    return Line(f"{name} backward {size} / torch", dtype, *_times(ours, theirs), error)


def _error(k: Kernels, found: Any, exact: Any, spread: Any, dtype: str) -> float:
    gap = np.abs(k.values(found) - exact.data[..., 0])
    allowed = np.sqrt(total_variance(spread)) * PRECISIONS[dtype].u
    return float(np.max(np.where(gap == 0, 0.0, gap / np.maximum(allowed, np.finfo(float).tiny))))


def _times(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float]:
    """The best of several runs of each, taken in turn, so that a busy machine slows both."""
    best = [float("inf")] * 2
    for _ in range(REPEATS):
        for i, function in enumerate((ours, theirs)):
            start = time.perf_counter()
            function()
            best[i] = min(best[i], time.perf_counter() - start)
    return best[0], best[1]


def main() -> None:
    """Prints the table; says nothing of speed where a result is wrong."""
    print(f"{'':44s} {'dtype':8s} {'ours ms':>8s} {'theirs ms':>9s} {'ratio':>6s}  error/(u√V)")
    for line in measure():
        speed = f"{line.ours * 1e3:8.2f} {line.theirs * 1e3:9.2f} {line.ratio:6.2f}"
        speed = speed if line.error < WORST else "   wrong: no speed is reported"
        print(f"{line.what:44s} {line.dtype:8s} {speed}  {line.error:.2f}")


if __name__ == "__main__":
    main()
