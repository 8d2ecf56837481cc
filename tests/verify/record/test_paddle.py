"""A recorded paddle step: nothing of the user's changes by a bit, and what is recorded can be replayed bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

import paddle_steps as steps  # noqa: E402

import gradjury  # noqa: E402
from gradjury.verify import graph  # noqa: E402
from gradjury.verify.case import Case, CaseError  # noqa: E402
from gradjury.verify.judge import judge_case  # noqa: E402
from gradjury.verify.record.paddle_capture import Capture  # noqa: E402
from gradjury.verify.record.paddle_case import to_case  # noqa: E402
from gradjury.verify.record.paddle_patch import METHODS, _sites  # noqa: E402

nn, F = paddle.nn, paddle.nn.functional


def record(step: Callable[[], Any], model: Any = (), **inputs: Any) -> Case:
    """The case of one step: `step` returns what backward starts from."""
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    with Capture(models, inputs) as capture:
        step().backward()
    return to_case(capture, "recorded")


def ops(case: Case) -> list[str]:
    return [node.op for node in case.graph]


def found_wrong(case: Case) -> list[str]:
    graph.check(case)
    return list(judge_case(case).data["wrong"])


def run(name: str, recorded: bool) -> tuple[list[np.ndarray], Case | None]:
    """A model's second training step: everything that it leaves behind, and the case if it was recorded."""
    paddle.seed(7)
    model, step, inputs = steps.build(name)
    optimizer = paddle.optimizer.Adam(parameters=model.parameters())
    step().backward()
    optimizer.step()
    case = None
    if recorded:
        with Capture([model], inputs) as capture:
            loss = step()
            loss.backward()
        case = to_case(capture, name)
    else:
        loss = step()
        loss.backward()
    left = [loss.numpy(), *(v.numpy() for v in model.state_dict().values())]
    left += [p.grad.numpy() for p in model.parameters() if p.grad is not None]
    optimizer.step()
    left += [v.numpy() for v in model.state_dict().values()]
    left += [v.numpy() for v in optimizer.state_dict().values() if hasattr(v, "numpy")]
    return [*left, paddle.rand([3]).numpy()], case


@pytest.mark.parametrize("name", steps.NAMES)
def test_the_step_is_untouched_and_replays_bit_for_bit(name: str) -> None:
    plain, _ = run(name, recorded=False)
    same, case = run(name, recorded=True)
    assert len(plain) == len(same)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(plain, same, strict=True))
    assert case is not None
    assert case.distrust == ""
    assert ops(case) == steps.OPS.get(name, ops(case))
    assert found_wrong(case) == []
    assert {d for _, d in case.testimonies} == {"float32", "float64"}


def test_everything_is_put_back_after_an_error() -> None:
    owners = [(owner, attribute) for _, _, sites in _sites() for owner, attribute in sites]
    owners += [(paddle.Tensor, name) for name in METHODS if hasattr(paddle.Tensor, name)]
    owners += [(paddle.base.core.eager, "run_backward"), (paddle.base.core.eager, "run_partial_grad")]
    owners += [(paddle.nn.Layer, "__call__")]
    before = [getattr(owner, name) for owner, name in owners]
    own = "apply" in vars(paddle.autograd.PyLayer)
    with pytest.raises(RuntimeError, match="mine"), Capture([], {}):
        assert getattr(*owners[0]) is not before[0]
        raise RuntimeError("mine")
    assert all(getattr(owner, name) is old for (owner, name), old in zip(owners, before, strict=True))
    assert ("apply" in vars(paddle.autograd.PyLayer)) == own


def test_hooks_do_not_stay() -> None:
    layer, x = nn.Linear(2, 2), paddle.ones([1, 2])
    with Capture([layer], {}) as capture:
        y = layer(x)
        y.sum().backward(retain_graph=True)
    seen = {name: value.copy() for name, value in capture.gradients.items()}
    y.sum().backward()
    assert all(np.array_equal(capture.gradients[name], value) for name, value in seen.items())


def test_no_backward_inside() -> None:
    layer = nn.Linear(2, 2)
    with Capture([layer], {}) as capture:
        loss = layer(paddle.ones([1, 2])).sum()
    loss.backward()
    with pytest.raises(CaseError, match=r"call loss.backward\(\) there"):
        to_case(capture, "late")


def test_a_hook_that_edits_a_gradient_makes_the_recording_unfit_to_accuse() -> None:
    layer, x = nn.Linear(3, 2), paddle.ones([4, 3])

    def step() -> Any:
        y = layer(x)
        y.register_hook(lambda gradient: gradient * 2)
        return y.sum()

    case = record(step, layer)
    assert "cannot be replayed bit for bit, first at the gradient of" in case.distrust
    assert judge_case(case).data["decision"] == "undecided"


def test_parts_of_consumers_sum_to_the_whole() -> None:
    """Small integers: sums are exact."""
    x = paddle.to_tensor([[1.0, -2.0]])
    x.stop_gradient = False

    def step() -> Any:
        h = x + 1
        return (h * h + h * 3 + F.relu(h)).sum()

    case = record(step, x=x)
    said = case.testimonies["paddle", "float32"].gradients
    parts = {key: value.tolist() for key, value in said.items() if key.startswith("add.y@")}
    assert parts == {
        "add.y@mul.a": [[2.0, -1.0]],
        "add.y@mul.b": [[2.0, -1.0]],
        "add.y@mul#2": [[3.0, 3.0]],
        "add.y@relu": [[1.0, 0.0]],
    }
    assert said["add.y"].tolist() == [[8.0, 1.0]]
    assert found_wrong(case) == []


def test_linear_weights_are_canonical_and_shared_ones_keep_their_layout() -> None:
    plain, shared = nn.Linear(3, 2), nn.Linear(3, 3)
    x = paddle.ones([4, 3])
    case = record(lambda: plain(shared(x) @ shared.weight).sum(), nn.Sequential(plain, shared))
    assert case.values["0.weight"].shape == (2, 3)
    assert np.array_equal(case.values["0.weight"], plain.weight.numpy().T)
    assert np.array_equal(case.values["1.weight"], shared.weight.numpy())
    assert ops(case) == ["transpose", "linear", "matmul", "linear", "sum"]
    assert found_wrong(case) == []


X = np.array([[1.0, -2.0, 0.5], [3.0, 4.0, -1.0]], np.float32)
CALLS: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "scalars": (
        lambda x: (2 - x) * 3 / 4 - 1 + 1 / (x + 9),
        ["multiply", "add", "multiply", "divide", "multiply", "add"],
    ),
    "scale": (lambda x: paddle.scale(x, 2.0, 1.0) + paddle.scale(x, 2.0, 1.0, bias_after_scale=False), []),
    "negative": (lambda x: -x, ["multiply"]),
    "square": (lambda x: x**2 + paddle.square(x), ["multiply", "multiply", "add"]),
    "difference": (lambda x: x - paddle.subtract(x, x * 2), ["multiply", "multiply", "add", "multiply", "add"]),
    "matmul": (lambda x: paddle.matmul(x, x, transpose_y=True), ["transpose", "matmul"]),
    "matmul x": (lambda x: paddle.matmul(x, x, transpose_x=True) + x.T @ x, []),
    "batched": (lambda x: paddle.bmm(x.unsqueeze(0), x.T.unsqueeze(0)), ["reshape", "move", "reshape", "matmul"]),
    "reductions": (lambda x: x.sum(0, keepdim=True).mean() + x.mean(axis=[0, 1]) + x.sum(axis=1).sum(), []),
    "slices": (lambda x: x[:, 1:] + x[0, 1] + x[-1, ::2], []),
    "setitem": (lambda x: steps.with_zeros(x * 1), ["multiply", "move"]),
    "stack": (lambda x: paddle.stack([x, x * 2, x]).transpose([2, 0, 1]), ["multiply", "join", "reshape", "move"]),
    "concat": (lambda x: paddle.concat([x[:, :1], x, x[:, 1:]], axis=1), ["move", "move", "join", "move"]),
    "many": (lambda x: paddle.stack([x * i for i in range(20)]), ["multiply"] * 20 + ["join"] * 3 + ["reshape"]),
    "split": (lambda x: sum(part.sum() for part in paddle.split(x, 3, 1)), []),
    "pad": (lambda x: F.pad(x, [0, 0, 1, 2]), ["move"]),
    "gather": (lambda x: paddle.gather(x, paddle.to_tensor([1, 0, 1])).tile([2, 1]).flip(0), ["move", "move", "move"]),
    "exp log": (lambda x: paddle.exp(F.sigmoid(x)) + paddle.log(x * x), ["sigmoid", "exp", "multiply", "log", "add"]),
    "softmax": (lambda x: F.softmax(x, 0) * F.log_softmax(x), ["softmax", "log_softmax", "multiply"]),
    "layernorm": (lambda x: F.layer_norm(x, [3]), ["layernorm"]),
    "dropout": (
        lambda x: F.dropout(x, 0.5) + F.dropout(x, 0.5, mode="downscale_in_infer"),
        ["dropout", "multiply", "add"],
    ),
    "opaque": (lambda x: F.gelu(x * 2) * 3, ["multiply", "paddle.gelu", "multiply"]),
    "padding": (lambda x: F.embedding(paddle.to_tensor([1, 0]), x, padding_idx=0), ["embedding", "multiply"]),
    "clone": (lambda x: x.clone() + paddle.assign(x), ["reshape", "reshape", "add"]),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_become_canonical_ops(name: str) -> None:
    """paddle is never accused: what each call became says the same as the call, values, gradients and parts."""
    function, expected = CALLS[name]
    x = paddle.to_tensor(X)
    x.stop_gradient = False
    case = record(lambda: function(x).sum(), x=x)
    assert ops(case)[: len(expected)] == expected
    assert found_wrong(case) == []
    assert case.distrust == ""
    if name != "opaque":
        assert not graph.opaque(case)
        said = case.testimonies["paddle", "float64"]
        assert {node.outputs[slot] for node in case.graph for slot in node.outputs if "y" in slot} & set(said.forward)


LABELS = np.array([1, 0, 2, 2])
LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "mean": F.cross_entropy,
    "sum": lambda x, labels: F.cross_entropy(x, labels, reduction="sum"),
    "ignored": lambda x, labels: F.cross_entropy(x, labels, ignore_index=2),
    "column": lambda x, labels: F.cross_entropy(x, labels.unsqueeze(1)),
    "three axes": lambda x, labels: F.cross_entropy(x.reshape([2, 2, 3]), labels.reshape([2, 2])),
    "nll": lambda x, labels: F.nll_loss(F.log_softmax(x), labels, ignore_index=0),
    "mse": lambda x, labels: F.mse_loss(x, paddle.zeros_like(x)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    layer, x, labels = nn.Linear(5, 3), paddle.randn([4, 5]), paddle.to_tensor(LABELS)
    case = record(lambda: LOSSES[name](layer(x), labels), layer, x=x)
    assert found_wrong(case) == []
    assert not graph.opaque(case)


@pytest.mark.parametrize("mode", ["GRU", "RNN_TANH", "RNN_RELU"])
@pytest.mark.parametrize("lengths", [None, [3, 1]])
@pytest.mark.parametrize("time_major", [True, False])
def test_recurrent_layers_are_one_op(mode: str, lengths: list[int] | None, time_major: bool) -> None:
    settings = {"time_major": time_major} | ({} if mode == "GRU" else {"activation": mode[4:].lower()})
    layer = (nn.GRU if mode == "GRU" else nn.SimpleRNN)(4, 3, **settings)
    x = paddle.randn([5, 2, 4] if time_major else [2, 5, 4])
    given = None if lengths is None else paddle.to_tensor(lengths)

    def step() -> Any:
        y, h = layer(x, sequence_length=given)
        return (y * y).sum() + (h * 2).sum()

    case = record(step, layer, x=x)
    assert ops(case).count("gru" if mode == "GRU" else "rnn") == 1
    assert found_wrong(case) == []
    assert case.notes == []


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("direction", ["forward", "bidirect"])
@pytest.mark.parametrize("lengths", [None, [3, 1]])
def test_deep_and_two_way_layers_are_one_op_each(layers: int, direction: str, lengths: list[int] | None) -> None:
    layer, x = nn.GRU(4, 3, num_layers=layers, direction=direction), paddle.randn([2, 5, 4])
    given = None if lengths is None else paddle.to_tensor(lengths)

    def step() -> Any:
        y, h = layer(x, sequence_length=given)
        return (y * y).sum() + (h * h).sum()

    case = record(step, layer, x=x)
    assert ops(case).count("gru") == layers * (2 if direction == "bidirect" else 1)
    assert not graph.opaque(case)
    assert found_wrong(case) == [] and judge_case(case).data["decision"] == "agree"


@pytest.mark.parametrize("bias", [True, False])
def test_cells_are_one_op(bias: bool) -> None:
    off = {} if bias else {"bias_ih_attr": False, "bias_hh_attr": False}
    gru, rnn, x = nn.GRUCell(3, 4, **off), nn.SimpleRNNCell(4, 4, activation="relu", **off), paddle.randn([2, 3])

    def step() -> Any:
        return rnn(gru(x)[0])[0].sum()

    case = record(step, [gru, rnn])
    assert ops(case) == ["gru_step", "rnn_step", "sum"]
    assert found_wrong(case) == []
    assert len(case.graph[0].inputs) == 6  # without a bias, paddle's cells hold one of zeros


def test_a_float64_step_is_its_own_ladder() -> None:
    layer = nn.Linear(3, 2)
    layer.to(dtype="float64")
    case = record(lambda: layer(paddle.ones([4, 3], "float64")).sum(), layer)
    assert list(case.testimonies) == [("paddle", "float64")]
    assert found_wrong(case) == []


def test_two_backward_passes_and_an_upstream_gradient() -> None:
    x = paddle.to_tensor([1.0, 2.0])
    x.stop_gradient = False
    with Capture([], {"x": x}) as capture:
        y = x * 3
        y.backward(paddle.to_tensor([1.0, 10.0]), retain_graph=True)
        y.backward(paddle.to_tensor([1.0, 1.0]))
    case = to_case(capture, "twice")
    assert case.upstream["mul.y"].tolist() == [2.0, 11.0]
    assert case.testimonies["paddle", "float32"].gradients["x"].tolist() == [6.0, 33.0]
    assert case.distrust == "" and found_wrong(case) == []


def test_check_takes_gradients_in_paddles_layout() -> None:
    layer, x = nn.Linear(3, 2), paddle.randn([4, 3])
    with gradjury.record(layer, inputs={"x": x}) as run_:
        layer(x).sum().backward()
    right = layer.weight.grad.numpy()
    assert run_.check({"weight": right}).data["wrong"] == []
    assert run_.check({"weight": right.T}, layout="torch").data["wrong"] == []
    assert run_.check({"weight": 2 * right}).data["wrong"] == ["yours"]
