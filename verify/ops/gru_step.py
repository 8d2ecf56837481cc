"""One step of a GRU, in both placements of the reset gate and both conventions of the update gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradjury.kernels import modes
from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Tensor
from gradjury.verify.ops.base import Attribute, Example, Op, Shape, Slot, Values, Variant, expect

GRU_ATTRIBUTES: Mapping[str, Attribute] = {
    "reset": Attribute("after", choices=("after", "before")),
    "update": Attribute("keeps-previous", choices=("keeps-previous", "keeps-candidate")),
}
WEIGHTS = (Slot("weight_ih"), Slot("weight_hh"), Slot("bias_ih", optional=True), Slot("bias_hh", optional=True))


@dataclass(frozen=True)
class Gates:
    """What the backward of a step needs. `recurrent`: gh (rows, 3H) with reset after, r·h (rows, H) with before."""

    r: Tensor
    z: Tensor
    n: Tensor
    recurrent: Tensor


class GruStep(Op):
    """x (batch, in), h (batch, H), weight_ih (3H, in), weight_hh (3H, H), biases (3H) -> h_next.

    Gates in the order reset, update, candidate.
    """

    name = "gru_step"
    inputs = (Slot("x"), Slot("h"), *WEIGHTS)
    outputs = ("h_next",)
    attributes = GRU_ATTRIBUTES

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        check_step_shapes(shapes, gates=3)
        return {"h_next": shapes["h"]}

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        gx = k.matmul(x["x"], x["weight_ih"], transpose_b=True, bias=x["bias_ih"])
        following, gates = step_forward(k, gx, x["h"], x["weight_hh"], x["bias_hh"], attributes)
        return {"h_next": following}, gates

    def backward(
        self,
        k: Kernels,
        x: Values,
        attributes: Mapping[str, Any],
        saved: Any,
        upstream: Mapping[str, Tensor | None],
        wanted: set[str],
    ) -> dict[str, Tensor]:
        flow = upstream["h_next"]
        assert flow is not None
        dgx, dgh, dh = step_backward(k, saved, x["h"], x["weight_hh"], modes.flatten(flow), attributes)
        makers = {
            "x": lambda: k.matmul(dgx, x["weight_ih"]),
            "h": lambda: dh,
            "weight_ih": lambda: k.matmul(dgx, x["x"], transpose_a=True),
            "weight_hh": lambda: recurrent_weight_gradient(k, saved, x["h"], dgh, attributes),
            "bias_ih": lambda: k.column_sum(dgx),
            "bias_hh": lambda: k.column_sum(dgh),
        }
        return {slot: makers[slot]() for slot in wanted}

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        if is_framework_convention(attributes) and (x["bias_ih"] is None) == (x["bias_hh"] is None):
            weights = (x["weight_ih"], x["weight_hh"], x["bias_ih"], x["bias_hh"])
            return {"h_next": torch._VF.gru_cell(x["x"], x["h"], *weights)}
        return {"h_next": composed_step(torch, x["x"], x["h"], x, attributes)}

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        if is_framework_convention(attributes):
            return {"h_next": paddle_cell(paddle.nn.GRUCell(x["x"].shape[1], x["h"].shape[1]), x)}
        return {"h_next": composed_step(paddle, x["x"], x["h"], x, attributes)}

    def example(self, rng: np.random.Generator) -> Example:
        return Example(
            {"x": rng.standard_normal((4, 5)), "h": rng.standard_normal((4, 3)), **example_weights(rng, 3, 5, 3)}
        )

    def variants(self, attributes: Mapping[str, Any]) -> Sequence[Variant]:
        return gru_variants(attributes)


def step_forward(
    k: Kernels, gx: Tensor, h: Tensor, weight_hh: Tensor, bias_hh: Tensor | None, attributes: Mapping[str, Any]
) -> tuple[Tensor, Gates]:
    """h' from gx = W_ih x + b_ih (batch, 3H) and h (batch, H)."""
    rows, hidden = h.cases * h.shape[0], h.shape[1]
    candidate = int(attributes["update"] == "keeps-candidate")
    r, z, n, following = (k.empty(h.cases, h.shape) for _ in range(4))
    if attributes["reset"] == "after":
        gh = k.matmul(h, weight_hh, transpose_b=True, bias=bias_hh)
        k.elementwise("gru_forward", rows, hidden, candidate, gx, gh, h, r, z, n, following)
        return following, Gates(r, z, n, gh)
    gates, last = _split(k, weight_hh, hidden)
    bias_gates, bias_last = (None, None) if bias_hh is None else _split(k, bias_hh, hidden)
    reset = k.empty(h.cases, h.shape)
    gh = k.matmul(h, gates, transpose_b=True, bias=bias_gates)
    k.elementwise("gru_gates", rows, hidden, gx, gh, h, r, z, reset)
    recurrent = k.matmul(reset, last, transpose_b=True, bias=bias_last)
    k.elementwise("gru_candidate", rows, hidden, candidate, gx, recurrent, z, h, n, following)
    return following, Gates(r, z, n, reset)


def step_backward(
    k: Kernels, gates: Gates, h: Tensor, weight_hh: Tensor, flow: Tensor, attributes: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """From the gates as given: gradients of gx and gh (batch, 3H), and of h."""
    rows, hidden = h.cases * h.shape[0], h.shape[1]
    candidate = int(attributes["update"] == "keeps-candidate")
    dgx, direct = k.empty(h.cases, (h.shape[0], 3 * hidden)), k.empty(h.cases, h.shape)
    if attributes["reset"] == "after":
        dgh = k.empty(h.cases, (h.shape[0], 3 * hidden))
        given = (gates.r, gates.z, gates.n, gates.recurrent, h, flow)
        k.elementwise("gru_backward", rows, hidden, candidate, *given, dgx, dgh, direct)
        return dgx, dgh, k.matmul(dgh, weight_hh, start=direct)
    dcandidate, dh = k.empty(h.cases, h.shape), k.empty(h.cases, h.shape)
    dgates = k.empty(h.cases, (h.shape[0], 2 * hidden))
    k.elementwise("gru_candidate_backward", rows, hidden, candidate, gates.z, gates.n, h, flow, dgx, dcandidate, direct)
    first, last = _split(k, weight_hh, hidden)
    dreset = k.matmul(dcandidate, last)
    k.elementwise("gru_reset_backward", rows, hidden, gates.r, h, dreset, direct, dgx, dgates, dh)
    return dgx, dgx, k.matmul(dgates, first, start=dh)


def recurrent_weight_gradient(
    k: Kernels, gates: Gates, h: Tensor, dgh: Tensor, attributes: Mapping[str, Any]
) -> Tensor:
    """dW_hh (3H, H): the candidate's rows see r·h where the reset comes before the product."""
    if attributes["reset"] == "after":
        return k.matmul(dgh, h, transpose_a=True)
    cut, split = k.xp.ascontiguousarray, 2 * h.shape[1]
    first, last = (Tensor(cut(part), k.scalar) for part in (dgh.data[:, :, :split], dgh.data[:, :, split:]))
    parts = (k.matmul(first, h, transpose_a=True), k.matmul(last, gates.recurrent, transpose_a=True))
    joined = k.xp.concatenate([part.data for part in parts], axis=1)
    return Tensor(joined, k.scalar, length=parts[0].length)


def check_step_shapes(shapes: Mapping[str, Shape], gates: int) -> None:
    """Raises OpError unless x (batch, in), h (batch, H) and the weights of one step fit each other."""
    x, h = shapes["x"], shapes["h"]
    expect(len(x) == 2, f"x: expected (batch, features), found shape {x}")
    check_recurrent_shapes(shapes, gates, "h")
    expect(len(h) == 2, f"h: expected shape {(x[0], shapes['weight_hh'][1])}, found {h}")


def check_recurrent_shapes(shapes: Mapping[str, Shape], gates: int, state: str) -> None:
    """Raises OpError unless x (…, batch, in), the state (batch, H), if given, and the weights fit each other."""
    x, weight, recurrent = shapes["x"], shapes["weight_ih"], shapes["weight_hh"]
    expect(len(recurrent) == 2, f"weight_hh: expected ({gates}·hidden, hidden), found shape {recurrent}")
    hidden = recurrent[1]
    expect(recurrent[0] == gates * hidden, f"weight_hh: expected ({gates * hidden}, {hidden}), found {recurrent}")
    expect(weight == (gates * hidden, x[-1]), f"weight_ih: expected {(gates * hidden, x[-1])}, found {weight}")
    if state in shapes:
        found, expected = (tuple(n for n in shape if n != 1) for shape in (shapes[state], (x[-2], hidden)))
        expect(found == expected, f"{state}: expected shape {(x[-2], hidden)}, found {shapes[state]}")
    for slot in ("bias_ih", "bias_hh"):
        bias = shapes.get(slot)
        expect(bias is None or bias == (gates * hidden,), f"{slot}: expected shape ({gates * hidden},), found {bias}")


def is_framework_convention(attributes: Mapping[str, Any]) -> bool:
    """Whether torch's and paddle's own GRU compute this definition."""
    return bool(attributes["reset"] == "after" and attributes["update"] == "keeps-previous")


def paddle_cell(cell: Any, x: Values) -> Any:
    """A paddle cell's output for x and h, with these weights in place of its parameters."""
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        del cell._parameters[name]
        setattr(cell, name, x[name])
    return cell(x["x"], x["h"])[0]


def composed_step(framework: Any, x: Any, h: Any, weights: Values, attributes: Mapping[str, Any]) -> Any:
    """The step in a framework's elementary functions, for conventions (or frameworks) without a cell of their own."""
    linear = framework.nn.functional.linear
    paddle = framework.__name__ == "paddle"

    def product(value: Any, weight: Any, bias: Any) -> Any:
        return linear(value, weight.T if paddle else weight, bias)

    hidden = h.shape[-1]
    gx = product(x, weights["weight_ih"], weights["bias_ih"])
    weight, bias = weights["weight_hh"], weights["bias_hh"]
    bias_gates, bias_last = (None, None) if bias is None else (bias[: 2 * hidden], bias[2 * hidden :])
    gh = product(h, weight[: 2 * hidden], bias_gates)
    sigmoid = framework.nn.functional.sigmoid if paddle else framework.sigmoid
    r = sigmoid(gx[..., :hidden] + gh[..., :hidden])
    z = sigmoid(gx[..., hidden : 2 * hidden] + gh[..., hidden:])
    if attributes["reset"] == "after":
        recurrent = r * product(h, weight[2 * hidden :], bias_last)
    else:
        recurrent = product(r * h, weight[2 * hidden :], bias_last)
    n = framework.tanh(gx[..., 2 * hidden :] + recurrent)
    return (1 - z) * h + z * n if attributes["update"] == "keeps-candidate" else z * h + (1 - z) * n


def example_weights(rng: np.random.Generator, gates: int, features: int, hidden: int) -> dict[str, np.ndarray]:
    """Weights of a recurrent layer, at the size frameworks start from."""
    bound = 1 / np.sqrt(hidden)
    shapes = {
        "weight_ih": (gates * hidden, features),
        "weight_hh": (gates * hidden, hidden),
        "bias_ih": (gates * hidden,),
        "bias_hh": (gates * hidden,),
    }
    return {name: rng.uniform(-bound, bound, shape) for name, shape in shapes.items()}


def gru_variants(attributes: Mapping[str, Any]) -> list[Variant]:
    """The other update convention, the other reset placement, and both."""
    update = "keeps-candidate" if attributes["update"] == "keeps-previous" else "keeps-previous"
    reset = "before" if attributes["reset"] == "after" else "after"
    formula = {"keeps-previous": "h' = z*h + (1-z)*n", "keeps-candidate": "h' = (1-z)*h + z*n"}
    placement = {"after": "n = tanh(Wx + r*(Uh))", "before": "n = tanh(Wx + U(r*h))"}
    return [
        Variant(
            "gru.update-convention",
            "definition",
            {"update": update},
            f"{formula[update]} in place of {formula[attributes['update']]}",
        ),
        Variant(
            "gru.reset-placement",
            "definition",
            {"reset": reset},
            f"{placement[reset]} in place of {placement[attributes['reset']]}",
        ),
    ]


def _split(k: Kernels, gates: Tensor, hidden: int) -> tuple[Tensor, Tensor]:
    """The rows of reset and update, and those of the candidate."""
    cut = k.xp.ascontiguousarray
    return Tensor(cut(gates.data[:, : 2 * hidden]), k.scalar), Tensor(cut(gates.data[:, 2 * hidden :]), k.scalar)
