"""Any Python function as a witness: somebody's hand-written backward, in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gradjury.verify.case import Case
from gradjury.verify.precision import PRECISIONS
from gradjury.verify.witnesses.base import Evidence, Identity, WitnessFailure
from gradjury.verify.witnesses.recorded import as_array

Backward = Callable[[dict[str, np.ndarray], dict[str, np.ndarray], str], Mapping[str, Any]]


def evidence(case: Case, function: Backward, dtype: str, name: str) -> Evidence:
    """What `function(inputs, upstream, dtype)` says: gradients by tensor name or part key, arrays of any framework.

    `case` is complete (graph.complete). The function gets copies, rounded to `dtype`. If it changes one in place, that
    is noted (`harness.upstream-mutated`): beside other witnesses in one process it would have spoiled theirs. Raises
    WitnessFailure for whatever it raises.
    """
    inputs, upstream = _rounded(case.values, dtype), _rounded(case.upstream, dtype)
    handed = {key: array.copy() for key, array in inputs.items()}
    given_up = {key: array.copy() for key, array in upstream.items()}
    try:
        said = function(handed, given_up, dtype)
        gradients = {key: as_array(value)[0] for key, value in said.items() if value is not None}
    except Exception as error:  # the function is somebody else's: its failure is reported like any witness's
        raise WitnessFailure("error", f"{type(error).__name__}: {error}".splitlines()[0]) from error
    notes = [f"{name} changed its input {key} in place" for key in _changed(inputs, handed)]
    notes += [
        f"{name} changed the upstream gradient of {key} in place [harness.upstream-mutated]: other witnesses of the"
        " same process would have seen the changed one"
        for key in _changed(upstream, given_up)
    ]
    version = f"Python {sys.version_info.major}.{sys.version_info.minor}, numpy {np.__version__}"
    identity = Identity(name, "callable", version, "cpu")
    absent = [key for key, value in said.items() if value is None]
    return Evidence(gradients, {}, identity, absent, notes)


def name_of(function: Any) -> str:
    """What to call a function that nobody has named."""
    name = str(getattr(function, "__name__", type(function).__name__))
    return "yours" if name == "<lambda>" else name


def _rounded(values: Mapping[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """The values as a witness of this dtype holds them; bfloat16 and float16 on their grid, as float32."""
    found = {}
    for key, array in values.items():
        found[key] = PRECISIONS[dtype].round(array) if array.dtype.kind == "f" else array
        if dtype == "float64" and array.dtype.kind == "f":
            found[key] = array.astype(np.float64)
    return found


def _changed(before: Mapping[str, np.ndarray], after: Mapping[str, Any]) -> list[str]:
    return [
        key
        for key, array in before.items()
        if key in after and not np.array_equal(array, after[key], equal_nan=array.dtype.kind == "f")
    ]
