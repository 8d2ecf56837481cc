"""The GPU engine: the same kernel sources compiled by NVRTC through CuPy's RawModule, and kept in CuPy's cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import gradjury.kernels
from gradjury.kernels.arithmetic import Arithmetic
from gradjury.kernels.engine import EngineMissing
from gradjury.kernels.scalars import Scalar

OPTIONS = ("-std=c++17", "-fmad=false")
THREADS = 256
DECLARED = re.compile(r"^GJ_(FORWARD_)?KERNEL\((\w+)\)", re.MULTILINE)
ONLY_SPREAD = ("batchnorm_spread_forward", "batchnorm_spread_backward")


def available() -> bool:
    """Whether CuPy is installed and sees a GPU."""
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount()) > 0
    except Exception:
        return False


def sources() -> Path:
    """The folder of the kernel sources."""
    return next(path for folder in gradjury.kernels.__path__ if (path := Path(folder) / "cuda").exists())


def expressions(scalar: Scalar) -> list[str]:
    """Every kernel that exists at `scalar`, as a C++ name expression; read from the headers."""
    names = []
    for header in sorted(sources().glob("*.cuh")):
        for forward, name in DECLARED.findall(header.read_text()):
            if forward or not scalar.cpp.startswith("dual"):
                names.append(f"gradjury::{name}<gradjury::{scalar.cpp}>" if _ours(scalar) else f"gradjury::{name}<{scalar.cpp}>")
    if scalar.name == "spread":
        names += [f"gradjury::{name}<gradjury::spread>" for name in ONLY_SPREAD]
    return [name.replace("dual<dd>", "dual<gradjury::dd>") for name in names]


def _ours(scalar: Scalar) -> bool:
    return scalar.cpp not in ("float", "double")


class CupyEngine:
    """Runs kernels on the current GPU."""

    name = "cupy"

    def __init__(self) -> None:
        if not available():
            raise EngineMissing("the GPU engine needs CuPy and a GPU: pip install 'gradjury[cuda13]'")
        self._modules: dict[str, Any] = {}
        self._arithmetic: dict[str, bytes] = {}

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
        import numpy as np

        module = self._module(scalar)
        self._set_arithmetic(scalar, arithmetic)
        name = next(e for e in expressions(scalar) if e.startswith(f"gradjury::{kernel}<"))
        converted = [
            np.intp(0) if a is None else np.float64(a) if isinstance(a, float) else np.int64(a) if isinstance(a, int) else a
            for a in arguments
        ]
        module.get_function(name)(grid, (block, 1, 1), tuple(converted))

    def threads(self, total: int) -> tuple[int, int]:
        return max(1, min(65535, -(-total // THREADS))), THREADS

    def reduction_threads(self, scalar: Scalar) -> int:
        return THREADS if scalar.splits_sums else 1

    def matmul_threads(self) -> int:
        return 256

    def _module(self, scalar: Scalar) -> Any:
        if scalar.name not in self._modules:
            self._modules[scalar.name] = self.xp.RawModule(
                code='#include "ops.cuh"\n',
                options=(*OPTIONS, f"-I{sources()}"),
                name_expressions=expressions(scalar),
            )
        return self._modules[scalar.name]

    def _set_arithmetic(self, scalar: Scalar, arithmetic: Arithmetic) -> None:
        """Writes the module's constant block, where it changes."""
        packed = arithmetic.packed()
        if self._arithmetic.get(scalar.name) != packed:
            place = self._module(scalar).get_global("gradjury_arithmetic")
            place.copy_from_host_async(packed, len(packed), self.xp.cuda.get_current_stream())
            self._arithmetic[scalar.name] = packed


