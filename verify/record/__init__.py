"""`gradjury.record`: two lines around somebody's own training step."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gradjury.verify.record.run import Run

FRAMEWORKS = ("torch", "paddle")


@contextmanager
def record(model: Any = None, *, name: str = "recorded", inputs: Mapping[str, Any] | None = None) -> Iterator[Run]:
    """Records forward and backward of the step inside the `with`, in torch or paddle, without changing it.

    `model`: a module, or several in a list, whose parameters keep their names. `inputs`: names for other tensors.
    Raises ValueError if it cannot be told which framework is meant.
    """
    models = list(model) if isinstance(model, (list, tuple)) else [] if model is None else [model]
    named = dict(inputs or {})
    capture, build = _capture(_framework([*models, *named.values()]), models, named, name)
    run = Run(build)
    with capture:
        yield run


def _capture(framework: str, models: list[Any], inputs: dict[str, Any], name: str) -> tuple[Any, Any]:
    if framework == "torch":
        from gradjury.verify.record.torch_capture import Capture
        from gradjury.verify.record.torch_case import to_case

        capture = Capture(models, inputs)
        return capture, lambda: to_case(capture, name)
    from gradjury.verify.record import paddle_capture, paddle_case

    recording = paddle_capture.Capture(models, inputs)
    return recording, lambda: paddle_case.to_case(recording, name)


def _framework(things: list[Any]) -> str:
    """The framework that the given objects are of; with none given, the one that is imported."""
    found = {base.__module__.split(".")[0] for thing in things for base in type(thing).__mro__} & set(FRAMEWORKS)
    if not found:
        found = {framework for framework in FRAMEWORKS if framework in sys.modules}
    if len(found) != 1:
        told = " and ".join(sorted(found)) or "neither torch nor paddle"
        raise ValueError(f"record: expected one framework, found {told}; give the model: gradjury.record(model)")
    return found.pop()
