"""Recording PyTorch steps that are not plain: what cannot be judged is said, nobody is accused, nothing breaks."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'gradjury[torch]'")
F = torch.nn.functional
nn = torch.nn

import gradjury  # noqa: E402
from gradjury.verify.case import CaseError  # noqa: E402


def loss_of(scores: Any) -> Any:
    return F.cross_entropy(scores, torch.arange(len(scores)) % scores.shape[1])


@pytest.fixture
def step() -> tuple[Any, Any]:
    torch.manual_seed(0)
    return nn.Linear(6, 6), torch.randn(5, 6)


def test_autocast_is_undecided(step: tuple[Any, Any]) -> None:
    model, x = step
    with gradjury.record(model) as run:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model(x))
        loss.backward()
    report = run.check()
    assert (report.decision, report.wrong) == ("undecided", [])
    assert "autocast" in run.case().distrust


def test_a_checkpoint_is_recorded_and_a_reentrant_one_refused(step: tuple[Any, Any]) -> None:
    from torch.utils.checkpoint import checkpoint

    model, x = step
    for reentrant in (False, True):
        model.zero_grad()
        with gradjury.record(model) as run:
            loss_of(checkpoint(model, torch.tanh(model(x)), use_reentrant=reentrant)).backward()
        before = copy.deepcopy([p.grad for p in model.parameters()])
        if reentrant:
            with pytest.raises(CaseError, match="use_reentrant=False"):
                run.check()
        else:
            assert run.check().decision == "agree"
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))


def test_tensors_whose_elements_share_memory(step: tuple[Any, Any]) -> None:
    model, x = step
    with gradjury.record(model) as run:
        h = F.relu(model(x), inplace=True)
        loss_of(torch.cat([h, h], 1)[:, ::2].unsqueeze(0).expand(2, -1, -1).sum(0)).backward()
    assert run.check().decision == "agree"


def test_a_gradient_from_before_is_noted(step: tuple[Any, Any]) -> None:
    model, x = step
    loss_of(model(x)).backward()
    with gradjury.record(model) as run:
        loss_of(model(2 * x)).backward()
    assert run.check().decision == "agree"
    assert any(".grad was not empty" in note for note in run.case().notes)


def test_two_losses_add_up(step: tuple[Any, Any]) -> None:
    model, x = step
    with gradjury.record(model) as run:
        loss_of(model(x)).backward()
        loss_of(model(2 * x)).backward()
    assert run.check({name: p.grad for name, p in model.named_parameters()}).decision == "agree"


def test_double_backward_accuses_nobody(step: tuple[Any, Any]) -> None:
    model, x = step
    x.requires_grad_()
    with gradjury.record(model) as run:
        loss = loss_of(torch.tanh(model(x)))
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + slope.pow(2).sum()).backward()
    report = run.check()
    assert (report.decision, report.wrong) == ("undecided", [])


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_wrapped_models(step: tuple[Any, Any], wrap: Any) -> None:
    model, x = step
    wrapped = wrap(model)
    with gradjury.record(wrapped) as run:
        loss_of(wrapped(x)).backward()
    assert run.check().decision == "agree"


@pytest.mark.parametrize("layer", [nn.GRU, nn.RNN])
def test_a_recurrent_layer_with_the_batch_first(layer: Any) -> None:
    torch.manual_seed(0)
    model = layer(4, 6, batch_first=True)
    with gradjury.record(model) as run:
        loss_of(model(torch.randn(3, 5, 4))[0][:, -1]).backward()
    report = run.check({name: p.grad for name, p in model.named_parameters()})
    assert report.decision == "agree", report.text(verbose=True)
    assert report.data["opaque"] == []
