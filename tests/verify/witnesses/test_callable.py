"""A Python function as witness: it gets copies at its dtype, and gives arrays of any framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradjury.verify.case import Case, Node
from gradjury.verify.witnesses import callable as functions
from gradjury.verify.witnesses import recorded
from gradjury.verify.witnesses.base import WitnessFailure

Arrays = dict[str, np.ndarray]


def case() -> Case:
    node = Node("m", "multiply", {"a": "x", "b": "x"}, {"y": "y"})
    return Case("square", [node], {"x": np.array([1 + 2.0**-30, 2.0])}, {"y": np.array([1.0, 3.0])})


def square(inputs: Arrays, upstream: Arrays, dtype: str) -> dict[str, Any]:
    return {"x": 2 * inputs["x"] * upstream["y"], "y": upstream["y"]}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_values_arrive_rounded_to_the_dtype(dtype: str) -> None:
    said = functions.evidence(case(), square, dtype, "yours")
    first = 2 + 2.0**-29 if dtype == "float64" else 2.0
    assert said.gradients["x"].tolist() == [first, 12.0]
    assert said.gradients["x"].dtype == ("float64" if dtype == "float64" else "float32")
    assert said.notes == [] and said.absent == []
    assert said.identity.framework == "callable"


def test_inputs_are_copies_and_a_change_is_noted() -> None:
    def careless(inputs: Arrays, upstream: Arrays, dtype: str) -> dict[str, Any]:
        upstream["y"] *= 0
        inputs["x"] += 1
        return {"x": None}

    asked = case()
    said = functions.evidence(asked, careless, "float64", "careless")
    assert asked.upstream["y"].tolist() == [1.0, 3.0] and asked.values["x"][1] == 2.0
    assert said.absent == ["x"]
    assert "careless changed its input x in place" in said.notes
    assert any("harness.upstream-mutated" in note and "y" in note for note in said.notes)


@pytest.mark.parametrize(
    "function",
    [lambda i, u, d: 1 / 0, lambda i, u, d: None, lambda i, u, d: {"x": "text"}, lambda i, u, d: {"x": [[1], [2, 3]]}],
)
def test_whatever_it_raises_is_its_failure(function: Any) -> None:
    with pytest.raises(WitnessFailure) as caught:
        functions.evidence(case(), function, "float32", "yours")
    assert caught.value.kind == "error" and "\n" not in caught.value.message


def test_names() -> None:
    assert functions.name_of(square) == "square"
    assert functions.name_of(lambda: 0) == "yours"


@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_arrays_of_frameworks(framework: str) -> None:
    module = pytest.importorskip(framework)
    make = module.tensor if framework == "torch" else module.to_tensor
    tensor = make([1.5, -2.0])
    tensor.stop_gradient = False
    array, dtype = recorded.as_array(tensor * 2)
    assert array.tolist() == [3.0, -4.0] and dtype == "float32"
    short = tensor.to(module.bfloat16) if framework == "torch" else tensor.astype("bfloat16")
    array, dtype = recorded.as_array(short)
    assert array.tolist() == [1.5, -2.0] and array.dtype == np.float32 and dtype == "bfloat16"


def test_testimony_has_the_narrowest_dtype() -> None:
    said, absent = recorded.testimony("yours", {"a": np.ones(2), "b": np.ones(2, np.float32), "c": None, "d": [1, 2]})
    assert said.dtype == "float32" and absent == ["c"] and set(said.gradients) == {"a", "b", "d"}
    assert recorded.testimony("yours", {"d": [1, 2]})[0].dtype == "float64"
    assert recorded.testimony("yours", {"a": np.ones(2)}, "float16")[0].dtype == "float16"
    with pytest.raises(TypeError, match="yours, gradient of a: expected an array of numbers"):
        recorded.testimony("yours", {"a": "text"})
