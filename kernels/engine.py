"""Engines: where kernels run. All of them take the same kernels by name and the same arguments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

from gradjury.kernels.arithmetic import Arithmetic
from gradjury.kernels.scalars import Scalar


class EngineMissing(RuntimeError):
    """No engine can run here; the message says in one line what is missing and how to get it."""


class Engine(Protocol):
    """Runs kernels. `xp` is the array module (numpy or cupy) that owns its memory."""

    name: str

    @property
    def xp(self) -> Any:
        """The array module."""

    def launch(
        self,
        kernel: str,
        scalar: Scalar,
        grid: tuple[int, int, int],
        block: int,
        arguments: Sequence[Any],
        arithmetic: Arithmetic,
    ) -> None:
        """Runs `kernel` at `scalar`. Arguments: arrays of `xp`, ints, floats, None for an optional array."""

    def threads(self, total: int) -> tuple[int, int]:
        """Blocks and threads a block for `total` independent elements."""

    def reduction_threads(self, scalar: Scalar) -> int:
        """Threads of a block that share one reduction."""

    def matmul_launch(self, cases: int, rows: int, columns: int, depth: int) -> tuple[tuple[int, int, int], int]:
        """Grid and threads a block of the matmul kernel, for results of rows×columns that are sums of `depth` products."""


@cache
def engine(name: str | None = None) -> Engine:
    """The engine called `name` (`host` or `cupy`), or the best this machine has. Raises EngineMissing."""
    from gradjury.kernels import cupy_engine, host_engine

    if name == "host":
        return host_engine.HostEngine()
    if name == "cupy":
        return cupy_engine.CupyEngine()
    if name is not None:
        raise EngineMissing(f"engine: expected host or cupy, found {name!r}")
    if cupy_engine.available():
        return cupy_engine.CupyEngine()
    return host_engine.HostEngine()
