"""gru and rnn over time: steps of their own ops in exact arithmetic, with sequences of different lengths."""

from __future__ import annotations

from typing import Any

import exact
import numpy as np
import pytest
from problems import PLAIN, batch_is_indifferent, directional_gap, float32_values, kernels, run, worst_excess

from gradjury.verify import ops
from gradjury.verify.ops.base import OpError

DEFINITIONS: list[tuple[str, dict[str, str]]] = [
    *(
        ("gru", {"reset": reset, "update": update})
        for reset in ("after", "before")
        for update in ("keeps-previous", "keeps-candidate")
    ),
    ("rnn", {"activation": "tanh"}),
    ("rnn", {"activation": "relu"}),
]
each_definition = pytest.mark.parametrize(
    ("name", "attributes"), DEFINITIONS, ids=lambda v: v if isinstance(v, str) else "-".join(v.values())
)
LENGTHS = np.array([3, 0, 2])


def problem(
    name: str, steps: int = 3, batch: int = 3, seed: int = 0
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    gates, features, hidden = (3 if name == "gru" else 1), 2, 3
    inputs = {
        "x": float32_values(rng, steps, batch, features),
        "h0": float32_values(rng, batch, hidden),
        "weight_ih": float32_values(rng, gates * hidden, features),
        "weight_hh": float32_values(rng, gates * hidden, hidden),
        "bias_ih": float32_values(rng, gates * hidden),
        "bias_hh": float32_values(rng, gates * hidden),
    }
    return inputs, {"y": float32_values(rng, steps, batch, hidden), "h_n": float32_values(rng, batch, hidden)}


def step(attributes: dict[str, str], x: Any, h: Any, weight_ih: Any, weight_hh: Any, bias_ih: Any, bias_hh: Any) -> Any:
    gx = x @ weight_ih.T + bias_ih
    if "activation" in attributes:
        return (exact.tanh if attributes["activation"] == "tanh" else exact.relu)(gx + h @ weight_hh.T + bias_hh)
    hidden = h.shape[-1]
    gh = h @ weight_hh[: 2 * hidden].T + bias_hh[: 2 * hidden]
    gates = exact.sigmoid(gx[:, : 2 * hidden] + gh)
    r, z = gates[:, :hidden], gates[:, hidden:]
    last, bias = weight_hh[2 * hidden :].T, bias_hh[2 * hidden :]
    n = exact.tanh(
        gx[:, 2 * hidden :] + (r * (h @ last + bias) if attributes["reset"] == "after" else (r * h) @ last + bias)
    )
    return z * h + (1 - z) * n if attributes["update"] == "keeps-previous" else (1 - z) * h + z * n


def formula(attributes: dict[str, str], x: Any, h0: Any = None, lengths: Any = None, **weights: Any) -> Any:
    """Every sequence by itself, as far as it goes."""
    steps, batch, _ = x.shape
    hidden = weights["weight_hh"].shape[1]
    y = exact.variables(np.zeros((steps, batch, hidden)))
    final = exact.variables(np.zeros((batch, hidden)))
    for i in range(batch):
        h = exact.variables(np.zeros((1, hidden))) if h0 is None else h0.reshape(batch, hidden)[i : i + 1]
        for t in range(steps if lengths is None else lengths[i]):
            h = step(attributes, x[t, i : i + 1], h, **weights)
            y[t, i] = h[0]
        final[i] = h[0]
    return {"y": y, "h_n": final if h0 is None else final.reshape(h0.shape)}


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
@each_definition
def test_exact(name: str, attributes: dict[str, str], lengths: np.ndarray | None, scalar: str) -> None:
    inputs, upstream = problem(name)
    given = inputs if lengths is None else inputs | {"lengths": lengths}
    assert worst_excess(ops.all_ops()[name], formula, given, attributes, upstream, scalar) <= 1


@pytest.mark.parametrize("name", ["gru", "rnn"])
def test_initial_state(name: str) -> None:
    """Absent, it is zero; with an axis of length one it keeps it."""
    op, (inputs, upstream) = ops.all_ops()[name], problem(name)
    absent = {n: a for n, a in inputs.items() if n != "h0"}
    attributes = op.complete({})
    assert worst_excess(op, formula, absent, attributes, upstream, "float64") <= 1
    shaped = inputs | {"h0": inputs["h0"][None]}
    assert worst_excess(op, formula, shaped, attributes, upstream | {"h_n": upstream["h_n"][None]}, "float64") <= 1


@pytest.mark.parametrize("name", ["gru", "rnn"])
@pytest.mark.parametrize("only", ["y", "h_n"])
def test_upstream_of_one_output(name: str, only: str) -> None:
    op, (inputs, upstream) = ops.all_ops()[name], problem(name)
    assert worst_excess(op, formula, inputs, op.complete({}), {only: upstream[only]}, "float64") <= 1


@pytest.mark.parametrize("name", ["gru", "rnn"])
def test_no_steps(name: str) -> None:
    op, (inputs, upstream) = ops.all_ops()[name], problem(name, steps=0)
    found = run(op, inputs, op.complete({}), upstream, kernels("float64"))
    assert found.outputs["y"].shape == (0, 3, 3)
    assert np.array_equal(found.outputs["h_n"].data[0], inputs["h0"])
    assert np.array_equal(found.gradients["h0"].data[0], upstream["h_n"])
    assert not found.gradients["weight_hh"].data.any()


@pytest.mark.parametrize("scalar", ["float32", "float64", "double-double"])
@each_definition
def test_padding_is_never_read(name: str, attributes: dict[str, str], scalar: str) -> None:
    """Whatever stands after a sequence's end, NaN included, and whatever flows into its outputs there."""
    op, (inputs, upstream) = ops.all_ops()[name], problem(name)
    inputs["lengths"] = LENGTHS
    after = np.arange(3)[:, None] >= LENGTHS
    clean = run(op, inputs, attributes, upstream, kernels(scalar))
    spoilt = {"x": inputs["x"].copy(), "y": upstream["y"].copy()}
    for array in spoilt.values():
        array[after] = np.nan
    dirty = run(op, inputs | {"x": spoilt["x"]}, attributes, upstream | {"y": spoilt["y"]}, kernels(scalar))
    for ours, theirs in ((clean.outputs, dirty.outputs), (clean.gradients, dirty.gradients)):
        for key, tensor in ours.items():
            assert np.array_equal(tensor.data, theirs[key].data), key
    assert not clean.outputs["y"].data[0][after].any()
    assert not clean.gradients["x"].data[0][after].any()


@pytest.mark.parametrize("name", ["gru", "rnn"])
def test_lengths_are_each_case_s_own(name: str) -> None:
    op, (inputs, upstream) = ops.all_ops()[name], problem(name)
    k = kernels("float64")
    attributes = op.complete({})
    lengths = np.array([[3, 0, 2], [1, 3, 3]])

    def gradients(cases: list[int]) -> dict[str, Any]:
        x: dict[str, Any] = {slot.name: None for slot in op.inputs} | {"kink.mask": None, "kink.undecided": None}
        x |= {n: k.tensor(np.stack([a] * len(cases))) for n, a in inputs.items()} | {
            "lengths": k.integers(lengths[cases])
        }
        outputs, saved = op.forward(k, x, attributes)
        flow = {n: k.tensor(np.stack([upstream[n]] * len(cases))) for n in outputs}
        return op.backward(k, x, attributes, saved, flow, set(inputs))

    both, first, second = gradients([0, 1]), gradients([0]), gradients([1])
    for key in inputs:
        assert np.array_equal(both[key].data, np.concatenate([first[key].data, second[key].data])), key
        assert not np.array_equal(first[key].data, second[key].data)


@each_definition
def test_derivative_of_the_forward(name: str, attributes: dict[str, str]) -> None:
    inputs, _ = problem(name)
    assert directional_gap(ops.all_ops()[name], inputs | {"lengths": LENGTHS}, attributes) < 2.0**-96


@pytest.mark.parametrize("scalar", ["float32", "double-double", "spread", "noisy", "bound", "lowered"])
@each_definition
def test_batch_is_indifferent(name: str, attributes: dict[str, str], scalar: str) -> None:
    inputs, _ = problem(name)
    assert batch_is_indifferent(ops.all_ops()[name], inputs | {"lengths": LENGTHS}, attributes, scalar)


def test_kink_over_time() -> None:
    """The mask and the doubt of every step are that step's own; doubt about h reaches the later steps."""
    op, (inputs, _) = ops.all_ops()["rnn"], problem("rnn")
    attributes = op.complete({"activation": "relu"})
    assert op.kinked(attributes)
    assert not op.kinked(op.complete({}))
    rng = np.random.default_rng(8)
    mask = rng.integers(0, 2, (3, 3, 3)).astype(np.uint8)
    undecided = np.zeros((3, 3, 3))
    undecided[1, 2, 0] = 0.5
    k = kernels("bound")
    x: dict[str, Any] = {slot.name: None for slot in op.inputs} | {n: k.tensor(a[None]) for n, a in inputs.items()}
    x |= {"kink.mask": k.mask(mask[None]), "kink.undecided": k.doubles(undecided[None])}
    outputs, saved = op.forward(k, x, attributes)
    before = op.kink_input(x, saved)
    assert before is not None
    assert before.shape == (3, 3, 3)
    y = outputs["y"].data[0]
    assert np.array_equal(y[..., 0], np.where(mask, before.data[0, ..., 0], 0))
    assert not y[0, ..., 1].any()
    assert np.array_equal(y[1, ..., 1], undecided[1])
    expected = 0.5 * np.abs(inputs["weight_hh"][:, 0]) * mask[2, 2]
    assert np.array_equal(y[2, 2, :, 1], expected)


@pytest.mark.parametrize(
    ("change", "lengths", "message"),
    [
        ({"x": (4, 5)}, None, "x: expected (time, batch, features), found shape (4, 5)"),
        ({"h0": (3, 4)}, None, "h0: expected shape (4, 3), found (3, 4)"),
        ({"lengths": (3,)}, None, "lengths: expected shape (4,), found (3,)"),
        ({"lengths": (4,)}, np.array([1, 2, 7, 3]), "lengths: expected 0 to 6, found [7]"),
        ({"weight_hh": (3, 9)}, None, "weight_hh: expected (27, 9), found (3, 9)"),
    ],
)
def test_bad_shapes(change: dict[str, tuple[int, ...]], lengths: np.ndarray | None, message: str) -> None:
    op = ops.all_ops()["gru"]
    good = {"x": (6, 4, 5), "h0": (1, 4, 3), "weight_ih": (9, 5), "weight_hh": (9, 3)}
    assert op.shapes(good, {}, op.complete({})) == {"y": (6, 4, 3), "h_n": (1, 4, 3)}
    with pytest.raises(OpError) as raised:
        op.shapes(good | change, {"lengths": lengths}, op.complete({}))
    assert str(raised.value) == message
