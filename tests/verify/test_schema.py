"""The JSON Schemas accept what the reader accepts and what the judge says, and no more than they should."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from gradjury.verify.case import Case, CaseError, read_case
from gradjury.verify.cli import app
from gradjury.verify.judge import judge_case
from gradjury.verify.schema import ANSWER, CASE

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.npz"))


def test_the_command_prints_valid_schemas() -> None:
    printed = json.loads(CliRunner().invoke(app, ["case", "--schema"]).stdout)
    assert printed == {"case": CASE, "answer": ANSWER}
    for schema in printed.values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_cases_and_answers_fit(path: Path) -> None:
    case = read_case(path)
    Draft202012Validator(CASE).validate(case.to_parts()[0])
    Draft202012Validator(ANSWER).validate(json.loads(judge_case(case).json))


def test_answers_of_several_cases_fit(tmp_path: Path) -> None:
    arguments = ["verify", "--json", str(CASES[0]), str(tmp_path), "no.npz"]
    found = json.loads(CliRunner().invoke(app, arguments).stdout)
    Draft202012Validator(ANSWER).validate(found)
    Draft202012Validator(ANSWER).validate(found["cases"][1])


BAD: list[tuple[list[str | int], Any]] = [
    (["gradjury"], 2),
    (["name"], ""),
    (["graph"], []),
    (["graph", 0, "op"], 1),
    (["graph", 0, "outputs", "y"], None),
    (["graph", 0, "step"], "1"),
    (["graph", 0, "attributes"], []),
    (["witnesses", "mine", "layout"], "jax"),
    (["witnesses", "mine", "time_axis"], 2),
    (["witnesses", "mine", "printed_digits"], 0),
    (["witnesses", "mine", "absent"], "W"),
    (["witnesses", "mine", "arithmetic"], {"operands": "fp8"}),
    (["witnesses", "mine", "arithmetic"], {"storage": {"h": 8}}),
    (["witnesses", "mine", "arithmetic"], {"variance": "none"}),
    (["witnesses", "mine", "arithmetic"], {"tanh": 2}),
]


@pytest.mark.parametrize(
    ("place", "value"), BAD, ids=lambda x: ".".join(map(str, x)) if isinstance(x, list) and x else None
)
def test_schema_and_reader_refuse_the_same(place: list[str | int], value: Any) -> None:
    description: Any = copy.deepcopy(read_case(CASES[0]).to_parts()[0])
    inner = description
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    assert not Draft202012Validator(CASE).is_valid(description)
    with pytest.raises(CaseError):
        Case.from_parts(description, {})
