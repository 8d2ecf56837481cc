"""The backward of 1024-512-256-10 (batchnorm, ReLU, dropout, log-softmax, NLL) by hand: `gradjury check examples/mlp.py`."""

import numpy as np
import torch
from torch import nn

import gradjury


class Net(nn.Module):
    """Keeps what its backward needs, as one does to write that backward by hand."""

    def __init__(self):
        super().__init__()
        self.fc1, self.bn1 = nn.Linear(1024, 512), nn.BatchNorm1d(512)
        self.fc2, self.bn2 = nn.Linear(512, 256), nn.BatchNorm1d(256)
        self.fc3 = nn.Linear(256, 10)
        self.kept = {}

    def forward(self, x):
        for i, (linear, norm) in enumerate(((self.fc1, self.bn1), (self.fc2, self.bn2)), start=1):
            before = linear(x)
            normal = norm(before)
            mask = (torch.rand_like(normal) > 0.4).float()
            self.kept |= {f"x{i}": x, f"fc{i}": before, f"bn{i}": normal, f"mask{i}": mask}
            x = torch.relu(normal) * mask / (1 - 0.4)
        self.kept |= {"x3": x, "fc3": self.fc3(x)}
        return torch.log_softmax(self.kept["fc3"], -1)


def batchnorm_backward(dy, x, weight, epsilon=1e-5):
    """dx, dweight, dbias."""
    centred = x - x.mean(0)
    spread = np.sqrt(x.var(0) + epsilon)
    normal = centred / spread
    flow = dy * weight
    dx = (flow - flow.mean(0) - normal * (flow * normal).mean(0)) / spread
    return dx, (dy * normal).sum(0), dy.sum(0)


def backward(kept, weights, target):
    """The gradients of all parameters."""
    found = {}
    flow = np.exp(kept["fc3"])
    flow /= flow.sum(1, keepdims=True)
    flow[np.arange(len(target)), target] -= 1
    flow /= len(target)
    for i in (3, 2, 1):
        if i < 3:
            flow = flow * (kept[f"mask{i}"] / np.float32(0.6)) * (kept[f"bn{i}"] > 0)
            weight = weights[f"bn{i}.weight"]
            flow, found[f"bn{i}.weight"], found[f"bn{i}.bias"] = batchnorm_backward(flow, kept[f"fc{i}"], weight)
        found[f"fc{i}.weight"] = flow.T @ kept[f"x{i}"]
        found[f"fc{i}.bias"] = flow.sum(0, keepdims=True)
        flow = flow @ weights[f"fc{i}.weight"]
    return found


torch.manual_seed(0)
net, x, target = Net(), torch.randn(64, 1024), torch.randint(0, 10, (64,))
with gradjury.record(net) as run:
    loss = nn.functional.nll_loss(net(x), target)
    loss.backward()

kept = {name: value.detach().numpy() for name, value in net.kept.items()}
weights = {name: value.detach().numpy() for name, value in net.named_parameters()}
run.check(backward(kept, weights, target.numpy())).show()
