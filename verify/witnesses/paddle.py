"""PaddlePaddle as a witness (dynamic graph). Imported only inside the witness's own process, and by the capture."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gradjury.verify.witnesses import base
from gradjury.verify.witnesses.base import Identity

DETERMINISTIC = {  # settings of the GPU builds
    "FLAGS_cudnn_deterministic": True,
    "FLAGS_embedding_deterministic": 1,
    "FLAGS_gemm_use_half_precision_compute_type": False,
}
TF32_SWITCHES = ("cublas_switch", "cudnn_switch")  # get_…/set_… of the GPU builds: whether TF32 may be used


class Framework(base.Framework):
    """base.Framework for paddle."""

    def __init__(self, device: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import paddle
        self.module: Any = paddle
        self.device = device
        if device == "gpu" and not (paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count()):
            raise RuntimeError("this paddle sees no GPU; ask for the witness paddle instead of paddle-gpu")
        paddle.set_device(device)

    def identity(self) -> Identity:
        return identity(self.module)

    @contextmanager
    def precision(self) -> Iterator[None]:
        """No TF32, deterministic kernels, no autocast; all settings are put back."""
        core = self.module.base.core
        flags = known_flags(self.module, DETERMINISTIC)
        switches = {name: getattr(core, f"get_{name}")() for name in TF32_SWITCHES if hasattr(core, f"get_{name}")}
        self.module.set_flags({flag: DETERMINISTIC[flag] for flag in flags})
        for name in switches:
            getattr(core, f"set_{name}")(False)
        try:
            with self.module.amp.auto_cast(enable=False):
                yield
        finally:
            self.module.set_flags(flags)
            for name, before in switches.items():
                getattr(core, f"set_{name}")(before)

    def tensor(self, array: np.ndarray, dtype: str | None, requires_grad: bool) -> Any:
        if dtype is None:
            return self.module.to_tensor(array)
        exact = {"bfloat16": np.float32, "float16": np.float32}.get(dtype, dtype)
        tensor = self.module.to_tensor(np.asarray(array).astype(exact))
        tensor = tensor if str(tensor.dtype) == f"paddle.{dtype}" else tensor.astype(dtype)
        tensor.stop_gradient = not requires_grad
        return tensor

    def alias(self, tensor: Any) -> Any:
        return self.module.assign(tensor)

    def tracked(self, tensor: Any) -> bool:
        return not tensor.stop_gradient

    def watch(self, tensor: Any) -> None:
        tensor.retain_grads()

    def run(self, op: Any, inputs: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = op.paddle(self.module, inputs, attributes)
        return found

    def array(self, tensor: Any) -> np.ndarray:
        return array(self.module, tensor)


def array(paddle: Any, tensor: Any) -> np.ndarray:
    """The tensor's values in memory of their own; bfloat16 as float32."""
    wide = tensor.astype("float32") if tensor.dtype == paddle.bfloat16 else tensor
    return np.array(wide.detach().numpy())


def known_flags(paddle: Any, wanted: Any) -> dict[str, Any]:
    """The current values of those flags that this build knows."""
    found: dict[str, Any] = {}
    for flag in wanted:
        try:
            found |= paddle.get_flags(flag)
        except ValueError:  # another version or a CPU build: nothing to switch
            continue
    return found


def identity(paddle: Any) -> Identity:
    """Version, device, maths libraries and the settings that change arithmetic."""
    device = str(paddle.get_device())
    flags: dict[str, Any] = {"deterministic": True, "tf32": False}
    if device.startswith("gpu"):
        backends = ["cublas", "cudnn"]
        flags |= {"cuda": str(paddle.version.cuda()), "cudnn": str(paddle.version.cudnn())}
        flags["device_name"] = str(paddle.device.cuda.get_device_name())
    else:
        backends = cpu_backends(paddle)
    return Identity("paddle", "paddle", str(paddle.__version__), device, backends, flags)


def cpu_backends(paddle: Any) -> list[str]:
    """The CPU maths libraries that came with this build."""
    folder = Path(paddle.__file__).parent / "libs"
    shipped = " ".join(path.name for path in folder.iterdir()) if folder.is_dir() else ""
    marks = {"mkl": "mklml", "openblas": "openblas", "onednn": "dnnl"}
    return [name for name, mark in marks.items() if mark in shipped]
