"""The judgement as JSON: every number plain, findings joined, and the place where an error enters."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import small_cases

from gradjury.verify.case import Case, Node
from gradjury.verify.judge import judge_case
from gradjury.verify.summary import _merged
from gradjury.verify.verdict import Finding


def chain() -> Case:
    """fc1, tanh, fc2, tanh, fc3."""
    rng = np.random.default_rng(2)
    graph, values, before = [], {"x": small_cases.float32(rng, 6, 4)}, "x"
    for i in (1, 2, 3):
        values[f"W{i}"] = small_cases.float32(rng, 4, 4)
        graph.append(Node(f"fc{i}", "linear", {"x": before, "weight": f"W{i}"}, {"y": f"a{i}"}, {}, i))
        before = f"a{i}"
        if i < 3:
            graph.append(Node(f"tanh{i}", "tanh", {"x": before}, {"y": f"h{i}"}, {}, i))
            before = f"h{i}"
    return Case("chain", graph, values, {"a3": small_cases.float32(rng, 6, 4)})


def first_wrong(*off: str) -> Any:
    case = chain()
    said = {key: array * (2 if key in off else 1) for key, array in small_cases.honest(case, "float64").items()}
    return judge_case(small_cases.say(case, "mine", said, "float64")).data["first_wrong"]


@pytest.mark.parametrize(
    ("off", "node", "step"),
    [
        (("W3",), "fc3", 3),
        (("W1", "x"), "fc1", 1),
        (("h1", "a1", "W1", "x"), "fc2", 2),  # fc2 gives a wrong gradient of h1, all before it in backward order is right
        (("W1",), "fc1", 1),
    ],
)
def test_the_error_enters_at_the_last_node_with_right_gradients_before_it(off: tuple[str, ...], node: str, step: int) -> None:
    assert first_wrong(*off) == {"witness": "mine", "node": node, "step": step}


def test_an_error_in_the_forward_is_where_it_starts() -> None:
    case = chain()
    from gradjury.verify.witnesses import evidence, parse

    said = evidence(case, parse("cuda"), "float64")
    forward = {key: v * 2 if key in ("h2", "a3") else v for key, v in said.forward.items()}
    data = judge_case(small_cases.say(case, "mine", said.gradients, "float64", forward)).data
    assert data["wrong"] == ["mine"]
    assert data["first_wrong"] == {"witness": "mine", "node": "tanh2", "step": 2}
    assert {key: d["mine"]["float64"]["verdict"] for key, d in data["forward"].items()} == {
        "a1": "agrees", "h1": "agrees", "a2": "agrees", "h2": "wrong", "a3": "wrong",
    }


def test_a_wrong_start_is_no_nodes_fault() -> None:
    """The gradient of the graph's output is given: if that is wrong already, no node made it so."""
    assert first_wrong("a3", "W3") is None


def test_nobody_wrong_has_no_place() -> None:
    assert first_wrong() is None


def test_infinities_and_not_numbers_are_text() -> None:
    """JSON knows neither; the report is read back by other programs."""
    case = small_cases.linear()
    said = small_cases.honest(case)
    said["W"][0, 0], said["x"][0, 0] = np.inf, np.nan
    data = judge_case(small_cases.say(case, "mine", said)).data
    read = json.loads(json.dumps(data, allow_nan=False))
    assert read["tensors"]["W"]["testimony"]["mine"]["float32"]["max_abs"] == "inf"
    assert read["tensors"]["x"]["testimony"]["mine"]["float32"]["max_abs"] == "nan"


def test_a_zero_gradient_has_no_relative_error() -> None:
    case = small_cases.linear(2)
    case.upstream = {"y": np.array([[1.0] * 9, [-1.0] * 9])}
    entry = judge_case(small_cases.say(case, "mine", {"b": np.zeros(9)})).data["tensors"]["b"]
    assert entry["exact_zero"] is True and entry["testimony"]["mine"]["float32"]["max_rel"] is None


def test_sizes_and_shapes() -> None:
    case = small_cases.linear()
    data = judge_case(small_cases.say(case, "mine", small_cases.honest(case))).data
    entry = data["tensors"]["W"]
    assert entry["shape"] == [9, 17] and entry["testimony"]["mine"]["float32"]["size"] == 153
    assert entry["testimony"]["mine"]["float32"]["outside"] == 0
    assert entry["testimony"]["mine"]["float32"]["unit_roundoff"] == 2.0**-24


def test_low_precision_counts_only_where_it_is_asked_to() -> None:
    case = small_cases.linear()
    said = {key: array.astype(np.float64) for key, array in small_cases.honest(case).items()}
    small_cases.say(case, "mine", said, "float64")
    lenient, strict = judge_case(case), judge_case(case, strict=True)
    assert (lenient.decision, lenient.wrong) == ("agree", [])
    assert (strict.decision, strict.wrong) == ("wrong", ["mine"])
    assert lenient.data["findings"] == strict.data["findings"] != []


def test_strict_does_not_overrule_a_distrusted_recording() -> None:
    """A replay that differs accuses nobody, however strict."""
    case = small_cases.linear()
    said = {key: array.astype(np.float64) for key, array in small_cases.honest(case).items()}
    case.distrust = "the replay differs"
    report = judge_case(small_cases.say(case, "mine", said, "float64"), strict=True)
    assert (report.decision, report.wrong) == ("undecided", [])


def test_where_nobody_is_accused_no_place_is_named() -> None:
    case = small_cases.linear()
    case.distrust = "the replay differs"
    said = {key: array * 2 for key, array in small_cases.honest(case).items()}
    data = judge_case(small_cases.say(case, "mine", said)).data
    assert (data["decision"], data["wrong"], data["first_wrong"]) == ("undecided", [], None)


def test_findings_of_one_kind_are_joined_over_dtypes_and_places() -> None:
    found = [
        Finding("mine", "float64", "scale.constant", "mistake", ["a"], "twice"),
        Finding("mine", "float32", "scale.constant", "mistake", ["a", "b"], "twice"),
        Finding("other", "float32", "scale.constant", "mistake", ["c"], "twice"),
    ]
    merged = _merged(found)
    assert [(f.witness, f.tensors) for f in merged] == [("mine", ["a", "b"]), ("other", ["c"])]
    assert found[0].tensors == ["a"], "the findings themselves stay as they were"


def test_who_testified_at_what_and_with_what_is_listed() -> None:
    case = small_cases.linear()
    small_cases.say(case, "mine", small_cases.honest(case))
    small_cases.say(case, "mine", small_cases.honest(case, "float64"), "float64")
    failures = [{"witness": "paddle", "kind": "import", "message": "No module named 'paddle'"}]
    data = judge_case(case, identities={"mine": {"version": "1"}}, failures=failures).data
    assert data["witnesses"] == {
        "mine": {"layout": "canonical", "dtypes": ["float32", "float64"], "backend": [], "identity": {"version": "1"}}
    }
    assert data["failures"] == failures and data["decision"] == "agree"
