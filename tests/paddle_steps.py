"""Training steps written as people write them in paddle: fused and home-made ops, loops, sharing, in-place changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
from paddle import nn

F = nn.functional
NAMES = ("mlp", "cells", "tied", "residual", "gru", "stacked", "mess", "custom")
MLP_OPS = [
    "linear",
    "batchnorm",
    "relu",
    "dropout",
    "linear",
    "batchnorm",
    "relu",
    "dropout",
    "linear",
    "log_softmax",
    "nll",
]
OPS = {
    "mlp": MLP_OPS,
    "cells": ["gru_step", "linear"] * 4 + ["join", "reshape", "reshape", "log_softmax", "nll"],
    "residual": [
        "linear",
        "relu",
        "add",
        "linear",
        "layernorm",
        "add",
        "multiply",
        "linear",
        "cross_entropy",
        "reshape",
        "sum",
    ],
    "custom": ["linear", "paddle.custom.Square", "multiply", "sum"],
}


class Mlp(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn1 = nn.Linear(6, 8), nn.BatchNorm1D(8)
        self.fc2, self.bn2 = nn.Linear(8, 8), nn.BatchNorm1D(8)
        self.fc3 = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.bn1(self.fc1(x)))
        mask = (paddle.rand(x.shape) > 0.4).astype("float32")
        x = x * mask / (1 - 0.4)
        x = F.relu_(self.bn2(self.fc2(x)))
        return F.log_softmax(self.fc3(F.dropout(x, 0.3)), -1)


class Cells(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(4, 6), nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        h = paddle.zeros([x.shape[1], 6])
        outputs = []
        for step in paddle.unbind(x):
            h, _ = self.cell(step, h)
            outputs.append(self.out(h))
        return F.log_softmax(paddle.stack(outputs).reshape([-1, 5]), -1)


class Tied(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.mid = nn.Embedding(9, 4), nn.Linear(4, 4)

    def forward(self, index: Any) -> Any:
        mixed = paddle.tanh(self.mid(self.emb(index)))
        return paddle.matmul(mixed, self.emb.weight, transpose_y=True).reshape([-1, 9])


class Residual(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        h = x + F.relu(self.a(x))
        h = h + self.norm(self.b(h))
        return self.out(h * h)


class Recurrent(nn.Layer):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(4, 6, time_major=True, **settings), nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        y, h = self.gru(x)
        return self.out(y[-1]) + self.out(h[-1])


class Square(paddle.autograd.PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensor()
        return 2 * gradient * x


class Custom(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        return (Square.apply(self.a(x)) * 2).sum()


class Mess(Custom):
    def forward(self, x: Any) -> Any:
        h = self.a(x)
        h[:, 0] = 0
        u, w = h.chunk(2, 1)
        z = u + w.T.T.clip(min=-0.5)
        z = z.transpose([1, 0]).reshape([-1])[::2]
        return z.sum() + h.std() + F.gelu(h).max() + paddle.concat([h, h], 0).mean()


def with_zeros(x: Any) -> Any:
    """x with its first column set to 0, in place."""
    x[:, 0] = 0
    return x


def build(name: str) -> tuple[Any, Callable[[], Any], dict[str, Any]]:
    """A model, a step that returns its loss, and names for its inputs; drawn from paddle's generator."""
    rows, sequence = paddle.randn([8, 6]), paddle.randn([4, 3, 4])
    labels, words = paddle.randint(0, 5, [12]), paddle.randint(0, 9, [2, 3])
    made: dict[str, tuple[Callable[[], Any], Any, Callable[[Any], Any]]] = {
        "mlp": (Mlp, rows, lambda y: F.nll_loss(y, labels[:8])),
        "cells": (Cells, sequence, lambda y: F.nll_loss(y, labels)),
        "tied": (Tied, words, lambda y: F.cross_entropy(y, words.flatten())),
        "residual": (Residual, rows, lambda y: F.cross_entropy(y, labels[:8], reduction="sum")),
        "gru": (Recurrent, sequence, lambda y: F.mse_loss(y, paddle.zeros([3, 5]))),
        "stacked": (
            lambda: Recurrent(num_layers=2, dropout=0.5),
            sequence,
            lambda y: F.mse_loss(y, paddle.zeros([3, 5])),
        ),
        "mess": (Mess, rows, lambda y: y),
        "custom": (Custom, rows, lambda y: y),
    }
    make, x, loss = made[name]
    model = make()
    return model, lambda: loss(model(x)), {"x": x}
