"""The documents say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from gradjury.verify import ops
from gradjury.verify.case import read_case
from gradjury.verify.judge import judge_case
from gradjury.verify.listing import ops_table
from gradjury.verify.schema import ANSWER, DECISIONS, VERDICTS

DOCS = Path(__file__).parents[2] / "docs"


def test_listed_ops_are_the_declared_ones() -> None:
    """The rows that the document quotes; the command itself prints from the declarations."""
    quoted = (DOCS / "case-format.md").read_text().split("lists them all")[1].split("```")[1].strip().splitlines()
    declared = {" ".join(line.split()) for line in ops_table().splitlines()}
    assert {" ".join(line.split()) for line in quoted} <= declared
    assert len(declared) == len(ops.all_ops()) + 1


def test_example_of_the_case_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = re.findall(r"```python\n(.*?)```", (DOCS / "case-format.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for text in example:
        exec(compile(text, "case-format.md", "exec"), {"np": np})
    report = judge_case(read_case(tmp_path / "my-linear.npz"))
    assert report.decision == "agree"


def test_every_verdict_and_decision_is_explained() -> None:
    text = (DOCS / "verdicts.md").read_text()
    assert [word for word in (*VERDICTS, *DECISIONS) if f"| `{word}` |" not in text] == []


def test_example_of_an_answer_fits_the_schema() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", (DOCS / "verdicts.md").read_text(), re.DOTALL)
    Draft202012Validator(ANSWER).validate(json.loads(example))


def test_every_key_of_an_answer_is_shown() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", (DOCS / "verdicts.md").read_text(), re.DOTALL)
    shown = json.loads(example)
    found = judge_case(read_case(Path(__file__).parents[1] / "cases" / "x53c1e9b.npz")).data
    assert shown.keys() == found.keys()
    for place in (["tensors", "W"], ["tensors", "W", "testimony", "mine", "float32"], ["causes", 0, "witness"]):
        a, b = shown, found
        for key in place[:-1]:
            a, b = a[key], b[key]
        assert set(a) <= set(b), place
