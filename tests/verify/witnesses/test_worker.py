"""What a framework's process answers: gradients whole and per consumer, exact where the arithmetic is.

All values are small integers, so every product and sum below is exact at every dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gradjury.verify.case import Case, Node
from gradjury.verify.witnesses import call, evidence, live, parse
from gradjury.verify.witnesses.base import Evidence, WitnessFailure
from gradjury.verify.witnesses.worker import one_line

FRAMEWORKS = ("torch", "paddle")


def diamond() -> Case:
    """h = x·wᵀ + b; a = h·h; c = h·a; y = a + c: h has three uses, one node uses it twice."""
    return Case(
        "diamond",
        [
            Node("last", "add", {"a": "a", "b": "c"}, {"y": "y"}),  # not in topological order
            Node("fc", "linear", {"x": "x", "weight": "w", "bias": "b"}, {"y": "h"}),
            Node("square", "multiply", {"a": "h", "b": "h"}, {"y": "a"}),
            Node("cube", "multiply", {"a": "h", "b": "a"}, {"y": "c"}),
        ],
        {"x": np.array([[1.0, 2.0]]), "w": np.array([[1.0, -1.0], [2.0, 0.0]]), "b": np.array([3.0, 1.0])},
        {"y": np.array([[1.0, 2.0]])},
    )


def ask(framework: str, case: Case, dtype: str) -> Evidence:
    pytest.importorskip(framework)
    return evidence(case, parse(framework), dtype)


@pytest.mark.parametrize(
    ("framework", "dtype"),
    [
        *((f, d) for f in FRAMEWORKS for d in ("float64", "float32")),
        ("torch", "bfloat16"),
    ],  # paddle has no such matmul here
)
def test_gradients_and_parts(framework: str, dtype: str) -> None:
    said = ask(framework, diamond(), dtype)
    h, up = np.array([[2.0, 3.0]]), np.array([[1.0, 2.0]])
    square, cube = 2 * h * (1 + h) * up, h * h * up  # a is used by `last` and by `cube`
    dh = square + cube
    expected = {
        "y": up,
        "c": up,
        "a": (1 + h) * up,
        "a@last": up,
        "a@cube": h * up,
        "h": dh,
        "h@square.a": square / 2,
        "h@square.b": square / 2,
        "h@cube": cube,
        "w": dh.T @ np.array([[1.0, 2.0]]),
        "b": dh[0],
        "x": dh @ np.array([[1.0, -1.0], [2.0, 0.0]]),
    }
    assert set(said.gradients) == set(expected)
    for key, value in expected.items():
        assert np.array_equal(said.gradients[key], value), key
        assert said.gradients[key].dtype == ("float32" if dtype == "bfloat16" else dtype)
    assert np.array_equal(said.forward["c"], h**3)
    assert set(said.forward) == {"h", "a", "c", "y"}
    assert said.absent == []
    assert said.identity.name == framework and said.identity.version and said.identity.device == "cpu"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_wider_values_are_rounded_once(framework: str) -> None:
    """1 + 2^-8 + 2^-30 is above bfloat16's tie, and on it once rounded to float32."""
    x = np.array([1 + 2.0**-8 + 2.0**-30])
    case = Case("once", [Node("n", "multiply", {"a": "x", "b": "one"}, {"y": "y"})], {"x": x, "one": np.ones(1)}, {"y": x})
    said = ask(framework, case, "bfloat16")
    assert said.forward["y"] == 1 + 2.0**-7
    assert said.gradients["one"] == (1 + 2.0**-7) ** 2 - 2.0**-14


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_integers_are_no_numbers_and_masks_get_no_gradient(framework: str) -> None:
    case = Case(
        "lookup",
        [
            Node("e", "embedding", {"weight": "w", "index": "i"}, {"y": "e"}),
            Node("d", "dropout", {"x": "e", "mask": "m"}, {"y": "y"}, {"rate": 0.5}),
        ],
        {
            "w": np.arange(6.0).reshape(3, 2),
            "i": np.array([2, 0, 2]),
            "m": np.array([[1, 0], [1, 1], [1, 1]], np.uint8),
        },
        {"y": np.ones((3, 2))},
    )
    said = ask(framework, case, "float32")
    assert set(said.gradients) == {"w", "e", "y"}
    assert np.array_equal(said.gradients["w"], [[2.0, 2.0], [0.0, 0.0], [4.0, 2.0]])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_no_gradient_reaches(framework: str) -> None:
    case = Case(
        "side",
        [
            Node("used", "add", {"a": "x", "b": "z"}, {"y": "y"}),
            Node("side", "multiply", {"a": "w", "b": "w"}, {"y": "unused"}),
        ],
        {"x": np.ones(2), "z": np.ones(2), "w": np.ones(2)},
        {"y": np.ones(2)},
    )
    said = ask(framework, case, "float64")
    assert set(said.gradients) == {"x", "z", "y"}
    assert said.absent == ["w"]
    assert "unused" in said.forward


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_failure_leaves_the_process_usable(framework: str) -> None:
    case = diamond()
    case.graph.append(Node("g", "their.gelu", {"i0": "y"}, {"o0": "z"}))
    with pytest.raises(WitnessFailure, match=r"node g: op their.gelu is unknown") as caught:
        ask(framework, case, "float32")
    assert caught.value.kind == "error"
    lost = diamond()
    del lost.values["b"]
    with pytest.raises(WitnessFailure, match=r"record value/b"):
        ask(framework, lost, "float32")
    assert "h" in ask(framework, diamond(), "float32").gradients


def test_a_taken_name_gets_another() -> None:
    first, _, _ = call(diamond(), ["cuda", "cuda"], ["float64"])
    assert list(first.witnesses) == ["cuda", "cuda@live"]
    again, identities, failures = call(first, ["cuda"], ["float64"])
    assert list(again.witnesses) == ["cuda", "cuda@live", "cuda@live2"]
    assert list(identities) == ["cuda@live2"] and failures == []
    assert list(first.witnesses) == ["cuda", "cuda@live"]  # the case that was given is left alone


def test_a_failure_that_every_dtype_repeats_is_told_once() -> None:
    testimonies, failures = live(diamond(), [_refuses], ["float32", "float64"])
    assert testimonies == []
    assert failures == [{"witness": "_refuses", "kind": "error", "message": "KeyError: 'no such tensor'"}]


def _refuses(inputs: object, upstream: object, dtype: str) -> dict[str, Sequence[float]]:
    raise KeyError("no such tensor")


def test_one_line() -> None:
    assert one_line(RuntimeError("\n\n  first\nsecond")) == "RuntimeError: first"
    assert one_line(RuntimeError()) == "RuntimeError"


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ignored_targets_leave_the_process_whole(framework: str, reduction: str) -> None:
    """Paddle's own reductions write past their memory here, and the process ends a few cases later."""
    node = Node("n", "nll", {"log_probabilities": "x", "target": "t"}, {"loss": "loss"}, {"reduction": reduction})
    case = Case("ignored", [node], {"x": np.zeros((6, 4)), "t": np.array([0, 3, -100, 1, -100, 2])}, {"loss": np.ones(())})
    for _ in range(40):
        gradient = ask(framework, case, "float64").gradients["x"]
        assert gradient.sum() == (-1.0 if reduction == "mean" else -4.0)
        assert not gradient[2].any() and gradient[1, 3] == gradient.min()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_padding_row_is_read_but_not_learned(framework: str) -> None:
    node = Node("e", "embedding", {"weight": "w", "index": "i"}, {"y": "y"}, {"padding_idx": 1})
    case = Case("padding", [node], {"w": np.arange(6.0).reshape(3, 2), "i": np.array([1, 2])}, {"y": np.ones((2, 2))})
    said = ask(framework, case, "float32")
    assert said.forward["y"].tolist() == [[2, 3], [4, 5]]
    assert said.gradients["w"].tolist() == [[0, 0], [0, 0], [1, 1]]
