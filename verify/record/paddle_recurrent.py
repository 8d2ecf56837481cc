"""PaddlePaddle's recurrent layers, of any depth and direction, as one op a layer and direction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradjury.verify.record.paddle_capture import Call, Ref
from gradjury.verify.record.paddle_graph import Graph, Source
from gradjury.verify.record.paddle_moves import join

MODES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "GRU": ("gru", {"reset": "after", "update": "keeps-previous"}),
    "RNN_TANH": ("rnn", {"activation": "tanh"}),
    "RNN_RELU": ("rnn", {"activation": "relu"}),
}
SLOTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def recurrent(graph: Graph, call: Call) -> bool:
    """The nodes of a layer's call; x is time first here whatever the layer's setting. False for LSTM, and for dropout
    between layers, of which paddle shows no mask."""
    rate, both_ways, layers, mode, test = (call.args[i] for i in (5, 6, 9, 10, 12))
    if mode not in MODES or (rate and layers > 1 and not test):
        return False
    if layers == 1 and not both_ways:
        inputs = {"x": call.args[0], "h0": call.args[1][0], "lengths": call.args[3], **_weights(call, 0, 1)}
        op, attributes = MODES[mode]
        graph.add(call, op, inputs, {"y": call.outputs[0], "h_n": call.outputs[2]}, attributes)
    else:
        _Stack(graph, call, layers, 2 if both_ways else 1).add()
    return True


def _weights(call: Call, k: int, count: int) -> dict[str, Source | None]:
    """Parameters of the k-th layer and direction out of `count`: paddle lists all weights, then all biases."""
    listed = call.args[2]
    places = (2 * k, 2 * k + 1, 2 * count + 2 * k, 2 * count + 2 * k + 1)
    return {slot: listed[place] if place < len(listed) else None for slot, place in zip(SLOTS, places, strict=True)}


class _Stack:
    """Several layers or two directions."""

    def __init__(self, graph: Graph, call: Call, layers: int, directions: int) -> None:
        self.graph, self.call, self.layers, self.directions = graph, call, layers, directions
        self.steps, self.batch, _ = graph.shape(call.args[0])
        self.hidden = graph.shape(call.args[1][0])[-1]
        lengths: Ref | None = call.args[3]
        self.lengths = lengths
        self.ends = np.full(self.batch, self.steps) if lengths is None else graph.recorded[lengths.name].reshape(-1)

    def add(self) -> None:
        source: Source = self.call.args[0]
        width = self.graph.shape(source)[-1]
        finals: list[Source] = []
        for layer in range(self.layers):
            last = layer == self.layers - 1
            made = [self._direction(source, width, layer, d, finals) for d in range(self.directions)]
            source = self._both(made, layer, last) if self.directions == 2 else made[0]
            width = self.hidden * self.directions
        together = join(self.graph, self.call, finals, ".h_n")
        shape = [self.layers * self.directions, self.batch, self.hidden]
        self.graph.add(
            self.call, "reshape", {"x": together}, {"y": self.call.outputs[2]}, {"shape": shape}, suffix=".h_n"
        )

    def _direction(self, source: Source, width: int, layer: int, direction: int, finals: list[Source]) -> str:
        """One op; backwards in time it reads a reversed x, and its y is reversed again."""
        k = layer * self.directions + direction
        at = f".layer{layer}{'.reverse' if direction else ''}"
        size = self.batch * self.hidden
        h0 = self._moved(self.call.args[1][0], np.arange(k * size, (k + 1) * size).reshape(self.batch, -1), f"{at}.h0")
        x = self._moved(source, self._reversed(width, outside=0), f"{at}.x") if direction else source
        whole = self.layers == layer + 1 and self.directions == 1
        y, h_n = self.call.outputs[0] if whole else f"{self.call.name}{at}.y", f"{self.call.name}{at}.h_n"
        op, attributes = MODES[self.call.args[10]]
        inputs = {"x": x, "h0": h0, "lengths": self.lengths, **_weights(self.call, k, self.layers * self.directions)}
        self.graph.add(self.call, op, inputs, {"y": y, "h_n": h_n}, attributes, suffix=at)
        finals.append(h_n)
        return self._moved(y, self._reversed(self.hidden, outside=-1), f"{at}.y.forward") if direction else y

    def _both(self, made: list[str], layer: int, last: bool) -> str:
        """Both directions' y side by side in the last axis."""
        together = join(self.graph, self.call, made, f".layer{layer}.both")
        first = np.arange(self.steps * self.batch * self.hidden).reshape(self.steps, self.batch, self.hidden)
        index = np.concatenate([first, first + first.size], axis=2)
        return self._moved(together, index, f".layer{layer}.beside", self.call.outputs[0] if last else None)

    def _reversed(self, width: int, outside: int) -> np.ndarray:
        """Index of (time, batch, width) with every sequence reversed within its length; later steps read `outside`."""
        step = np.arange(self.steps)[:, None]
        inside = step < self.ends
        flat = (np.where(inside, self.ends - 1 - step, 0) * self.batch + np.arange(self.batch))[..., None] * width
        return np.where(inside[..., None], flat + np.arange(width), outside)

    def _moved(self, source: Source, index: np.ndarray, at: str, name: str | None = None) -> str:
        name = name or f"{self.call.name}{at}"
        where = self.graph.constant(self.call, f"index{at}", index)
        self.graph.add(self.call, "move", {"x": source, "index": where}, {"y": name}, suffix=at)
        return name
