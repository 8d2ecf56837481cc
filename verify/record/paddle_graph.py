"""The graph of a case, grown from recorded PaddlePaddle calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradjury.verify.case import Node
from gradjury.verify.record.paddle_capture import Call, Ref

Source = Ref | str  # a recorded tensor, or the name of one that the conversion made


class Graph:
    """The case's graph as it grows. `places`: which node and slot each recorded argument became."""

    def __init__(self, recorded: Mapping[str, np.ndarray], dtypes: Mapping[str, str], weights: set[str]) -> None:
        self.recorded, self.dtypes = recorded, dtypes
        self.weights = weights  # stored (in, out), and used by nothing but linear
        self.nodes: list[Node] = []
        self.values: dict[str, np.ndarray] = {}
        self.places: dict[tuple[str, int], list[tuple[str, str]]] = {}
        self.opaque: set[str] = set()

    def add(
        self,
        call: Call,
        op: str,
        inputs: Mapping[str, Source | None],
        outputs: Mapping[str, str],
        attributes: Mapping[str, Any] | None = None,
        *,
        suffix: str = "",
    ) -> None:
        """Adds a node called like the call, plus a suffix where the call becomes several."""
        node = Node(call.name + suffix, op, {}, dict(outputs), dict(attributes or {}), step_of(call.name))
        for slot, source in inputs.items():
            if isinstance(source, Ref):
                self.places.setdefault((call.name, source.position), []).append((node.name, slot))
            if source is not None:
                node.inputs[slot] = source.name if isinstance(source, Ref) else source
        self.nodes.append(node)

    def constant(self, call: Call, what: str, value: Any) -> str:
        """A value that the case needs beside the recorded ones."""
        name = f"{call.name}.{what}"
        self.values[name] = np.asarray(value)
        return name

    def shape(self, source: Source) -> tuple[int, ...]:
        name = source.name if isinstance(source, Ref) else source
        return (self.values if name in self.values else self.recorded)[name].shape

    def opaque_node(self, call: Call) -> None:
        """The call as it is, where no op says the same: judged only by comparing witnesses."""
        inputs = {f"i{i}": ref for i, ref in enumerate(call.refs)}
        outputs = {f"o{i}": name for i, name in enumerate(call.outputs) if name in self.recorded}
        self.add(call, f"paddle.{call.op.strip('_')}", inputs, outputs)
        self.opaque.add(call.name)


def step_of(name: str) -> int | None:
    """Which repetition of a layer this is, None for the first."""
    _, hash_, count = name.partition("#")
    return int(count) - 1 if hash_ else None
