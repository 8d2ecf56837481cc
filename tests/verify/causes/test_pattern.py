"""The look of an error: each pattern is seen where it is, and not where it is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import small_cases

from gradjury.verify.case import Case, Node
from gradjury.verify.causes import pattern
from gradjury.verify.court import Court, Statement
from gradjury.verify.measure import Measurement

Change = Callable[[np.ndarray], np.ndarray]


def look(change: Change, key: str = "W", case: Case | None = None) -> tuple[Statement, Measurement]:
    case = small_cases.linear() if case is None else case
    said = small_cases.honest(case)
    judges: Court = small_cases.court(small_cases.say(case, "mine", {key: change(said[key])}))
    (statement,) = judges.statements
    found = judges.measure(statement, key)
    assert found is not None
    return statement, found


def seen(change: Change, key: str = "W", case: Case | None = None) -> str | None:
    given = look(change, key, case)
    found = pattern.structured(*given) or pattern.located(*given)
    return None if found is None else found.code


def spoiled(*places: tuple[int, ...]) -> Change:
    def change(gradient: np.ndarray) -> np.ndarray:
        found = gradient.copy()
        for place in places:
            found[place] += 1
        return found

    return change


def square() -> Case:
    return small_cases.linear(16, 9, 9)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (np.zeros_like, "value.zero"),
        (np.negative, "sign.flipped"),
        (lambda g: g * np.float32(1 / 24), "scale.constant"),
        (lambda g: g * np.float32(-0.5), "scale.constant"),
        (spoiled((3, 4)), "value.single-element"),
        (spoiled((3, 4), (3, 5)), "value.rows"),
        (spoiled((0, 0), (1, 1), (2, 2), (3, 3)), "value.rows"),
        (spoiled(*((i, i) for i in range(5))), None),  # more than half of the rows are no place
        (lambda g: g + np.float32(0.5), None),
        (lambda g: g[:, ::-1], None),
    ],
)
def test_patterns(change: Change, code: str | None) -> None:
    assert seen(change) == code


def test_a_square_weight_that_is_transposed() -> None:
    assert seen(lambda g: g.T.copy(), case=square()) == "layout.transposed"


def test_a_sequence_in_reversed_time() -> None:
    case = small_cases.linear()
    case.values["x"] = case.values["x"].reshape(4, 6, 17)
    case.upstream["y"] = case.upstream["y"].reshape(4, 6, 9)
    assert seen(lambda g: g[::-1].copy(), "x", case) == "time.reversed"
    assert seen(lambda g: g[:, ::-1].copy(), "x", case) is None


def test_a_factor_has_to_explain_more_than_itself() -> None:
    """Any single number is a multiple of any other: three elements over the line are too few."""
    case = small_cases.linear(5, 1, 3)
    assert seen(lambda g: g * np.float32(2), "b", case) is None
    case = small_cases.linear(5, 1, 4)
    assert seen(lambda g: g * np.float32(2), "b", case) == "scale.constant"


def test_the_factor_is_told() -> None:
    found = pattern.structured(*look(lambda g: g / np.float32(24)))
    assert found is not None and found.evidence.startswith("0.0416667 times")


def test_the_place_is_told() -> None:
    found = pattern.located(*look(spoiled((3, 4))))
    assert found is not None and "(3, 4)" in found.evidence and found.evidence.endswith("by 1")
    found = pattern.located(*look(spoiled((3, 4), (7, 1))))
    assert found is not None and found.evidence == "2 of 9 rows are off: 3, 7"


def test_a_gradient_of_one_element_has_no_place_and_no_factor() -> None:
    case = small_cases.linear(5, 1, 1)
    assert seen(lambda g: g + 1, "b", case) is None


def test_a_scaled_tensor_with_one_error_more_is_no_scale() -> None:
    assert seen(lambda g: spoiled((3, 4))(g) * np.float32(2)) is None


def test_the_gradient_of_a_scalar() -> None:
    node = Node("s", "sum", {"x": "x"}, {"y": "y"})
    case = Case("sum", [node], {"x": np.ones(3, np.float32)}, {"y": np.float32(2) * np.ones(())})
    assert seen(lambda g: g * 0, "y", case) == "value.zero"
