"""The OCR attention report: its printed logs, and a decoder of the same sizes that proves what they suggest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gradjury.kernels.engine import engine
from gradjury.verify.case import Case, Node, Testimony, Witness
from gradjury.verify.intake.compare import compare
from gradjury.verify.judge import judge_case
from gradjury.verify.report import Report
from gradjury.verify.witnesses import evidence, parse

LOG = Path(__file__).parent / "ocr_attention.log"
STEPS, STATE, CLASSES, CONTEXT = 7, 128, 97, 64
SHOWN = {7: 1, 6: 52}  # the class whose out_grad is not zero, by step, as printed


def run(live: Sequence[str]) -> list[Report]:
    """The logs as they are, then both kinds of print out of one decoder whose every number is known."""
    return [compare(LOG), judge_case(decoder_case())]


def decoder_case(seed: int = 0) -> Case:
    """A 7-step GRU decoder (reset before) with a linear layer per step. `v1` prints whole gradients of the states, `fluid`
    the part of the linear layer alone; both six digits, at float32."""
    engine()  # raises EngineMissing: without an engine there is nobody to print
    case = _decoder(np.random.default_rng(seed))
    said = evidence(case, parse("cuda"), "float32").gradients
    printed = {key: _six_digits(value) for key, value in said.items()}
    whole, part = Testimony("v1", "float32"), Testimony("fluid", "float32")
    for t in range(1, STEPS + 1):
        whole.gradients[f"h{t}"] = printed[f"h{t}"]
        part.gradients[f"h{t}"] = printed.get(f"h{t}@out{t}", printed[f"h{t}"])
        whole.gradients[f"o{t}"] = part.gradients[f"o{t}"] = printed[f"o{t}"]
    for name in ("weight_hh", "weight_out"):
        whole.gradients[name] = part.gradients[name] = printed[name]
    case.witnesses = {name: Witness(name, printed_digits=6) for name in ("v1", "fluid")}
    case.testimonies = {("v1", "float32"): whole, ("fluid", "float32"): part}
    return case


def _decoder(rng: np.random.Generator) -> Case:
    bound = 1 / np.sqrt(STATE)

    def drawn(*shape: int) -> np.ndarray:
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    values = {
        "h0": drawn(1, STATE), "weight_ih": drawn(3 * STATE, CONTEXT), "weight_hh": drawn(3 * STATE, STATE),
        "bias_ih": drawn(3 * STATE), "bias_hh": drawn(3 * STATE), "weight_out": drawn(CLASSES, STATE), "bias_out": drawn(CLASSES),
    }
    graph, upstream = [], {}
    weights = {slot: slot for slot in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    for t in range(1, STEPS + 1):
        values[f"x{t}"] = rng.standard_normal((1, CONTEXT)).astype(np.float32)
        step = {"x": f"x{t}", "h": f"h{t - 1}", **weights}
        graph.append(Node(f"gru{t}", "gru_step", step, {"h_next": f"h{t}"}, {"reset": "before"}, t))
        layer = {"x": f"h{t}", "weight": "weight_out", "bias": "bias_out"}
        graph.append(Node(f"out{t}", "linear", layer, {"y": f"o{t}"}, {}, t))
        flow = np.zeros((1, CLASSES), np.float32)
        flow[0, SHOWN.get(t, (13 * t) % CLASSES)] = -rng.uniform(0.005, 0.01)
        upstream[f"o{t}"] = flow
    return Case("ocr-attention-decoder", graph, values, upstream)


def _six_digits(values: np.ndarray) -> np.ndarray:
    """The numbers as a log that prints six significant digits has them."""
    return np.array([float(f"{v:.6g}") for v in values.ravel()]).reshape(values.shape)
