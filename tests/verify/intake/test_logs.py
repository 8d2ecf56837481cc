"""Printed gradients are read as people paste them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradjury.verify.demo.ocr_attention import LOG
from gradjury.verify.intake.compare import compare
from gradjury.verify.intake.logs import LogError, Print, parse, read_log

EVALUATOR = "I0518 21:05:36.1 27471 Evaluator.cpp"


def v1(layer: str, numbers: str, gutter: str = "") -> list[str]:
    return [f"{gutter}{EVALUATOR}:959] layer={layer} new grad matrix:", f"{gutter}{EVALUATOR}:976] {numbers}"]


def fluid(tensor: str, shape: str, numbers: str) -> list[str]:
    return [f"1526874794\tTensor[{tensor}@GRAD]", f"\tshape: [{shape}]", "\tdtype: f", f"\tdata: {numbers}"]


def one(lines: list[str]) -> Print:
    (found,) = parse(lines)
    return found


def test_evaluator_format() -> None:
    found = one(v1("fc", "0.5 -1.25e-05 0 3"))
    assert (found.format, found.tensor, found.digits) == ("v1", "fc", 3)
    assert found.values.tolist() == [0.5, -1.25e-05, 0.0, 3.0]


def test_fluid_format_with_trailing_comma() -> None:
    found = one(fluid("x", "1,3,", "1,-0.25,0,"))
    assert (found.tensor, found.expected) == ("x@GRAD", 3)
    assert found.values.tolist() == [1.0, -0.25, 0.0]


def test_a_number_cut_by_wrapping_is_joined_and_a_cut_between_numbers_is_not() -> None:
    """Four spaces inside a number, five between two."""
    assert one(v1("a", "0.001 0.0    0298 0.5     0.25 1")).values.tolist() == [0.001, 0.00298, 0.5, 0.25, 1.0]


def test_zeros_cut_between_stay_two() -> None:
    assert one(v1("a", "0 0 0     0 0")).values.tolist() == [0.0] * 5


def test_wrapped_commas() -> None:
    assert one(fluid("x", "4,", "0,-0.00049    8105,0    ,1")).values.tolist() == [0.0, -0.000498105, 0.0, 1.0]


def test_line_numbers_in_front() -> None:
    assert one(v1("a", "1 2", gutter=" 73 ")).values.tolist() == [1.0, 2.0]


def test_steps_come_from_headings() -> None:
    lines = ["v1 step 7", *v1("a", "1 2"), "V1 step6 log:", *v1("a", "3 4")]
    assert [p.step for p in parse(lines)] == [7, 6]


def test_fewer_numbers_than_declared_is_a_cut_print() -> None:
    assert one(fluid("x", "1,4,", "1,2")).cut


def test_text_among_numbers_is_refused_in_one_line() -> None:
    with pytest.raises(LogError, match="expected numbers, found"):
        parse(fluid("x", "2,", "1,two"))


@pytest.mark.parametrize("content", [b"", b"nothing printed here\n", b"\xff\xfe\x00bad"])
def test_files_without_gradients(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(content)
    with pytest.raises(LogError) as error:
        read_log(path)
    assert "\n" not in str(error.value)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "none.log", tmp_path):
        with pytest.raises(LogError):
            read_log(path)


@given(st.lists(st.text(max_size=60), max_size=12))
def test_any_text_is_read_or_refused(lines: list[str]) -> None:
    """Never anything but LogError."""
    seed = [*v1("a", "1 2"), *lines, *fluid("x", "2,", "1,2"), *lines]
    try:
        parse(seed)
    except LogError as error:
        assert "\n" not in str(error)


@given(st.data())
def test_mutations_of_the_shipped_log(data: st.DataObject) -> None:
    text = LOG.read_text(encoding="utf-8")
    start = data.draw(st.integers(0, len(text) - 1))
    stop = data.draw(st.integers(start, min(len(text), start + 400)))
    mutated = text[:start] + data.draw(st.text(max_size=20)) + text[stop:]
    try:
        found = parse(mutated.split("\n"))
    except LogError as error:
        assert "\n" not in str(error)
    else:
        assert all(np.isfinite(p.values).all() or p.values.size for p in found)


def two_files(tmp_path: Path, first: list[str], second: list[str]) -> tuple[Path, Path]:
    paths = tmp_path / "a.log", tmp_path / "b.log"
    for path, lines in zip(paths, (first, second), strict=True):
        path.write_text("\n".join(lines), encoding="utf-8")
    return paths


def test_two_files_that_agree(tmp_path: Path) -> None:
    report = compare(*two_files(tmp_path, v1("a", "0.5 0.25 1"), fluid("p", "3,", "0.5,0.25,1")))
    assert report.decision == "agree"


def test_the_last_digit_is_no_difference(tmp_path: Path) -> None:
    """Half a unit in the last place, of either print-out."""
    report = compare(*two_files(tmp_path, v1("a", "0.123456 0.5"), fluid("p", "2,", "0.123457,0.5")))
    assert report.decision == "agree"


def test_a_real_difference_is_undecided_not_wrong(tmp_path: Path) -> None:
    report = compare(*two_files(tmp_path, v1("a", "0.512345 0.25 1"), fluid("p", "3,", "0.512345,0.26,1")))
    assert (report.decision, report.wrong) == ("undecided", [])


def test_layers_are_paired_by_size_and_likeness(tmp_path: Path) -> None:
    first = [*v1("big", "1 2 3"), *v1("small", "4 5")]
    second = [*fluid("q", "2,", "4,5"), *fluid("p", "3,", "1,2,3")]
    report = compare(*two_files(tmp_path, first, second))
    assert {(layer.first, layer.second) for layer in report.layers} == {("big", "p@GRAD"), ("small", "q@GRAD")}


def test_one_party_in_one_file_asks_for_the_other(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("\n".join(v1("a", "1 2")), encoding="utf-8")
    with pytest.raises(LogError, match="second file"):
        compare(path)


def test_nothing_of_equal_size(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="nothing to compare"):
        compare(*two_files(tmp_path, v1("a", "1 2"), fluid("p", "3,", "1,2,3")))


@given(shape=st.text("0123456789, \t", max_size=40))
def test_any_declared_shape_is_read(shape: str) -> None:
    """Also where wrapping has taken a comma or put a gutter into it."""
    assert one(fluid("x", shape, "1,2")).values.tolist() == [1.0, 2.0]


def test_absurdly_long_numbers_are_no_crash() -> None:
    """Python refuses to read whole numbers of more than 4300 digits."""
    digits = "9" * 5000
    assert [p.values.tolist() for p in parse([f"step {digits}", *fluid("x", digits, "1,2")])] == [[1.0, 2.0]]
