"""PyTorch as a witness. Imported only inside the witness's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gradjury.verify.witnesses import base
from gradjury.verify.witnesses.base import Identity


class Framework(base.Framework):
    """base.Framework for torch."""

    def __init__(self, device: str) -> None:
        import torch

        self.module: Any = torch
        if device == "gpu" and not torch.cuda.is_available():
            raise RuntimeError("this torch sees no GPU; ask for the witness torch instead of torch-gpu")
        self.device = "cuda" if device == "gpu" else "cpu"

    def identity(self) -> Identity:
        return identity(self.module, self.device)

    @contextmanager
    def precision(self) -> Iterator[None]:
        """No TF32, deterministic algorithms where there are any, no autocast; all settings are put back."""
        torch = self.module
        deterministic = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        switches = _switches(torch)
        torch.use_deterministic_algorithms(True, warn_only=True)
        for switch in switches:
            switch.write(switch.wanted)
        try:
            with torch.autocast(self.device, enabled=False), torch.enable_grad():
                yield
        finally:
            for switch in switches:
                switch.write(switch.before)
            torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])

    def tensor(self, array: np.ndarray, dtype: str | None, requires_grad: bool) -> Any:
        tensor = self.module.as_tensor(np.array(array), device=self.device)
        if dtype is None:
            return tensor
        return tensor.to(getattr(self.module, dtype)).requires_grad_(requires_grad)

    def alias(self, tensor: Any) -> Any:
        return tensor.view_as(tensor)

    def tracked(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad)

    def watch(self, tensor: Any) -> None:
        tensor.retain_grad()

    def run(self, op: Any, inputs: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = op.torch(self.module, inputs, attributes)
        return found

    def array(self, tensor: Any) -> np.ndarray:
        return array(self.module, tensor)


@dataclass(frozen=True)
class _Switch:
    """A setting: how to write it, what it was, and what full precision wants."""

    write: Callable[[Any], None]
    before: Any
    wanted: Any


def _switches(torch: Any) -> list[_Switch]:
    """The settings that make float32 less than float32, in the order in which to write them: coarse ones first.

    Newer versions have fine ones for each backend, and refuse to read the coarse ones where somebody has set only some
    of the fine ones: these are then left alone.
    """
    cudnn, onednn, matmul = torch.backends.cudnn, torch.backends.mkldnn, torch.backends.cuda.matmul
    found = []
    with suppress(RuntimeError):
        found.append(_Switch(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision(), "highest"))
    attributes: list[tuple[Any, str, Any]] = [(cudnn, "allow_tf32", False), (cudnn, "benchmark", False)]
    attributes.append((cudnn, "deterministic", True))
    if hasattr(torch.backends, "fp32_precision"):
        places = (matmul, cudnn.conv, cudnn.rnn, onednn.matmul, onednn.conv, onednn.rnn)
        attributes += [(place, "fp32_precision", "ieee") for place in places]
    for owner, name, wanted in attributes:
        with suppress(RuntimeError):
            found.append(_Switch(partial(setattr, owner, name), getattr(owner, name), wanted))
    return found


def array(torch: Any, tensor: Any) -> np.ndarray:
    """The tensor's values in memory of their own; bfloat16 as float32."""
    wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return np.array(wide.detach().cpu().numpy())


def identity(torch: Any, device: str = "cpu") -> Identity:
    """Version, device, maths libraries and the settings that change arithmetic."""
    flags: dict[str, Any] = {"deterministic": True, "tf32": False}
    if device == "cuda":
        backends = ["cublas", "cudnn"]
        flags |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
        flags["device_name"] = str(torch.cuda.get_device_name())
    else:
        libraries = {"mkl": torch.backends.mkl, "onednn": torch.backends.mkldnn}
        backends = [name for name, library in libraries.items() if library.is_available()] or ["openblas"]
        flags["threads"] = torch.get_num_threads()
    return Identity("torch", "torch", str(torch.__version__), device, backends, flags)
