"""The graph's run on the kernels: totals, parts, and what is left out because it is unknown."""

from __future__ import annotations

from typing import Any

import exact
import numpy as np
import pytest
import small_cases

from gradjury.kernels.calls import Kernels
from gradjury.kernels.engine import engine
from gradjury.kernels.scalars import SCALARS
from gradjury.verify import execute
from gradjury.verify.case import Case, Node
from gradjury.verify.execute import Backward, Forward


def kernels(scalar: str = "float64") -> Kernels:
    """Results start as NaN, so that nothing unwritten passes for a number."""
    return Kernels(engine("host"), SCALARS[scalar], poison=True)


def run(case: Case, **options: Any) -> tuple[Kernels, Forward, Backward]:
    k = kernels(options.pop("scalar", "float64"))
    rows = options.pop("rows", 1)
    forward = execute.forward(case, k, execute.load(case, k, case.values, rows), {})
    upstream = {key: k.tensor(np.broadcast_to(g, (rows, *g.shape))) for key, g in case.upstream.items()}
    return k, forward, execute.backward(case, k, forward, upstream, {}, **options)


def whole(k: Kernels, back: Backward, key: str) -> np.ndarray:
    tensor = back.get(key)
    assert tensor is not None
    return k.values(tensor)[0]


def test_gradients_of_two_branches_by_formula() -> None:
    """In double-double, so that every gradient is the exact one rounded to float64."""
    case = small_cases.branches()
    k, forward, back = run(case, scalar="double-double")
    given = {name: exact.variables(case.values[name]) for name in ("x", "W", "b")}
    h = given["x"] @ given["W"].T + given["b"]
    left, right = exact.tanh(h), exact.sigmoid(h)
    upstream = {"y": case.upstream["y"]}
    expected = exact.gradients({"y": left + right}, upstream, {**given, "h": h, "l": left, "r": right})
    expected["y"] = exact.values(exact.variables(case.upstream["y"]))
    expected["h@left"] = exact.gradients({"y": left}, upstream, {"h": h})["h"]
    expected["h@right"] = exact.gradients({"y": right}, upstream, {"h": h})["h"]
    np.testing.assert_array_equal(k.values(forward.values["h"])[0], exact.values(h).astype(float))
    for key, gradient in expected.items():
        np.testing.assert_array_equal(whole(k, back, key), gradient.astype(float), err_msg=key)


def test_a_node_that_uses_a_tensor_twice_has_a_part_per_input_and_their_sum() -> None:
    node = Node("m", "multiply", {"a": "x", "b": "x"}, {"y": "y"})
    case = Case("square", [node], {"x": np.array([3.0])}, {"y": np.array([2.0])})
    k, _, back = run(case)
    found = {key: whole(k, back, key).tolist() for key in ("x@m.a", "x@m.b", "x@m", "x")}
    assert found == {"x@m.a": [6.0], "x@m.b": [6.0], "x@m": [12.0], "x": [12.0]}


def test_an_upstream_in_the_middle_is_added_to_what_flows_back() -> None:
    """All numbers are whole: h = 2x, y = h², dh = 2h·dy + 1, dx = 2·dh."""
    double = Node("double", "linear", {"x": "x", "weight": "W"}, {"y": "h"})
    square = Node("square", "multiply", {"a": "h", "b": "h"}, {"y": "y"})
    values = {"x": np.array([[3.0], [-5.0]]), "W": np.array([[2.0]])}
    case = Case("middle", [double, square], values, {"y": np.array([[1.0], [4.0]]), "h": np.ones((2, 1))})
    k, _, back = run(case)
    assert {key: whole(k, back, key).ravel().tolist() for key in ("h", "x")} == {"h": [13.0, -79.0], "x": [26.0, -158.0]}


def test_a_replaced_gradient_is_what_everything_behind_follows_from() -> None:
    case = small_cases.branches()
    k = kernels()
    instead = k.tensor(np.ones((1, 8, 4)))
    k2, _, back = run(case, replace={"h": instead})
    assert whole(k2, back, "b").tolist() == [8.0] * 4
    assert not (whole(k2, back, "h") == 1).all(), "the computed total itself stays to be seen"


def test_what_is_not_asked_for_is_not_computed() -> None:
    _, _, back = run(small_cases.branches(), asked={"b"})
    assert {"W", "x"}.isdisjoint(back.whole) and "b" in back.whole


def test_behind_an_unknown_op_nothing_is_guessed() -> None:
    """Its inputs have unknown gradients, unless another way leads to them: then the total is still unknown."""
    case = small_cases.branches()
    case.graph[1] = Node("left", "my.own", {"x": "h"}, {"y": "l"})
    k, forward, back = run(case)
    assert "l" not in forward.values and "y" not in forward.values
    assert {"h", "W", "b", "x"}.isdisjoint(back.whole)
    case.values["l"] = np.zeros((8, 4))  # its value recorded: then forward goes on, and its own gradient is known
    k, forward, back = run(case)
    assert "y" in forward.values
    np.testing.assert_array_equal(whole(k, back, "l"), case.upstream["y"])
    assert {"h", "W", "b", "x"}.isdisjoint(back.whole)
    assert "h@right" in back.parts


def test_a_missing_value_leaves_out_what_depends_on_it() -> None:
    case = small_cases.branches()
    del case.values["b"]
    _, forward, back = run(case)
    assert "h" not in forward.values
    assert set(back.whole) == {"y"}, "its upstream is all that is known"


def test_a_tensor_that_nothing_flows_to_has_gradient_zero() -> None:
    """An output without upstream contributes nothing."""
    case = small_cases.branches()
    case.values["c"] = np.ones(3)
    case.graph.append(Node("aside", "tanh", {"x": "c"}, {"y": "unused"}))
    k, _, back = run(case)
    assert whole(k, back, "c").tolist() == [0.0, 0.0, 0.0]


def test_without_an_upstream_nothing_is_known() -> None:
    case = small_cases.branches()
    case.upstream = {}
    assert run(case)[2].whole == {}


@pytest.mark.parametrize("rows", [2, 5])
def test_every_row_of_a_batch_has_the_bits_of_a_single_one(rows: int) -> None:
    case = small_cases.branches()
    k, _, one = run(case)
    many, _, back = run(case, rows=rows)
    for key in (*one.whole, *one.parts):
        tensor = back.get(key)
        assert tensor is not None
        for row in many.values(tensor):
            np.testing.assert_array_equal(row, whole(k, one, key), err_msg=key)


def test_integers_are_those_that_an_op_reads_as_such() -> None:
    nodes = [
        Node("look", "embedding", {"weight": "T", "index": "ids"}, {"y": "e"}),
        Node("out", "linear", {"x": "e", "weight": "T"}, {"y": "z"}),
    ]
    assert execute.integer_names(Case("tied", nodes)) == {"ids"}


def test_attributes_are_completed_by_defaults_and_overruled_by_hypotheses() -> None:
    node = Node("bn", "batchnorm", {"x": "x"}, {"y": "y"}, {"epsilon": 0.5})
    assert execute.node_attributes(node) == {"epsilon": 0.5, "training": True}
    assert execute.node_attributes(node, {"training": False})["training"] is False
