"""Compiles every kernel for GPUs without having one, and shows what each costs: `python -m gradjury.kernels.compile_check`.

NVRTC needs neither a GPU nor a driver. A kernel fails the check that spills registers, keeps anything in local memory,
or asks for more shared memory than a block may have statically (48 KiB).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gradjury.kernels.cupy_engine import OPTIONS, expressions, program, sources
from gradjury.kernels.scalars import SCALARS, Scalar

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")
STATIC_SHARED = 48 * 1024


@dataclass(frozen=True)
class Cost:
    """What ptxas says of one kernel: registers a thread, bytes of spills, of stack frame, of shared memory."""

    kernel: str
    architecture: str
    registers: int
    spills: int
    stack: int
    shared: int

    @property
    def sound(self) -> bool:
        return self.spills == 0 and self.stack == 0 and self.shared <= STATIC_SHARED


def missing() -> str:
    """What keeps NVRTC from running here, in one line; empty if nothing does."""
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except Exception as error:
        return f"NVRTC cannot run: {str(error).splitlines()[0]}; pip install 'gradjury[compile]'"
    return ""


def compile_kernels(scalar: Scalar, architecture: str) -> list[Cost]:
    """The cost of every kernel at `scalar`. Raises RuntimeError with the compiler's message."""
    from cupy.cuda import nvrtc

    names = expressions(scalar)
    handle = nvrtc.createProgram(program(), "ops.cu", (), ())
    for name in names:
        nvrtc.addNameExpression(handle, name)
    try:
        nvrtc.compileProgram(handle, (*OPTIONS, f"-I{sources()}", f"-arch={architecture}", "--ptxas-options=-v"))
    except nvrtc.NVRTCError as error:
        raise RuntimeError(f"{scalar.name} for {architecture}: {nvrtc.getProgramLog(handle)}") from error
    lowered = {nvrtc.getLoweredName(handle, name): name for name in names}
    return list(_costs(nvrtc.getProgramLog(handle), lowered, architecture))


def _costs(log: str, lowered: dict[str, Any], architecture: str) -> Iterator[Cost]:
    """Reads ptxas's lines: a kernel's name, then its stack and spills, then its registers and shared memory."""
    name, stack, spills = "", 0, 0
    for line in log.splitlines():
        entry = re.search(r"(?:Compiling entry function|Function properties for) '?([^' ]+)'?", line)
        if entry:
            name = entry.group(1)
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if frame:
            stack, spills = int(frame.group(1)), int(frame.group(2)) + int(frame.group(3))
        used = re.search(r"Used (\d+) registers", line)
        if used and name in lowered:
            shared = re.search(r"(\d+) bytes smem", line)
            kernel = lowered[name].replace("gradjury::", "")
            yield Cost(kernel, architecture, int(used.group(1)), spills, stack, int(shared.group(1)) if shared else 0)


def table(costs: Sequence[Cost]) -> str:
    """One line a kernel."""
    lines = [f"{'kernel':52s} {'arch':7s} registers spills  stack  shared"]
    for c in costs:
        mark = "" if c.sound else "  <- too much"
        lines.append(f"{c.kernel:52s} {c.architecture:7s} {c.registers:9d} {c.spills:6d} {c.stack:6d} {c.shared:7d}{mark}")
    return "\n".join(lines)


def main() -> int:
    """Compiles for the architectures and scalars asked for; exit code 1 if a kernel is too expensive, 2 without NVRTC."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", nargs="*", default=list(ARCHITECTURES))
    parser.add_argument("--scalar", nargs="*", default=list(SCALARS))
    parser.add_argument("--only-failures", action="store_true")
    asked = parser.parse_args()
    if missing():
        print(missing(), file=sys.stderr)
        return 2
    costs = [cost for arch in asked.arch for scalar in asked.scalar for cost in compile_kernels(SCALARS[scalar], arch)]
    shown = [cost for cost in costs if not cost.sound] if asked.only_failures else costs
    print(table(shown))
    bad = sum(not cost.sound for cost in costs)
    print(f"{len(costs)} kernels compiled, {bad} too expensive")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
