"""The field reports the project began with are answered as they were found to be."""

from __future__ import annotations

import numpy as np
import pytest

from gradjury.verify.demo import field_reports, manual_backprop, ocr_attention, python_rnn
from gradjury.verify.intake.compare import LogReport

LIVE = ("torch", "paddle")


@pytest.fixture(scope="module")
def installed() -> list[str]:
    from importlib.util import find_spec

    return [name for name in LIVE if find_spec(name) is not None]


def test_ocr_logs_are_aligned_and_explained() -> None:
    """out_grad is equal at both steps; input_grad bit-equal at step 7 and different everywhere at step 6."""
    report = ocr_attention.run([])[0]
    assert isinstance(report, LogReport)
    pairs = {(layer.size, pair.step): pair for layer in report.layers for pair in layer.pairs}
    assert pairs[97, 7].same and pairs[97, 6].same and pairs[128, 7].same
    assert (pairs[97, 7].lone, pairs[97, 6].lone) == (1, 52)
    assert pairs[128, 6].beyond == 128
    said = {h["cause"]: h["fits"] for h in report.data["hypotheses"]}
    assert said == {"step.weights-updated": False, "accumulate.partial": True}
    assert report.decision == "undecided"
    text = " ".join(str(report).split())
    assert "row 1 of W, then row 52" in text and "momentum or weight decay could" in text and "weight (97 x 128)" in text


def test_a_decoder_of_the_same_sizes_proves_it() -> None:
    """Both kinds of print out of one right decoder: nobody is wrong, and the part is named at every step but the last."""
    report = ocr_attention.run([])[1]
    assert report.decision == "agree"
    named = [c for c in report.data["causes"] if c["cause"] == "accumulate.partial"]
    assert [c["witness"] for c in named] == ["fluid"]
    assert sorted(named[0]["tensors"]) == [f"h{t}" for t in range(1, 7)]
    assert named[0]["kind"] == "harness"


def test_pure_python_rnn_is_right_at_the_last_step_only(installed: list[str]) -> None:
    """Wrong in weight_hh, weight_ih and the hidden bias; right in the output layer; frameworks right everywhere."""
    report = python_rnn.run(installed)[0]
    assert report.wrong == ["pure-python"]
    verdicts = {
        key: tensor["testimony"]["pure-python"]["float64"]["verdict"]
        for key, tensor in report.data["tensors"].items()
        if "pure-python" in tensor["testimony"]
    }
    assert {key for key, verdict in verdicts.items() if verdict == "wrong"} == {"weight_ih", "weight_hh", "bias_hh"}
    assert {"weight_out", "bias_out", "h5"} <= {key for key, verdict in verdicts.items() if verdict == "agrees"}
    assert any("sum of signed differences" in note for note in report.data["notes"])


def test_the_last_inputs_column_is_right() -> None:
    """What puzzled its author: only the last step sees the last input, and no error has to flow through time to it."""
    case = python_rnn.rnn_case()
    from gradjury.verify.witnesses import evidence, parse

    exact = evidence(case, parse("cuda"), "float64").gradients["weight_ih"]
    gap = np.abs(case.testimonies["pure-python", "float64"].gradients["weight_ih"] - exact)
    assert gap[:, -1].max() < 2.0**-50 < gap[:, :-1].max(axis=0).min()


def test_manual_backprop_has_nobody_wrong(installed: list[str]) -> None:
    """The biases before batchnorm are noise at both dtypes; the hand-written (1, 256) is squeezed and noted."""
    report = manual_backprop.run(installed)[0]
    assert report.decision == "agree", str(report)
    for name in ("fc1.bias", "fc2.bias"):
        said = report.data["tensors"][name]["testimony"]
        assert {v["verdict"] for by_dtype in said.values() for v in by_dtype.values()} == {"zero-noise"}
        assert report.data["tensors"][name]["exact_zero"] is True
        assert {"float32", "float64"} <= set(said["numpy"])
    assert any("(1, 256)" in note for note in report.data["notes"])
    assert any("convolution" in note for note in report.data["notes"])
    assert "Why fc2.bias and fc1.bias look wrong" in str(report)


def test_slips_planted_in_the_manual_backprop_are_caught() -> None:
    """Dropout left unscaled in the second layer: everything behind it is wrong, nothing before it."""

    def slipped(x, upstream, dtype):  # type: ignore[no-untyped-def]
        found = manual_backprop.hand_written(x, upstream, dtype)
        return {k: v * np.float32(0.6) if k.startswith(("fc2", "bn2", "fc1", "bn1")) else v for k, v in found.items()}

    from gradjury.verify.judge import judge_case
    from gradjury.verify.witnesses import call

    case, _, _ = call(manual_backprop.network_case(), [slipped])
    report = judge_case(case)
    assert report.wrong == ["slipped"]
    wrong = {k for k, t in report.data["tensors"].items() if t["testimony"]["slipped"]["float64"]["verdict"] == "wrong"}
    assert wrong == {"fc1.weight", "fc2.weight", "bn1.weight", "bn1.bias", "bn2.weight", "bn2.bias"}


def test_all_are_listed() -> None:
    assert [report.name for report in field_reports()] == ["manual-backprop", "python-rnn", "ocr-attention"]
