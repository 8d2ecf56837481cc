"""Layouts: what PaddlePaddle stores the other way round, and nothing else, is turned."""

from __future__ import annotations

import numpy as np
import pytest

from gradjury.verify.case import Case, Node, Witness
from gradjury.verify.layout import from_canonical, to_canonical

PADDLE = Witness("paddle", "paddle")
GRU = {"x": "x", "h0": "h0", "weight_ih": "U", "weight_hh": "V", "bias_ih": "b", "bias_hh": "c"}


def case() -> Case:
    nodes = [
        Node("fc", "linear", {"x": "x", "weight": "W", "bias": "fc.b"}, {"y": "y"}),
        Node("look", "embedding", {"weight": "T", "index": "ids"}, {"y": "e"}),
        Node("out", "linear", {"x": "e", "weight": "T"}, {"y": "z"}),
        Node("gru", "gru", GRU, {"y": "s", "h_n": "h"}),
    ]
    return Case("layouts", nodes)


@pytest.mark.parametrize("layout", ["canonical", "torch", "paddle"])
@pytest.mark.parametrize("tensor", ["W", "x", "T", "U", "V", "b", "s", "e"])
def test_only_paddles_linear_weight_is_turned(layout: str, tensor: str) -> None:
    array = np.arange(6.0).reshape(2, 3)
    found = to_canonical(case(), Witness("w", layout), tensor, array)
    turned = layout == "paddle" and tensor == "W"
    np.testing.assert_array_equal(found, array.T if turned else array)


def test_a_square_weight_is_turned_too() -> None:
    """Shapes cannot tell, so the declaration must."""
    array = np.arange(9.0).reshape(3, 3)
    np.testing.assert_array_equal(to_canonical(case(), PADDLE, "W", array), array.T)


def test_a_weight_with_an_axis_of_one_is_turned() -> None:
    array = np.arange(6.0).reshape(1, 2, 3)
    assert to_canonical(case(), PADDLE, "W", array).shape == (3, 2)
    column = np.arange(3.0).reshape(1, 3)  # in = 1, out = 3
    assert to_canonical(case(), PADDLE, "W", column).shape == (3, 1)


def test_other_ranks_stay_as_they_are() -> None:
    array = np.zeros((2, 3, 4))
    assert to_canonical(case(), PADDLE, "W", array) is array


@pytest.mark.parametrize(("tensor", "sequence"), [("x", True), ("s", True), ("h0", False), ("h", False), ("U", False)])
def test_time_axis(tensor: str, sequence: bool) -> None:
    array = np.zeros((2, 5, 3))  # batch, time, features
    found = to_canonical(case(), Witness("w", "paddle", time_axis=1), tensor, array)
    assert found.shape == ((5, 2, 3) if sequence else (2, 5, 3))
    assert to_canonical(case(), PADDLE, tensor, array) is array


@pytest.mark.parametrize("tensor", ["W", "x", "s", "U"])
def test_back_and_forth(tensor: str) -> None:
    witness = Witness("w", "paddle", time_axis=1)
    array = np.arange(24.0).reshape((4, 6) if tensor in "WU" else (2, 4, 3))
    there = from_canonical(case(), witness, tensor, array)
    np.testing.assert_array_equal(to_canonical(case(), witness, tensor, there), array)
