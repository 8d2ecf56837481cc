"""The CPU runtime is CUDA as far as kernels can see, and finds what goes wrong in them.

Small programs (runtime/*.cpp) are compiled with the runtime, plain and under sanitizers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent / "runtime"
KERNELS = Path(__file__).parents[2] / "kernels"
CUDA, HOST = KERNELS / "cuda", KERNELS / "host"
FLAGS = ("-std=c++17", "-O1", "-g", "-march=native", "-ffp-contract=off", "-DGJ_SCALAR=float", f"-I{HOST}")
SANITIZERS = {"plain": (), "address": ("-fsanitize=address", "-DGJ_ASAN"), "thread": ("-fsanitize=thread", "-DGJ_TSAN")}
IN_ORDER = -1


@dataclass(frozen=True)
class Done:
    """What a program printed, and how it ended."""

    numbers: list[float]
    errors: str
    ended_well: bool


class Programs:
    """Compiles each program once, and runs it."""

    def __init__(self, folder: Path, compiler: str) -> None:
        self.folder, self.compiler = folder, compiler
        self.made: dict[tuple[str, str, str], Path] = {}

    def compile(self, name: str, sanitizer: str, cuda: Path = CUDA) -> Path:
        """The program of runtime/NAME.cpp with the kernels of the folder `cuda`."""
        key = (name, sanitizer, str(cuda))
        if key not in self.made:
            program = self.folder / f"{name}-{sanitizer}-{len(self.made)}"
            sources = (HERE / f"{name}.cpp", HOST / "interface.cpp", self._runtime(sanitizer))
            self._call(f"-I{cuda}", *FLAGS, *SANITIZERS[sanitizer], *sources, "-pthread", "-o", program)
            self.made[key] = program
        return self.made[key]

    def _runtime(self, sanitizer: str) -> Path:
        """Compiled unseen by ThreadSanitizer: it shall see fibres as threads."""
        runtime = self.folder / f"runtime-{sanitizer}.o"
        if not runtime.exists():
            flags = [flag for flag in SANITIZERS[sanitizer] if flag != "-fsanitize=thread"]
            self._call(f"-I{CUDA}", *FLAGS, *flags, "-c", HOST / "runtime.cpp", "-o", runtime)
        return runtime

    def _call(self, *arguments: object) -> None:
        done = subprocess.run([self.compiler, *map(str, arguments)], capture_output=True, text=True, check=False)
        if done.returncode and "cannot find" in done.stderr:
            pytest.skip("the compiler has no runtime of this sanitizer")
        assert done.returncode == 0, done.stderr

    def run(self, program: Path, *arguments: object) -> Done:
        environment = {**os.environ, "TSAN_OPTIONS": "history_size=7", "ASAN_OPTIONS": "detect_leaks=0"}
        command = [str(program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
        if "FATAL: ThreadSanitizer" in done.stderr:
            pytest.skip(f"ThreadSanitizer cannot run here: {done.stderr.splitlines()[0]}")
        return Done([float(line) for line in done.stdout.split()], done.stderr, done.returncode == 0)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    return Programs(tmp_path_factory.mktemp("programs"), compiler)


def launch(
    programs: Programs, kernel: str, *, grid: int = 1, block: int, n: int, seed: int, threads: int = 1, sanitizer: str = "plain"
) -> Done:
    """kernel<float>(n, x, y) of runtime/planted.cpp with x = 1, 2, …, n; what is printed is y."""
    return programs.run(programs.compile("planted", sanitizer), kernel, seed, threads, grid, block, n)


def numbered(n: int) -> np.ndarray:
    return np.arange(1.0, n + 1)


# ---- kernels that are right: what they compute (grid, block, n), by numpy

RIGHT = {
    "neighbour": (2, 8, 32, np.roll(numbered(32).reshape(4, 8), -1, axis=1).ravel()),
    "two_arrays": (1, 40, 40, 999 * numbered(40)[::-1]),
    "warp_sum": (1, 96, 96, np.repeat(numbered(96).reshape(3, 32).sum(1), 32)),
    "even_lanes": (1, 64, 64, numbered(64) + np.tile([2.0, 0.0, -2.0, 0.0], 16)),
    "through_warp": (1, 64, 64, numbered(64).reshape(32, 2)[:, ::-1].ravel()),
    "early_return": (1, 100, 41, numbered(41)[::-1]),
    "places": (7, 5, 35, (1000 * np.arange(7.0)[:, None] + np.arange(5.0)).ravel()),
}


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("kernel", RIGHT)
def test_right_kernels(programs: Programs, kernel: str, sanitizer: str) -> None:
    """In any order of blocks and threads, on any number of OS threads, with no complaint."""
    grid, block, n, expected = RIGHT[kernel]
    in_order, shuffled = [(IN_ORDER, 1), (IN_ORDER, 3)], [(0, 1), (1, 1), (7919, 1)]
    for seed, threads in [in_order[1], shuffled[1]] if sanitizer == "thread" else [*in_order, *shuffled]:
        done = launch(programs, kernel, grid=grid, block=block, n=n, seed=seed, threads=threads, sanitizer=sanitizer)
        assert done.ended_well and done.errors == "", done.errors
        assert done.numbers == expected.tolist(), (seed, threads)


@pytest.mark.parametrize("size", [1, 31, 33, 1024])
def test_barrier_at_any_block_size(programs: Programs, size: int) -> None:
    for seed in (IN_ORDER, 2):
        done = launch(programs, "neighbour", block=size, n=3 * size, seed=seed)
        assert done.numbers == np.roll(numbered(3 * size).reshape(3, size), -1, axis=1).ravel().tolist()


# ---- kernels with one mistake each


def test_missing_barrier_hides_in_order_and_shows_shuffled(programs: Programs) -> None:
    expected = [0.0, *numbered(31)]
    assert launch(programs, "missing_barrier", block=32, n=32, seed=IN_ORDER).numbers == expected
    shuffled = [launch(programs, "missing_barrier", block=32, n=32, seed=seed).numbers for seed in range(5)]
    assert all(np.isnan(numbers).any() for numbers in shuffled)  # read before written: poison
    assert len({tuple(map(str, numbers)) for numbers in shuffled}) == 5  # every seed is an order of its own
    assert str(shuffled[3]) == str(launch(programs, "missing_barrier", block=32, n=32, seed=3).numbers)


def test_missing_second_barrier_shows_shuffled(programs: Programs) -> None:
    right = [3 * x + 3 for x in np.roll(numbered(32), -1)]
    found = [launch(programs, "missing_second_barrier", block=32, n=32, seed=seed).numbers for seed in range(5)]
    assert all(numbers != right for numbers in found)


def test_unwritten_shared_memory_is_nan(programs: Programs) -> None:
    numbers = launch(programs, "unwritten_shared", block=16, n=16, seed=0).numbers
    assert np.isnan(numbers).tolist() == [i == 6 for i in range(16)]


def _line_of(text: str, occurrence: int = 0) -> int:
    lines = (HERE / "planted.cpp").read_text(encoding="utf-8").splitlines()
    return [i for i, line in enumerate(lines, 1) if text in line][occurrence]


def test_divergent_barrier_is_reported_with_both_places(programs: Programs) -> None:
    first = _line_of("void divergent_barrier") + 2
    done = launch(programs, "divergent_barrier", block=16, n=16, seed=0)
    assert not done.ended_well and done.numbers == []
    assert done.errors.startswith("gradjury kernel: divergent barrier in block (0,0,0): thread ")
    assert f"planted.cpp:{first}" in done.errors and f"planted.cpp:{first + 3}" in done.errors


def test_deadlock_is_reported(programs: Programs) -> None:
    """Lanes at a shuffle wait for lanes at a barrier."""
    for seed in (IN_ORDER, 4):
        done = launch(programs, "half_a_warp", block=32, n=32, seed=seed)
        assert not done.ended_well
        assert "deadlock in block (0,0,0): 32 live threads, 16 wait at __syncthreads" in done.errors
        shuffle = _line_of("__shfl_xor_sync(~0u, value, 8)")
        assert f"planted.cpp:{shuffle}" in done.errors


def test_lane_outside_its_own_mask_is_reported(programs: Programs) -> None:
    done = launch(programs, "outside_own_mask", block=32, n=32, seed=IN_ORDER)
    assert not done.ended_well and "lane 16 is not in its own mask 0000ffff" in done.errors


def test_too_much_shared_memory_is_reported(programs: Programs) -> None:
    done = launch(programs, "too_much_shared", block=1, n=1, seed=IN_ORDER)
    assert not done.ended_well and "shared memory: 4194304 bytes wanted" in done.errors


@pytest.mark.parametrize("block", [0, 1025])
def test_impossible_block_is_reported(programs: Programs, block: int) -> None:
    done = launch(programs, "places", block=block, n=1, seed=IN_ORDER)
    assert not done.ended_well and f"a block of {block} threads: expected 1 to 1024" in done.errors


@pytest.mark.parametrize(
    ("kernel", "complaint"), [("beyond_global", "heap-buffer-overflow"), ("beyond_shared", "use-after-poison")]
)
def test_address_sanitizer_sees_reads_out_of_bounds(programs: Programs, kernel: str, complaint: str) -> None:
    assert launch(programs, kernel, block=64, n=64, seed=IN_ORDER).ended_well
    done = launch(programs, kernel, block=64, n=64, seed=IN_ORDER, sanitizer="address")
    assert not done.ended_well and complaint in done.errors and f"{kernel}<float>" in done.errors


RACES = [
    ("missing_barrier", 1, 1),
    ("missing_second_barrier", 1, 1),
    ("race_in_block", 2, 1),
    ("race_of_blocks", 4, 1),
    ("race_of_blocks", 4, 2),
]


@pytest.mark.parametrize(("kernel", "grid", "threads"), RACES)
def test_thread_sanitizer_sees_races(programs: Programs, kernel: str, grid: int, threads: int) -> None:
    """Also where a single OS thread runs everything in order, and the result is right."""
    done = launch(programs, kernel, grid=grid, block=32, n=32, seed=IN_ORDER, threads=threads, sanitizer="thread")
    assert not done.ended_well
    assert "ThreadSanitizer: data race" in done.errors and f"{kernel}<float>" in done.errors


# ---- the kernels that have barriers


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_real_kernels_under_sanitizers(programs: Programs, sanitizer: str) -> None:
    program = programs.compile("real", sanitizer)
    runs = [programs.run(program, seed, threads) for seed, threads in [(IN_ORDER, 1), (IN_ORDER, 2), (5, 1)]]
    for done in runs:
        assert done.ended_well and done.errors == "", done.errors
        assert done.numbers == runs[0].numbers and np.isfinite(done.numbers).all()


BARRIERS = [("matmul.cuh", 0), ("matmul.cuh", 1), ("batchnorm.cuh", 1), ("batchnorm_columns.cuh", 1)]


@pytest.mark.parametrize(("header", "barrier"), BARRIERS)
def test_thread_sanitizer_misses_no_barrier_of_a_real_kernel(
    programs: Programs, tmp_path: Path, header: str, barrier: int
) -> None:
    """One barrier taken out of a copy of the header: a race."""
    shutil.copytree(CUDA, tmp_path, dirs_exist_ok=True)
    parts = (CUDA / header).read_text(encoding="utf-8").split("__syncthreads();")
    assert len(parts) > barrier + 1
    without = "__syncthreads();".join(parts[: barrier + 1]) + "__syncthreads();".join(parts[barrier + 1 :])
    (tmp_path / header).write_text(without, encoding="utf-8")
    done = programs.run(programs.compile("real", "thread", tmp_path), IN_ORDER, 1)
    assert "ThreadSanitizer: data race" in done.errors
