"""Engines: what they run, what they refuse, and that the same bits come out however the work is spread."""

from __future__ import annotations

import ctypes
import multiprocessing
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from problems import float32_values

import gradjury.kernels
from gradjury.kernels import cupy_engine, host_engine
from gradjury.kernels.arithmetic import Arithmetic
from gradjury.kernels.calls import Kernels
from gradjury.kernels.engine import EngineMissing, engine
from gradjury.kernels.host_engine import HostEngine
from gradjury.kernels.scalars import SCALARS
from gradjury.kernels.tensor import Tensor

# ---- choice


def test_unknown_engine() -> None:
    with pytest.raises(EngineMissing, match=r"^engine: expected host or cupy, found 'tpu'$"):
        engine("tpu")


def test_best_engine_is_the_host_without_a_gpu() -> None:
    assert engine().name == ("cupy" if cupy_engine.available() else "host")
    assert engine("host").name == "host"


def test_missing_library_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As after an install without a C++ compiler."""
    monkeypatch.setattr(gradjury.kernels, "__path__", [str(tmp_path)])
    with pytest.raises(EngineMissing) as caught:
        HostEngine()
    assert "C++ compiler" in str(caught.value) and "\n" not in str(caught.value)


def test_missing_gpu_in_one_line() -> None:
    if cupy_engine.available():
        pytest.skip("there is a GPU")
    with pytest.raises(EngineMissing, match=r"^the GPU engine cannot run: .+$") as caught:
        engine("cupy")
    assert "\n" not in str(caught.value)


# ---- what there is


def test_the_library_holds_every_declared_kernel() -> None:
    """At every scalar, the same on both engines: what the headers declare, and nothing else."""
    declared = {name.replace("gradjury::", "") for scalar in SCALARS.values() for name in cupy_engine.expressions(scalar)}
    assert declared == set(HostEngine().kernel_names())


def test_layout_of_arithmetic() -> None:
    """The packed settings are the C++ struct: the same fields in the same order, 8 bytes each."""
    header = (cupy_engine.sources() / "arithmetic.cuh").read_text(encoding="utf-8")
    struct = re.search(r"struct Arithmetic \{(.*?)\n\};", header, re.DOTALL)
    assert struct is not None
    members = re.findall(r"^  (double|Index) (\w+);", struct[1], re.MULTILINE)
    python = [("double" if field.type == "float" else "Index", field.name) for field in fields(Arithmetic)]
    assert members == python
    assert len(Arithmetic().packed) == 8 * len(members)


@pytest.mark.parametrize("bits", [4, 8, 11])
def test_arithmetic_reaches_the_kernels(bits: int) -> None:
    k = Kernels(engine("host"), SCALARS["lowered"], Arithmetic(storage_bits=bits))
    one, small = k.tensor(np.ones((1, 1))), k.tensor(np.array([[2.0**-bits * 1.5]]))
    assert k.values(k.add(one, small)).item() == 1 + 2.0 ** (1 - bits)


def test_launches_of_several_threads_keep_their_own_arithmetic() -> None:
    wrong: list[int] = []

    def work(bits: int) -> None:
        k = Kernels(engine("host"), SCALARS["lowered"], Arithmetic(storage_bits=bits))
        a, b = k.tensor(np.ones((1, 5000))), k.tensor(np.full((1, 5000), 2.0**-bits * 1.5))
        wrong.extend(bits for _ in range(50) if not (k.values(k.add(a, b)) == 1 + 2.0 ** (1 - bits)).all())

    workers = [threading.Thread(target=work, args=(bits,)) for bits in (5, 9, 13)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def _launch_in_child(pipe: Any) -> None:
    k = Kernels(engine("host"), SCALARS["float64"])
    ones = k.tensor(np.ones((1, 200000)))
    pipe.send(k.values(k.add(ones, ones)).sum())


def test_a_forked_child_launches_too() -> None:
    """It has none of the parent's worker threads."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("no fork on this system")
    host = HostEngine()
    host.set_threads(3)
    try:
        k = Kernels(host, SCALARS["float64"])
        ones = k.tensor(np.ones((1, 200000)))
        k.add(ones, ones)
        context = multiprocessing.get_context("fork")
        receive, send = context.Pipe(duplex=False)
        child = context.Process(target=_launch_in_child, args=(send,))
        child.start()
        assert receive.poll(60)
        assert receive.recv() == 400000
        child.join(60)
    finally:
        host.set_threads(0)


# ---- what is refused


def test_unknown_kernel() -> None:
    k = Kernels(engine("host"), SCALARS["float32"])
    with pytest.raises(KeyError, match="no kernel frobnicate<float>"):
        k.launch("frobnicate", (1, 1, 1), 1)


def test_backward_kernels_are_not_for_dual_numbers() -> None:
    k = Kernels(engine("host"), SCALARS["dual"])
    with pytest.raises(KeyError, match="no kernel relu_backward<dual<double>>"):
        k.launch("relu_backward", (1, 1, 1), 1)


def test_strided_arrays_are_refused() -> None:
    k = Kernels(engine("host"), SCALARS["float64"])
    x, y = Tensor(np.ones((2, 8))[:, ::2], k.scalar), k.empty(2, (4,))
    with pytest.raises(ValueError, match="contiguous"):
        k.elementwise("negate", 2, 4, x, y)


# ---- the same bits


@pytest.fixture
def host() -> Iterator[HostEngine]:
    fresh = HostEngine()
    yield fresh
    fresh.set_threads(0)
    fresh.set_order(-1)


def everything(k: Kernels, cases: Sequence[int]) -> list[np.ndarray]:
    """One kernel of every kind, for these of six cases."""
    rng = np.random.default_rng(1)
    a, b, c = (float32_values(rng, 6, *shape)[list(cases)] for shape in ((37, 70), (70, 41), (37, 41)))
    x, y, z = k.tensor(a), k.tensor(b), k.tensor(c)
    index = np.random.default_rng(2).integers(-1, 37 * 41, (50, 30))
    product = k.matmul(x, y, bias=k.tensor(c[:, 0]), start=z)
    results = [product, k.unary("tanh_forward", z), k.multiply(product, z), k.column_sum(product), k.sum_axes(z, [1])]
    results += [k.gather(z, index), k.matmul(product, z, transpose_a=True)]
    if not k.scalar.name.startswith("dual"):
        results.append(k.scatter(k.gather(z, index), index, (37, 41)))
    return [np.asarray(result.data) for result in results]


@pytest.mark.parametrize("scalar", [name for name in SCALARS if name != "noisy"])
def test_same_bits_for_any_threads_order_and_batch(host: HostEngine, scalar: str) -> None:
    """Noise draws depend on the row by design; everything else is a function of its own case alone."""
    k = Kernels(host, SCALARS[scalar], Arithmetic(storage_bits=11, operand_bits=8), poison=True)
    host.set_threads(1)
    expected = everything(k, range(6))
    for threads in (2, 3, 8):
        host.set_threads(threads)
        assert all(map(np.array_equal, everything(k, range(6)), expected)), threads
    host.set_threads(1)
    for seed in (0, 5):
        host.set_order(seed)
        assert all(map(np.array_equal, everything(k, range(6)), expected)), seed
    host.set_order(-1)
    for cases in ([3], [5, 0]):
        assert all(np.array_equal(few, all_[cases]) for few, all_ in zip(everything(k, cases), expected, strict=True))


def test_noise_is_the_same_in_every_run(host: HostEngine) -> None:
    first, *others = [everything(Kernels(host, SCALARS["noisy"]), range(6)) for _ in range(2)]
    host.set_threads(3)
    others.append(everything(Kernels(host, SCALARS["noisy"]), range(6)))
    for other in others:
        assert all(a.tobytes() == b.tobytes() for a, b in zip(first, other, strict=True))


# ---- the GPU engine


class Function:
    """Stands for a compiled GPU kernel: runs its CPU twin on what CuPy would pass, 8 bytes an argument."""

    def __init__(self, name: str) -> None:
        self.address = HostEngine()._library.gradjury_kernel(name.replace("gradjury::", "").encode())
        assert self.address is not None, name

    def __call__(self, grid: tuple[int, int, int], block: tuple[int, int, int], arguments: tuple[Any, ...]) -> None:
        assert all(isinstance(a, np.ndarray) or (isinstance(a, np.generic) and a.nbytes == 8) for a in arguments)
        slots = b"".join(np.uint64(a.ctypes.data).tobytes() if isinstance(a, np.ndarray) else a.tobytes() for a in arguments)
        assert block[0] <= 1024 and all(n <= 65535 for n in grid[1:])
        shape = [np.array(three, np.uint32).tobytes() for three in (grid, block)]
        HostEngine()._library.gradjury_launch(self.address, *shape, slots, Module.constant)


class Module:
    """Stands for cupy.RawModule."""

    constant = bytes(72)
    made = 0

    def __init__(self, code: str, options: tuple[str, ...], name_expressions: Sequence[str]) -> None:
        assert '#include "ops.cuh"' in code and "-fmad=false" in options
        self.names = set(name_expressions)
        Module.made += 1

    def get_function(self, name: str) -> Function:
        assert name in self.names
        return Function(name)

    def get_global(self, name: str) -> Any:
        assert name == "gradjury_arithmetic"

        def copy(address: int, size: int, stream: object) -> None:
            Module.constant = ctypes.string_at(address, size)

        return SimpleNamespace(copy_from_host_async=copy)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> cupy_engine.CupyEngine:
    """The GPU engine, its arrays numpy's and its kernels the CPU's, with a GPU's launch shapes."""
    monkeypatch.setattr(cupy_engine, "missing", lambda: "")
    gpu = cupy_engine.CupyEngine()
    stream = SimpleNamespace(get_current_stream=lambda: None)
    gpu.__dict__["xp"] = SimpleNamespace(
        **{name: getattr(np, name) for name in ("asarray", "full", "empty")}, RawModule=Module, cuda=stream
    )
    monkeypatch.setattr(Module, "made", 0)
    return gpu


@pytest.mark.parametrize("scalar", ["float32", "double-double", "spread"])
def test_gpu_launches(pretended: cupy_engine.CupyEngine, scalar: str) -> None:
    """With many threads a block the same bits as in the CPU's own launch shapes; a module is made once."""
    host = engine("host")
    for settings in (Arithmetic(), Arithmetic(u=2.0**-11, kappa=1.0)):
        found = everything(Kernels(pretended, SCALARS[scalar], settings, poison=True), range(6))
        expected = everything(Kernels(host, SCALARS[scalar], settings), range(6))
        assert all(map(np.array_equal, found, expected))
    assert Module.made == 1


def test_gpu_engine_refuses_what_the_host_refuses(pretended: cupy_engine.CupyEngine) -> None:
    with pytest.raises(KeyError, match="no kernel frobnicate<float>"):
        Kernels(pretended, SCALARS["float32"]).launch("frobnicate", (1, 1, 1), 1)
    k = Kernels(pretended, SCALARS["float64"])
    with pytest.raises(ValueError, match="contiguous"):
        k.elementwise("negate", 2, 4, Tensor(np.ones((2, 8))[:, ::2], k.scalar), k.empty(2, (4,)))


def test_the_program_changes_with_the_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """CuPy's cache knows a program by its text and options, not by what it includes."""
    (tmp_path / "ops.cuh").write_text("int a;")
    monkeypatch.setattr(cupy_engine, "sources", lambda: tmp_path)
    before = cupy_engine.program()
    (tmp_path / "ops.cuh").write_text("int b;")
    assert cupy_engine.program() != before


@pytest.mark.gpu
def test_gpu_gives_the_hosts_bits() -> None:
    """No kernel here calls a function whose last bit is the machine's own, tanh apart."""
    if not cupy_engine.available():
        pytest.skip(cupy_engine.missing())
    for scalar in ("float32", "float64", "double-double"):
        found, expected = (everything(Kernels(engine(name), SCALARS[scalar]), range(6)) for name in ("cupy", "host"))
        for i, (gpu, cpu) in enumerate(zip(found, expected, strict=True)):
            assert i == 1 or np.array_equal(gpu.get() if hasattr(gpu, "get") else gpu, cpu), (scalar, i)


def test_library_name_is_this_systems() -> None:
    assert host_engine.LIBRARY.endswith((".so", ".dylib", ".dll"))
