"""The CPU engine: the CUDA C++ kernels compiled by a host compiler, CUDA threads as fibres (kernels/host)."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import gradjury.kernels
from gradjury.kernels.arithmetic import Arithmetic
from gradjury.kernels.engine import EngineMissing
from gradjury.kernels.scalars import Scalar

LIBRARY = {"darwin": "libgradjury_cpu.dylib", "win32": "gradjury_cpu.dll"}.get(sys.platform, "libgradjury_cpu.so")
CHUNK = 4096  # elements below which a second block does not pay
MATMUL_CHUNK = 1 << 18  # products below which it does not
MOST_BLOCKS = 64
CORES = os.cpu_count() or 1


class HostEngine:
    """Runs kernels on the CPU, on all cores unless `set_threads` says otherwise."""

    name = "host"

    @property
    def xp(self) -> Any:
        return np

    def __init__(self) -> None:
        self._kernels: dict[tuple[str, str], int] = {}
        _ = self._library

    @cached_property
    def _library(self) -> ctypes.CDLL:
        path = next((p for folder in gradjury.kernels.__path__ if (p := Path(folder) / LIBRARY).exists()), None)
        if path is None:
            raise EngineMissing("the CPU engine is missing: install a C++ compiler (g++ or clang++), then reinstall gradjury")
        library = ctypes.CDLL(str(path))
        library.gradjury_kernel.restype = ctypes.c_void_p
        library.gradjury_kernel.argtypes = [ctypes.c_char_p]
        library.gradjury_kernels.restype = ctypes.c_char_p
        library.gradjury_launch.restype = None
        library.gradjury_launch.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p]
        library.gradjury_seed.argtypes = [ctypes.c_long]
        return library

    def kernel_names(self) -> list[str]:
        """Every kernel in the library, as `name<scalar>`."""
        return str(self._library.gradjury_kernels().decode()).split("\n")[:-1]

    def set_threads(self, count: int) -> None:
        """OS threads that run blocks; 0: one per core."""
        self._library.gradjury_threads(count)

    def set_order(self, seed: int) -> None:
        """From 0 on: blocks and threads run in an order drawn from `seed`, with poisoned shared memory; below 0: in order."""
        self._library.gradjury_seed(seed)

    def launch(
        self,
        kernel: str,
        scalar: Scalar,
        grid: tuple[int, int, int],
        block: int,
        arguments: Sequence[Any],
        arithmetic: Arithmetic,
    ) -> None:
        address = self._kernels.get((kernel, scalar.cpp))
        if address is None:
            name = f"{kernel}<{scalar.cpp}>"
            address = self._library.gradjury_kernel(name.encode())
            if address is None:
                raise KeyError(f"no kernel {name}")
            self._kernels[kernel, scalar.cpp] = address
        slots = struct.pack(f"<{len(arguments)}q", *map(_slot, arguments))
        self._library.gradjury_launch(address, struct.pack("3I", *grid), struct.pack("3I", block, 1, 1), slots, arithmetic.packed)

    def threads(self, total: int) -> tuple[int, int]:
        return max(1, min(MOST_BLOCKS, total // CHUNK)), 1

    def reduction_threads(self, scalar: Scalar) -> int:
        return 1

    def matmul_launch(self, cases: int, rows: int, columns: int, depth: int) -> tuple[tuple[int, int, int], int]:
        worthwhile = cases * rows * columns * depth // MATMUL_CHUNK
        blocks = max(1, min(2 * CORES, worthwhile))
        along_cases = min(cases, blocks)
        return (blocks // along_cases, 1, along_cases), 1


def _slot(argument: Any) -> int:
    """The 8 bytes of a kernel's argument, as a number."""
    if type(argument) is int:
        return argument
    if argument is None:
        return 0
    if isinstance(argument, float):
        return int(struct.unpack("<q", struct.pack("<d", argument))[0])
    if isinstance(argument, (int, np.integer)):
        return int(argument)
    if not argument.flags.c_contiguous:
        raise ValueError("kernels take contiguous arrays")
    return int(argument.ctypes.data)
