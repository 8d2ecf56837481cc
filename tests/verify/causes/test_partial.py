"""A part taken for the whole, the whole for a part, and what follows from it."""

from __future__ import annotations

import numpy as np
import pytest
import small_cases
from small_cases import Gradients

from gradjury.verify.case import Case, Node
from gradjury.verify.causes import partial
from gradjury.verify.verdict import Finding


def explained(case: Case, said: Gradients) -> list[Finding]:
    judges = small_cases.court(small_cases.say(case, "mine", said))
    (statement,) = judges.statements
    found = small_cases.measured(judges, statement)
    return partial.explain(judges, statement, found, [key for key, m in found.items() if not m.within])


def behind(case: Case, flow: np.ndarray) -> Gradients:
    """What follows once `flow` is taken as the gradient of h."""
    x, weight = case.values["x"], case.values["W"]
    return {"h": flow, "b": flow.sum(0), "W": flow.T @ x, "x": flow @ weight}


def three_ways() -> Case:
    """h goes to tanh, sigmoid and exp."""
    case = small_cases.branches()
    case.graph[3] = Node("some", "add", {"a": "l", "b": "r"}, {"y": "s"})
    case.graph += [Node("third", "exp", {"x": "h"}, {"y": "e"}), Node("join", "add", {"a": "s", "b": "e"}, {"y": "y"})]
    return case


@pytest.mark.parametrize("branch", ["left", "right"])
def test_a_part_printed_as_the_whole_is_right_where_all_behind_it_is(branch: str) -> None:
    case = small_cases.branches()
    said = small_cases.honest(case)
    (found,) = explained(case, {**said, "h": said[f"h@{branch}"]})
    assert (found.code, found.kind, found.verdict, found.tensors) == ("accumulate.partial", "harness", "agrees", ["h"])
    assert branch in found.evidence


def test_a_part_that_everything_behind_follows_from_is_a_mistake() -> None:
    case = small_cases.branches()
    said = behind(case, small_cases.honest(case)["h@left"])
    (found,) = explained(case, said)
    assert (found.code, found.kind, found.verdict) == ("accumulate.partial", "mistake", "wrong")
    assert set(found.tensors) == {"h", "W", "b", "x"}


def test_what_does_not_follow_from_the_part_is_left_to_others() -> None:
    case = small_cases.branches()
    said = behind(case, small_cases.honest(case)["h@left"])
    (found,) = explained(case, {**said, "W": said["W"] * 2})
    assert set(found.tensors) == {"h", "b", "x"}


def test_the_whole_where_a_part_was_asked() -> None:
    case = small_cases.branches()
    said = small_cases.honest(case)
    (found,) = explained(case, {"h@left": said["h"], "h@right": said["h@right"]})
    assert (found.code, found.kind, found.verdict) == ("accumulate.includes-more", "harness", "agrees")
    assert found.tensors == ["h@left"]


def test_another_part_is_no_excuse_for_a_part() -> None:
    case = small_cases.branches()
    said = small_cases.honest(case)
    assert explained(case, {"h@left": said["h@right"]}) == []


def test_an_unrecorded_fork_of_which_only_one_part_was_taken() -> None:
    """The gradient of h itself was not recorded: everything behind it tells which part it was."""
    case = small_cases.branches()
    said = behind(case, small_cases.honest(case)["h@right"])
    del said["h"]
    (found,) = explained(case, said)
    assert (found.code, found.kind, found.verdict) == ("accumulate.overwritten", "mistake", "wrong")
    assert set(found.tensors) == {"W", "b", "x"} and "from right alone" in found.evidence


def test_an_unrecorded_fork_of_three_that_lost_one_part() -> None:
    case = three_ways()
    full = small_cases.honest(case)
    said = behind(case, full["h@left"] + full["h@right"])
    del said["h"]
    (found,) = explained(case, said)
    assert found.code == "accumulate.overwritten" and "without the part from third" in found.evidence


@pytest.mark.parametrize("factor", [1.01, 0.5, -1.0])
def test_what_is_no_part_is_not_called_one(factor: float) -> None:
    case = small_cases.branches()
    said = small_cases.honest(case)
    assert explained(case, {key: array * np.float32(factor) for key, array in said.items()}) == []


def test_a_part_that_is_zero_explains_nothing() -> None:
    """Zeros equal every part that is zero: that would excuse forgotten gradients."""
    case = small_cases.branches()
    case.graph[1] = Node("left", "multiply", {"a": "h", "b": "nothing"}, {"y": "l"})
    case.values["nothing"] = np.zeros((8, 4), np.float32)
    said = small_cases.honest(case)
    assert explained(case, {**said, "h": np.zeros((8, 4))}) == []


def test_ancestors_and_forks() -> None:
    case = small_cases.branches()
    assert partial.ancestors(case, "y") == {"l", "r", "h", "x", "W", "b"}
    assert partial.ancestors(case, "x") == set()
    assert partial.forks(case) == ["h"]
    assert partial.part_keys(case, "h") == ["h@left", "h@right"] and partial.part_keys(case, "l") == []


def test_a_tensor_used_twice_by_one_node_has_a_part_per_input() -> None:
    case = small_cases.branches()
    case.graph = [*case.graph[:1], Node("m", "multiply", {"a": "h", "b": "h"}, {"y": "y"})]
    assert partial.part_keys(case, "h") == ["h@m.a", "h@m.b"]
    said = small_cases.honest(case)
    (found,) = explained(case, {**said, "h": said["h@m.a"]})
    assert (found.code, found.verdict) == ("accumulate.partial", "agrees")
