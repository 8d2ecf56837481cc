"""PaddlePaddle's recorded operators as nodes of a case: canonical op, slots, attributes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle

from gradjury.verify.case import Node
from gradjury.verify.record.paddle_capture import Call, Ref
from gradjury.verify.record.paddle_graph import Graph, Source, step_of
from gradjury.verify.record.paddle_moves import MOVES, move
from gradjury.verify.record.paddle_recurrent import recurrent

Rule = Callable[[Graph, Call], bool]


def convert(graph: Graph, call: Call) -> None:
    """Adds the nodes of one call; an opaque one where no op says the same."""
    name = call.op.strip("_")
    rule = RULES.get(name) or (move if name in MOVES else None)
    if rule is None or not _one_dtype(graph, call) or not rule(graph, call):
        graph.opaque_node(call)


def _one_dtype(graph: Graph, call: Call) -> bool:
    """Whether all floating tensors of the call have one dtype: a call that converts is another function."""
    names = [*(ref.name for ref in call.refs), *call.outputs]
    return len({graph.dtypes[name] for name in names if "float" in graph.dtypes.get(name, "")}) == 1


# ---- rules: True if the call became nodes


def _unary(op: str) -> Rule:
    def rule(graph: Graph, call: Call) -> bool:
        graph.add(call, op, {"x": call.args[0]}, {"y": call.outputs[0]})
        return True

    return rule


def _binary(op: str, *, swapped: bool = False) -> Rule:
    def rule(graph: Graph, call: Call) -> bool:
        operands = [_operand(graph, call, call.args[0], "a"), _operand(graph, call, call.argument(1, "y"), "b")]
        if None in operands:
            return False
        a, b = reversed(operands) if swapped else operands
        graph.add(call, op, {"a": a, "b": b}, {"y": call.outputs[0]})
        return True

    return rule


def _difference(*, swapped: bool = False) -> Rule:
    def rule(graph: Graph, call: Call) -> bool:
        operands = [_operand(graph, call, call.args[0], "a"), _operand(graph, call, call.argument(1, "y"), "b")]
        if None in operands:
            return False
        a, b = reversed(operands) if swapped else operands
        minus = graph.constant(call, "minus", -1.0)
        graph.add(call, "multiply", {"a": b, "b": minus}, {"y": f"{call.name}.negative"}, suffix=".negate")
        graph.add(call, "add", {"a": a, "b": f"{call.name}.negative"}, {"y": call.outputs[0]})
        return True

    return rule


def _operand(graph: Graph, call: Call, value: Any, what: str) -> Source | None:
    if isinstance(value, Ref):
        return value
    plain = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    return graph.constant(call, what, np.float64(value)) if plain else None


def _scale(graph: Graph, call: Call) -> bool:
    """x·scale + bias, or (x + bias)·scale."""
    factor, bias = call.argument(1, "scale", 1.0), call.argument(2, "bias", 0.0)
    if isinstance(factor, Ref) or isinstance(bias, Ref):
        return False
    f = graph.constant(call, "factor", np.float64(factor))
    if bias == 0:
        graph.add(call, "multiply", {"a": call.args[0], "b": f}, {"y": call.outputs[0]})
        return True
    b, between = graph.constant(call, "bias", np.float64(bias)), f"{call.name}.between"
    steps = (
        [("multiply", f), ("add", b)] if call.argument(3, "bias_after_scale", True) else [("add", b), ("multiply", f)]
    )
    graph.add(call, steps[0][0], {"a": call.args[0], "b": steps[0][1]}, {"y": between}, suffix=".first")
    graph.add(call, steps[1][0], {"a": between, "b": steps[1][1]}, {"y": call.outputs[0]})
    return True


def _square(graph: Graph, call: Call) -> bool:
    if call.op.strip("_") == "pow" and call.argument(1, "y") != 2:
        return False
    graph.add(call, "multiply", {"a": call.args[0], "b": call.args[0]}, {"y": call.outputs[0]})
    return True


def _linear(graph: Graph, call: Call) -> bool:
    x, weight, bias = call.args[0], call.args[1], call.argument(2, "bias")
    if weight.name not in graph.weights:  # a computed or a shared one: it keeps its own layout
        turned = f"{call.name}.weight_out_in"
        graph.add(call, "transpose", {"x": weight}, {"y": turned}, {"axes": [1, 0]}, suffix=".transpose")
        weight = turned
    graph.add(call, "linear", {"x": x, "weight": weight, "bias": bias}, {"y": call.outputs[0]})
    return True


def _matmul(graph: Graph, call: Call) -> bool:
    operands: dict[str, Source] = {}
    for slot, index, keyword in (("a", 0, ""), ("b", 1, "y")):
        source = call.argument(index, keyword)
        flag = call.argument(index + 2, f"transpose_{'xy'[index]}", False)
        rank = len(graph.shape(source))
        if flag and rank > 1:
            turned = f"{call.name}.{slot}_transposed"
            axes = [*range(rank - 2), rank - 1, rank - 2]
            graph.add(call, "transpose", {"x": source}, {"y": turned}, {"axes": axes}, suffix=f".transpose_{slot}")
            source = turned
        operands[slot] = source
    graph.add(call, "matmul", operands, {"y": call.outputs[0]})
    return True


def _batchnorm(graph: Graph, call: Call) -> bool:
    x, mean, variance, weight, bias, test, _, epsilon, data_format, *rest = call.args
    training = not (test or (rest and rest[0]))
    if len(graph.shape(x)) > 2 and data_format != "NCHW":
        return False
    inputs = {"x": x, "weight": weight, "bias": bias}
    inputs |= {} if training else {"running_mean": mean, "running_var": variance}
    attributes = {"epsilon": float(epsilon), "training": training}
    graph.add(call, "batchnorm", inputs, {"y": call.outputs[0]}, attributes)
    return True


def _layernorm(graph: Graph, call: Call) -> bool:
    x, weight, bias, epsilon, first = call.args[:5]
    if first != len(graph.shape(x)) - 1:  # several axes: paddle stores the weight flat
        return False
    inputs = {"x": x, "weight": weight, "bias": bias}
    graph.add(call, "layernorm", inputs, {"y": call.outputs[0]}, {"epsilon": float(epsilon)})
    return True


def _softmax(op: str) -> Rule:
    def rule(graph: Graph, call: Call) -> bool:
        graph.add(call, op, {"x": call.args[0]}, {"y": call.outputs[0]}, {"axis": int(call.argument(1, "axis", -1))})
        return True

    return rule


def _cross_entropy(graph: Graph, call: Call) -> bool:
    """Per-position losses of logits over the last axis; paddle gives them with an axis of length one."""
    logits, target, soft, with_softmax, _, ignored, axis = call.args[:7]
    shape = graph.shape(logits)
    if soft or not with_softmax or axis not in (-1, len(shape) - 1):
        return False
    rows: Source = logits
    if len(shape) != 2:
        rows = f"{call.name}.rows"
        graph.add(call, "reshape", {"x": logits}, {"y": rows}, {"shape": [-1, shape[-1]]}, suffix=".flatten")
    labels = graph.constant(call, "target", graph.recorded[target.name].reshape(-1))
    each, loss = f"{call.name}.each", call.outputs[-1]
    attributes = {"reduction": "none", "ignore_index": int(ignored)}
    graph.add(call, "cross_entropy", {"logits": rows, "target": labels}, {"loss": each}, attributes)
    graph.add(call, "reshape", {"x": each}, {"y": loss}, {"shape": list(graph.shape(loss))}, suffix=".shape")
    return True


def _nll(graph: Graph, call: Call) -> bool:
    x, target, weight, ignored, reduction = call.args[:5]
    if weight is not None or len(graph.shape(x)) != 2:
        return False
    attributes = {"reduction": reduction, "ignore_index": int(ignored)}
    graph.add(call, "nll", {"log_probabilities": x, "target": target}, {"loss": call.outputs[0]}, attributes)
    return True


def _dropout(graph: Graph, call: Call) -> bool:
    if call.mask is None:
        return False
    mask = graph.constant(call, "mask", call.mask.astype(np.float32))
    if call.argument(4) == "upscale_in_train":
        attributes = {"rate": float(call.argument(2))}
        graph.add(call, "dropout", {"x": call.args[0], "mask": mask}, {"y": call.outputs[0]}, attributes)
    else:
        graph.add(call, "multiply", {"a": call.args[0], "b": mask}, {"y": call.outputs[0]})
    return True


def _reduction(op: str, keepdim_at: int) -> Rule:
    def rule(graph: Graph, call: Call) -> bool:
        axis = call.argument(1, "axis")
        if isinstance(axis, Ref):
            return False
        axes = (
            None
            if axis is None or axis == []
            else [int(a) for a in (axis if isinstance(axis, (list, tuple)) else [axis])]
        )
        attributes = {"axis": axes, "keepdims": bool(call.argument(keepdim_at, "keepdim", False))}
        graph.add(call, op, {"x": call.args[0]}, {"y": call.outputs[0]}, attributes)
        return True

    return rule


def _embedding(graph: Graph, call: Call) -> bool:
    """Paddle reads the padding row as 0, and gives it no gradient."""
    index, weight, padding = call.args[0], call.args[1], int(call.argument(2, "padding_idx", -1))
    if padding < 0:
        graph.add(call, "embedding", {"weight": weight, "index": index}, {"y": call.outputs[0]})
        return True
    kept = (graph.recorded[index.name] != padding)[..., None].astype(np.float32)
    mask, rows = (
        graph.constant(call, "not_padding", np.broadcast_to(kept, graph.shape(call.outputs[0]))),
        f"{call.name}.rows",
    )
    graph.add(call, "embedding", {"weight": weight, "index": index}, {"y": rows})
    graph.add(call, "multiply", {"a": rows, "b": mask}, {"y": call.outputs[0]}, suffix=".mask")
    return True


RULES: Mapping[str, Rule] = {
    **{op: _unary(op) for op in ("relu", "tanh", "sigmoid", "exp", "log")},
    **{op: _softmax(op) for op in ("softmax", "log_softmax")},
    **{name: _binary("add") for name in ("add", "radd")},
    **{name: _binary("multiply") for name in ("mul", "rmul", "multiply")},
    **{name: _binary("divide") for name in ("div", "truediv", "divide")},
    **{name: _binary("divide", swapped=True) for name in ("rdiv", "rtruediv")},
    **{name: _difference() for name in ("sub", "subtract")},
    **dict.fromkeys(("matmul", "bmm", "mm"), _matmul),
    **dict.fromkeys(("pow", "square"), _square),
    "rsub": _difference(swapped=True),
    "scale": _scale,
    "linear": _linear,
    "batch_norm": _batchnorm,
    "layer_norm": _layernorm,
    "cross_entropy_with_softmax": _cross_entropy,
    "nll_loss": _nll,
    "dropout": _dropout,
    "embedding": _embedding,
    "rnn": recurrent,
    "sum": _reduction("sum", 3),
    "mean": _reduction("mean", 2),
    "mean_all": _reduction("mean", 2),
}

# ---- cells, which are several calls

CELLS = {
    paddle.nn.GRUCell: (
        re.compile(
            "matmul( add)? matmul( add)? split_with_num split_with_num add sigmoid add sigmoid mul add tanh sub mul add"
        ),
        "gru_step",
        {"reset": "after", "update": "keeps-previous"},
    ),
    paddle.nn.SimpleRNNCell: (re.compile("matmul( add)? matmul( add)? add (tanh|relu)"), "rnn_step", {}),
}


def convert_cell(graph: Graph, calls: Sequence[Call]) -> bool:
    """The calls of one call of a cell as one step; False where they are not the calls we know."""
    layer = calls[0].layer
    pattern, op, attributes = CELLS[type(layer[0])]  # type: ignore[index]
    match = pattern.fullmatch(" ".join(call.op.strip("_") for call in calls))
    if match is None:
        return False
    first, second = calls[0], calls[2 if match[1] else 1]
    slots: dict[str, Ref] = {
        "x": first.args[0],
        "h": second.args[0],
        "weight_ih": first.args[1],
        "weight_hh": second.args[1],
    }
    slots |= {"bias_ih": calls[1].args[1]} if match[1] else {}
    slots |= {"bias_hh": calls[3 if match[1] else 2].args[1]} if match[2] else {}
    if op == "rnn_step":
        attributes = {"activation": match[3]}
    named = {ref.name: slot for slot, ref in slots.items()}
    if len(named) != len(slots):  # one tensor in two slots
        return False
    node = Node(first.name, op, {s: r.name for s, r in slots.items()}, {"h_next": calls[-1].outputs[0]}, attributes)
    node.step = step_of(first.name)
    graph.nodes.append(node)
    for call in calls:
        for ref in call.refs:
            if ref.name in named:
                graph.places.setdefault((call.name, ref.position), []).append((node.name, named[ref.name]))
    return True
