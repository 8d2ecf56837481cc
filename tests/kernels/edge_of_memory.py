"""Runs matmul, sums and gather on arrays that end, or begin, exactly where readable memory does (test_matmul.py)."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np

from gradjury.kernels.calls import Kernels
from gradjury.kernels.engine import engine
from gradjury.kernels.scalars import SCALARS
from gradjury.kernels.tensor import Tensor

FORBIDDEN = 0  # PROT_NONE
SIZES = [(1, 1, 1), (1, 37, 19), (2, 16, 21), (3, 33, 35), (13, 17, 1), (14, 9, 23), (40, 2, 19), (193, 5, 9), (7, 70, 130)]
libc = ctypes.CDLL(None, use_errno=True)
kept: list[mmap.mmap] = []


def fenced(array: np.ndarray, *, at_the_end: bool) -> np.ndarray:
    """A copy whose last byte is followed, or whose first is preceded, by a page that may not be touched."""
    page = mmap.PAGESIZE
    room = -(-max(array.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, room + 2 * page)
    kept.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for fence in (start, start + page + room):
        if libc.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(page), FORBIDDEN):
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = page + (room - array.nbytes if at_the_end else 0)
    copy = np.frombuffer(memory, array.dtype, array.size, offset).reshape(array.shape)
    copy[...] = array
    return copy


def main(scalar: str) -> None:
    """Every form of every size at one scalar, its operands at both edges."""
    k = Kernels(engine("host"), SCALARS[scalar])
    rng = np.random.default_rng(0)

    def tensor(values: np.ndarray, *, at_the_end: bool) -> Tensor:
        return Tensor(fenced(k.tensor(values).data, at_the_end=at_the_end), k.scalar)

    for rows, columns, depth in SIZES:
        for end in (False, True):
            a, b = rng.standard_normal((1, rows, depth)), rng.standard_normal((1, depth, columns))
            bias = tensor(np.ones((1, columns)), at_the_end=end)
            start = tensor(np.ones((1, rows, columns)), at_the_end=end)
            lefts = {turned: tensor(np.swapaxes(a, 1, 2) if turned else a, at_the_end=end) for turned in (False, True)}
            rights = {turned: tensor(np.swapaxes(b, 1, 2) if turned else b, at_the_end=end) for turned in (False, True)}
            for turned_a, left in lefts.items():
                for turned_b, right in rights.items():
                    k.matmul(left, right, transpose_a=turned_a, transpose_b=turned_b, bias=bias, start=start)
            k.column_sum(lefts[False])
            k.sum_axes(lefts[False], [1])
            k.gather(lefts[False], np.arange(rows * depth)[::-1])
    print("every product computed")


if __name__ == "__main__":
    main(sys.argv[1])
