"""Copies of tensors that a library cannot tell from the original: the same strides, and the same place in a cache line.

BLAS kernels sum in another order where data is aligned otherwise, so that a replay on an ordinary copy would differ in
its last bits.
"""

from __future__ import annotations

import torch

LINE = 64  # bytes


def alike(tensor: torch.Tensor) -> torch.Tensor:
    """A detached copy with the tensor's strides and alignment."""
    source = tensor.detach()
    span = sum((n - 1) * step for n, step in zip(source.shape, source.stride(), strict=True)) + 1 if source.numel() else 0
    if source.layout != torch.strided or span > source.numel() or LINE % source.element_size():
        return source.clone()
    memory = source.as_strided((span,), (1,))  # where elements share memory (expand), they do so in the copy
    room = torch.empty(span + LINE // source.element_size(), dtype=source.dtype, device=source.device)
    offset = (source.data_ptr() - room.data_ptr()) % LINE // source.element_size()
    room[offset : offset + span].copy_(memory)
    return room.as_strided(source.shape, source.stride(), offset)
