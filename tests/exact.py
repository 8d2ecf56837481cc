"""What tests compare with: plain formulas in 60 digits of mpmath, differentiated backwards by a tape of their own.

A formula is written once, forward, over numpy arrays of `Exact`; no backward formula is shared with the kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from mpmath import mp, mpf

mp.dps = 60
_numbers = itertools.count()


class Exact:
    """A number with the derivatives by what it was computed from."""

    __slots__ = ("number", "parents", "value")

    def __init__(self, value: Any, parents: tuple[tuple[Exact, Any], ...] = ()) -> None:
        self.value, self.parents, self.number = mpf(value), parents, next(_numbers)

    def __add__(self, other: Any) -> Exact:
        other = _exact(other)
        return Exact(self.value + other.value, ((self, 1), (other, 1)))

    def __sub__(self, other: Any) -> Exact:
        other = _exact(other)
        return Exact(self.value - other.value, ((self, 1), (other, -1)))

    def __mul__(self, other: Any) -> Exact:
        other = _exact(other)
        return Exact(self.value * other.value, ((self, other.value), (other, self.value)))

    def __truediv__(self, other: Any) -> Exact:
        other = _exact(other)
        y = self.value / other.value
        return Exact(y, ((self, 1 / other.value), (other, -y / other.value)))

    def __rsub__(self, other: Any) -> Exact:
        return _exact(other) - self

    def __neg__(self) -> Exact:
        return Exact(-self.value, ((self, -1),))

    __radd__, __rmul__ = __add__, __mul__


def _exact(x: Any) -> Exact:
    return x if isinstance(x, Exact) else Exact(x)


def _function(value: Any, slope: Any) -> Any:
    """An elementwise function from its value and from the derivative as a function of (x, y)."""

    def apply(x: Exact) -> Exact:
        y = value(x.value)
        return Exact(y, ((x, slope(x.value, y)),))

    return np.frompyfunc(apply, 1, 1)


tanh = _function(mp.tanh, lambda x, y: 1 - y * y)
sigmoid = _function(lambda x: 1 / (1 + mp.exp(-x)), lambda x, y: y * (1 - y))
relu = _function(lambda x: max(x, mpf(0)), lambda x, y: mpf(x > 0))
exp = _function(mp.exp, lambda x, y: y)
log = _function(mp.log, lambda x, y: 1 / x)
rsqrt = _function(lambda x: 1 / mp.sqrt(x), lambda x, y: -y / (2 * x))


def variables(array: np.ndarray) -> np.ndarray:
    """Exact numbers of a float array."""
    return np.asarray(np.frompyfunc(lambda x: Exact(float(x)), 1, 1)(array), object)


def values(array: np.ndarray) -> np.ndarray:
    """The mpf of Exact numbers."""
    return np.asarray(np.frompyfunc(lambda x: _exact(x).value, 1, 1)(array), object)


def gradients(
    outputs: Mapping[str, np.ndarray], upstream: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """d Σ⟨upstream, outputs⟩ / d inputs, arrays of mpf."""
    flow: dict[int, Any] = {}
    nodes: dict[int, Exact] = {}
    for name, gradient in upstream.items():
        for node, g in zip(np.ravel(outputs[name]), np.ravel(gradient), strict=True):
            nodes[node.number] = node
            flow[node.number] = flow.get(node.number, mpf(0)) + mpf(float(g))
    stack = list(nodes.values())
    while stack:
        for parent, _ in stack.pop().parents:
            if parent.number not in nodes:
                nodes[parent.number] = parent
                stack.append(parent)
    for number in sorted(nodes, reverse=True):
        for parent, slope in nodes[number].parents:
            flow[parent.number] = flow.get(parent.number, mpf(0)) + flow.get(number, mpf(0)) * slope
    found = np.frompyfunc(lambda x: flow.get(x.number, mpf(0)), 1, 1)
    return {name: np.asarray(found(array), object) for name, array in inputs.items()}
