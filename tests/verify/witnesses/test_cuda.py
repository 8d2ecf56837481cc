"""Our own kernels as a witness: exact where the arithmetic is, at either dtype."""

from __future__ import annotations

import numpy as np
import pytest

from gradjury.verify.case import Case, Node
from gradjury.verify.witnesses import cuda
from gradjury.verify.witnesses.base import WitnessFailure


def case() -> Case:
    """h = x·wᵀ; y = h + relu(h): integers throughout."""
    return Case(
        "residual",
        [
            Node("fc", "linear", {"x": "x", "weight": "w"}, {"y": "h"}),
            Node("act", "relu", {"x": "h"}, {"y": "r"}),
            Node("sum", "add", {"a": "h", "b": "r"}, {"y": "y"}),
        ],
        {"x": np.array([[1.0, 2.0]]), "w": np.array([[3.0, -1.0], [-2.0, 0.0]])},
        {"y": np.array([[1.0, 2.0]])},
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_parts_and_forward(dtype: str) -> None:
    said = cuda.evidence(case(), dtype)
    expected = {
        "y": [[1, 2]],
        "r": [[1, 2]],
        "h": [[2, 2]],
        "h@act": [[1, 0]],
        "h@sum": [[1, 2]],
        "w": [[2, 4], [2, 4]],
        "x": [[2, -2]],
    }
    assert {key: array.tolist() for key, array in said.gradients.items()} == expected
    assert {key: array.tolist() for key, array in said.forward.items()} == {
        "h": [[1, -2]],
        "r": [[1, 0]],
        "y": [[2, -2]],
    }
    assert {array.dtype for array in said.gradients.values()} == {np.dtype(dtype)}
    assert said.identity.framework == "gradjury" and said.identity.backends == ["gradjury"]


def test_other_dtypes_and_unknown_ops_are_failures() -> None:
    with pytest.raises(WitnessFailure, match="float64 or float32, not at bfloat16"):
        cuda.evidence(case(), "bfloat16")
    opaque = case()
    opaque.graph.append(Node("g", "their.gelu", {"i0": "y"}, {"o0": "z"}))
    with pytest.raises(WitnessFailure, match=r"node g: our kernels have no op their.gelu"):
        cuda.evidence(opaque, "float32")
