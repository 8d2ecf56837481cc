"""One GRU step in its four definitions against exact arithmetic."""

from __future__ import annotations

from typing import Any

import exact
import numpy as np
import pytest
from problems import (
    PLAIN,
    U,
    batch_is_indifferent,
    directional_gap,
    exact_numbers,
    excess,
    float32_values,
    kernels,
    run,
    worst_excess,
)

from gradjury.kernels.modes import total_variance
from gradjury.kernels.tensor import Tensor
from gradjury.verify import ops
from gradjury.verify.ops.base import OpError
from gradjury.verify.ops.gru_step import Gates, step_backward

OP = ops.all_ops()["gru_step"]
DEFINITIONS = [
    {"reset": reset, "update": update}
    for reset in ("after", "before")
    for update in ("keeps-previous", "keeps-candidate")
]
SHAPES = [(3, 4, 5), (1, 1, 1), (2, 7, 1), (5, 1, 17)]  # batch, features, hidden


def problem(shape: tuple[int, int, int], seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    batch, features, hidden = shape
    shapes = {
        "x": (batch, features),
        "h": (batch, hidden),
        "weight_ih": (3 * hidden, features),
        "weight_hh": (3 * hidden, hidden),
        "bias_ih": (3 * hidden,),
        "bias_hh": (3 * hidden,),
    }
    return {name: float32_values(rng, *s) for name, s in shapes.items()}, {"h_next": float32_values(rng, batch, hidden)}


def step(
    attributes: dict[str, Any], x: Any, h: Any, weight_ih: Any, weight_hh: Any, bias_ih: Any = 0, bias_hh: Any = 0
) -> Any:
    """h' as DESIGN section 3 defines it."""
    hidden = h.shape[-1]
    (w_r, w_z, w_n), (u_r, u_z, u_n) = (np.split(w, 3) for w in (weight_ih, weight_hh))
    b = np.split(bias_ih if np.ndim(bias_ih) else np.zeros(3 * hidden), 3)
    c = np.split(bias_hh if np.ndim(bias_hh) else np.zeros(3 * hidden), 3)
    r = exact.sigmoid(x @ w_r.T + b[0] + h @ u_r.T + c[0])
    z = exact.sigmoid(x @ w_z.T + b[1] + h @ u_z.T + c[1])
    if attributes["reset"] == "after":
        n = exact.tanh(x @ w_n.T + b[2] + r * (h @ u_n.T + c[2]))
    else:
        n = exact.tanh(x @ w_n.T + b[2] + (r * h) @ u_n.T + c[2])
    return z * h + (1 - z) * n if attributes["update"] == "keeps-previous" else (1 - z) * h + z * n


def formula(attributes: dict[str, Any], **inputs: Any) -> Any:
    return {"h_next": step(attributes, **inputs)}


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("attributes", DEFINITIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_exact(shape: tuple[int, int, int], attributes: dict[str, str], scalar: str) -> None:
    inputs, upstream = problem(shape)
    assert worst_excess(OP, formula, inputs, attributes, upstream, scalar) <= 1


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("attributes", DEFINITIONS)
@pytest.mark.parametrize("absent", [("bias_ih",), ("bias_hh",), ("bias_ih", "bias_hh")])
def test_without_biases(absent: tuple[str, ...], attributes: dict[str, str], scalar: str) -> None:
    inputs, upstream = problem((2, 3, 4))
    given = {name: a for name, a in inputs.items() if name not in absent}
    assert worst_excess(OP, formula, given, attributes, upstream, scalar) <= 1


@pytest.mark.parametrize("scalar", ["float32", "float64"])
def test_saturated_gates(scalar: str) -> None:
    inputs, upstream = problem((3, 2, 4))
    inputs["x"] *= 40
    for attributes in DEFINITIONS:
        assert worst_excess(OP, formula, inputs, attributes, upstream, scalar) <= 1


@pytest.mark.parametrize("attributes", DEFINITIONS)
def test_derivative_of_the_forward(attributes: dict[str, str]) -> None:
    inputs, _ = problem((3, 4, 5))
    assert directional_gap(OP, inputs, attributes) < 2.0**-98


@pytest.mark.parametrize("scalar", ["float32", "float64", "double-double", "spread", "noisy", "bound", "lowered"])
@pytest.mark.parametrize("attributes", DEFINITIONS)
def test_batch_is_indifferent(attributes: dict[str, str], scalar: str) -> None:
    inputs, _ = problem((3, 4, 17))
    assert batch_is_indifferent(OP, inputs, attributes, scalar)


@pytest.mark.parametrize("attributes", DEFINITIONS)
def test_replicas_stay_under_the_spread(attributes: dict[str, str]) -> None:
    inputs, upstream = problem((3, 4, 5))
    spread = run(OP, inputs, attributes, upstream, kernels("spread"))
    true = run(OP, inputs, attributes, upstream, kernels("float64"))
    noisy = run(OP, inputs, attributes, upstream, kernels("noisy"), cases=400)
    for name, tensor in noisy.gradients.items():
        errors = (tensor.data[..., 0] - true.gradients[name].data) * np.sqrt(3) * 2.0**24
        ratio = np.mean(errors**2, axis=0) / total_variance(spread.gradients[name])[0]
        assert np.max(ratio) < 3, name
        assert 0.2 < np.median(ratio) < 2, name


@pytest.mark.parametrize("scalar", PLAIN)
@pytest.mark.parametrize("update", ["keeps-previous", "keeps-candidate"])
def test_backward_takes_gates_as_given(update: str, scalar: str) -> None:
    """From gates that no forward computed, as a framework's fused kernel keeps them."""
    rng = np.random.default_rng(3)
    batch, hidden = 2, 5
    gates = {
        name: rng.uniform(0.1, 0.9, (batch, hidden)).astype(np.float32).astype(np.float64) for name in ("r", "z", "n")
    }
    h, flow = float32_values(rng, batch, hidden), float32_values(rng, batch, hidden)
    gh, weight = float32_values(rng, batch, 3 * hidden), float32_values(rng, 3 * hidden, hidden)

    def backward(which: str) -> tuple[Tensor, Tensor, Tensor]:
        k = kernels(which) if scalar == "float32" else kernels(which, u=2.0**-53, kappa=1.0, eta=5e-324)
        given = Gates(*(k.tensor(gates[name][None]) for name in ("r", "z", "n")), k.tensor(gh[None]))
        attributes = {"reset": "after", "update": update}
        return step_backward(k, given, k.tensor(h[None]), k.tensor(weight[None]), k.tensor(flow[None]), attributes)

    r, z, n, hn = (exact.values(a) for a in (gates["r"], gates["z"], gates["n"], gh[:, 2 * hidden :]))
    to_n, to_h, of_z = (1 - z, z, h - n) if update == "keeps-previous" else (z, 1 - z, n - h)
    d_n = flow * to_n * (1 - n * n)
    d_r, d_z = d_n * hn * r * (1 - r), flow * of_z * z * (1 - z)
    dgx, dgh = (np.concatenate([d_r, d_z, last], axis=1) for last in (d_n, d_n * r))
    true = (dgx, dgh, flow * to_h + dgh @ weight)
    for found, expected, noise in zip(backward(scalar), true, backward("spread"), strict=True):
        assert excess(exact_numbers(found), expected, total_variance(noise)[0], U[scalar]) <= 1


def test_weights_remember_how_many_terms_they_sum() -> None:
    inputs, upstream = problem((6, 2, 3))
    for attributes in DEFINITIONS:
        found = run(OP, inputs, attributes, upstream, kernels("float64")).gradients
        assert {found[name].length for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")} == {6}


def test_variants_name_the_other_definitions() -> None:
    found = {variant.code: dict(variant.attributes) for variant in OP.variants(OP.complete({}))}
    assert found["gru.update-convention"] == {"update": "keeps-candidate"}
    assert found["gru.reset-placement"] == {"reset": "before"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": (4, 5, 1)}, "x: expected (batch, features), found shape (4, 5, 1)"),
        ({"h": (4, 2)}, "h: expected shape (4, 3), found (4, 2)"),
        ({"h": (1, 4, 3)}, "h: expected shape (4, 3), found (1, 4, 3)"),
        ({"weight_hh": (8, 3)}, "weight_hh: expected (9, 3), found (8, 3)"),
        ({"weight_ih": (5, 9)}, "weight_ih: expected (9, 5), found (5, 9)"),
        ({"bias_hh": (3,)}, "bias_hh: expected shape (9,), found (3,)"),
    ],
)
def test_bad_shapes(change: dict[str, tuple[int, ...]], message: str) -> None:
    good = {"x": (4, 5), "h": (4, 3), "weight_ih": (9, 5), "weight_hh": (9, 3), "bias_ih": (9,), "bias_hh": (9,)}
    assert OP.shapes(good, {}, OP.complete({})) == {"h_next": (4, 3)}
    with pytest.raises(OpError) as raised:
        OP.shapes(good | change, {}, OP.complete({}))
    assert str(raised.value) == message
