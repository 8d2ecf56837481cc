"""Random numbers that an ATen call draws inside itself: noted while recording, played back while replaying."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradjury.verify.record.tree import leaves

MAY_DRAW = {
    "dropout", "dropout_", "alpha_dropout", "alpha_dropout_", "feature_dropout", "feature_dropout_", "feature_alpha_dropout",
    "rrelu", "rrelu_", "rrelu_with_noise", "gru", "lstm", "rnn_tanh", "rnn_relu", "scaled_dot_product_attention",
}  # fmt: skip
Draw = tuple[str, list[torch.Tensor]]  # the op that drew, and what it returned


class Draws(TorchDispatchMode):  # type: ignore[misc]  # torch is not seen by mypy
    """Notes in `seen` what random ops return; or, given `play`, makes them return that again, in order."""

    def __init__(self, play: Sequence[Draw] | None = None) -> None:
        super().__init__()
        self.seen: list[Draw] = []
        self._play = None if play is None else list(play)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        idle = name == "native_dropout" and (not args[2] or args[1] == 0)
        if torch.Tag.nondeterministic_seeded not in func.tags or idle:
            return func(*args, **kwargs)
        if self._play is None:
            result = func(*args, **kwargs)
            self.seen.append((name, [t.detach().clone() for t in leaves(result, torch.Tensor)]))
            return result
        return self._played(name, args)

    def _played(self, name: str, args: Any) -> Any:
        assert self._play is not None
        drawn, values = self._play.pop(0)
        if drawn != name:
            raise RuntimeError(f"replay: {name} drew where {drawn} did in the recording")
        if name == "native_dropout":
            kept = 0.0 if args[1] == 1 else 1.0 / (1.0 - args[1])
            return args[0] * values[1] * kept, values[1].clone()
        if name.endswith("_"):
            return args[0].copy_(values[0])
        cast = [t.to(args[0].dtype) if t.is_floating_point() else t for t in values]
        return cast[0] if len(cast) == 1 else tuple(cast)
