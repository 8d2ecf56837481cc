"""The manual backprop report: 1024-512-256-10 with batchnorm, ReLU, dropout 0.4, log-softmax and NLL, by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gradjury.verify.case import Case, Node
from gradjury.verify.judge import judge_case
from gradjury.verify.report import Report
from gradjury.verify.witnesses import call

SIZES, CLASSES, RATE, EPSILON = (1024, 512, 256), 10, 0.4, 1e-5
CONVOLUTION = (
    "a convolution's bias before batchnorm is the same: its gradient is batchnorm's dX summed over the batch and the"
    " image of each channel, and that sum is zero"
)


def run(live: Sequence[str]) -> list[Report]:
    """The network with the hand-written backward and the frameworks, at float32 and float64."""
    case, identities, failures = call(network_case(), [hand_written, *live])
    report = judge_case(case, identities=identities, failures=failures)
    report.data["notes"].append(CONVOLUTION)
    return [report]


def network_case(batch: int = 64, seed: int = 0) -> Case:
    """Weights as PyTorch starts from, inputs of unit size; epsilon as in the report, 1e-5."""
    rng = np.random.default_rng(seed)
    values: dict[str, np.ndarray] = {"x": rng.standard_normal((batch, SIZES[0]))}
    graph, before = [], "x"
    for i, (inside, out) in enumerate(pairwise(SIZES), start=1):
        values |= _layer(rng, f"fc{i}", inside, out)
        values |= {f"bn{i}.weight": rng.uniform(0.5, 1.5, out), f"bn{i}.bias": rng.uniform(-0.5, 0.5, out)}
        values[f"mask{i}"] = (rng.random((batch, out)) >= RATE).astype(np.float64)
        parameters = {"weight": f"bn{i}.weight", "bias": f"bn{i}.bias"}
        graph += [
            _linear(f"fc{i}", before),
            Node(f"bn{i}", "batchnorm", {"x": f"fc{i}.y", **parameters}, {"y": f"bn{i}.y"}, {"epsilon": _exact(EPSILON)}),
            Node(f"relu{i}", "relu", {"x": f"bn{i}.y"}, {"y": f"relu{i}.y"}),
            Node(f"drop{i}", "dropout", {"x": f"relu{i}.y", "mask": f"mask{i}"}, {"y": f"drop{i}.y"}, {"rate": RATE}),
        ]
        before = f"drop{i}.y"
    values |= _layer(rng, "fc3", SIZES[-1], CLASSES)
    graph += [
        _linear("fc3", before),
        Node("log_softmax", "log_softmax", {"x": "fc3.y"}, {"y": "scores"}),
        Node("nll", "nll", {"log_probabilities": "scores", "target": "target"}, {"loss": "loss"}),
    ]
    values = {name: value.astype(np.float32) for name, value in values.items()}
    values["target"] = rng.integers(0, CLASSES, batch)
    return Case("manual-backprop", graph, values)


def hand_written(x: Mapping[str, np.ndarray], upstream: Mapping[str, np.ndarray], dtype: str) -> dict[str, Any]:
    """Forward and backward in numpy, as one writes them by hand; the biases' gradients keep a leading axis, (1, out)."""
    batch, kept = len(x["x"]), np.dtype(dtype).type(1 - RATE)
    forward, before = [], x["x"]
    for i in (1, 2):
        inside = before
        z = inside @ x[f"fc{i}.weight"].T + x[f"fc{i}.bias"]
        centred = z - z.mean(axis=0)
        spread = np.sqrt((centred**2).mean(axis=0) + z.dtype.type(_exact(EPSILON)))
        normal = centred / spread
        active = (normal * x[f"bn{i}.weight"] + x[f"bn{i}.bias"]) > 0
        passed = active * x[f"mask{i}"] / kept
        before = (normal * x[f"bn{i}.weight"] + x[f"bn{i}.bias"]) * passed
        forward.append((inside, spread, normal, passed))
    scores = before @ x["fc3.weight"].T + x["fc3.bias"]
    flow = np.exp(scores - scores.max(axis=1, keepdims=True))
    flow /= flow.sum(axis=1, keepdims=True)
    flow[np.arange(batch), x["target"]] -= 1
    flow /= batch
    found = {"fc3.weight": flow.T @ before, "fc3.bias": flow.sum(axis=0, keepdims=True)}
    flow = flow @ x["fc3.weight"]
    for i in (2, 1):
        inside, spread, normal, passed = forward[i - 1]
        flow = flow * passed
        found[f"bn{i}.bias"] = flow.sum(axis=0)
        found[f"bn{i}.weight"] = (flow * normal).sum(axis=0)
        scaled = flow * x[f"bn{i}.weight"]
        flow = (scaled - scaled.mean(axis=0) - normal * (scaled * normal).mean(axis=0)) / spread
        found[f"fc{i}.weight"] = flow.T @ inside
        found[f"fc{i}.bias"] = flow.sum(axis=0, keepdims=True)
        flow = flow @ x[f"fc{i}.weight"]
    return found


hand_written.__name__ = "numpy"


def _linear(name: str, before: str) -> Node:
    return Node(name, "linear", {"x": before, "weight": f"{name}.weight", "bias": f"{name}.bias"}, {"y": f"{name}.y"})


def _layer(rng: np.random.Generator, name: str, inside: int, out: int) -> dict[str, np.ndarray]:
    bound = 1 / np.sqrt(inside)
    return {f"{name}.weight": rng.uniform(-bound, bound, (out, inside)), f"{name}.bias": rng.uniform(-bound, bound, out)}


def _exact(number: float) -> float:
    """The nearest float32: PaddlePaddle keeps epsilon so, whatever the dtype, and that is not the question here."""
    return float(np.float32(number))
