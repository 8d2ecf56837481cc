"""Reports: what they say for every decision, on one screen, whatever the names are."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradjury.verify.case import Case, Node, Testimony, Witness, read_case
from gradjury.verify.judge import judge_case
from gradjury.verify.report import Report, text
from gradjury.verify.report.report import collect
from gradjury.verify.report.terminal import show

CASES = Path(__file__).parents[1] / "cases"
SCREEN = 30  # lines of a terminal window that people keep open

Json = dict[str, Any]


def finding(verdict: str = "agrees", **more: Any) -> Json:
    found = {
        "verdict": verdict,
        "excess": 0.2,
        "unit_roundoff": 2.0**-24,
        "max_abs": 1.0,
        "max_rel": 1e-7,
        "worst_index": [0],
    }
    sizes = {"difference": 3e-8, "allowed": 2e-7, "resolution": 1e-6, "outside": 0, "size": 4}
    return {**found, **sizes, **more}


def tensor(vote: list[list[str]] | None = None, *, zero: bool = False, **witnesses: Json) -> Json:
    """What a report says about one tensor, each witness at float32."""
    said = {name: {"float32": found} for name, found in witnesses.items()}
    return {"scale": 30.0, "exact_zero": zero, "max_abs": 1.0, "testimony": said, "vote": vote or [list(witnesses)]}


def data(decision: str = "agree", **more: Any) -> Json:
    """A report's JSON object with one tensor."""
    found: Json = {
        "gradjury": 1,
        "case": "mlp",
        "decision": decision,
        "wrong": ["mine"] if decision == "wrong" else [],
        "tensors": {"w": tensor(mine=finding(), torch=finding())},
        "causes": [],
        "findings": [],
        "first_wrong": None,
        "forward": {},
        "failures": [],
        "audit": {"kernels_agree": None, "kernels_why": "numba needs a GPU", "directional_excess": 0.02},
        "witnesses": {name: {"layout": "torch", "dtypes": ["float32"]} for name in ("mine", "torch")},
    }
    return {**found, **more}


def says(report: Report, *sentences: str, verbose: bool = False) -> None:
    """The report holds each sentence, whatever the line breaks."""
    found = " ".join(report.text(verbose=verbose).split())
    for sentence in sentences:
        assert sentence in found, f"{sentence!r} is not in:\n{report.text(verbose=verbose)}"


def cause(**more: Any) -> Json:
    return {
        "witness": "mine",
        "cause": "value.zero",
        "kind": "mistake",
        "tensors": ["w"],
        "evidence": "all 4 values are zero",
        **more,
    }


# ---- the decision


def test_nobody_is_wrong() -> None:
    says(Report(data()), "NOBODY IS WRONG. The gradient is within rounding.", "referee against itself: yes.")
    two = {"a": tensor(mine=finding()), "b": tensor(mine=finding())}
    says(Report(data(tensors=two)), "NOBODY IS WRONG. All 2 gradients are within rounding.")


def test_a_part_taken_for_the_whole_is_not_called_rounding() -> None:
    two = {"a": tensor(mine=finding()), "b": tensor(mine=finding())}
    cause = {"witness": "mine", "cause": "accumulate.partial", "kind": "harness", "tensors": ["a"], "evidence": ""}
    says(Report(data(tensors=two, causes=[cause])), "NOBODY IS WRONG. 1 of 2 gradients: a part of the gradient where")


def test_nothing_to_judge_is_not_called_right() -> None:
    says(Report(data(tensors={})), "NOTHING TO JUDGE. No witness gave a gradient.")


def test_low_precision_is_said_but_nobody_is_wrong() -> None:
    tensors = {"w": tensor(mine=finding("low-precision", arithmetic="tfloat32", excess=800.0))}
    found = [
        {
            "witness": "mine",
            "verdict": "low-precision",
            "arithmetic": "tfloat32",
            "tensors": ["w"],
            "evidence": "one u fits",
        }
    ]
    report = Report(data(tensors=tensors, findings=found))
    says(
        report,
        "NOBODY IS WRONG, but 1 of 1 gradient have less precision",
        "mine, w: low-precision (tfloat32): one u fits",
    )
    report.assert_ok()


def test_by_vote_alone() -> None:
    report = Report(data(by_vote_alone=True, audit={"kernels_agree": None, "directional_excess": None}))
    says(report, "NOBODY IS WRONG as far as a vote can tell", "referee against itself: not possible (no reference)")


def test_wrong_says_who_why_and_where() -> None:
    tensors = {"w": tensor([["torch"], ["mine"]], mine=finding("wrong", excess=99.0, outside=3), torch=finding())}
    first = {"witness": "mine", "node": "fc", "step": 3}
    says(
        Report(data("wrong", tensors=tensors, causes=[cause()], first_wrong=first)),
        "WRONG: mine. No rounding explains 1 of 1 gradient. [value.zero]",
        "in the backward of fc at step 3",
        "mine, w: value.zero: all 4 values are zero",
        "Vote all: torch | mine",
    )
    says(
        Report(data("wrong", tensors=tensors)),
        "mine, w: 99 times what rounding can explain, in 3 of 4 elements; no known mistake fits",
    )


def test_every_wrong_witness_has_its_row() -> None:
    wrong = tensor(mine=finding("wrong", excess=9.0), old=finding("wrong", excess=8.0), torch=finding())
    rows = [line.split()[:2] for line in Report(data("wrong", tensors={"w": wrong})).text().splitlines()]
    assert ["w", "mine"] in rows
    assert ["w", "old"] in rows
    assert ["w", "torch"] not in rows


def test_forward_comes_first() -> None:
    tensors = {"w": tensor(mine=finding("wrong", excess=99.0))}
    forward = {"y": {"mine": {"float32": finding("wrong", difference=2.3)}}}
    case = Case("c", [Node("fc", "linear", {"x": "x", "weight": "w"}, {"y": "y"})])
    first = {"witness": "mine", "node": "fc", "step": None}
    report = Report(data("wrong", tensors=tensors, forward=forward, first_wrong=first), case)
    says(report, "in the forward of fc (linear): y differs by 2.3", "y (forward)", "2 of 2 values")


def test_another_definition_is_not_called_a_bug() -> None:
    report = judge_case(read_case(CASES / "xfad86af.npz"))
    says(
        report,
        "DIFFERENT DEFINITION, not a gradient bug [gru.update-convention]",
        "the case h' = z*h + (1-z)*n mine h' = (1-z)*h + z*n",
        "weights: negate rows 3:6 of W_ih, W_hh, b_ih, b_hh",
        "accept: gradjury verify CASE --define gru.update=keeps-candidate",
        "Ruled out gru.reset-placement",
    )
    (cause_,) = report.data["causes"]
    for witness, (ours, theirs) in cause_["excess"].items():
        assert (ours <= 1, theirs <= 1) == (witness == "torch", witness == "mine")


def test_the_weights_it_proposes_are_right() -> None:
    """Negating the rows of the update gate turns one convention into the other, so the report's advice holds."""
    case = read_case(CASES / "xfad86af.npz")
    hidden = case.values["W_hh"].shape[1]
    turned = copy.deepcopy(case)
    turned.graph[0].attributes["update"] = "keeps-candidate"
    rows = slice(hidden, 2 * hidden)
    for name in ("W_ih", "W_hh", "b_ih", "b_hh"):
        turned.values[name][rows] *= -1
        turned.testimonies["torch", "float32"].gradients[name][rows] *= -1
    del turned.testimonies["mine", "float32"], turned.witnesses["mine"]
    assert judge_case(turned).decision == "agree"


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("unstable", "The formula is right, the algorithm is numerically weak: 1 of 1 gradient."),
        ("low-precision", "Right, but of lower precision than it says (--strict)."),
        ("nonfinite", "NOT FINITE"),
        ("missing", "MISSING"),
    ],
)
def test_kinds_of_wrong(verdict: str, words: str) -> None:
    says(Report(data("wrong", tensors={"w": tensor(mine=finding(verdict, excess=9.0))})), "WRONG: mine.", words)


def test_missing_has_no_numbers() -> None:
    missing = {"verdict": "missing", "unit_roundoff": 2.0**-24, "why": "no gradient (None)"}
    says(Report(data("wrong", tensors={"w": tensor(mine=missing)})), "MISSING", "mine, w: no gradient (None)")


def test_undecided_says_what_to_record() -> None:
    coarse = {"w": tensor(mine=finding("undecided", resolution=0.3, why="rounding may be 30% of the gradient"))}
    says(
        Report(data("undecided", tensors=coarse)),
        "UNDECIDED. The evidence cannot tell for 1 of 1 gradient.",
        "Record w at float64",
    )
    blind = {"w": tensor(mine={"verdict": "undecided", "unit_roundoff": 2.0**-24, "why": "no reference"})}
    says(Report(data("undecided", tensors=blind)), "Record the graph's inputs (value/NAME) and upstream gradients")


def test_an_unknown_op_is_named() -> None:
    blind = {"verdict": "undecided", "unit_roundoff": 2.0**-24, "why": "no reference"}
    tensors = {"w": tensor([["a"], ["b"]], a=blind, b=blind)}
    says(
        Report(data("undecided", tensors=tensors, opaque=["c (my.op)"])),
        "Not judged c (my.op): no kernel here knows this op",
        "Write c (my.op) as ops that have kernels",
        "a and b, w: no reference",
    )


def test_a_disputed_reference_accuses_nobody() -> None:
    report = Report(data("undecided", audit={"kernels_agree": None, "directional_excess": 7.0}))
    says(report, "UNDECIDED. The reference itself is in dispute, so nobody is accused.", "referee against itself: NO")


def test_a_recording_that_does_not_hold_accuses_nobody() -> None:
    says(Report(data("undecided", distrust="replay differs")), "nobody is accused: replay differs")


def test_failures_are_no_verdict() -> None:
    failures = [{"witness": "paddle", "kind": "import", "message": "No module named 'paddle'"}]
    says(
        Report(data(failures=failures)), "NOBODY IS WRONG", "paddle could not be run (import): No module named 'paddle'"
    )


def test_what_agrees_for_a_reason_points_to_it() -> None:
    partial = cause(cause="accumulate.partial", kind="harness", evidence="equals the part from out alone")
    tensors = {"w": tensor(mine=finding(excess=1e5, difference=0.3))}
    says(Report(data(tensors=tensors, causes=[partial])), "ok: see why", "mine, w: accumulate.partial: equals the part")


# ---- a bias before batchnorm, in the words of the first minute


@pytest.fixture(scope="module")
def bias_before_batchnorm() -> Report:
    rng = np.random.default_rng(0)
    values = {
        "x": rng.standard_normal((8, 3)), "fc.weight": rng.standard_normal((4, 3)), "fc.bias": rng.standard_normal(4),
        "gamma": rng.uniform(0.5, 2, 4), "beta": rng.standard_normal(4),
    }  # fmt: skip
    nodes = [
        Node("fc", "linear", {"x": "x", "weight": "fc.weight", "bias": "fc.bias"}, {"y": "a"}),
        Node("bn", "batchnorm", {"x": "a", "weight": "gamma", "bias": "beta"}, {"y": "y"}),
    ]
    values = {name: value.astype(np.float32) for name, value in values.items()}
    case = Case("bias", nodes, values, {"y": rng.standard_normal((8, 4)).astype(np.float32)}, {"mine": Witness("mine")})
    for dtype, dust in (("float32", 2e-8), ("float64", 4e-17)):
        case.testimonies["mine", dtype] = Testimony("mine", dtype, {"fc.bias": np.full(4, dust, dtype)})
    return judge_case(case)


def test_noise_is_explained(bias_before_batchnorm: Report) -> None:
    says(
        bias_before_batchnorm,
        "fc.bias exact 0",
        "ok: noise",
        "Why fc.bias looks wrong",
        "Batchnorm subtracts the mean, so a bias before it has gradient 0: what you compare is noise divided by noise.",
        "float32 2e-8, float64 4e-17: noise shrinks by about 2^29; a bug would not.",
        "bias=False before batchnorm. A convolution's bias before batchnorm: the same.",
    )


def test_other_zeros_are_not_blamed_on_batchnorm() -> None:
    tensors = {"w": tensor(zero=True, mine=finding("zero-noise"))}
    says(Report(data(tensors=tensors)), "Why w looks wrong The exact gradient is 0: what you compare is noise")


# ---- on one screen, whatever the names are

LONG = "model.decoder.layers.11.self_attention.output_projection.weight"


def crowded(decision: str, count: int) -> Report:
    verdict = "wrong" if decision == "wrong" else "agrees"
    witnesses = {"mine": finding(verdict, excess=2.0), "a-witness-with-a-very-long-name-of-its-own": finding()}
    tensors = {f"{LONG}.{i}": tensor(**witnesses) for i in range(count)}
    causes = [cause(tensors=list(tensors), evidence="e" * 300)] * 5 if decision == "wrong" else []
    return Report(data(decision, tensors=tensors, causes=causes, notes=[f"note {i} about {LONG}" for i in range(9)]))


@pytest.mark.parametrize("decision", ["agree", "wrong", "undecided"])
@pytest.mark.parametrize("width", [80, 88, 110])
def test_no_line_is_too_wide(decision: str, width: int) -> None:
    for verbose in (False, True):
        lines = crowded(decision, 3).text(width=width, verbose=verbose).splitlines()
        assert max(map(text.cells, lines)) <= width


def test_a_quiet_report_fits_one_screen() -> None:
    assert len(str(crowded("agree", 60)).splitlines()) <= SCREEN
    says(crowded("agree", 60), "(53 more ok: -v)")
    assert str(Report(data(tensors={f"w{i}": tensor(mine=finding()) for i in range(8)}))).count("more") == 0


def test_verbose_shows_everything() -> None:
    found = crowded("agree", 60).text(verbose=True, width=150)
    assert found.count(LONG) >= 120
    assert "numba needs a GPU" in found


def test_shortened_names_still_differ() -> None:
    report = crowded("agree", 3).text(width=80)
    assert len({line.split()[0] for line in report.splitlines() if "…" in line.split()[:1].__str__()}) == 3


HOSTILE = "[bold]w[/bold]\x1b[31m\n\rred\x07"


def test_names_cannot_write_to_the_terminal() -> None:
    found = data(
        "wrong",
        tensors={HOSTILE: tensor(mine=finding("wrong", excess=9.0))},
        causes=[cause(tensors=[HOSTILE], evidence=HOSTILE)],
    )
    found |= {
        "case": HOSTILE,
        "notes": [HOSTILE],
        "failures": [{"witness": HOSTILE, "kind": HOSTILE, "message": HOSTILE}],
    }
    found["first_wrong"] = {"witness": "mine", "node": HOSTILE, "step": None}
    stream = io.StringIO()
    show(Report(found), stream=stream)
    printed = stream.getvalue()
    assert all(character.isprintable() or character == "\n" for character in printed)
    assert "[bold]w[/bold]" in printed  # shown as it is, not taken for markup


def test_colour_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    show(Report(data()), stream=stream)
    assert stream.getvalue().rstrip("\n") == str(Report(data()))
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = io.StringIO()
    show(Report(data()), stream=coloured)
    assert "\x1b[" in coloured.getvalue()


# ---- the object


def test_assert_ok_raises_with_the_report() -> None:
    Report(data()).assert_ok()
    for decision in ("wrong", "undecided"):
        report = Report(data(decision))
        with pytest.raises(AssertionError) as error:
            report.assert_ok()
        assert str(report) in str(error.value)


def test_save_writes_what_was_judged(tmp_path: Path) -> None:
    report = judge_case(read_case(CASES / "x53c1e9b.npz"))
    report.save(tmp_path / "saved.npz")
    assert judge_case(read_case(tmp_path / "saved.npz")).data == report.data
    with pytest.raises(ValueError, match="made without a case"):
        Report(data()).save(tmp_path / "none.npz")


def test_json_is_the_data() -> None:
    report = Report(data("wrong"))
    assert json.loads(report.json) == report.data
    assert (report.decision, report.wrong) == ("wrong", ["mine"])


def test_collected_reports_keep_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with collect() as reports:
        report = Report(data())
        report.show()
    assert reports == [report]
    assert capsys.readouterr().out == ""
    report.show()
    assert "NOBODY IS WRONG" in capsys.readouterr().out


def test_rendering_changes_nothing() -> None:
    found = data("wrong", causes=[cause()])
    before = copy.deepcopy(found)
    str(Report(found))
    assert found == before


# ---- text


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 4))
def test_numbers_keep_their_digits(x: float, digits: int) -> None:
    assert float(text.number(x, digits)) == float(f"{x:.{digits - 1}e}")


@pytest.mark.parametrize(
    ("x", "shown"),
    [(None, "-"), ("inf", "inf"), ("nan", "nan"), (0.0, "0"), (0.15, "0.15"), (3e-8, "3.0e-8"), (99.6, "100")],
)
def test_numbers(x: float | str | None, shown: str) -> None:
    assert text.number(x) == shown


@given(st.text(st.characters(categories=["L", "N", "Zs"]), max_size=80), st.integers(4, 30))
def test_wrapping_loses_nothing(words: str, width: int) -> None:
    lines = text.wrap(words, width)
    assert "".join(lines).replace(" ", "") == "".join(words.split())
    assert all(text.cells(line) <= width for line in lines)


@given(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=40), st.integers(3, 30))
def test_shortening_fits(name: str, width: int) -> None:
    assert text.cells(text.shorten(name, width)) <= width


def test_lists_of_names() -> None:
    assert text.listed([]) == ""
    assert text.listed(["a"]) == "a"
    assert text.listed(["a", "b", "c"]) == "a, b and c"
    assert text.listed(list("abcdef")) == "a, b, c and 3 more"
