"""The pointwise GRU kernels by themselves: any launch, and both halves of the reset before the product."""

from __future__ import annotations

import numpy as np
import pytest
from problems import float32_values, kernels

from gradjury.kernels.tensor import Tensor

ROWS, HIDDEN = 5, 7


def inputs(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    states = ("h", "r", "z", "n", "dnext", "dreset", "direct", "recurrent")
    found = {name: float32_values(rng, 1, ROWS, HIDDEN) for name in states}
    for name in ("r", "z"):
        found[name] = rng.uniform(0, 1, found[name].shape)
    return found | {
        "gx": float32_values(rng, 1, ROWS, 3 * HIDDEN),
        "gh": float32_values(rng, 1, ROWS, 3 * HIDDEN),
        "gh_rz": float32_values(rng, 1, ROWS, 2 * HIDDEN),
    }


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def launch(
    kernel: str, candidate: int | None, given: list[str], widths: dict[str, int], launch_shape: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Runs a kernel on the named inputs into results of so many gates each; float64."""
    k = kernels("float64")
    values = inputs()
    results: dict[str, Tensor] = {name: k.empty(1, (ROWS, gates * HIDDEN)) for name, gates in widths.items()}
    numbers = (ROWS, HIDDEN) if candidate is None else (ROWS, HIDDEN, candidate)
    blocks, threads = launch_shape
    k.launch(kernel, (blocks, 1, 1), threads, *numbers, *(k.tensor(values[name]) for name in given), *results.values())
    return {name: tensor.data[0] for name, tensor in results.items()}


def assert_equal(found: dict[str, np.ndarray], true: dict[str, np.ndarray]) -> None:
    """Within 64 units in the last place of the largest value: a formula, not its rounding, is tested here."""
    for name, array in true.items():
        assert np.max(np.abs(found[name] - array)) <= 64 * 2.0**-53 * (1 + np.max(np.abs(array))), name


LAUNCHES = [(1, 1), (3, 4), (1, 32)]


@pytest.mark.parametrize("shape", LAUNCHES)
@pytest.mark.parametrize("candidate", [0, 1])
def test_forward(candidate: int, shape: tuple[int, int]) -> None:
    a = {name: array[0].astype(np.longdouble) for name, array in inputs().items()}
    gx, gh = np.split(a["gx"], 3, axis=1), np.split(a["gh"], 3, axis=1)
    r, z = sigmoid(gx[0] + gh[0]), sigmoid(gx[1] + gh[1])
    n = np.tanh(gx[2] + r * gh[2])
    following = (1 - z) * a["h"] + z * n if candidate else z * a["h"] + (1 - z) * n
    found = launch("gru_forward", candidate, ["gx", "gh", "h"], {"r": 1, "z": 1, "n": 1, "next": 1}, shape)
    assert_equal(found, {"r": r, "z": z, "n": n, "next": following})


@pytest.mark.parametrize("shape", LAUNCHES)
@pytest.mark.parametrize("candidate", [0, 1])
def test_reset_before(candidate: int, shape: tuple[int, int]) -> None:
    a = {name: array[0].astype(np.longdouble) for name, array in inputs().items()}
    gx, gh = np.split(a["gx"], 3, axis=1), np.split(a["gh_rz"], 2, axis=1)
    r, z = sigmoid(gx[0] + gh[0]), sigmoid(gx[1] + gh[1])
    found = launch("gru_gates", None, ["gx", "gh_rz", "h"], {"r": 1, "z": 1, "reset": 1}, shape)
    assert_equal(found, {"r": r, "z": z, "reset": r * a["h"]})
    n = np.tanh(gx[2] + a["recurrent"])
    following = (1 - a["z"]) * a["h"] + a["z"] * n if candidate else a["z"] * a["h"] + (1 - a["z"]) * n
    found = launch("gru_candidate", candidate, ["gx", "recurrent", "z", "h"], {"n": 1, "next": 1}, shape)
    assert_equal(found, {"n": n, "next": following})


@pytest.mark.parametrize("shape", LAUNCHES)
@pytest.mark.parametrize("candidate", [0, 1])
def test_backward(candidate: int, shape: tuple[int, int]) -> None:
    a = {name: array[0].astype(np.longdouble) for name, array in inputs().items()}
    r, z, n, h, flow, gh_n = a["r"], a["z"], a["n"], a["h"], a["dnext"], a["gh"][:, 2 * HIDDEN :]
    to_n, to_h, of_z = (z, 1 - z, n - h) if candidate else (1 - z, z, h - n)
    d_n = flow * to_n * (1 - n * n)
    d_z, d_r = flow * of_z * z * (1 - z), d_n * gh_n * r * (1 - r)
    found = launch("gru_backward", candidate, ["r", "z", "n", "gh", "h", "dnext"], {"dgx": 3, "dgh": 3, "dh": 1}, shape)
    assert_equal(found, {"dgx": np.hstack([d_r, d_z, d_n]), "dgh": np.hstack([d_r, d_z, d_n * r]), "dh": flow * to_h})
    found = launch(
        "gru_candidate_backward", candidate, ["z", "n", "h", "dnext"], {"dgates": 3, "dcandidate": 1, "dh": 1}, shape
    )
    assert_equal({"dgates": found["dgates"][:, HIDDEN:]}, {"dgates": np.hstack([d_z, d_n])})
    assert np.isnan(found["dgates"][:, :HIDDEN]).all()  # the second half's to write
    assert_equal(found, {"dcandidate": d_n, "dh": flow * to_h})


@pytest.mark.parametrize("shape", LAUNCHES)
def test_second_half_of_the_backward(shape: tuple[int, int]) -> None:
    """It writes the reset gate's columns, copies the update gate's beside them, and leaves the candidate's."""
    k, values = kernels("float64"), inputs()
    a = {name: array[0].astype(np.longdouble) for name, array in values.items()}
    dgates = k.tensor(values["gx"])
    before = dgates.data[0].copy()
    gates_rz, dh = k.empty(1, (ROWS, 2 * HIDDEN)), k.empty(1, (ROWS, HIDDEN))
    given = [k.tensor(values[name]) for name in ("r", "h", "dreset", "direct")]
    blocks, threads = shape
    k.launch("gru_reset_backward", (blocks, 1, 1), threads, ROWS, HIDDEN, *given, dgates, gates_rz, dh)
    d_r = a["dreset"] * a["h"] * a["r"] * (1 - a["r"])
    update = before[:, HIDDEN : 2 * HIDDEN]
    assert np.array_equal(dgates.data[0][:, HIDDEN:], before[:, HIDDEN:])
    assert_equal(
        {"rz": gates_rz.data[0], "dh": dh.data[0]},
        {"rz": np.hstack([d_r, update]), "dh": a["direct"] + a["dreset"] * a["r"]},
    )
    assert_equal({"r": dgates.data[0][:, :HIDDEN]}, {"r": d_r})
