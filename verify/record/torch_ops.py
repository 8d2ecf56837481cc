"""Which op of ours an ATen call is: its inputs by slot, its attributes, its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from gradjury.verify.record.torch_capture import Call
from gradjury.verify.record.tree import Ref

REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}
WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
MOVES = {
    "transpose", "t", "permute", "movedim", "swapaxes", "get_T", "get_mT", "view", "reshape", "flatten", "unflatten", "squeeze",
    "unsqueeze", "__getitem__", "select", "narrow", "chunk", "split", "unbind", "expand", "expand_as", "repeat", "stack", "cat",
    "concat", "hstack", "vstack", "flip", "roll", "contiguous", "clone", "index_select", "gather", "view_as", "reshape_as",
    "diagonal", "tile", "ravel",
}  # fmt: skip


@dataclass
class Known:
    """A call as an op of ours. `inputs` hold Refs, tensors or numbers; None where an optional input is absent."""

    op: str
    inputs: dict[str, Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("y",)
    batch_first: bool = False  # x and y are (batch, time, …), where the op wants time first


def known(call: Call) -> Known | None:
    """The op that computes exactly what the call does; None if there is none."""
    reader = _TABLE.get(call.called)
    return reader(call) if reader is not None else None


def _argument(call: Call, place: int, name: str, default: Any = None) -> Any:
    return call.args[place] if len(call.args) > place else call.kwargs.get(name, default)


def _linear(call: Call) -> Known | None:
    slots = ("x", "weight", "bias")
    names = ("input", "weight", "bias")
    return Known("linear", {slot: _argument(call, i, name) for i, (slot, name) in enumerate(zip(slots, names, strict=True))})


def _batchnorm(call: Call) -> Known | None:
    x, weight, bias, mean, variance, training, _, epsilon = call.args[:8]
    inputs = {"x": x, "weight": weight, "bias": bias}
    if not training:
        inputs |= {"running_mean": mean, "running_var": variance}
    return Known("batchnorm", inputs, {"epsilon": epsilon, "training": bool(training)})


def _layernorm(call: Call) -> Known | None:
    weight, bias = _argument(call, 2, "weight"), _argument(call, 3, "bias")
    if weight is None and len(_argument(call, 1, "normalized_shape")) > 1:
        return None
    return Known("layernorm", {"x": call.args[0], "weight": weight, "bias": bias}, {"epsilon": _argument(call, 4, "eps", 1e-5)})


def _pointwise(op: str) -> Callable[[Call], Known | None]:
    return lambda call: Known(op, {"x": call.args[0]})


def _binary(op: str, *, swapped: bool = False) -> Callable[[Call], Known | None]:
    def read(call: Call) -> Known | None:
        a, b = call.args[0], _argument(call, 1, "other")
        if _argument(call, 2, "alpha", 1) != 1 or call.kwargs.get("rounding_mode") is not None:
            return None
        return Known(op, {"a": b, "b": a} if swapped else {"a": a, "b": b})

    return read


def _along(op: str) -> Callable[[Call], Known | None]:
    def read(call: Call) -> Known | None:
        axis = _argument(call, 1, "dim")
        return Known(op, {"x": call.args[0]}, {"axis": axis}) if isinstance(axis, int) else None

    return read


def _dropout(call: Call) -> Known | None:
    rate, training = _argument(call, 1, "p", 0.5), _argument(call, 2, "train", True)
    if not training or not call.draws:
        return None
    drew, values = call.draws[0]
    mask = values[1] if drew == "native_dropout" else values[0] != 0
    return Known("dropout", {"x": call.args[0], "mask": mask.float()}, {"rate": rate})


def _loss(op: str, slot: str) -> Callable[[Call], Known | None]:
    def read(call: Call) -> Known | None:
        weighted = _argument(call, 2, "weight") is not None
        smoothed = op == "cross_entropy" and bool(_argument(call, 5, "label_smoothing", 0.0))
        target = call.args[1]
        if weighted or smoothed or (isinstance(target, torch.Tensor) and target.is_floating_point()):
            return None
        attributes = {
            "reduction": REDUCTIONS[_argument(call, 3, "reduction", 1)],
            "ignore_index": int(_argument(call, 4, "ignore_index", -100)),
        }
        return Known(op, {slot: call.args[0], "target": target}, attributes, ("loss",))

    return read


def _mse(call: Call) -> Known | None:
    reduction = REDUCTIONS[_argument(call, 2, "reduction", 1)]
    return Known("squared_error", {"y": call.args[0], "target": call.args[1]}, {"reduction": reduction}, ("loss",))


def _cell(op: str, **attributes: str) -> Callable[[Call], Known | None]:
    def read(call: Call) -> Known | None:
        return Known(op, dict(zip(("x", "h", *WEIGHTS), call.args, strict=False)), attributes, ("h_next",))

    return read


def _layer(op: str, **attributes: str) -> Callable[[Call], Known | None]:
    def read(call: Call) -> Known | None:
        packed = not isinstance(call.args[2], (list, tuple))
        if packed:
            return None
        x, h0, weights, _, layers, _, _, both_ways, batch_first = call.args
        if layers != 1 or both_ways:
            return None
        inputs = {"x": x, "h0": h0, **dict(zip(WEIGHTS, weights, strict=False))}
        return Known(op, inputs, attributes, ("y", "h_n"), bool(batch_first))

    return read


def _embedding(call: Call) -> Known | None:
    padding = int(_argument(call, 2, "padding_idx", -1))
    return Known("embedding", {"weight": call.args[0], "index": call.args[1]}, {"padding_idx": padding} if padding >= 0 else {})


def _where(call: Call) -> Known | None:
    """where(condition, a, b); its other form only tells where a condition holds."""
    if len(call.args) != 3:
        return None
    condition, a, b = call.args
    return Known("where", {"condition": condition, "a": a, "b": b})


def _masked_fill(call: Call) -> Known | None:
    x, mask, value = call.args[0], _argument(call, 1, "mask"), _argument(call, 2, "value")
    return Known("where", {"condition": mask, "a": value, "b": x})


def _reduction(op: str) -> Callable[[Call], Known | None]:
    def read(call: Call) -> Known | None:
        axis, keep = _argument(call, 1, "dim"), bool(_argument(call, 2, "keepdim", False))
        if isinstance(axis, torch.dtype) or call.kwargs.get("dtype") is not None:
            return None
        attributes = {} if axis is None else {"axis": axis if isinstance(axis, int) else list(axis)}
        return Known(op, {"x": call.args[0]}, attributes | ({"keepdims": True} if keep else {}))

    return read


_TABLE: Mapping[str, Callable[[Call], Known | None]] = {
    "linear": _linear,
    "batch_norm": _batchnorm,
    "layer_norm": _layernorm,
    "dropout": _dropout,
    "dropout_": _dropout,
    "cross_entropy_loss": _loss("cross_entropy", "logits"),
    "nll_loss_nd": _loss("nll", "log_probabilities"),
    "nll_loss": _loss("nll", "log_probabilities"),
    "mse_loss": _mse,
    "gru_cell": _cell("gru_step", reset="after", update="keeps-previous"),
    "rnn_tanh_cell": _cell("rnn_step", activation="tanh"),
    "rnn_relu_cell": _cell("rnn_step", activation="relu"),
    "gru": _layer("gru", reset="after", update="keeps-previous"),
    "rnn_tanh": _layer("rnn", activation="tanh"),
    "rnn_relu": _layer("rnn", activation="relu"),
    "embedding": _embedding,
    "where": _where,
    "masked_fill": _masked_fill,
    "masked_fill_": _masked_fill,
    "mean": _reduction("mean"),
    "sum": _reduction("sum"),
    **{name: _along(op) for op in ("softmax", "log_softmax") for name in (op, f"_{op}", f"special_{op}")},
    **{name: _pointwise(op) for op in ("relu", "tanh", "sigmoid", "exp", "log") for name in (op, f"{op}_")},
    **{name: _binary("add") for name in ("add", "__add__", "add_", "__iadd__")},
    "__radd__": _binary("add", swapped=True),
    **{name: _binary("multiply") for name in ("mul", "__mul__", "multiply", "mul_", "__imul__")},
    "__rmul__": _binary("multiply", swapped=True),
    **{name: _binary("divide") for name in ("div", "__truediv__", "true_divide", "div_", "__itruediv__", "divide")},
    **{name: _binary("divide", swapped=True) for name in ("__rtruediv__", "__rdiv__")},
    **{name: _binary("matmul") for name in ("matmul", "__matmul__", "mm", "bmm")},
}


def is_constant(value: Any) -> bool:
    """Whether an op's input is a constant of the call, not a recorded tensor."""
    return not isinstance(value, Ref)
