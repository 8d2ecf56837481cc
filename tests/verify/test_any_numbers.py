"""Whatever numbers a case holds, it is judged or refused in one line: no crash, no warning, no wide line."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradjury.verify import ops
from gradjury.verify.case import DTYPES, Case, CaseError, read_case
from gradjury.verify.judge import judge_case
from gradjury.verify.new import new_case
from gradjury.verify.report.terminal import WIDTH

Arrays = dict[str, np.ndarray]
Change = Callable[[st.DrawFn, Any, Arrays, str], None]
CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.npz"))
SOURCES = [*(path.stem for path in CASES), *ops.all_ops()]


@cache
def parts_of(source: str) -> tuple[Any, Arrays]:
    path = next((path for path in CASES if path.stem == source), None)
    return (read_case(path) if path is not None else new_case(source)).to_parts()


def spoil_elements(draw: st.DrawFn, _: Any, arrays: Arrays, name: str) -> None:
    """NaN, infinities, zeros, the largest and the smallest numbers: in one place, or everywhere."""
    array = arrays[name].copy()
    if array.dtype.kind == "f" and array.size:
        value = draw(st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 3e38, 1e-45, 1e19]))
        place = draw(st.none() | st.integers(0, array.size - 1))
        with np.errstate(over="ignore"):
            array.flat[slice(None) if place is None else place] = value
    arrays[name] = array


def change_shape(draw: st.DrawFn, _: Any, arrays: Arrays, name: str) -> None:
    array = arrays[name]
    shaped = [array[None], array.T, array.reshape(-1), array.reshape(-1)[:0], array[:1] if array.ndim else array]
    arrays[name] = draw(st.sampled_from(shaped))


def change_dtype(draw: st.DrawFn, _: Any, arrays: Arrays, name: str) -> None:
    if arrays[name].dtype.kind == "f":
        with np.errstate(over="ignore"):
            arrays[name] = arrays[name].astype(draw(st.sampled_from(["f2", "f4", "f8"])))


def leave_out(draw: st.DrawFn, _: Any, arrays: Arrays, name: str) -> None:
    del arrays[name]


def say_it_at_another_dtype(draw: st.DrawFn, _: Any, arrays: Arrays, name: str) -> None:
    if name.startswith("grad/"):
        kind, witness, _dtype, key = name.split("/")
        arrays["/".join([kind, witness, draw(st.sampled_from(DTYPES)), key])] = arrays[name]


def declare(draw: st.DrawFn, description: Any, arrays: Arrays, name: str) -> None:
    arithmetic = {
        "operands": "bfloat16",
        "tanh": 1e-3,
        "flush_to_zero": True,
        "variance": "one-pass",
        "storage": "float16",
    }
    settings_ = {
        "layout": st.sampled_from(["torch", "paddle"]),
        "time_axis": st.just(1),
        "printed_digits": st.integers(1, 7),
        "arithmetic": st.sets(st.sampled_from(sorted(arithmetic))).map(
            lambda keys: {key: arithmetic[key] for key in keys}
        ),
        "absent": st.just([name.rpartition("/")[2]] if name.startswith("grad/") else []),
    }
    key = draw(st.sampled_from(sorted(settings_)))
    for witness in description["witnesses"].values():
        witness[key] = draw(settings_[key])


CHANGES: tuple[Change, ...] = (spoil_elements, change_shape, change_dtype, leave_out, say_it_at_another_dtype, declare)


@st.composite
def changed_parts(draw: st.DrawFn) -> tuple[Any, Arrays]:
    description, arrays = copy.deepcopy(parts_of(draw(st.sampled_from(SOURCES))))
    for _ in range(draw(st.integers(1, 3))):
        if arrays:
            draw(st.sampled_from(CHANGES))(draw, description, arrays, draw(st.sampled_from(sorted(arrays))))
    return description, arrays


@pytest.mark.filterwarnings("error")
@given(parts=changed_parts())
@settings(deadline=None, max_examples=150, database=None)
def test_judged_or_refused(parts: tuple[Any, Arrays]) -> None:
    try:
        report = judge_case(Case.from_parts(*parts))
    except CaseError as error:
        assert "\n" not in str(error)
        return
    assert json.loads(report.json)["decision"] in ("agree", "wrong", "undecided")
    assert max(map(len, str(report).splitlines())) <= WIDTH
