"""A witness's process: whatever a framework does in it is that witness's failure, and nothing of the others is lost."""

from __future__ import annotations

import io
import os
import stat
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gradjury.verify.case import Case, Node
from gradjury.verify.witnesses import call, parse, protocol, witnesses
from gradjury.verify.witnesses.base import WitnessFailure, WitnessSpec
from gradjury.verify.witnesses.process import WitnessProcess, process_for

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the interpreters that misbehave here are shell scripts")


def case() -> Case:
    """y = x·x, integers: exact at every dtype."""
    x = np.array([1.0, -2.0, 3.0])
    return Case("square", [Node("m", "multiply", {"a": "x", "b": "x"}, {"y": "y"})], {"x": x}, {"y": np.ones(3)})


def script(folder: Path, text: str) -> str:
    """An interpreter that does `text` instead of running Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def fails(spec: WitnessSpec, time_limit: float = 60.0) -> WitnessFailure:
    process = WitnessProcess(spec)
    try:
        with pytest.raises(WitnessFailure) as caught:
            process.identity(time_limit)
    finally:
        process.close()
    assert "\n" not in caught.value.message
    return caught.value


@pytest.fixture
def fake_paddle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose paddle.py is found before the real one, in witnesses' processes only."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "paddle.py"


def test_no_such_interpreter() -> None:
    with pytest.raises(WitnessFailure, match="cannot start /no/such/python") as caught:
        WitnessProcess(parse("paddle:/no/such/python"))
    assert caught.value.kind == "import"


def test_crash_says_how_it_ended_and_the_last_line(tmp_path: Path) -> None:
    failure = fails(parse("paddle:" + script(tmp_path, "echo first >&2; echo free: invalid pointer >&2; kill -SEGV $$")))
    assert failure.kind == "crash"
    assert "SIGSEGV" in failure.message and failure.message.endswith("free: invalid pointer")


def test_hang_is_stopped_with_its_children(tmp_path: Path) -> None:
    process = WitnessProcess(parse("paddle:" + script(tmp_path, f"sleep 600 & echo $! > {tmp_path}/child; wait")))
    started = time.monotonic()
    with pytest.raises(WitnessFailure, match="no answer within 1 s") as caught:
        process.identity(1.0)
    assert caught.value.kind == "timeout" and time.monotonic() - started < 30
    assert not process.alive
    child = int((tmp_path / "child").read_text())
    for _ in range(100):  # the orphan is reaped by whoever adopted it
        if not _running(child):
            return
        time.sleep(0.05)
    raise AssertionError("the child outlived its parent")


def _running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


def test_another_language_on_the_pipe(tmp_path: Path) -> None:
    failure = fails(parse("paddle:" + script(tmp_path, "echo Welcome to Python")))
    assert failure.kind == "error" and "no known protocol" in failure.message


def test_broken_framework(fake_paddle: Path) -> None:
    fake_paddle.write_text("print('hello')\nraise ImportError('libstdc++.so.6: version GLIBCXX_3.4.30 not found\\nmore')")
    failure = fails(parse("paddle"))
    assert failure.kind == "import" and failure.message.endswith("GLIBCXX_3.4.30 not found")


def test_framework_that_aborts(fake_paddle: Path) -> None:
    fake_paddle.write_text("import os, sys\nsys.stderr.write('Illegal instruction\\n')\nsys.stderr.flush()\nos.abort()")
    failure = fails(parse("paddle"))
    assert failure.kind == "crash" and "SIGABRT" in failure.message and "while importing paddle" in failure.message


def test_one_broken_framework_loses_nothing_of_the_others(fake_paddle: Path) -> None:
    fake_paddle.write_text("import os\nos._exit(3)")
    judged, identities, failures = call(case(), ["broken=paddle", "cuda", lambda x, up, dtype: {"x": 2 * x["x"]}])
    assert [(f["witness"], f["kind"]) for f in failures] == [("broken", "crash")]
    assert set(judged.testimonies) == {(w, d) for w in ("cuda", "yours") for d in ("float32", "float64")}
    assert set(identities) == {"cuda", "yours"}


def test_listing_survives_a_broken_framework(fake_paddle: Path) -> None:
    fake_paddle.write_text("raise OSError('cannot load libpaddle.so')")
    (broken,) = witnesses(["listed=paddle"])
    assert broken.identity is None and broken.failure is not None
    assert broken.failure.kind == "import" and "libpaddle" in broken.failure.message
    assert broken.how == "pip install 'gradjury[paddle]'"


def test_an_interpreter_without_numpy(tmp_path: Path) -> None:
    failure = fails(parse("paddle:" + script(tmp_path, f'exec {sys.executable} -S "$@"')))
    assert failure.kind == "import" and "numpy" in failure.message


def test_a_process_that_died_is_started_again() -> None:
    pytest.importorskip("paddle")
    spec = parse("again=paddle")
    first = process_for(spec)
    assert first.identity().framework == "paddle" and process_for(spec) is first
    first.close()
    assert not first.alive
    second = process_for(spec)
    assert second is not first and second.identity().name == "again"
    second.close()


def test_a_late_breakdown_gets_one_more_chance(tmp_path: Path) -> None:
    """Each process answers one case and dies of the next: memory that the first left in disorder."""
    (tmp_path / "fake.py").write_text(
        "import sys\n"
        "from gradjury.verify.witnesses import protocol\n"
        "from gradjury.verify.witnesses.base import Identity\n"
        "out = sys.stdout.buffer\n"
        "protocol.send(out, {'identity': Identity('paddle', 'paddle', '0', 'cpu').to_json()}, {})\n"
        "protocol.receive(sys.stdin.buffer)\n"
        "protocol.send(out, {'answer': 'evidence', 'absent': ['x']}, {})\n"
        "protocol.receive(sys.stdin.buffer)\n"
        "sys.exit(7)\n"
    )
    asked = "frail=paddle:" + script(tmp_path, f"exec {sys.executable} {tmp_path}/fake.py")
    _, identities, failures = call(case(), [asked], ["float32", "float64"])
    assert failures == [] and list(identities) == ["frail"]
    process_for(parse(asked)).close()


@pytest.mark.parametrize("text", ["", "jax", "=paddle", "x=", "paddle-tpu", "cuda:/usr/bin/python", "cuda-gpu"])
def test_what_is_no_witness(text: str) -> None:
    with pytest.raises(ValueError, match=r"^witness "):
        parse(text)


def test_parse() -> None:
    assert parse("torch") == WitnessSpec("torch", "torch")
    assert parse("old=paddle:/opt/old/bin/python") == WitnessSpec("old", "paddle", "/opt/old/bin/python")
    assert parse("paddle-gpu") == WitnessSpec("paddle-gpu", "paddle", None, "gpu")


def test_messages_come_back_bit_for_bit() -> None:
    arrays = {
        ("value", "nan"): np.array([np.nan, -0.0, 5e-324]),
        ("value", "empty"): np.zeros((0, 3), np.float32),
        ("value", "scalar"): np.array(7),
        ("value", "turned"): np.arange(6, dtype=np.float16).reshape(2, 3).T,
        ("value", "big-endian"): np.arange(3, dtype=">i4"),
    }
    stream = io.BytesIO()
    protocol.send(stream, {"ask": "evidence", "name": "ε"}, arrays)
    stream.seek(0)
    received = protocol.receive(stream)
    assert received is not None
    message, back = received
    assert message == {"gradjury": 1, "ask": "evidence", "name": "ε"}
    for label, array in arrays.items():
        assert back[label].shape == array.shape
        assert back[label].tobytes() == array.astype(back[label].dtype).tobytes()
    assert protocol.receive(stream) is None


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"gradjury": 2, "arrays": []}', b'{"gradjury": 1}', b"\xff"])
def test_messages_of_another_protocol(text: bytes) -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.receive(io.BytesIO(struct.pack("<I", len(text)) + text))


def test_a_message_cut_short_is_the_end() -> None:
    stream = io.BytesIO()
    protocol.send(stream, {}, {("value", "x"): np.arange(5.0)})
    for length in (1, 10, len(stream.getvalue()) - 1):
        assert protocol.receive(io.BytesIO(stream.getvalue()[:length])) is None


def test_objects_do_not_travel() -> None:
    with pytest.raises(protocol.ProtocolError, match="value x"):
        protocol.send(io.BytesIO(), {}, {("value", "x"): np.array([object()])})
