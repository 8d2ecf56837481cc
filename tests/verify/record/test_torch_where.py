"""torch.where and masked_fill are recorded as an op that has kernels."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'gradjury[torch]'")

import gradjury  # noqa: E402
from gradjury.verify import ops  # noqa: E402


def test_masks_of_attention_and_leaky_units() -> None:
    torch.manual_seed(0)
    net, x, seen = torch.nn.Linear(4, 4), torch.randn(6, 4), torch.rand(6, 1, 4) > 0.4
    seen[..., 0] = True
    with gradjury.record(net) as run:
        y = net(x)
        leaky = torch.where(y > 0, y, 0.1 * y)
        scores = leaky.masked_fill(~seen, float("-inf")).softmax(-1)
        (scores * x).sum().backward()
    graph = run.case().graph
    assert [node.op for node in graph].count("where") == 2
    assert all(ops.get(node.op) is not None for node in graph)
    run.check().assert_ok()
