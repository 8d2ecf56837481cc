"""Every verdict of docs/verdicts.md, produced by a testimony that deserves it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradjury.verify.case import Case, Node, Testimony, Witness
from gradjury.verify.judge import judge_case
from gradjury.verify.precision import round_to_bits
from gradjury.verify.witnesses import evidence, parse

RNG = np.random.default_rng(7)
LINEAR = [Node("fc", "linear", {"x": "x", "weight": "W", "bias": "b"}, {"y": "y"})]


def linear_case(rows: int = 24, inside: int = 17, out: int = 9) -> Case:
    values = {"x": RNG.standard_normal((rows, inside)), "W": RNG.standard_normal((out, inside)), "b": RNG.standard_normal(out)}
    upstream = {"y": RNG.standard_normal((rows, out)).astype(np.float32)}
    return Case("linear", list(LINEAR), {k: v.astype(np.float32) for k, v in values.items()}, upstream)


def normed_case(offset: float = 0.0, rows: int = 32) -> Case:
    """A linear layer that feeds a batchnorm: its bias has gradient zero."""
    case = linear_case(rows)
    norm = Node("bn", "batchnorm", {"x": "y", "weight": "g", "bias": "beta"}, {"y": "z"}, {"epsilon": 2.0**-17})
    case.graph.append(norm)
    case.values |= {"g": np.ones(9, np.float32), "beta": np.zeros(9, np.float32)}
    case.values["b"] = case.values["b"] + np.float32(offset)
    case.upstream = {"z": case.upstream["y"]}
    return case


def honest(case: Case, dtype: str = "float32") -> dict[str, np.ndarray]:
    """What our own kernels say at `dtype`."""
    return evidence(case, parse("cuda"), dtype).gradients


def say(case: Case, name: str = "mine", *, absent: tuple[str, ...] = (), **by_dtype: dict[str, np.ndarray]) -> Case:
    settings = case.witnesses.get(name, Witness(name, absent=absent))
    case.witnesses[name] = settings
    for dtype, gradients in by_dtype.items():
        case.testimonies[name, dtype] = Testimony(name, dtype, gradients)
    return case


def verdict(data: dict[str, Any], key: str, dtype: str = "float32", name: str = "mine") -> str:
    return str(data["tensors"][key]["testimony"][name][dtype]["verdict"])


def test_honest_arithmetic_agrees_at_both_dtypes() -> None:
    case = linear_case()
    report = judge_case(say(case, float32=honest(case), float64=honest(case, "float64")))
    assert report.decision == "agree"
    assert {verdict(report.data, k, d) for k in ("x", "W", "b") for d in ("float32", "float64")} == {"agrees"}


def test_a_bias_before_batchnorm_is_zero_noise() -> None:
    case = normed_case()
    data = judge_case(say(case, float32=honest(case), float64=honest(case, "float64"))).data
    assert verdict(data, "b") == verdict(data, "b", "float64") == "zero-noise"
    assert data["tensors"]["b"]["exact_zero"] is True
    assert data["tensors"]["b"]["testimony"]["mine"]["float32"]["max_rel"] is None


def test_noise_beyond_the_budget_of_a_zero_is_wrong() -> None:
    case = normed_case()
    said = honest(case)
    said["b"] = said["b"] + np.float32(1e-2)
    assert judge_case(say(case, float32=said)).wrong == ["mine"]


def test_the_noise_of_a_zero_that_grows_with_a_factor_is_put_down_to_the_factor() -> None:
    """A bias before batchnorm has gradient zero: 2^12 times its noise is over the line, and no mistake of its own."""
    case = normed_case()
    gradients = {key: g * np.float32(4096) for key, g in honest(case).items()}
    (cause,) = judge_case(say(case, float32=gradients)).data["causes"]
    assert cause["cause"] == "scale.constant" and "b" in cause["tensors"]
    gradients["b"] = honest(case)["b"] + np.float32(0.25)
    causes = judge_case(say(case, float32=gradients)).data["causes"]
    assert not any("b" in c["tensors"] for c in causes if c["cause"] == "scale.constant")


@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e-3), ("float64", 1e-11)])
def test_one_element_off_is_wrong_and_found(dtype: str, size: float) -> None:
    case = linear_case()
    said = {k: v.copy() for k, v in honest(case, dtype).items()}
    said["W"][3, 5] += said["W"].dtype.type(size * np.abs(said["W"]).max())
    data = judge_case(say(case, **{dtype: said})).data
    assert (data["decision"], verdict(data, "W", dtype), verdict(data, "x", dtype)) == ("wrong", "wrong", "agrees")
    assert data["tensors"]["W"]["testimony"]["mine"][dtype]["worst_index"] == [3, 5]


@pytest.mark.parametrize(("bits", "name"), [(11, "tfloat32"), (8, "bfloat16")])
def test_products_of_lower_precision_are_named_and_make_nobody_wrong(bits: int, name: str) -> None:
    case = linear_case(64, 40, 20)
    x, weight, dy = (round_to_bits(a, bits, 0.0) for a in (case.values["x"], case.values["W"], case.upstream["y"]))
    said = {"x": (dy @ weight).astype(np.float32), "W": (dy.T @ x).astype(np.float32), "b": case.upstream["y"].sum(0)}
    data = judge_case(say(case, float32=said)).data
    assert (data["decision"], data["wrong"]) == ("agree", [])
    assert {verdict(data, k) for k in ("x", "W")} == {"low-precision"}
    assert {f["arithmetic"] for f in data["findings"]} == {name}
    assert judge_case(case, strict=True).wrong == ["mine"]


def test_a_float64_path_that_is_secretly_float32() -> None:
    case = linear_case()
    said = {key: value.astype(np.float64) for key, value in honest(case).items()}
    data = judge_case(say(case, float64=said)).data
    assert data["decision"] == "agree"
    assert [f["arithmetic"] for f in data["findings"]] == ["float32"]


def test_a_small_bug_is_not_called_low_precision() -> None:
    """An error parallel to the gradient, of the size that tfloat32 would have."""
    case = linear_case()
    said = {key: value * np.float32(1 + 2.0**-11) for key, value in honest(case).items()}
    data = judge_case(say(case, float32=said)).data
    assert data["wrong"] == ["mine"]
    assert {c["cause"] for c in data["causes"]} == {"scale.constant"}


def one_pass(case: Case, dtype: str) -> dict[str, np.ndarray]:
    """Batchnorm's backward with the variance as mean(x²) − mean(x)²."""
    kind = np.dtype(dtype).type
    x, dy = case.values["x"].astype(dtype), case.upstream["y"].astype(dtype)
    mean = x.mean(0)
    spread = np.sqrt(np.maximum((x * x).mean(0) - mean * mean, kind(0)) + kind(2.0**-17))
    normal = (x - mean) / spread
    return {"x": (dy - dy.mean(0) - normal * (dy * normal).mean(0)) / spread, "g": (dy * normal).sum(0)}


def test_one_pass_variance_is_unstable() -> None:
    """Right at both dtypes in exact arithmetic, and far off at both: the error shrinks with the unit roundoff."""
    values = {"x": (RNG.standard_normal((64, 6)) + 300).astype(np.float32), "g": np.ones(6, np.float32)}
    norm = Node("bn", "batchnorm", {"x": "x", "weight": "g"}, {"y": "y"}, {"epsilon": 2.0**-17})
    case = Case("bn", [norm], values, {"y": RNG.standard_normal((64, 6)).astype(np.float32)})
    data = judge_case(say(case, float32=one_pass(case, "float32"), float64=one_pass(case, "float64"))).data
    assert data["wrong"] == ["mine"]
    assert verdict(data, "x") == verdict(data, "x", "float64") == "unstable"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_where_the_exact_gradient_is_not(value: float) -> None:
    case = linear_case()
    said = {k: v.copy() for k, v in honest(case).items()}
    said["W"][0, 0] = value
    data = judge_case(say(case, float32=said)).data
    assert (data["wrong"], verdict(data, "W")) == (["mine"], "nonfinite")


def test_none_is_missing_unless_the_exact_gradient_is_zero() -> None:
    case = normed_case()
    said = {k: v for k, v in honest(case).items() if k in ("x", "g")}
    data = judge_case(say(case, absent=("W", "b"), float32=said)).data
    assert (verdict(data, "W"), verdict(data, "b")) == ("missing", "zero-noise")
    assert data["wrong"] == ["mine"]


def test_axes_of_length_one_are_squeezed_and_noted_and_other_shapes_are_missing() -> None:
    case = linear_case()
    said = honest(case)
    squeezed = say(case, float32={**said, "b": said["b"][None]})
    data = judge_case(squeezed).data
    assert data["decision"] == "agree" and any("(1, 9)" in note for note in data["notes"])
    data = judge_case(say(linear_case(), float32={"W": said["W"].T.copy()})).data
    assert verdict(data, "W") == "missing"


def test_too_few_digits_are_undecided() -> None:
    """One printed digit cannot tell a right gradient from one that is a fifth off."""
    case = linear_case()
    case.witnesses["mine"] = Witness("mine", printed_digits=1)
    said = {key: np.vectorize(lambda v: float(f"{v:.1g}"))(value) for key, value in honest(case).items()}
    data = judge_case(say(case, float32=said)).data
    assert verdict(data, "W") in ("undecided", "agrees")
    assert data["wrong"] == []


def test_printed_digits_excuse_what_the_print_lost_and_no_more() -> None:
    case = linear_case()
    case.witnesses["mine"] = Witness("mine", printed_digits=4)
    said = {key: np.vectorize(lambda v: float(f"{v:.4g}"))(value) for key, value in honest(case).items()}
    assert judge_case(say(case, float32=said)).decision == "agree"
    said["W"] = said["W"] * 1.01
    assert judge_case(say(case, float32=said)).wrong == ["mine"]


def test_without_inputs_the_vote_alone_decides_and_says_so() -> None:
    case = linear_case()
    said = honest(case)
    case.values = {}
    for name in ("a", "b", "c"):
        say(case, name, float32={k: v.copy() for k, v in said.items()})
    report = judge_case(case)
    assert (report.decision, report.data["by_vote_alone"]) == ("agree", True)
    say(case, "c", float32={**said, "W": said["W"] * 2})
    report = judge_case(case)
    assert (report.decision, report.wrong) == ("undecided", [])
    assert report.data["tensors"]["W"]["vote"] == [["a", "b"], ["c"]]


def test_an_unknown_op_is_compared_only() -> None:
    case = linear_case()
    case.graph.append(Node("odd", "my.own", {"i0": "y"}, {"o0": "z"}))
    case.upstream = {"z": case.upstream["y"]}
    said = {"W": RNG.standard_normal((9, 17)).astype(np.float32)}
    for name in ("a", "b"):
        say(case, name, float32={k: v.copy() for k, v in said.items()})
    data = judge_case(case).data
    assert data["opaque"] == ["odd (my.own)"]
    assert (data["decision"], data["by_vote_alone"]) == ("agree", True)


def test_a_recording_that_cannot_be_replayed_accuses_nobody() -> None:
    case = linear_case()
    said = {key: value * 2 for key, value in honest(case).items()}
    case.distrust = "the replay differs"
    report = judge_case(say(case, float32=said))
    assert (report.decision, report.wrong) == ("undecided", [])


def relu_case() -> Case:
    """One unit lies so close to the kink that float32 cannot know its side."""
    case = linear_case(6, 4, 3)
    product = case.values["x"][0].astype(np.float64) @ case.values["W"][0]
    case.values["b"][0] = -product  # what is left is the rounding of this number to float32
    case.graph.append(Node("act", "relu", {"x": "y"}, {"y": "z"}))
    case.upstream = {"z": np.ones((6, 3), np.float32)}
    return case


def test_the_side_of_a_kink_that_rounding_decides_is_no_mistake() -> None:
    """Neither side of the undecided unit is blamed without a recorded forward; with one, its own side is taken."""
    case = relu_case()
    weight = case.values["W"].astype(np.float64)
    exact = case.values["x"].astype(np.float64) @ weight.T + case.values["b"]
    for side in (0.0, 1.0):
        mask = (exact > 0).astype(np.float64)
        close = np.abs(exact) < 1e-6
        assert close.sum() == 1
        mask[close] = side
        said = {"b": mask.sum(0).astype(np.float32), "x": (mask @ weight).astype(np.float32)}
        case.testimonies.clear()
        assert judge_case(say(case, float32=said)).wrong == []
        case.testimonies["mine", "float32"].forward["z"] = (np.maximum(exact, 1e-12) * mask).astype(np.float32)
        assert judge_case(case).decision == "agree"


def test_two_branches_and_a_part_taken_for_the_whole() -> None:
    """A hook on a branch prints one part: right, and named. What follows from a part alone is wrong."""
    case = linear_case(8, 5, 4)
    case.graph[0] = Node("fc", "linear", {"x": "x", "weight": "W", "bias": "b"}, {"y": "h"})
    case.graph += [Node("left", "tanh", {"x": "h"}, {"y": "l"}), Node("right", "sigmoid", {"x": "h"}, {"y": "r"})]
    case.graph.append(Node("join", "add", {"a": "l", "b": "r"}, {"y": "y"}))
    said = honest(case)
    data = judge_case(say(case, float32={**said, "h": said["h@left"]})).data
    assert (data["decision"], data["causes"][0]["cause"], data["causes"][0]["kind"]) == ("agree", "accumulate.partial", "harness")
    part = said["h@left"]
    follows = {"h": part, "W": part.T @ case.values["x"], "b": part.sum(0)}
    data = judge_case(say(case, float32=follows)).data
    assert (data["wrong"], data["causes"][0]["cause"]) == (["mine"], "accumulate.partial")
    assert set(data["causes"][0]["tensors"]) == {"h", "W", "b"}


def test_another_update_convention_is_a_definition_and_can_be_accepted() -> None:
    sizes = {"x": (4, 5), "h": (4, 3), "weight_ih": (9, 5), "weight_hh": (9, 3), "bias_ih": (9,), "bias_hh": (9,)}
    values = {name: RNG.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    node = Node("cell", "gru_step", {name: name for name in values}, {"h_next": "out"})
    case = Case("gru", [node], values, {"out": RNG.standard_normal((4, 3)).astype(np.float32)})
    changed = Node("cell", "gru_step", node.inputs, node.outputs, {"update": "keeps-candidate"})
    other = Case("gru", [changed], values, case.upstream)
    data = judge_case(say(case, float64=honest(other, "float64"))).data
    assert (data["wrong"], data["causes"][0]["cause"], data["causes"][0]["kind"]) == (
        ["mine"], "gru.update-convention", "definition",
    )
    assert judge_case(case, define={"gru.update": "keeps-candidate"}).decision == "agree"


def test_the_audit_compares_the_reference_with_its_own_forward() -> None:
    case = normed_case()
    found = judge_case(say(case, float64=honest(case, "float64"))).data["audit"]
    assert 0 <= found["directional_excess"] <= 1


def test_a_reference_in_dispute_accuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of our own, planted in the backward of relu, is found by the audit before anybody is blamed."""
    from gradjury.verify.ops import pointwise

    case = linear_case(8, 5, 4)
    case.graph.append(Node("act", "tanh", {"x": "y"}, {"y": "z"}))
    case.upstream = {"z": RNG.standard_normal((8, 4)).astype(np.float32)}
    say(case, float64=honest(case, "float64"))
    right = pointwise.FromValue.backward

    def slipped(self: Any, k: Any, x: Any, attributes: Any, saved: Any, upstream: Any, wanted: Any) -> Any:
        found = right(self, k, x, attributes, saved, upstream, wanted)
        return {slot: k.unary("multiply_by", tensor, 1.5) for slot, tensor in found.items()}

    monkeypatch.setattr(pointwise.FromValue, "backward", slipped)
    report = judge_case(case)
    assert report.data["audit"]["directional_excess"] > 1
    assert (report.decision, report.wrong) == ("undecided", [])


def test_means_and_auto_transposition_hide_nothing() -> None:
    """Column-permuted gradients have the same mean; a transposed square weight has the right shape."""
    case = linear_case(16, 9, 9)
    said = honest(case)
    assert judge_case(say(case, float32={"W": said["W"][:, ::-1].copy()})).wrong == ["mine"]
    data = judge_case(say(case, float32={"W": said["W"].T.copy()})).data
    assert data["causes"][0]["cause"] == "layout.transposed"
