"""The batchnorm kernels by themselves: blocks of many threads, columns taken together, the noise of the folded form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from problems import float32_values, kernels

from gradjury.kernels.calls import Kernels
from gradjury.kernels.host_engine import HostEngine
from gradjury.kernels.tensor import Tensor

SIZES = [(2, 5, 3, 7), (1, 17, 19, 1), (2, 3, 2, 40), (1, 4, 1, 1), (3, 1, 5, 9)]  # outer, rows, channels, inner
EPSILON = 2.0**-10


@pytest.fixture
def shuffled() -> Iterator[None]:
    """Blocks and threads in a random order, shared memory poisoned."""
    engine = HostEngine()
    engine.set_order(3)
    yield
    engine.set_order(-1)


def arrays(size: tuple[int, int, int, int]) -> dict[str, np.ndarray]:
    outer, rows, channels, inner = size
    rng = np.random.default_rng(0)
    whole, parameter = (outer, rows, channels, inner), (outer, channels)
    shapes = {"x": whole, "dy": whole, "weight": parameter, "bias": parameter}
    return {name: float32_values(rng, *shape) for name, shape in shapes.items()}


def both_ways(
    k: Kernels, size: tuple[int, int, int, int], blocks: int, threads: int, columns: bool = False
) -> dict[str, Tensor]:
    """Forward and backward by direct launches."""
    outer, _, channels, _ = size
    given = {name: k.tensor(a) for name, a in arrays(size).items()}
    found = {name: k.empty(outer, (channels,)) for name in ("mean", "rstd", "dweight", "dbias")}
    found |= {name: k.empty(outer, given["x"].shape) for name in ("y", "dx")}
    numbers: tuple[Any, ...] = size[:3] if columns else size
    name = "batchnorm_columns" if columns else "batchnorm"
    grid = (blocks, 1, 1)
    forward = (given["x"], given["weight"], given["bias"], found["mean"], found["rstd"], found["y"])
    k.launch(f"{name}_forward", grid, threads, *numbers, EPSILON, *forward)
    backward = (given["x"], given["weight"], found["mean"], found["rstd"], given["dy"])
    k.launch(f"{name}_backward", grid, threads, *numbers, *backward, found["dx"], found["dweight"], found["dbias"])
    return found


def reference(size: tuple[int, int, int, int]) -> dict[str, np.ndarray]:
    """numpy's longdouble, 11 bits beyond float64."""
    a = {name: array.astype(np.longdouble) for name, array in arrays(size).items()}
    gamma, beta = (a[name][:, None, :, None] for name in ("weight", "bias"))
    mean = a["x"].mean((1, 3), keepdims=True)
    rstd = 1 / np.sqrt(((a["x"] - mean) ** 2).mean((1, 3), keepdims=True) + np.longdouble(EPSILON))
    normal = (a["x"] - mean) * rstd
    dbias, dweight = a["dy"].sum((1, 3), keepdims=True), (a["dy"] * normal).sum((1, 3), keepdims=True)
    n = size[1] * size[3]
    dx = gamma * rstd * (a["dy"] - dbias / n - normal * dweight / n)
    flat = {"mean": mean, "rstd": rstd, "dbias": dbias, "dweight": dweight}
    return {name: v[:, 0, :, 0] for name, v in flat.items()} | {"y": normal * gamma + beta, "dx": dx}


def assert_close(found: dict[str, Tensor], size: tuple[int, int, int, int], u: float) -> None:
    """A coarse bound that grows with the terms of a sum; the op's tests hold the kernels to their budgets."""
    for name, true in reference(size).items():
        values = found[name].data if found[name].scalar.components == 1 else found[name].data[..., 0]
        scale = 1 + np.max(np.abs(true))
        assert np.max(np.abs(values - true)) <= 64 * size[1] * size[3] * u * scale, name


@pytest.mark.parametrize("scalar", ["float32", "float64", "double-double"])
@pytest.mark.parametrize(("blocks", "threads"), [(1, 1), (7, 4), (2, 32), (64, 256)])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.usefixtures("shuffled")
def test_any_launch(size: tuple[int, int, int, int], blocks: int, threads: int, scalar: str) -> None:
    u = 2.0**-24 if scalar == "float32" else 2.0**-53
    assert_close(both_ways(kernels(scalar), size, blocks, threads), size, u)


@pytest.mark.parametrize("scalar", ["float32", "float64", "double-double"])
@pytest.mark.parametrize(("blocks", "threads"), [(1, 1), (3, 4), (2, 32)])
@pytest.mark.parametrize("size", [(1, 17, 19, 1), (2, 5, 33, 1), (2, 1, 3, 1), (1, 70, 8, 1)])
@pytest.mark.usefixtures("shuffled")
def test_columns_together(size: tuple[int, int, int, int], blocks: int, threads: int, scalar: str) -> None:
    u = 2.0**-24 if scalar == "float32" else 2.0**-53
    assert_close(both_ways(kernels(scalar), size, blocks, threads, columns=True), size, u)


@pytest.mark.parametrize("columns", [False, True])
def test_bits_are_the_same_for_any_order_and_number_of_blocks(columns: bool) -> None:
    size, engine = (3, 17, 19, 1), HostEngine()
    plain = both_ways(kernels("float32"), size, 5, 8, columns)
    try:
        engine.set_order(9)
        shuffled = both_ways(kernels("float32"), size, 2, 8, columns)
        engine.set_order(-1)
        engine.set_threads(2)
        parallel = both_ways(kernels("float32"), size, 64, 8, columns)
    finally:
        engine.set_order(-1)
        engine.set_threads(0)
    for name, tensor in plain.items():
        assert tensor.data.tobytes() == shuffled[name].data.tobytes() == parallel[name].data.tobytes(), name


def test_folded_form_adds_noise_of_its_terms() -> None:
    """With constant statistics α·x + β rounds at the size of its terms: the spread and the replicas both say so."""
    x, mean = np.full((1, 4, 1, 1), 1000.0), np.full((1, 1), 999.0)
    variance = np.ones((1, 1))
    found = {}
    for scalar in ("spread", "noisy", "float64"):
        k = kernels(scalar)
        rows = 400 if scalar == "noisy" else 1
        y = k.empty(rows, (4, 1, 1))
        given = [k.tensor(np.repeat(a, rows, axis=0)) for a in (x, mean, variance)]
        k.launch("batchnorm_fixed_forward", (rows, 1, 1), 1, rows, 4, 1, 1, EPSILON, *given, None, None, y)
        found[scalar] = y.data
    spread = found["spread"][0, :, 0, 0, 1]
    assert np.all(spread > 1000.0**2)
    errors = (found["noisy"][..., 0] - found["float64"]) * np.sqrt(3) * 2.0**24
    assert np.all(np.mean(errors**2, axis=0).ravel() < 2.5 * spread)  # (|x| + |μ|)² is at most 2(x² + μ²)
    assert np.all(np.mean(errors**2, axis=0).ravel() > 0.5 * spread)
