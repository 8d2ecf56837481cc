"""The GPU engine: the same kernel sources compiled by NVRTC through CuPy's RawModule, and kept in CuPy's cache."""

from __future__ import annotations

import ctypes
import hashlib
import re
import sys
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

import gradjury.kernels
from gradjury.kernels.arithmetic import Arithmetic
from gradjury.kernels.engine import EngineMissing
from gradjury.kernels.scalars import Scalar

OPTIONS = ("-std=c++17", "-fmad=false")
THREADS = 256
MATMUL_TILE = 32  # rows and columns of the smallest tile of the matmul kernel
MOST_TILES = 4096
DECLARED = re.compile(r"^GJ_(FORWARD_)?KERNEL\((\w+)\)", re.MULTILINE)
ONLY_AT = {"spread": ("batchnorm_spread_forward", "batchnorm_spread_backward")}  # kernels/host/kernels.cpp


@cache
def missing() -> str:
    """What keeps CuPy from running here, in one line; empty if nothing does."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")  # cheap, where importing CuPy is not
    except OSError:
        return "no NVIDIA driver on this machine"
    try:
        import cupy

        return "" if cupy.cuda.runtime.getDeviceCount() else "no GPU"
    except ImportError:
        return "CuPy is not installed: pip install 'gradjury[cuda13]' (or [cuda12])"
    except Exception as error:
        return " ".join(str(error).split())


def available() -> bool:
    """Whether CuPy is installed and sees a GPU."""
    return not missing()


@cache
def sources() -> Path:
    """The folder of the kernel sources."""
    return next(path for folder in gradjury.kernels.__path__ if (path := Path(folder) / "cuda").exists())


def program() -> str:
    """The source of every module: CuPy's cache knows a program by this text alone, so it names the headers' contents."""
    digest = hashlib.sha256()
    for header in sorted(sources().glob("*.cuh")):
        digest.update(header.read_bytes())
    return f'// {digest.hexdigest()}\n#include "ops.cuh"\n'


@cache
def expressions(scalar: Scalar) -> tuple[str, ...]:
    """Every kernel that exists at `scalar`, as a C++ name expression; read from the headers."""
    names = [
        name
        for header in sorted(sources().glob("*.cuh"))
        for forward, name in DECLARED.findall(header.read_text())
        if forward or not scalar.cpp.startswith("dual")
    ]
    return tuple(f"gradjury::{name}<{_qualified(scalar.cpp)}>" for name in [*names, *ONLY_AT.get(scalar.name, ())])


def _qualified(cpp: str) -> str:
    """A scalar's C++ name as seen from outside the namespace."""
    return re.sub(r"\b(dd|dual|spread|noisy|bound|lowered)\b", r"gradjury::\1", cpp)


class CupyEngine:
    """Runs kernels on the current GPU."""

    name = "cupy"

    def __init__(self) -> None:
        if missing():
            raise EngineMissing(f"the GPU engine cannot run: {missing()}")
        self._modules: dict[str, Any] = {}
        self._functions: dict[tuple[str, str], Any] = {}
        self._arithmetic: dict[str, Arithmetic] = {}

    @cached_property
    def xp(self) -> Any:
        import cupy

        return cupy

    def launch(
        self,
        kernel: str,
        scalar: Scalar,
        grid: tuple[int, int, int],
        block: int,
        arguments: Sequence[Any],
        arithmetic: Arithmetic,
    ) -> None:
        function = self._functions.get((kernel, scalar.name))
        if function is None:
            function = self._functions[kernel, scalar.name] = self._function(kernel, scalar)
        self._set_arithmetic(scalar, arithmetic)
        function(grid, (block, 1, 1), tuple(_slot(argument) for argument in arguments))

    def threads(self, total: int) -> tuple[int, int]:
        return max(1, min(65535, -(-total // THREADS))), THREADS

    def reduction_threads(self, scalar: Scalar) -> int:
        return THREADS if scalar.splits_sums else 1

    def matmul_launch(self, cases: int, rows: int, columns: int, depth: int) -> tuple[tuple[int, int, int], int]:
        tiles = -(-rows // MATMUL_TILE) * -(-columns // MATMUL_TILE)
        return (min(tiles, MOST_TILES), 1, min(cases, MOST_TILES)), THREADS

    def _function(self, kernel: str, scalar: Scalar) -> Any:
        start = f"gradjury::{kernel}<"
        name = next((e for e in expressions(scalar) if e.startswith(start)), None)
        if name is None:
            raise KeyError(f"no kernel {kernel}<{scalar.cpp}>")
        return self._module(scalar).get_function(name)

    def _module(self, scalar: Scalar) -> Any:
        if scalar.name not in self._modules:
            self._modules[scalar.name] = self.xp.RawModule(
                code=program(), options=(*OPTIONS, f"-I{sources()}"), name_expressions=expressions(scalar)
            )
        return self._modules[scalar.name]

    def _set_arithmetic(self, scalar: Scalar, arithmetic: Arithmetic) -> None:
        """Writes the module's constant block, where it changes; in the order of the stream's launches."""
        if self._arithmetic.get(scalar.name) != arithmetic:
            block = np.frombuffer(arithmetic.packed, np.uint8)
            place = self._module(scalar).get_global("gradjury_arithmetic")
            place.copy_from_host_async(block.ctypes.data, block.nbytes, self.xp.cuda.get_current_stream())
            self._arithmetic[scalar.name] = arithmetic


def _slot(argument: Any) -> Any:
    """What CuPy passes as 8 bytes: it takes Python's numbers for wider or narrower ones than a kernel's."""
    if argument is None:
        return np.uint64(0)
    if isinstance(argument, float):
        return np.float64(argument)
    if isinstance(argument, (int, np.integer)):
        return np.int64(argument)
    if not argument.flags.c_contiguous:
        raise ValueError("kernels take contiguous arrays")
    return argument
