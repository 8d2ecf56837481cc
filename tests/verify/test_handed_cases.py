"""The handed cases through the command line: decisions, wrong lists, verdicts and causes as their answers say."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gradjury.verify.cli import app

FOLDER = Path(__file__).parents[1] / "cases"
ANSWERS: dict[str, Any] = json.loads((FOLDER / "answers.json").read_text())
EXIT = {"agree": 0, "wrong": 1, "undecided": 3}
INNOCENT = {"convention"}  # may be said of anybody

each = pytest.mark.parametrize("name", sorted(ANSWERS), ids=[ANSWERS[name]["slug"] for name in sorted(ANSWERS)])


@cache
def judged(name: str) -> tuple[int, Any]:
    """Exit code and JSON of `gradjury verify`."""
    result = CliRunner().invoke(app, ["verify", "--json", str(FOLDER / f"{name}.npz")])
    return result.exit_code, json.loads(result.stdout)


@each
def test_decision(name: str) -> None:
    code, found = judged(name)
    assert [found["decision"], sorted(found["wrong"])] in [[d, sorted(w)] for d, w in ANSWERS[name]["accept"]]
    assert code == EXIT[found["decision"]]


@each
def test_verdicts(name: str) -> None:
    tensors = judged(name)[1]["tensors"]
    missed = [
        f"{key} {witness} {dtype}: {verdict}, expected {' or '.join(right)}"
        for key, witnesses in ANSWERS[name]["tensors"].items()
        for witness, dtypes in witnesses.items()
        for dtype, right in dtypes.items()
        if (verdict := tensors[key]["testimony"][witness][dtype]["verdict"]) not in right
    ]
    assert missed == []


@each
def test_nobody_innocent_is_charged(name: str) -> None:
    answer = ANSWERS[name]
    guilty = {witness for _, wrong in answer["accept"] for witness in wrong} | set(answer["causes"])
    charged = {(cause["witness"], cause["cause"]) for cause in judged(name)[1]["causes"]}
    tolerated = INNOCENT | set(answer["tolerated_causes"])
    assert [c for c in charged if c[0] not in guilty and c[1] not in tolerated] == []


@pytest.mark.parametrize(
    ("name", "witness", "codes"),
    [
        pytest.param(name, witness, codes, id=f"{ANSWERS[name]['slug']}-{witness}")
        for name in sorted(ANSWERS)
        for witness, groups in ANSWERS[name]["causes"].items()
        for codes in groups
    ],
)
def test_cause(name: str, witness: str, codes: list[str]) -> None:
    named = {cause["cause"] for cause in judged(name)[1]["causes"] if cause["witness"] == witness}
    assert named & set(codes)
