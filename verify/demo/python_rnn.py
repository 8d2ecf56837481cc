"""The pure-Python RNN against Theano: x = target = identity, tanh, half squared error.

The hand-written backward takes the error of step t into step t instead of t+1, where it is still zero: nothing flows
through time. It is therefore right at the last step, and in every parameter that only the last step reaches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradjury.verify.case import Case, Node, Testimony, Witness
from gradjury.verify.judge import judge_case
from gradjury.verify.report import Report
from gradjury.verify.witnesses import evidence, parse

STEPS, HIDDEN = 5, 5


def run(live: Sequence[str]) -> list[Report]:
    """The unrolled net, its hand-written backward at float64, and the frameworks."""
    case = rnn_case()
    report = judge_case(case, live=live)
    report.data["notes"].append(misleading_measure(case))
    return [report]


def rnn_case(seed: int = 0) -> Case:
    """Five steps of rnn_step and linear, each with its half squared error; `pure-python` testifies at float64."""
    rng = np.random.default_rng(seed)
    values = {
        "h0": np.zeros((1, HIDDEN)), "weight_ih": _small(rng, HIDDEN, STEPS), "weight_hh": _small(rng, HIDDEN, HIDDEN),
        "bias_hh": _small(rng, HIDDEN), "weight_out": _small(rng, STEPS, HIDDEN), "bias_out": _small(rng, STEPS),
    }
    graph, total = [], "loss1"
    for t in range(1, STEPS + 1):
        values[f"x{t}"] = values[f"target{t}"] = np.eye(STEPS)[t - 1 : t]
        step = {"x": f"x{t}", "h": f"h{t - 1}", "weight_ih": "weight_ih", "weight_hh": "weight_hh", "bias_hh": "bias_hh"}
        layer = {"x": f"h{t}", "weight": "weight_out", "bias": "bias_out"}
        error = {"y": f"y{t}", "target": f"target{t}"}
        graph += [
            Node(f"rnn{t}", "rnn_step", step, {"h_next": f"h{t}"}, {}, t),
            Node(f"out{t}", "linear", layer, {"y": f"y{t}"}, {}, t),
            Node(f"error{t}", "squared_error", error, {"loss": f"loss{t}"}, {"factor": 0.5}, t),
        ]
        if t > 1:
            graph.append(Node(f"sum{t}", "add", {"a": total, "b": f"loss{t}"}, {"y": f"total{t}"}, {}, t))
            total = f"total{t}"
    case = Case("pure-python-rnn", graph, values, {total: np.ones(())})
    case.witnesses["pure-python"] = Witness("pure-python")
    case.testimonies["pure-python", "float64"] = Testimony("pure-python", "float64", hand_written(values))
    return case


def hand_written(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The report's backward: parameters' gradients from all steps at once, except that time stands still."""
    w, u, b, out, bias = (values[n] for n in ("weight_ih", "weight_hh", "bias_hh", "weight_out", "bias_out"))
    x = np.concatenate([values[f"x{t}"] for t in range(1, STEPS + 1)])
    states = [values["h0"][0]]
    for row in x:
        states.append(np.tanh(w @ row + u @ states[-1] + b))
    h = np.array(states[1:])
    d_out = h @ out.T + bias - x
    d_h = d_out @ out
    d_before = np.zeros_like(d_h)
    for t in reversed(range(STEPS)):
        if t < STEPS - 1:
            d_h[t] += d_before[t] @ u  # the slip: step t's own error, not yet there, instead of step t+1's
        d_before[t] = (1 - h[t] ** 2) * d_h[t]
    return {
        "weight_ih": d_before.T @ x,
        "weight_hh": d_before[1:].T @ h[:-1],
        "bias_hh": d_before.sum(axis=0),
        "weight_out": d_out.T @ h,
        "bias_out": d_out.sum(axis=0),
        f"h{STEPS}": d_h[-1:],
    }


def misleading_measure(case: Case) -> str:
    """What the report's own measure, a sum of signed differences, says beside the largest difference."""
    said = case.testimonies["pure-python", "float64"].gradients["weight_ih"]
    difference = said - evidence(case, parse("cuda"), "float64").gradients["weight_ih"]
    column = np.abs(difference[:, -1]).max()
    return (
        f"the sum of signed differences in weight_ih is {difference.sum():.3g}, while single elements are off by"
        f" {np.abs(difference).max():.3g}: signs cancel, so the sum says little. The last input's column is right"
        f" ({column:.1g}) because only the last step sees it, and no error has to reach that step through time"
    )


def _small(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return np.asarray(rng.uniform(-0.5, 0.5, shape), np.float32).astype(np.float64)
