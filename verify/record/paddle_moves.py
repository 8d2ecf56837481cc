"""PaddlePaddle calls that only move elements, as index maps: reshape, slice, stack and their like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle

from gradjury.verify.ops.join import MOST
from gradjury.verify.record.paddle_capture import Call, Ref
from gradjury.verify.record.paddle_graph import Graph, Source
from gradjury.verify.record.paddle_replay import run_call
from gradjury.verify.record.tree import mapped
from gradjury.verify.witnesses.paddle import array as numbers

MOVES = {
    *("reshape", "transpose", "flatten", "squeeze", "unsqueeze", "getitem_dygraph", "setitem_dygraph", "slice"),
    *("strided_slice", "split", "split_with_num", "unbind", "stack", "concat", "expand", "expand_as", "tile", "flip"),
    *("roll", "gather", "gather_nd", "index_select", "take_along_axis", "clone", "assign", "contiguous", "pad"),
    *("view_shape", "tril", "triu", "repeat_interleave"),
}


def move(graph: Graph, call: Call) -> bool:
    """Any call whose results are elements of its arguments, or 0: found by letting it move numbers, from 1 on.

    Held against the recorded values bit for bit, so that what was no pure movement stays opaque.
    """
    sources, made = _moved_numbers(graph, call)
    if not sources or len(made) != len(call.outputs):
        return False
    flat = np.concatenate([graph.recorded[ref.name].ravel() for ref in sources])
    for name, index in zip(call.outputs, made, strict=True):
        value = graph.recorded[name]
        moved = np.where(index >= 0, flat[index], 0).astype(value.dtype)
        if index.shape != value.shape or not np.array_equal(moved, value, equal_nan=True):
            return False
    joined: Source = sources[0] if len(sources) == 1 else join(graph, call, sources)
    for i, (name, index) in enumerate(zip(call.outputs, made, strict=True)):
        suffix = "" if len(made) == 1 else f".{i}"
        if index.size == flat.size and np.array_equal(index.ravel(), np.arange(flat.size)):
            graph.add(call, "reshape", {"x": joined}, {"y": name}, {"shape": list(index.shape)}, suffix=suffix)
        else:
            at = graph.constant(call, f"index{suffix}", index)
            graph.add(call, "move", {"x": joined, "index": at}, {"y": name}, suffix=suffix)
    return True


def _moved_numbers(graph: Graph, call: Call) -> tuple[list[Ref], list[np.ndarray]]:
    """The arguments that elements may come from, and for each result where they do: counted over all, −1 for a 0."""
    sources: list[Ref] = []
    start = 1

    def numbered(ref: Ref) -> Any:
        nonlocal start
        value = graph.recorded[ref.name]
        if value.dtype.kind != "f":
            return paddle.to_tensor(value)
        sources.append(ref)
        start += value.size
        return paddle.to_tensor(np.arange(start - value.size, start, dtype=np.float64).reshape(value.shape))

    args, kwargs = mapped((call.args, call.kwargs), Ref, numbered)
    try:
        with paddle.no_grad():
            made = run_call(call, args, kwargs)
    except (RuntimeError, ValueError, TypeError):  # not at float64, or not without gradient
        return [], []
    return sources, [numbers(paddle, tensor).astype(np.int64) - 1 for tensor in made]


def join(graph: Graph, call: Call, sources: Sequence[Source], at: str = "") -> str:
    """All elements of several tensors as one flat tensor, by a tree of joins called `NAME[at].joinN`."""
    level, made = list(sources), 0
    while len(level) > 1 or not made:
        following: list[Source] = []
        for i in range(0, len(level), MOST):
            inputs = {f"x{j}": source for j, source in enumerate(level[i : i + MOST])}
            suffix = f"{at}.join{made}"
            graph.add(call, "join", inputs, {"y": call.name + suffix}, suffix=suffix)
            following.append(call.name + suffix)
            made += 1
        level = following
    return str(level[0])
