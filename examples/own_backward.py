"""Judges a hand-written backward of a linear layer: `gradjury check examples/own_backward.py`."""

import numpy as np

import gradjury


def my_backward(inputs, upstream, dtype):
    x, weight, dy = inputs["x"], inputs["weight"], upstream["y"]
    return {"x": dy @ weight, "weight": x.T @ dy, "bias": dy.sum(axis=0)}


rng = np.random.default_rng(0)
inputs = {"x": rng.standard_normal((8, 5)), "weight": rng.standard_normal((5, 5)), "bias": rng.standard_normal(5)}
gradjury.judge("linear", inputs=inputs, upstream=rng.standard_normal((8, 5)), witnesses=["torch", my_backward])
