"""What is left of a recorded step: a case, ready to be judged with whatever else somebody has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gradjury.verify import graph
from gradjury.verify.case import Case, CaseError, Witness, write_case
from gradjury.verify.judge import judge_case
from gradjury.verify.report import Report
from gradjury.verify.witnesses.recorded import testimony


class Run:
    """A recorded training step. Usable once the `with` block has ended."""

    def __init__(self, build: Callable[[], Case]) -> None:
        self._build = build

    def case(self) -> Case:
        """The recorded step as a case, with the framework's testimonies. Raises CaseError if nothing was recorded."""
        return self._case

    @cached_property
    def _case(self) -> Case:
        case = self._build()
        if not case.graph or not case.upstream:
            raise CaseError("nothing was recorded: run forward and backward inside the with block")
        return case

    def check(
        self,
        gradients: Mapping[str, Any] | None = None,
        *,
        name: str = "yours",
        layout: str | None = None,
        strict: bool = False,
    ) -> Report:
        """Judges the recorded step and, as witness `name`, gradients by tensor name: arrays of any framework, or None.

        `layout`: how these are stored, `torch` or `paddle` (a linear weight is (in, out)); None: as in the framework
        that was recorded, so that a gradient has the shape of its parameter. Raises CaseError for a name that the step
        does not have.
        """
        case = self._case
        if gradients is not None:
            case = self._with(case, gradients, name, layout or next(w.layout for w in case.witnesses.values()))
        return judge_case(case, strict=strict)

    def save(self, path: str | Path) -> None:
        """Writes the recorded case (.npz or .safetensors)."""
        write_case(self._case, path)

    def _with(self, case: Case, gradients: Mapping[str, Any], name: str, layout: str) -> Case:
        said, absent = testimony(name, gradients)
        known = graph.tensors(case)
        for key in gradients:
            if graph.split_part(case, key)[0] not in known:
                close = get_close_matches(key, known, 3)
                hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(sorted(known)[:8])}, …"
                raise CaseError(f"{name}: the recorded step has no tensor {key!r}; {hint}")
        if said.dtype == "float64":  # lists and integers say nothing of a dtype
            said.gradients = {key: np.asarray(array, np.float64) for key, array in said.gradients.items()}
        return replace(
            case,
            witnesses={**case.witnesses, name: Witness(name, layout=layout, absent=tuple(absent))},
            testimonies={**case.testimonies, (name, said.dtype): said},
        )
