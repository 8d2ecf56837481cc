"""One framework in a process of its own, kept for many cases: started, asked, timed, and killed in the end."""

from __future__ import annotations

import atexit
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gradjury.verify.witnesses import protocol
from gradjury.verify.witnesses.base import Identity, WitnessFailure, WitnessSpec
from gradjury.verify.witnesses.protocol import Label

TIME_LIMIT = 300.0  # seconds a witness may take for one case, its import included
HERE = Path(__file__).resolve().parent

# Another Python need not have GradJury installed: the worker's few files are given to it as packages. Nothing is run
# as a script from this folder, where a file called torch.py would hide the framework.
START = """
import sys, types
name, device, kernels, verify, witnesses = sys.argv[1:]
for package, folder in (("", []), (".kernels", [kernels]), (".verify", [verify]), (".verify.witnesses", [witnesses])):
    package = "gradjury" + package
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = folder
    parent, _, child = package.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, sys.modules[package])
try:
    if sys.version_info < (3, 10):
        raise ImportError("expected Python 3.10 or later, found %d.%d" % sys.version_info[:2])
    from gradjury.verify.witnesses.worker import main
except ImportError as error:  # no numpy there: said without numpy
    import json, struct
    text = json.dumps({"gradjury": 1, "failure": "import", "message": str(error), "arrays": []}).encode()
    sys.stdout.buffer.write(struct.pack("<I", len(text)) + text)
    sys.exit()
main(name, device)
"""


class WitnessProcess:
    """A running worker (worker.py). Every method raises WitnessFailure, after which the process may be gone."""

    def __init__(self, spec: WitnessSpec) -> None:
        """Starts the process, which imports its framework meanwhile; the first question waits for it."""
        import gradjury.kernels

        self.spec = spec
        self._greeting: Identity | None = None
        self.answered = 0
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        folders = [str(Path(gradjury.kernels.__file__).parent), str(HERE.parent), str(HERE)]
        command = [spec.python or sys.executable, "-c", START, spec.framework, spec.device, *folders]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={"NVIDIA_TF32_OVERRIDE": "0", **os.environ},
                start_new_session=True,
            )
        except OSError as error:
            raise WitnessFailure("import", f"cannot start {command[0]}: {error.strerror}") from None
        self._answers: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether the process can still be asked, by us (a fork of ours must start its own)."""
        return self._owner == os.getpid() and self._process.poll() is None

    def identity(self, time_limit: float = TIME_LIMIT) -> Identity:
        """Who the witness is, once its framework is imported; `name` is the one of the spec."""
        with self._lock:
            return self._identity(time.monotonic() + time_limit, time_limit)

    def ask(
        self, message: Mapping[str, Any], arrays: Mapping[Label, np.ndarray], time_limit: float = TIME_LIMIT
    ) -> tuple[dict[str, Any], dict[Label, np.ndarray]]:
        """Sends one request (protocol.py) and waits for its answer. A process that is late is killed."""
        with self._lock:
            deadline = time.monotonic() + time_limit
            self._identity(deadline, time_limit)
            assert self._process.stdin is not None
            try:
                protocol.send(self._process.stdin, message, arrays)  # type: ignore[arg-type]
            except OSError:
                raise self._crashed("before it was asked") from None
            answer = self._answer(deadline, time_limit, f"working on a case at {message.get('dtype')}")
            self.answered += 1
            return answer

    def close(self) -> None:
        """Ends the process and what it started."""
        if self._owner != os.getpid():
            return
        if self._process.poll() is None:
            _kill(self._process)
            self._process.wait()
        for stream in (self._process.stdin, self._errors):
            try:
                stream.close()  # type: ignore[union-attr]
            except OSError:  # a half-sent message cannot be flushed to a process that is gone
                continue

    def _identity(self, deadline: float, time_limit: float) -> Identity:
        if self._greeting is None:
            doing = f"importing {self.spec.framework}"
            message, _ = self._answer(deadline, time_limit, doing)
            self._greeting = Identity(**{**message["identity"], "name": self.spec.name})
        return self._greeting

    def _answer(self, deadline: float, time_limit: float, doing: str) -> tuple[dict[str, Any], dict[Label, np.ndarray]]:
        try:
            received = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            self.close()
            raise WitnessFailure("timeout", f"no answer within {time_limit:g} s while {doing}; stopped") from None
        if isinstance(received, protocol.ProtocolError):
            self.close()
            raise WitnessFailure("error", str(received))
        if received is None:
            raise self._crashed(f"while {doing}")
        message, arrays = received
        if "failure" in message:
            raise WitnessFailure(message["failure"], message["message"])
        return message, arrays

    def _listen(self) -> None:
        """Reads answers in a thread, so that waiting for one can be given up. None: the process is gone."""
        assert self._process.stdout is not None
        try:
            with self._process.stdout as stream:
                while (received := protocol.receive(stream)) is not None:  # type: ignore[arg-type]
                    self._answers.put(received)
        except protocol.ProtocolError as error:
            self._answers.put(error)
        except (OSError, ValueError):  # the pipe was closed under the reader
            pass
        self._answers.put(None)

    def _crashed(self, when: str) -> WitnessFailure:
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # it closed its pipe but lives on
            _kill(self._process)
            code = self._process.wait()
        last = self._last_line()
        self.close()
        return WitnessFailure("crash", f"its process ended {when} ({_ending(code)})" + (f": {last}" if last else ""))

    def _last_line(self) -> str:
        """The last line that the process wrote to standard error."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 4096))
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and its children, which share its session where the system has sessions."""
    if hasattr(os, "killpg"):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
    else:
        process.kill()


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def ask(
    spec: WitnessSpec, message: Mapping[str, Any], arrays: Mapping[Label, np.ndarray], time_limit: float = TIME_LIMIT
) -> tuple[dict[str, Any], dict[Label, np.ndarray], Identity]:
    """One request to the witness, and who answered. Raises WitnessFailure.

    A process that breaks down after answering others is given one more chance, fresh: what broke it may have been an
    earlier case, by memory that it left in disorder.
    """
    process = process_for(spec)
    try:
        answer, found = process.ask(message, arrays, time_limit)
    except WitnessFailure as failure:
        if failure.kind != "crash" or not process.answered:
            raise
        process = process_for(spec)
        answer, found = process.ask(message, arrays, time_limit)
    return answer, found, process.identity()


_RUNNING: dict[WitnessSpec, WitnessProcess] = {}
_STARTING = threading.Lock()


def process_for(spec: WitnessSpec) -> WitnessProcess:
    """The running process of this witness, started if there is none or the last one is gone. Raises WitnessFailure."""
    with _STARTING:
        running = _RUNNING.get(spec)
        if running is None or not running.alive:
            running = _RUNNING[spec] = WitnessProcess(spec)
        return running


@atexit.register
def close_all() -> None:
    """Ends all witnesses' processes."""
    for running in list(_RUNNING.values()):
        running.close()
    _RUNNING.clear()
