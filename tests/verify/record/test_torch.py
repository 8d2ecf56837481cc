"""Recording a PyTorch step: it is captured whole, replayed bit for bit, and left exactly as it would have been."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'gradjury[torch]'")
F = torch.nn.functional
nn = torch.nn

import gradjury  # noqa: E402
from gradjury.verify import graph  # noqa: E402
from gradjury.verify.case import CaseError  # noqa: E402
from gradjury.verify.record.torch_capture import Capture  # noqa: E402
from gradjury.verify.record.torch_replay import replay  # noqa: E402


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn1 = nn.Linear(20, 16), nn.BatchNorm1d(16)
        self.fc2, self.bn2 = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.fc3 = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.bn1(self.fc1(x)))
        x = x * (torch.rand_like(x) > 0.4).float() / (1 - 0.4)
        x = F.relu(self.bn2(self.fc2(x)), inplace=True)
        return F.log_softmax(self.fc3(F.dropout(x, 0.3)), -1)


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(6, 8), nn.Linear(8, 10)

    def forward(self, x: Any) -> Any:
        h = x.new_zeros(x.shape[1], 8)
        steps = []
        for t in range(x.shape[0]):
            h = self.cell(x[t], h)
            steps.append(self.out(h))
        return F.log_softmax(torch.stack(steps).reshape(-1, 10), -1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.middle = nn.Embedding(10, 7), nn.Linear(7, 7)
        self.decoder = nn.Linear(7, 10, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, index: Any) -> Any:
        return F.log_softmax(self.decoder(torch.tanh(self.middle(self.embedding(index)))).flatten(0, 1), -1)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 10)

    def forward(self, x: Any) -> Any:
        h = x + F.relu(self.a(x))
        h = h + self.norm(self.b(h))
        h = h * h
        h += x
        return F.log_softmax(self.out(h), -1)


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(6, 8), nn.Linear(8, 10)

    def forward(self, x: Any) -> Any:
        y, h = self.gru(x)
        return F.log_softmax(self.out(y[-1]) + self.out(h[-1]), -1)


class Odd(nn.Module):
    """In place through a view, a chunk, an op that nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 10)

    def forward(self, x: Any) -> Any:
        h = self.a(x)
        u, w = h.chunk(2, 1)
        return F.log_softmax(torch.cat([F.gelu(u), w.clamp(min=-0.5)], 1), -1)


class Deep(nn.Module):
    """Two layers of GRU with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(6, 8, num_layers=2, dropout=0.5), nn.Linear(8, 10)

    def forward(self, x: Any) -> Any:
        y, h = self.gru(x)
        return F.log_softmax(self.out(y[-1]) + self.out(h[-1]), -1)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return 2 * gradient * ctx.saved_tensors[0]


class Mess(nn.Module):
    """In place, a backward of the user's own, a checkpoint, .T, an expanded upstream; on wish in place through a view."""

    def __init__(self, view: bool = False) -> None:
        super().__init__()
        self.view = view
        self.a, self.b, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(1, 10)

    def forward(self, x: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        h = self.a(x)
        h[:, 0] = 0
        if self.view:
            h[1].mul_(3)
        u, w = h.chunk(2, 1)
        z = Square.apply(u) + w.T.T.clamp(min=-0.5)
        y = checkpoint(lambda q: F.gelu(self.b(q)), h, use_reentrant=False)
        return F.log_softmax(self.out((z.sum() + y.sum(0).max() + h.std()).reshape(1, 1)), -1)


def models() -> dict[str, tuple[Any, Any]]:
    torch.manual_seed(1)
    return {
        "mlp": (Mlp(), torch.randn(12, 20)),
        "cell": (Cell(), torch.randn(4, 3, 6)),
        "tied": (Tied(), torch.randint(0, 10, (3, 4))),
        "residual": (Residual(), torch.randn(12, 8)),
        "sequence": (Sequence(), torch.randn(4, 12, 6)),
        "odd": (Odd(), torch.randn(12, 6)),
        "deep": (Deep(), torch.randn(4, 12, 6)),
        "mess": (Mess(), torch.randn(5, 6)),
        "view": (Mess(view=True), torch.randn(5, 6)),
    }


FORKED = ("cell", "tied", "residual", "deep")  # models in which some tensor has several consumers


def loss_of(model: Any, x: Any) -> Any:
    scores = model(x)
    return F.nll_loss(scores, torch.arange(len(scores)) % 10)


def state(model: Any, optimizer: Any) -> list[Any]:
    """Everything that a recording might have disturbed."""
    parameters = list(model.parameters())
    return [
        [p.detach().clone() for p in parameters],
        [b.clone() for b in model.buffers()],
        [None if p.grad is None else p.grad.clone() for p in parameters],
        [p._backward_hooks for p in parameters],
        [p._version for p in parameters],
        copy.deepcopy(optimizer.state_dict()),
        torch.get_rng_state(),
    ]


def same(a: Any, b: Any) -> bool:
    if torch.is_tensor(a):
        return bool(torch.is_tensor(b) and a.dtype == b.dtype and torch.equal(a, b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return bool(a == b)


def train(name: str, around: Callable[[Any], Any]) -> list[Any]:
    """Two steps with the second one inside `around`, then one more: losses and states."""
    model, x = models()[name]
    optimizer = torch.optim.Adam(model.parameters())
    torch.manual_seed(7)
    loss_of(model, x).backward()
    optimizer.step()
    with around(model):
        loss = loss_of(model, x)
        loss.backward()
    seen = [loss.detach(), *state(model, optimizer)]
    optimizer.step()
    loss_of(model, x).backward()
    return [*seen, *state(model, optimizer)]


@pytest.mark.parametrize("name", models())
def test_the_step_is_left_as_it_would_have_been(name: str) -> None:
    from contextlib import nullcontext

    assert same(train(name, lambda model: nullcontext()), train(name, gradjury.record))


@pytest.mark.parametrize("name", sorted(set(models()) - {"view"}))
def test_a_replay_at_its_own_dtype_repeats_every_bit(name: str) -> None:
    model, x = models()[name]
    capture = Capture([model], {})
    with capture:
        loss_of(model, x).backward()
    values, gradients = replay(capture, None)
    assert values and all(torch.equal(v, capture.values[k]) for k, v in values.items())
    assert set(capture.gradients) <= set(gradients)
    assert all(torch.equal(gradients[k], g) for k, g in capture.gradients.items())


@pytest.mark.parametrize("name", sorted(set(models()) - {"view"}))
def test_parts_sum_to_the_whole(name: str) -> None:
    """Wherever every consumer's part was seen (those of one call with several outputs are not told apart)."""
    model, x = models()[name]
    with gradjury.record(model) as run:
        loss_of(model, x).backward()
    case = run.case()
    said = case.testimonies["torch", "float32"].gradients
    complete = 0
    for tensor in graph.tensors(case) & set(said):
        uses = graph.consumers(case, tensor)
        found = [said[key] for node, slot in uses if (key := graph.part_key(case, tensor, node.name, slot)) in said]
        if len(found) == len(uses) > 1:
            complete += 1
            size = sum(np.abs(part) for part in found)
            assert (np.abs(sum(found) - said[tensor]) <= len(found) * 2.0**-24 * size).all(), tensor
    assert complete or name not in FORKED


@pytest.mark.parametrize("name", ["mlp", "cell", "tied", "residual", "sequence"])
def test_nobody_is_wrong_in_a_recorded_step(name: str) -> None:
    """torch is judged at both dtypes against our own kernels."""
    model, x = models()[name]
    with gradjury.record(model) as run:
        loss_of(model, x).backward()
    report = run.check()
    assert report.decision == "agree", report.text(verbose=True)
    assert report.data["opaque"] == []
    dtypes = report.data["witnesses"]["torch"]["dtypes"]
    assert dtypes == ["float32", "float64"]


def test_ops_without_a_kernel_are_named() -> None:
    model, x = models()["odd"]
    with gradjury.record(model) as run:
        loss_of(model, x).backward()
    report = run.check()
    assert report.wrong == []
    assert any("clamp" in node for node in report.data["opaque"])


def test_a_change_through_a_view_is_noted_and_accuses_nobody() -> None:
    """What flows through the view cannot be followed, so that not even a wrong gradient is blamed."""
    model, x = models()["view"]
    with gradjury.record(model) as run:
        loss_of(model, x).backward()
    assert any("changed in place through a view" in note for note in run.case().notes)
    report = run.check({"out.weight": model.out.weight.grad * 2})
    assert run.case().distrust and (report.decision, report.wrong) == ("undecided", [])


def test_a_home_made_dropout_is_one_op() -> None:
    model, x = models()["mlp"]
    with gradjury.record(model) as run:
        loss_of(model, x).backward()
    ops = [node.op for node in run.case().graph]
    assert ops.count("dropout") == 2 and "multiply" not in ops and "divide" not in ops


def test_hand_written_gradients_are_judged_beside_it() -> None:
    """Right ones pass, also from torch tensors; a slip is wrong; None is missing."""
    model, x = models()["residual"]
    with gradjury.record(model) as run:
        loss_of(model, x).backward()
    right = {name: p.grad for name, p in model.named_parameters()}
    assert run.check(right).decision == "agree"
    wrong = run.check({**right, "a.weight": right["a.weight"] * 1.001})
    assert wrong.wrong == ["yours"]
    assert run.check({"a.weight": None}, name="mine").wrong == ["mine"]


def test_a_name_that_does_not_exist_is_answered_with_one_that_does() -> None:
    model, x = models()["residual"]
    with gradjury.record(model) as run:
        loss_of(model, x).backward()
    with pytest.raises(CaseError, match=r"did you mean .*a\.weight"):
        run.check({"a.wieght": np.zeros((8, 8))})


def test_nothing_recorded_is_said() -> None:
    with gradjury.record(Mlp()) as run:
        pass
    with pytest.raises(CaseError, match="nothing was recorded"):
        run.check()


def test_a_hook_that_edits_gradients_makes_the_recording_doubtful() -> None:
    """The replay cannot know what the hook did, so nobody is accused."""
    model, x = models()["residual"]
    with gradjury.record(model) as run:
        h = model.a(x)
        h.register_hook(lambda g: g * 2)
        F.nll_loss(F.log_softmax(model.out(torch.relu(h)), -1), torch.arange(12) % 10).backward()
    report = run.check()
    assert "differs from what was recorded" in run.case().distrust
    assert (report.decision, report.wrong) == ("undecided", [])


def test_a_saved_case_says_the_same(tmp_path: Any) -> None:
    model, x = models()["mlp"]
    with gradjury.record(model) as run:
        loss_of(model, x).backward()
    run.save(tmp_path / "step.npz")
    again = gradjury.judge_case(gradjury.read_case(tmp_path / "step.npz"))
    assert again.data["tensors"] == run.check().data["tensors"]
