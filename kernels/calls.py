"""The vocabulary ops are written in: tensors on an engine, and the kernels as functions of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradjury.kernels.arithmetic import Arithmetic
from gradjury.kernels.engine import Engine
from gradjury.kernels.scalars import Scalar
from gradjury.kernels.tensor import Tensor


class Kernels:
    """Kernels of one engine at one scalar, under one assumption about arithmetic.

    Every tensor has a leading case axis; the cases of one launch do not influence each other's bits. With `poison`,
    fresh results start as NaN, so that an element no kernel writes shows.
    """

    def __init__(self, engine: Engine, scalar: Scalar, arithmetic: Arithmetic = Arithmetic(), *, poison: bool = False) -> None:
        self.engine, self.scalar, self.arithmetic, self.poison = engine, scalar, arithmetic, poison
        self.xp = engine.xp
        self._inputs = 0

    # ---- data in and out

    def tensor(self, values: np.ndarray, second: np.ndarray | None = None) -> Tensor:
        """Values (cases, *shape), float32 or float64, as they are.

        `second`: the low part for double-double, the derivative for dual numbers; 0 if None.
        """
        xp, name = self.xp, self.scalar.name
        wide = np.ascontiguousarray(values, dtype=self.scalar.base)
        if self.scalar.components == 1:
            return Tensor(xp.asarray(wide), self.scalar)
        data = np.zeros((*wide.shape, self.scalar.components))
        data[..., 0] = wide
        if name == "noisy":
            data[..., 1] = self._keys(wide.shape).view(np.float64)
        elif name == "spread":
            eta, u = self.arithmetic.eta, self.arithmetic.u
            lost = (wide != 0) & (np.abs(wide) < eta)
            data[..., 1] = np.where(lost, (wide / u) ** 2, 0.0)
        elif second is not None:
            data[..., 2 if name == "dual-double-double" else 1] = second
        return Tensor(xp.asarray(data), self.scalar)

    def _keys(self, shape: tuple[int, ...]) -> np.ndarray:
        """One key per element: a number for this input and the element, and the row as replica in the low 16 bits."""
        self._inputs += 1
        rows, size = shape[0], int(np.prod(shape[1:], dtype=np.int64))
        place = np.arange(size, dtype=np.uint64) + np.uint64(self._inputs << 40)
        keys = (place * np.uint64(0x9E3779B97F4A7C15)) & np.uint64(0xFFFFFFFFFFFF0000)
        replicas = np.arange(1, rows + 1, dtype=np.uint64)[:, None]
        return np.asarray(keys[None] | replicas).reshape(shape)

    def integers(self, values: np.ndarray) -> Any:
        """Integers (targets, indices, lengths) on the engine."""
        return self.xp.asarray(np.ascontiguousarray(values, dtype=np.int64))

    def mask(self, values: np.ndarray) -> Any:
        """A mask on the engine, one byte an element."""
        return self.xp.asarray(np.ascontiguousarray(values, dtype=np.uint8))

    def doubles(self, values: np.ndarray) -> Any:
        """Plain float64 numbers on the engine."""
        return self.xp.asarray(np.ascontiguousarray(values, dtype=np.float64))

    def empty(self, cases: int, shape: Sequence[int]) -> Tensor:
        """A tensor that a kernel will fill."""
        tail = (self.scalar.components,) if self.scalar.components > 1 else ()
        full = (cases, *shape, *tail)
        make = self.xp.full(full, np.nan, self.scalar.base) if self.poison else self.xp.empty(full, self.scalar.base)
        return Tensor(make, self.scalar)

    def zeros(self, cases: int, shape: Sequence[int]) -> Tensor:
        """A tensor of exact zeros."""
        return self.tensor(np.zeros((cases, *shape)))

    def values(self, tensor: Tensor) -> np.ndarray:
        """The values themselves, float64 (cases, *shape), without low parts."""
        data = tensor.data[..., 0] if self.scalar.components > 1 else tensor.data
        return np.asarray(data.get() if hasattr(data, "get") else data, np.float64)

    # ---- launching

    def launch(self, kernel: str, grid: tuple[int, int, int], block: int, *arguments: Any) -> None:
        """Runs a kernel; tensors are passed as their arrays."""
        plain = [a.data if isinstance(a, Tensor) else a for a in arguments]
        self.engine.launch(kernel, self.scalar, grid, block, plain, self.arithmetic)

    def elementwise(self, kernel: str, cases: int, n: int, *arguments: Any) -> None:
        """Runs a kernel (cases, n, …) over cases·n independent elements."""
        if cases * n:
            blocks, threads = self.engine.threads(cases * n)
            self.launch(kernel, (blocks, 1, 1), threads, cases, n, *arguments)

    def each_row(self, kernel: str, outer: int, count: int, inner: int, *arguments: Any) -> None:
        """Runs a kernel (outer, count, inner, …) over outer·inner independent rows of `count`."""
        if outer * inner:
            blocks, threads = self.engine.threads(outer * inner * max(count, 1))
            self.launch(kernel, (blocks, 1, 1), threads, outer, count, inner, *arguments)

    # ---- elementwise

    def unary(self, kernel: str, x: Tensor, *more: Any) -> Tensor:
        """kernel(cases, n, *more, x, y) with y like x."""
        y = self.empty(x.cases, x.shape)
        self.elementwise(kernel, x.cases, _size(x.shape), *more, x, y)
        return y

    def binary(self, kernel: str, a: Tensor, b: Tensor, *more: Any) -> Tensor:
        """kernel(cases, n, *more, a, b, y) for tensors of one shape."""
        y = self.empty(a.cases, a.shape)
        self.elementwise(kernel, a.cases, _size(a.shape), *more, a, b, y)
        return y

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b, one shape."""
        return self.binary("add", a, b)

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """a·b elementwise, one shape."""
        return self.binary("multiply", a, b)

    def accumulate(self, total: Tensor, part: Tensor) -> Tensor:
        """A gradient and one more part of it; modes survive."""
        y = self.binary("accumulate", total, part, float(part.length))
        return replace(y, length=part.length, modes=(*total.modes, *part.modes))

    # ---- products and sums

    def matmul(
        self,
        a: Tensor,
        b: Tensor,
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        bias: Tensor | None = None,
        start: Tensor | None = None,
    ) -> Tensor:
        """op(a)·op(b) (+ bias per row) (+ start): a (cases, M, K), b (cases, K, N), bias (cases, N), start (cases, M, N).

        Raises ValueError where the shapes do not belong together.
        """
        rows, depth = a.shape[::-1] if transpose_a else a.shape
        inner, columns = b.shape[::-1] if transpose_b else b.shape
        if inner != depth or b.cases != a.cases:
            raise ValueError(f"matmul: {a.cases} cases of {rows}×{depth} and {b.cases} cases of {inner}×{columns}")
        c = self.empty(a.cases, (rows, columns))
        if rows * columns * a.cases:
            grid, block = self.engine.matmul_launch(a.cases, rows, columns, depth)
            left = (a, 1, rows) if transpose_a else (a, depth, 1)
            right = (b, 1, depth) if transpose_b else (b, columns, 1)
            self.launch("matmul", grid, block, a.cases, rows, columns, depth, *left, *right, bias, start, c)
        return replace(c, length=depth)

    def sum_middle(self, x: Tensor, outer: int, count: int, inner: int, shape: Sequence[int]) -> Tensor:
        """Σ over the middle of (outer, count, inner), outer including the cases; the result has `shape`."""
        out = self.empty(x.cases, shape)
        packed = self.scalar.name in ("float32", "float64") and inner > 1 and self.engine.name == "host"
        self.each_row("sum_columns" if packed else "sum_middle", outer, count, inner, x, out)
        return replace(out, length=count)

    def column_sum(self, y: Tensor) -> Tensor:
        """(cases, M, N) -> (cases, N)."""
        rows, columns = y.shape
        return self.sum_middle(y, y.cases, rows, columns, (columns,))

    def sum_axes(self, x: Tensor, axes: Sequence[int], *, keepdims: bool = False) -> Tensor:
        """Sums over `axes` (of one case), neighbouring ones at once."""
        shape, result = list(x.shape), x
        wanted = sorted({axis % len(shape) for axis in axes}) if shape else []
        while wanted:
            last = wanted.pop()
            first = last
            while wanted and wanted[-1] == first - 1:
                first = wanted.pop()
            outer = result.cases * _size(shape[:first])
            count, inner = _size(shape[first : last + 1]), _size(shape[last + 1 :])
            shape[first : last + 1] = [1] * (last - first + 1)
            result = self.sum_middle(result, outer, count, inner, shape)
        if keepdims:
            return result
        gone = {axis % len(x.shape) for axis in axes} if x.shape else set()
        return replace(result.reshape(*(n for i, n in enumerate(shape) if i not in gone)), length=result.length)

    # ---- data movement

    def gather(self, x: Tensor, index: np.ndarray) -> Tensor:
        """x.flat[index] in every case, 0 where the index is -1."""
        y = self.empty(x.cases, index.shape)
        size = _size(x.shape)
        if index.size and x.cases:
            blocks, threads = self.engine.threads(x.cases * index.size)
            self.launch("gather", (blocks, 1, 1), threads, x.cases, size, index.size, self.integers(index.ravel()), x, y)
        return y

    def scatter(self, dy: Tensor, index: np.ndarray, shape: Sequence[int]) -> Tensor:
        """The transpose of gather: every element of the result sums what came from it, in order."""
        flat = index.ravel()
        order = np.argsort(flat, kind="stable")
        order = order[flat[order] >= 0]
        size = _size(shape)
        first = np.zeros(size + 1, np.int64)
        np.cumsum(np.bincount(flat[order], minlength=size), out=first[1:])
        dx = self.empty(dy.cases, shape)
        if size and dy.cases:
            blocks, threads = self.engine.threads(dy.cases * size)
            places = (self.integers(first), self.integers(order))
            self.launch("scatter", (blocks, 1, 1), threads, dy.cases, size, flat.size, *places, dy, dx)
        most = int(np.max(np.diff(first), initial=1))
        return replace(dx, length=most)

    def broadcast(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """x repeated to `shape`, by numpy's rules."""
        if tuple(shape) == x.shape:
            return x
        index = np.broadcast_to(np.arange(_size(x.shape)).reshape(x.shape), tuple(shape))
        return self.gather(x, np.ascontiguousarray(index))

    def unbroadcast(self, dy: Tensor, shape: Sequence[int]) -> Tensor:
        """The transpose of broadcast: sums over the axes that were repeated."""
        added = len(dy.shape) - len(shape)
        repeated = [i for i, n in enumerate(dy.shape) if i < added or (shape[i - added] == 1 and n != 1)]
        if not repeated:
            return dy.reshape(*shape) if dy.shape != tuple(shape) else dy
        total = self.sum_axes(dy, repeated, keepdims=True)
        return replace(total.reshape(*shape), length=total.length)


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(np.asarray(shape, np.int64), dtype=np.int64)) if len(shape) else 1
