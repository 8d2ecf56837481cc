"""The variance that `spread` carries through batchnorm, term by term as docs/numerics.md states it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems import float32_values, kernels, run

from gradjury.verify import ops

U, KAPPA, FUNCTION = 2.0**-24, 0.125, 16.0
EPSILON = 2.0**-10


def accumulation(z: np.ndarray, e: float) -> np.ndarray:
    """Accumulation variance of column sums: K2·m/2 + S2 + (κ·S1/6)² + 2m·e; κ = 1 where neighbours are equal."""
    m = len(z)
    partial = np.cumsum(z, axis=0)
    equal = np.mean((z[1:] == z[:-1]) & (z[1:] != 0), axis=0) if m > 1 else np.zeros(z.shape[1])
    kappa = np.where(equal > 0.2, 1.0, KAPPA)
    own = 0.5 * m * (z**2).sum(0) + (partial**2).sum(0) + (kappa * np.abs(partial).sum(0) / 6) ** 2
    return np.asarray((own if m > 1 else 0 * own) + 2 * m * e)


def stated(a: dict[str, np.ndarray], one_pass: bool, raw: bool, eta: float) -> dict[str, np.ndarray]:
    """V of y, dx, dweight, dbias and of the three common modes for exact inputs; x and dy are (N, channels)."""
    x, dy, gamma, beta = a["x"], a["dy"], a["weight"], a["bias"]
    n, e = len(x), (eta / U) ** 2

    def vsum(z: np.ndarray) -> np.ndarray:
        return accumulation(z, e)

    mu = x.mean(0)
    d = x - mu
    v = (d * d).mean(0)
    w = v + EPSILON
    r = w**-0.5
    hat, s = d * r, gamma * r
    v_mu = vsum(x) / n**2 + mu**2
    v_v = ((5 * d**4).sum(0) + vsum(d * d)) / n**2 + v**2 + (9 * U * v_mu) ** 2 + v * mu**2
    if one_pass:
        v_v += (vsum(x * x) + (x**4).sum(0)) / n**2 + 4 * mu**2 * v_mu + 2 * mu**4 + (x * x).mean(0) ** 2
    v_rho = 0.25 * (v_v + w**2) / w**2 + FUNCTION
    v_hat = 3 * hat**2 + e * (1 + r**2)
    y = gamma * hat + beta
    v_y = gamma**2 * (v_hat + r**2 * v_mu + hat**2 * v_rho) + (gamma * hat) ** 2 + y**2 + s**2 * (x**2 + mu**2)
    d_beta, d_gamma = dy.sum(0), (dy * hat).sum(0)
    m1, m2 = d_beta / n, d_gamma / n
    t = dy - m1 - hat * m2
    v_beta = vsum(dy) + n * e
    v_gamma = (dy**2 * v_hat + (dy * hat) ** 2).sum(0) + vsum(dy * hat) + n * e * (2 + r**2)
    if raw:
        v_gamma += r**2 * (vsum(dy * x) + ((dy * x) ** 2).sum(0) + mu**2 * (vsum(dy) + 2 * d_beta**2))
    v_gamma += r**2 * v_mu * d_beta**2 + v_rho * d_gamma**2
    v_dx = s**2 * (
        hat**2 * v_gamma / n**2
        + v_hat * m2**2
        + 4 * v_rho * (hat * m2) ** 2
        + dy**2
        + 2 * m1**2
        + 3 * (hat * m2) ** 2
        + 3 * t**2
    )
    v_dx += (v_rho + 4) * (s * t) ** 2 + e * (3 + s**2 * (4 + 2 * hat**2 + d**2) + x**2 + mu**2)
    if raw:
        v_dx += 2 * (s * m2 * r) ** 2 * (x**2 + mu**2)
    common = s**2 * (v_beta / n**2 + r**2 * v_mu * m2**2) + s**2 * e / n + (s * 9 * U * r**2 * v_mu * m1) ** 2
    return {
        "y": v_y + e * (2 + gamma**2),
        "x": v_dx,
        "weight": v_gamma,
        "bias": v_beta,
        "common": common,
        "along x̂": s**2 * (v_gamma / n**2 + 4 * v_rho * m2**2),
        "along dx": v_rho,
    }


def problem(kind: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(6)
    n = 2 if kind == "two rows" else 7
    a = {"x": float32_values(rng, n, 3), "dy": float32_values(rng, n, 3)}
    a |= {"weight": float32_values(rng, 3), "bias": float32_values(rng, 3)}
    if kind == "far":
        a["x"] = (a["x"] + 300).astype(np.float32).astype(np.float64)
    if kind == "far and nearly constant":
        a["x"] = 1e4 + np.round(a["x"]) * 2.0**-8
    if kind == "repeated":
        a["x"][1:4], a["dy"][1:4] = 0.5, -0.25
    return a


@pytest.mark.parametrize("hypothesis", ["", "hypothesis.one_pass", "hypothesis.raw_moments"])
@pytest.mark.parametrize("kind", ["plain", "two rows", "far", "far and nearly constant", "repeated"])
@pytest.mark.parametrize("eta", [2.0**-149, 2.0**-30])
def test_every_term(kind: str, hypothesis: str, eta: float) -> None:
    """A large η makes the underflow terms visible."""
    a = problem(kind)
    attributes: dict[str, Any] = {"epsilon": EPSILON} | ({hypothesis: True} if hypothesis else {})
    inputs = {name: a[name] for name in ("x", "weight", "bias")}
    found = run(ops.all_ops()["batchnorm"], inputs, attributes, {"y": a["dy"]}, kernels("spread", eta=eta))
    true = stated(a, "one_pass" in hypothesis, "raw_moments" in hypothesis, eta)
    dx = found.gradients["x"]
    have = {"y": found.outputs["y"].data[0, ..., 1]} | {n: g.data[0, ..., 1] for n, g in found.gradients.items()}
    have |= dict(zip(("common", "along x̂", "along dx"), (mode.variance[0] for mode in dx.modes), strict=True))
    for name, variance in true.items():
        assert np.max(np.abs(have[name] / variance - 1)) < 1e-9, name
    normal = (a["x"] - a["x"].mean(0)) / np.sqrt(a["x"].var(0) + EPSILON)
    assert np.max(np.abs(dx.modes[1].direction[0] - normal)) < 1e-9
    assert np.array_equal(dx.modes[2].direction, dx.data[..., 0])
