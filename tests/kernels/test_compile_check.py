"""Kernels compile for GPUs without one, and what a kernel costs is read rightly."""

from __future__ import annotations

import sys

import pytest

from gradjury.kernels import compile_check
from gradjury.kernels.compile_check import Cost, compile_kernels
from gradjury.kernels.cupy_engine import expressions
from gradjury.kernels.scalars import SCALARS


def _compiled(scalar: str, architecture: str) -> list[Cost]:
    if compile_check.missing():
        pytest.skip(compile_check.missing())
    return compile_kernels(SCALARS[scalar], architecture)


@pytest.mark.parametrize("scalar", ["float32", "spread"])
def test_one_architecture(scalar: str) -> None:
    costs = _compiled(scalar, "sm_80")
    assert [cost for cost in costs if not cost.sound] == []
    assert len(costs) == len(expressions(SCALARS[scalar]))
    assert all(0 < cost.registers < 256 for cost in costs)
    shared = {cost.kernel.split("<")[0]: cost.shared for cost in costs}
    assert shared["matmul"] > 0 and shared["add"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("architecture", compile_check.ARCHITECTURES)
def test_every_scalar(architecture: str) -> None:
    assert [cost for scalar in SCALARS for cost in _compiled(scalar, architecture) if not cost.sound] == []


LOG = """ptxas info    : 0 bytes gmem, 72 bytes cmem[3]
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 50000 bytes smem, 72 bytes cmem[3]
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
"""


def test_costs_are_read() -> None:
    lowered = {"first": "gradjury::f<float>", "second": "gradjury::g<gradjury::dd>"}
    costs = list(compile_check._costs(LOG, lowered, "sm_90"))
    assert costs == [Cost("f<float>", "sm_90", 255, 20, 16, 50000), Cost("g<dd>", "sm_90", 10, 0, 0, 0)]
    assert [cost.sound for cost in costs] == [False, True]
    lines = compile_check.table(costs).splitlines()
    assert len(lines) == 3 and lines[1].endswith("<- too much") and not lines[2].endswith("<- too much")


@pytest.mark.parametrize(
    ("spills", "stack", "shared", "sound"), [(0, 0, 49152, True), (0, 0, 49153, False), (4, 0, 0, False), (0, 8, 0, False)]
)
def test_what_is_too_much(spills: int, stack: int, shared: int, sound: bool) -> None:
    assert Cost("k", "sm_90", 32, spills, stack, shared).sound is sound


def test_a_compilers_message_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_check, "program", lambda: '#error "planted"\n')
    with pytest.raises(RuntimeError, match=r"float32 for sm_80: [\s\S]*planted"):
        _compiled("float32", "sm_80")


def test_without_nvrtc(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["compile_check"])
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    assert compile_check.main() == 2
    assert "pip install 'gradjury[compile]'" in capsys.readouterr().err
