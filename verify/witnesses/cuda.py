"""Our own kernels as a witness: the CUDA C++ backward at the testimony's own dtype, on the best engine here."""

from __future__ import annotations

import platform
from typing import Any

from gradjury.kernels.calls import Kernels
from gradjury.kernels.engine import Engine, EngineMissing, engine
from gradjury.kernels.scalars import SCALARS
from gradjury.kernels.tensor import Tensor
from gradjury.verify import execute, graph
from gradjury.verify.case import Case
from gradjury.verify.precision import PRECISIONS
from gradjury.verify.witnesses.base import Evidence, Identity, WitnessFailure

DTYPES = ("float64", "float32")


def evidence(case: Case, dtype: str, name: str = "cuda") -> Evidence:
    """Gradients whole and per consumer, and forward values, by our kernels at `dtype`; `case` is complete
    (graph.complete). Raises WitnessFailure."""
    if dtype not in DTYPES:
        raise WitnessFailure("error", f"our kernels testify at {' or '.join(DTYPES)}, not at {dtype}")
    opaque = graph.opaque(case)
    if opaque:
        raise WitnessFailure("error", f"node {opaque[0].name}: our kernels have no op {opaque[0].op}")
    where = _engine()
    precision = PRECISIONS[dtype]
    k = Kernels(where, SCALARS[dtype], precision.arithmetic())
    inputs = execute.load(case, k, {key: precision.round(value) for key, value in case.values.items()})
    run = execute.forward(case, k, inputs, {})
    upstream = {key: k.tensor(precision.round(value)[None]) for key, value in case.upstream.items()}
    found = execute.backward(case, k, run, upstream, {})
    made = [tensor for node in case.graph for tensor in node.outputs.values()]
    parts = {key: part for key, part in found.parts.items() if _shared(case, key)}
    return Evidence(
        {key: _array(k, tensor, dtype) for key, tensor in {**found.whole, **parts}.items()},
        {key: _array(k, run.values[key], dtype) for key in made if key in run.values},
        identity(where, name),
    )


def here(name: str = "cuda") -> Identity:
    """Our kernels on the best engine of this machine. Raises WitnessFailure where there is none."""
    return identity(_engine(), name)


def identity(where: Engine, name: str = "cuda") -> Identity:
    """Our kernels on one engine."""
    from gradjury import __version__

    if where.name == "host":
        return Identity(name, "gradjury", __version__, f"cpu ({platform.machine()})", ["gradjury"])
    cuda = where.xp.cuda
    device = cuda.runtime.getDeviceProperties(cuda.Device().id)["name"].decode()
    return Identity(name, "gradjury", __version__, f"gpu ({device})", ["gradjury"])


def _engine() -> Engine:
    try:
        return engine()
    except EngineMissing as error:
        raise WitnessFailure("import", str(error)) from None


def _shared(case: Case, key: str) -> bool:
    """Whether a part is not simply the whole: its tensor has several consumers."""
    return len(graph.consumers(case, graph.split_part(case, key)[0])) > 1


def _array(k: Kernels, tensor: Tensor, dtype: str) -> Any:
    return k.values(tensor)[0].astype(dtype)
