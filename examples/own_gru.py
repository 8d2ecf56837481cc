"""A GRU step by hand, with the update gate the other way round: `gradjury check examples/own_gru.py`."""

import numpy as np

import gradjury


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def my_gru(inputs, upstream, dtype):
    """h' = (1 - z)*h + z*n, gates in the order reset, update, candidate; and its backward."""
    x, h, w, u = (inputs[k] for k in ("x", "h", "weight_ih", "weight_hh"))
    gx, gh = x @ w.T + inputs["bias_ih"], h @ u.T + inputs["bias_hh"]
    (xr, xz, xn), (hr, hz, hn) = np.split(gx, 3, axis=1), np.split(gh, 3, axis=1)
    r, z = sigmoid(xr + hr), sigmoid(xz + hz)
    n = np.tanh(xn + r * hn)
    dh = upstream["h_next"]
    dn = dh * z * (1 - n * n)
    dz = dh * (n - h) * z * (1 - z)
    dr = dn * hn * r * (1 - r)
    dgx, dgh = np.concatenate([dr, dz, dn], 1), np.concatenate([dr, dz, dn * r], 1)
    return {
        "x": dgx @ w, "h": dgh @ u + dh * (1 - z), "weight_ih": dgx.T @ x, "weight_hh": dgh.T @ h,
        "bias_ih": dgx.sum(0), "bias_hh": dgh.sum(0),
    }


rng = np.random.default_rng(0)
shapes = {"x": (32, 64), "h": (32, 128), "weight_ih": (384, 64), "weight_hh": (384, 128), "bias_ih": (384,), "bias_hh": (384,)}
inputs = {name: rng.uniform(-0.1, 0.1, shape) for name, shape in shapes.items()}
upstream = rng.standard_normal((32, 128))
gradjury.judge("gru_step", inputs=inputs, upstream=upstream, witnesses=["torch", my_gru], dtypes=["float64"])
