"""`gradjury.judge`: an op or a graph, its inputs, and whoever has something to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_cases

import gradjury
from gradjury.verify.case import CaseError

Arrays = dict[str, np.ndarray]
RNG = np.random.default_rng(11)
INPUTS = {"x": small_cases.float32(RNG, 6, 4), "weight": small_cases.float32(RNG, 3, 4), "bias": small_cases.float32(RNG, 3)}
UPSTREAM = small_cases.float32(RNG, 6, 3)


def right(inputs: Arrays, upstream: Arrays, dtype: str) -> Arrays:
    dy = upstream["y"]
    return {"x": dy @ inputs["weight"], "weight": dy.T @ inputs["x"], "bias": dy.sum(0)}


def slipped(inputs: Arrays, upstream: Arrays, dtype: str) -> Arrays:
    return {**right(inputs, upstream, dtype), "bias": upstream["y"].mean(0)}


def judge(witnesses: Any, **changes: Any) -> gradjury.Report:
    return gradjury.judge("linear", **{"inputs": INPUTS, "upstream": UPSTREAM, "witnesses": witnesses, **changes})


def test_functions_are_asked_at_both_dtypes() -> None:
    report = judge([right, slipped])
    assert report.wrong == ["slipped"]
    said = report.data["tensors"]["bias"]["testimony"]
    assert {(w, d): v["verdict"] for w, by in said.items() for d, v in by.items()} == {
        ("right", "float32"): "agrees", ("right", "float64"): "agrees",
        ("slipped", "float32"): "wrong", ("slipped", "float64"): "wrong",
    }
    assert {(c["witness"], c["cause"]) for c in report.data["causes"]} <= {("slipped", "scale.constant")}


def test_dtypes_can_be_chosen() -> None:
    assert judge([right], dtypes=["float32"]).data["witnesses"]["right"]["dtypes"] == ["float32"]


def test_gradients_that_are_already_there() -> None:
    """By the dtype of their arrays; None is absent."""
    said = right(INPUTS, {"y": UPSTREAM}, "float32")
    report = judge({"mine": {**said, "x": None}, "other": said})
    assert report.wrong == ["mine"]
    assert report.data["tensors"]["x"]["testimony"]["mine"]["float32"]["verdict"] == "missing"
    assert report.data["witnesses"]["other"]["dtypes"] == ["float32"]


def test_witnesses_have_the_names_they_are_given() -> None:
    report = judge({"ours": "cuda", "hand": slipped})
    assert set(report.data["witnesses"]) == {"ours", "hand"} and report.wrong == ["hand"]


def test_a_function_that_raises_is_a_failure_and_no_verdict() -> None:
    def broken(inputs: Arrays, upstream: Arrays, dtype: str) -> Arrays:
        raise RuntimeError("no luck")

    report = judge([broken, right])
    assert report.decision == "agree"
    assert [(f["witness"], f["kind"]) for f in report.data["failures"]] == [("broken", "error")]
    assert "no luck" in report.data["failures"][0]["message"]


def test_a_graph_with_names_of_its_own() -> None:
    nodes = [
        {"name": "fc", "op": "linear", "inputs": {"x": "x", "weight": "weight"}, "outputs": {"y": "a"}},
        {"name": "loss", "op": "squared_error", "inputs": {"y": "a", "target": "t"}, "outputs": {"loss": "l"},
         "attributes": {"factor": 0.5}},
    ]  # fmt: skip
    inputs = {"x": INPUTS["x"], "weight": INPUTS["weight"], "t": UPSTREAM}

    def by_hand(given: Arrays, upstream: Arrays, dtype: str) -> Arrays:
        return {"weight": (given["x"] @ given["weight"].T - given["t"]).T @ given["x"]}

    report = gradjury.judge(nodes, inputs=inputs, witnesses=[by_hand], name="mine")
    assert (report.decision, report.data["case"]) == ("agree", "mine")


def test_attributes_are_part_of_the_question() -> None:
    shapes = {"x": (5, 3), "h": (5, 2), "weight_ih": (6, 3), "weight_hh": (6, 2)}
    given = {name: small_cases.float32(RNG, *shape) for name, shape in shapes.items()}
    flow = small_cases.float32(RNG, 5, 2)
    for update in ("keeps-previous", "keeps-candidate"):
        report = gradjury.judge("gru_step", inputs=given, upstream=flow, witnesses=["cuda"], attributes={"update": update})
        report.assert_ok()
        assert report.case is not None and report.case.graph[0].attributes == {"update": update}


def test_assert_ok_raises_with_the_report() -> None:
    judge([right]).assert_ok()
    with pytest.raises(AssertionError, match="slipped"):
        judge([slipped]).assert_ok()


def test_what_is_judged_can_be_saved_and_says_the_same(tmp_path: Path) -> None:
    report = judge([right, slipped])
    report.save(tmp_path / "case.npz")
    again = gradjury.judge_case(gradjury.read_case(tmp_path / "case.npz"))
    assert again.data["tensors"] == report.data["tensors"]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"inputs": {**INPUTS, "weight": np.zeros((3, 5), np.float32)}}, "expected"),
        ({"inputs": {"x": INPUTS["x"]}}, "weight.* is missing"),
        ({"upstream": np.zeros((2, 2))}, "upstream/y: expected shape"),
        ({"attributes": {"epsilon": 1.0}}, "epsilon"),
    ],
)
def test_what_contradicts_itself_is_refused_in_one_line(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(CaseError, match=match) as caught:
        judge([right], **changes)
    assert "\n" not in str(caught.value)


def test_an_unknown_op_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CaseError, match=r"'linaer' is unknown.*linear"):
        gradjury.judge("linaer", inputs=INPUTS, upstream=UPSTREAM, witnesses=[right])


def test_values_may_be_tensors_of_a_framework() -> None:
    torch = pytest.importorskip("torch")
    given = {key: torch.tensor(value, requires_grad=True) for key, value in INPUTS.items()}
    (torch.nn.functional.linear(given["x"], given["weight"], given["bias"]) * torch.tensor(UPSTREAM)).sum().backward()
    report = judge({"torch": {key: tensor.grad for key, tensor in given.items()}}, inputs=given, upstream=torch.tensor(UPSTREAM))
    report.assert_ok()
    assert report.data["witnesses"]["torch"]["dtypes"] == ["float32"]


def test_strict_counts_low_precision() -> None:
    said = {key: array.astype(np.float64) for key, array in right(INPUTS, {"y": UPSTREAM}, "float32").items()}
    assert judge({"mine": said}).wrong == []
    assert judge({"mine": said}, strict=True).wrong == ["mine"]
