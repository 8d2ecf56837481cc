"""Inside a witness's own process: evaluates graphs in one framework, and answers over the pipe (see protocol.py).

The framework's particulars are behind `base.Framework`; nothing here knows torch from paddle.
"""

from __future__ import annotations

import importlib
import os
import queue
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from gradjury.verify import ops
from gradjury.verify.precision import PRECISIONS
from gradjury.verify.witnesses import protocol
from gradjury.verify.witnesses.base import Framework
from gradjury.verify.witnesses.protocol import Label

Node = Mapping[str, Any]  # name, op, inputs, outputs, attributes


def evaluate(
    framework: Framework, nodes: Sequence[Node], arrays: Mapping[Label, np.ndarray], dtype: str
) -> tuple[dict[Label, np.ndarray], list[str]]:
    """Forward values, gradients and parts (labelled as in protocol.py) of a graph at `dtype`; tensors without gradient.

    `nodes` in topological order; `arrays` holds the graph's inputs and the upstream gradients, canonical layout.
    Raises ValueError for an op that nobody knows or an input that nobody gave.
    """
    with framework.precision():
        run = _Run(framework, nodes, dtype)
        run.load({name: array for (kind, name), array in arrays.items() if kind == "value"})
        for node in nodes:
            run.forward(node)
        run.backward({name: array for (kind, name), array in arrays.items() if kind == "upstream"})
        return run.evidence()


class _Run:
    """One evaluation: what is alive, and which alias each consumer got."""

    def __init__(self, framework: Framework, nodes: Sequence[Node], dtype: str) -> None:
        self.framework, self.nodes, self.dtype = framework, nodes, dtype
        self.live: dict[str, Any] = {}
        self.uses: dict[str, list[tuple[str, str]]] = {}  # tensor -> its consumers, as (node, slot)
        self.aliases: dict[tuple[str, str], Any] = {}
        self.integers: set[str] = set()
        self.differentiable: set[str] = set()
        for node in nodes:
            slots = {slot.name: slot for slot in _op(node).inputs}
            for slot, name in node["inputs"].items():
                self.uses.setdefault(name, []).append((node["name"], slot))
                if slots[slot].integer:
                    self.integers.add(name)
                elif slots[slot].differentiable:
                    self.differentiable.add(name)

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        for name, array in values.items():
            if name in self.integers:
                self.live[name] = self.framework.tensor(array, None, False)
            else:
                self.live[name] = self._tensor(array, name in self.differentiable)

    def _tensor(self, array: np.ndarray, requires_grad: bool) -> Any:
        """Rounded here, once: a framework may go from float64 to bfloat16 by way of float32."""
        numbers = array if array.dtype.kind == "f" else array.astype(np.float64)
        return self.framework.tensor(PRECISIONS[self.dtype].round(numbers), self.dtype, requires_grad)

    def forward(self, node: Node) -> None:
        op = _op(node)
        inputs: dict[str, Any] = {slot.name: None for slot in op.inputs}
        for slot, name in node["inputs"].items():
            if name not in self.live:
                raise ValueError(f"node {node['name']}: no value for its input {slot} ({name}); record value/{name}")
            inputs[slot] = self._alias(node["name"], slot, name)
        outputs = self.framework.run(op, inputs, op.complete(node["attributes"]))
        for slot, name in node["outputs"].items():
            self.live[name] = outputs[slot]
            if self.framework.tracked(outputs[slot]):
                self.framework.watch(outputs[slot])

    def _alias(self, node: str, slot: str, name: str) -> Any:
        tensor = self.live[name]
        if len(self.uses[name]) == 1 or not self.framework.tracked(tensor):
            return tensor
        alias = self.aliases[node, slot] = self.framework.alias(tensor)
        self.framework.watch(alias)
        return alias

    def backward(self, upstream: Mapping[str, np.ndarray]) -> None:
        names = [name for name in upstream if self.framework.tracked(self.live[name])]
        given = [self._tensor(upstream[name], False) for name in names]
        self.framework.backward([self.live[name] for name in names], given)

    def evidence(self) -> tuple[dict[Label, np.ndarray], list[str]]:
        found: dict[Label, np.ndarray] = {}
        absent = []
        for node in self.nodes:
            for name in node["outputs"].values():
                found["forward", name] = self.framework.array(self.live[name])
        for name, tensor in self.live.items():
            if not self.framework.tracked(tensor):
                continue
            gradient = self.framework.gradient(tensor)
            if gradient is not None:
                found["gradient", name] = gradient
            elif name in self.uses:
                absent.append(name)
        for (node_name, slot), alias in self.aliases.items():
            part = self.framework.gradient(alias)
            if part is not None:
                found["part", node_name, slot] = part
        return found, absent


def _op(node: Node) -> Any:
    op = ops.get(node["op"])
    if op is None:
        raise ValueError(f"node {node['name']}: op {node['op']} is unknown, so no framework can be asked to run it")
    return op


def one_line(error: BaseException) -> str:
    """The error's type and the first line of what it says that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def main(name: str, device: str) -> None:
    """The life of the process: import the framework, greet, answer until the input ends."""
    source, sink = _take_pipes()
    try:
        framework = importlib.import_module(f"gradjury.verify.witnesses.{name}").Framework(device)
        protocol.send(sink, {"identity": framework.identity().to_json()}, {})
    except Exception as error:  # whatever keeps a framework from being imported is that witness's failure, not ours
        protocol.send(sink, {"failure": "import", "message": one_line(error).removeprefix("ModuleNotFoundError: ")}, {})
        return
    requests: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_listen, args=(source, requests), daemon=True).start()
    while True:
        message, arrays = requests.get()
        _answer(framework, sink, message, arrays)


def _answer(framework: Framework, sink: BinaryIO, message: Mapping[str, Any], arrays: Mapping[Label, np.ndarray]) -> None:
    try:
        if message.get("ask") != "evidence":
            raise protocol.ProtocolError(f"expected the request evidence, found {message.get('ask')!r}")
        found, absent = evaluate(framework, message["nodes"], arrays, message["dtype"])
        answer: dict[str, Any] = {"answer": "evidence", "absent": absent}
    except Exception as error:  # the process goes on: the next case may be one that the framework can do
        found, answer = {}, {"failure": "error", "message": one_line(error)}
    protocol.send(sink, answer, found)


def _listen(source: BinaryIO, requests: queue.Queue[Any]) -> None:
    """Hands on requests. Ends the process when the input ends, even if the framework hangs: whoever asked is gone."""
    try:
        while (received := protocol.receive(source)) is not None:
            requests.put(received)
    finally:
        os._exit(0)


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keeps the pipes for the protocol, and sends what the framework prints to standard error."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return source, sink
