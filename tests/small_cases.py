"""Small cases for tests of the court, and what honest arithmetic says about them."""

from __future__ import annotations

import numpy as np

from gradjury.kernels.engine import engine
from gradjury.verify import graph
from gradjury.verify.case import Case, Node, Testimony, Witness
from gradjury.verify.court import Court, Statement
from gradjury.verify.measure import Measurement
from gradjury.verify.witnesses import evidence, parse

Gradients = dict[str, np.ndarray]


def float32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return np.asarray(rng.standard_normal(shape), np.float32)


def linear(rows: int = 24, inside: int = 17, out: int = 9, seed: int = 0) -> Case:
    """y = x·Wᵀ + b."""
    rng = np.random.default_rng(seed)
    node = Node("fc", "linear", {"x": "x", "weight": "W", "bias": "b"}, {"y": "y"})
    values = {"x": float32(rng, rows, inside), "W": float32(rng, out, inside), "b": float32(rng, out)}
    return Case("linear", [node], values, {"y": float32(rng, rows, out)})


def branches(seed: int = 0) -> Case:
    """h = x·Wᵀ + b goes two ways, tanh and sigmoid, whose sum is y."""
    case = linear(8, 5, 4, seed)
    case.graph = [
        Node("fc", "linear", {"x": "x", "weight": "W", "bias": "b"}, {"y": "h"}),
        Node("left", "tanh", {"x": "h"}, {"y": "l"}),
        Node("right", "sigmoid", {"x": "h"}, {"y": "r"}),
        Node("join", "add", {"a": "l", "b": "r"}, {"y": "y"}),
    ]
    return case


def honest(case: Case, dtype: str = "float32") -> Gradients:
    """What our own kernels say at `dtype`."""
    return {key: array.copy() for key, array in evidence(case, parse("cuda"), dtype).gradients.items()}


def say(case: Case, name: str, gradients: Gradients, dtype: str = "float32", forward: Gradients | None = None) -> Case:
    """Adds a testimony, and its witness where the case has none of that name."""
    case.witnesses.setdefault(name, Witness(name))
    case.testimonies[name, dtype] = Testimony(name, dtype, gradients, forward or {})
    return case


def court(case: Case) -> Court:
    shapes = graph.check(case)
    return Court(graph.complete(case, shapes), engine(), shapes)


def measured(judges: Court, statement: Statement) -> dict[str, Measurement]:
    """Every gradient of a statement that has a reference."""
    found = {key: judges.measure(statement, key) for key in statement.gradients}
    return {key: m for key, m in found.items() if m is not None}
