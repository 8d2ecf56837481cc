"""Rounding errors common to a channel, in tensors of `spread` (docs/numerics.md, batchnorm)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradjury.kernels.tensor import Mode, Tensor


def spread_over(mode: Mode) -> Any:
    """direction²·variance, of the direction's shape."""
    channels = mode.variance.reshape(*mode.variance.shape, *(1,) * (mode.direction.ndim - 3))
    return mode.direction**2 * channels[:, None]


def total_variance(tensor: Tensor) -> Any:
    """Variance per element (cases, *shape), everything included."""
    total = tensor.data[..., 1]
    for mode in tensor.modes:
        if not mode.included:
            total = total + spread_over(mode)
    return total


def flatten(tensor: Tensor) -> Tensor:
    """The tensor with its modes as if they were independent errors: for operations that mix channels anyway."""
    if not tensor.modes:
        return tensor
    data = tensor.data.copy()
    data[..., 1] = total_variance(tensor)
    return replace(tensor, data=data, modes=())


def times(tensor: Tensor, factor: Any, result: Tensor) -> Tensor:
    """`result` = tensor ∘ factor elementwise, with the modes of `tensor` carried through."""
    modes = tuple(replace(mode, direction=mode.direction * factor) for mode in tensor.modes)
    return replace(result, modes=modes)
