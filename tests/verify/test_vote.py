"""The vote: who agrees with whom, and how many voices that is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import small_cases
from small_cases import Gradients

from gradjury.verify import vote
from gradjury.verify.case import Case, Witness
from gradjury.verify.court import Court


def rounded_differently(said: Gradients, seed: int) -> Gradients:
    """The same gradients, each element off by a rounding of its own: 0 or ±1 unit in the last place."""
    rng = np.random.default_rng(seed)
    found = {}
    for key, array in said.items():
        up = np.nextafter(array, np.where(rng.random(array.shape) < 0.5, np.inf, -np.inf).astype(array.dtype))
        found[key] = np.where(rng.random(array.shape) < 0.6, up, array)
    return found


def bench(**said: Gradients) -> Case:
    case = small_cases.linear()
    for name, gradients in said.items():
        small_cases.say(case, name, gradients)
    return case


def test_honest_ones_stand_together_and_a_wrong_one_alone() -> None:
    said = small_cases.honest(small_cases.linear())
    off = {**said, "W": said["W"] * np.float32(1.01)}
    judges = small_cases.court(bench(bad=off, a=said, b=rounded_differently(said, 1), c=rounded_differently(said, 2)))
    assert vote.groups(judges, "W") == [["a", "b", "c"], ["bad"]]
    assert vote.groups(judges, "b") == [["a", "b", "bad", "c"]]


def test_a_majority_of_wrong_ones_is_a_group_too() -> None:
    """The vote says who agrees, not who is right."""
    said = small_cases.honest(small_cases.linear())
    off = {**said, "W": -said["W"]}
    assert vote.groups(small_cases.court(bench(a=off, b=off, good=said)), "W") == [["a", "b"], ["good"]]


def test_groups_are_largest_first_and_hold_everybody_once() -> None:
    agreeing = {frozenset(p): p in (("a", "b"), ("c", "d"), ("c", "e"), ("d", "e")) for p in
                [(x, y) for i, x in enumerate("abcde") for y in "abcde"[i + 1 :]]}
    assert vote._cliques(list("abcde"), agreeing) == [["c", "d", "e"], ["a", "b"]]
    chain = {frozenset("ab"): True, frozenset("bc"): True, frozenset("ac"): False}
    assert vote._cliques(list("abc"), chain) == [["a", "b"], ["c"]], "agreement is not handed on"


@pytest.mark.parametrize(("share", "together"), [(0.9, True), (1.1, False)])
def test_two_agree_up_to_the_sum_of_their_budgets(share: float, together: bool) -> None:
    case = small_cases.linear()
    exact = small_cases.honest(case, "float64")
    small_cases.say(case, "a", exact)
    judges = small_cases.court(case)
    budget = judges.reference("float32").budget("W", replicas=True)
    other = dict(exact)
    other["W"] = exact["W"] + 2 * share * budget
    judges = small_cases.court(small_cases.say(case, "b", other))
    a, b = judges.statements
    assert vote.agree(judges, a, b, "W") is together


def test_different_dtypes_are_compared_with_a_budget_each() -> None:
    case = small_cases.linear()
    small_cases.say(case, "narrow", small_cases.honest(case))
    small_cases.say(case, "wide", small_cases.honest(case, "float64"), "float64")
    judges = small_cases.court(case)
    assert [sorted(group) for group in vote.groups(judges, "W")] == [["narrow", "wide"]]
    assert vote.independence(judges, "W") == {}, "errors at different dtypes say nothing of each other"


def test_each_witness_speaks_once_at_the_dtype_that_most_share() -> None:
    case = small_cases.linear()
    for name, dtypes in (("a", ("float32", "float64")), ("b", ("float32",)), ("c", ("float32", "float64"))):
        for dtype in dtypes:
            small_cases.say(case, name, small_cases.honest(case, dtype), dtype)
    speaking = vote._speaking(small_cases.court(case), "W")
    assert [(s.witness.name, s.dtype) for s in speaking] == [("a", "float32"), ("b", "float32"), ("c", "float32")]


def test_a_different_shape_or_different_infinities_never_agree() -> None:
    case = bench(a={"b": np.zeros(9)}, b={"b": np.zeros(9)})
    a, b = small_cases.court(case).statements
    b.gradients["b"] = np.zeros((3, 3))
    assert not vote.agree(small_cases.court(case), a, b, "b")
    b.gradients["b"] = np.full(9, np.inf)
    assert not vote.agree(small_cases.court(case), a, b, "b")


def blind(change: Callable[[float], float], digits: int | None = None) -> bool:
    """Two who agree or not without any inputs, the second one's numbers changed."""
    said = small_cases.honest(small_cases.linear())
    case = bench(a=said, b={key: np.vectorize(change)(array.astype(float)) for key, array in said.items()})
    case.values = {}
    case.witnesses["b"] = Witness("b", printed_digits=digits)
    judges = small_cases.court(case)
    return vote.agree(judges, *judges.statements, "W")


def test_without_inputs_the_size_of_the_tensor_has_to_do() -> None:
    assert blind(lambda v: v) and blind(lambda v: v * (1 + 2.0**-22))
    assert not blind(lambda v: v * 1.001)


def test_what_a_print_lost_is_allowed_for_without_inputs_too() -> None:
    assert not blind(lambda v: float(f"{v:.3g}"))
    assert blind(lambda v: float(f"{v:.3g}"), digits=3)
    assert not blind(lambda v: float(f"{v * 1.01:.3g}"), digits=3)


def test_not_a_number_agrees_with_not_a_number_only() -> None:
    said = {"b": np.array([np.nan] + [1.0] * 8)}
    case = bench(a=said, b={"b": said["b"].copy()}, c={"b": np.ones(9)})
    case.values = {}
    assert vote.groups(small_cases.court(case), "b") == [["a", "b"], ["c"]]


def voices(case: Case, *group: str) -> int:
    judges: Court = small_cases.court(case)
    return vote.voices(judges, "W", list(group))


def test_copies_and_shared_backends_are_one_voice() -> None:
    said = small_cases.honest(small_cases.linear())
    wide = small_cases.honest(small_cases.linear(), "float64")
    own = rounded_differently({key: array.astype(np.float32) for key, array in wide.items()}, 5)
    case = bench(a=said, copy=said, own=own)
    judges = small_cases.court(case)
    alike = vote.independence(judges, "W")
    assert alike["a~copy"] == "bit-equal" and isinstance(alike["a~own"], float) and abs(alike["a~own"]) < 0.9
    assert voices(case, "a", "copy") == 1
    assert voices(case, "a", "own") == 2
    case.witnesses |= {"a": Witness("a", backend=("mkl", "onednn")), "own": Witness("own", backend=("mkl",))}
    assert voices(case, "a", "own") == 1
    assert voices(case, "a", "copy", "own") == 1


def test_voices_are_joined_through_a_third() -> None:
    said = small_cases.honest(small_cases.linear())
    case = bench(a=said, b=rounded_differently(said, 1), c=rounded_differently(said, 2))
    for name, backend in (("a", ("p",)), ("b", ("p", "q")), ("c", ("q",))):
        case.witnesses[name] = Witness(name, backend=backend)
    assert voices(case, "a", "c") == 2 and voices(case, "a", "b", "c") == 1


def test_errors_that_go_the_same_way_are_one_voice() -> None:
    """Both add the same rounding errors, the second a little more."""
    wide = small_cases.honest(small_cases.linear(), "float64")
    noise = {key: np.random.default_rng(1).standard_normal(a.shape) * 1e-7 for key, a in wide.items()}
    case = bench(a={k: a + noise[k] for k, a in wide.items()}, b={k: a + 1.1 * noise[k] for k, a in wide.items()})
    alike = vote.independence(small_cases.court(case), "W")["a~b"]
    assert isinstance(alike, float) and alike > 0.99
    assert voices(case, "a", "b") == 1
