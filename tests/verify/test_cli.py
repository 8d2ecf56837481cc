"""The command line: exit codes, what goes to which stream, and one line for whatever is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from gradjury.verify import judge, outcome
from gradjury.verify.case import read_case, write_case
from gradjury.verify.cli import app
from gradjury.verify.report import Report

CASES = Path(__file__).parents[1] / "cases"
WRONG, AGREE = str(CASES / "x53c1e9b.npz"), str(CASES / "xb768243.npz")
DEFINITION = str(CASES / "xfad86af.npz")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def one_line(result: Result) -> str:
    """The single line on standard error; nothing on standard output."""
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


@pytest.fixture
def undecided(tmp_path: Path) -> Path:
    """A case of a linear layer without its inputs."""
    case = read_case(WRONG)
    case.values.clear()
    write_case(case, tmp_path / "undecided.npz")
    return tmp_path / "undecided.npz"


# ---- verify


def test_exit_codes_of_one_case(undecided: Path, tmp_path: Path) -> None:
    assert run("verify", AGREE).exit_code == 0
    assert run("verify", WRONG).exit_code == 1
    assert run("verify", tmp_path / "none.npz").exit_code == 2
    assert run("verify", undecided).exit_code == 3


@pytest.mark.parametrize(
    ("cases", "code"),
    [
        ([AGREE, AGREE], 0),
        ([AGREE, WRONG, "no.npz"], 1),
        ([AGREE, "no.npz", "undecided"], 2),
        ([AGREE, "undecided"], 3),
    ],
)
def test_exit_codes_of_several(cases: list[str], code: int, undecided: Path) -> None:
    assert run("verify", *[undecided if case == "undecided" else case for case in cases]).exit_code == code


@pytest.mark.parametrize(
    ("decision", "failures", "code"),
    [
        ("agree", [], 0),
        ("wrong", [], 1),
        ("undecided", [], 3),
        ("agree", ["x"], 4),
        ("undecided", ["x"], 4),
        ("wrong", ["x"], 1),
    ],
)
def test_a_failed_witness_weighs_less_than_a_wrong_one(decision: str, failures: list[str], code: int) -> None:
    report = Report({"decision": decision, "failures": failures})
    assert outcome.exit_code_of(report) == code


def test_json_of_one_case_is_its_report() -> None:
    result = run("verify", "--json", WRONG)
    found = json.loads(result.stdout)
    assert (found["case"], found["decision"], found["wrong"]) == ("x53c1e9b", "wrong", ["mine"])
    assert result.stderr == ""


def test_json_of_several_holds_the_unreadable(tmp_path: Path) -> None:
    result = run("verify", "--json", WRONG, tmp_path, AGREE)
    found = json.loads(result.stdout)
    assert [set(case) & {"decision", "error"} for case in found["cases"]] == [{"decision"}, {"error"}, {"decision"}]
    assert found["cases"][1]["case"] == str(tmp_path)
    assert "found a directory" in found["cases"][1]["error"]


def test_json_of_an_unreadable_case_is_one_object(tmp_path: Path) -> None:
    found = json.loads(run("verify", "--json", tmp_path / "none.npz").stdout)
    assert found == {
        "gradjury": 1,
        "case": str(tmp_path / "none.npz"),
        "error": f"{tmp_path / 'none.npz'}: no such file",
    }


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "cut.npz"
    path.write_bytes(Path(WRONG).read_bytes()[:900])
    assert one_line(run("verify", path)).startswith(f"gradjury: {path}: damaged or not a case file")


def test_a_case_without_testimony_is_refused(tmp_path: Path) -> None:
    case = read_case(WRONG)
    case.testimonies.clear()
    write_case(case, tmp_path / "silent.npz")
    result = run("verify", tmp_path / "silent.npz")
    assert result.exit_code == 2
    assert "no witness says anything in this case; add gradients, or run one: --witness torch" in one_line(result)


def test_our_own_kernels_as_a_live_witness() -> None:
    found = json.loads(run("verify", "--json", "--witness", "cuda", WRONG).stdout)
    assert found["wrong"] == ["mine"]
    assert found["tensors"]["W"]["testimony"]["cuda"]["float32"]["verdict"] == "agrees"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--witness", "nobody"], "nobody"),
        (["--define", "update"], "expected OP.ATTRIBUTE=VALUE"),
        (["--define", "gru.update"], "expected OP.ATTRIBUTE=VALUE"),
        (["--unknown"], "No such option"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    result = run("verify", WRONG, *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_define_accepts_the_other_definition() -> None:
    found = json.loads(run("verify", "--json", DEFINITION, "--define", "gru.update=keeps-candidate").stdout)
    assert found["wrong"] == ["torch"]


def test_define_is_checked() -> None:
    assert "definition lstm.update: expected OP.ATTRIBUTE" in one_line(
        run("verify", DEFINITION, "--define", "lstm.update=1")
    )
    assert "attribute update: expected" in one_line(run("verify", DEFINITION, "--define", "gru.update=no"))


def test_a_bug_of_ours_is_neither_silent_nor_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Report:
        raise KeyError("boom\nbang")

    monkeypatch.setattr(judge, "judge_case", fail)
    result = run("verify", WRONG)
    assert result.exit_code == outcome.BUG
    line = one_line(result)
    assert "KeyError" in line
    assert "a bug in gradjury, not a verdict; GRADJURY_TRACEBACK=1 shows where" in line
    monkeypatch.setenv(outcome.TRACEBACK, "1")
    assert "Traceback" in run("verify", WRONG).stderr


def test_library_prints_do_not_reach_standard_output(tmp_path: Path) -> None:
    """Neither Python's prints nor those of libraries that write to the file descriptor."""
    script = tmp_path / "noisy.py"
    script.write_text(
        "import os, gradjury\nprint('python')\nos.write(1, b'library\\n')\n"
        f"gradjury.judge_case(gradjury.read_case({WRONG!r})).show()\n"
    )
    command = [sys.executable, "-m", "gradjury", "check", "--json", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["wrong"] == ["mine"]
    assert done.stderr.splitlines() == ["python", "library"]
    assert done.returncode == 1


# ---- check


def script(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(f"import sys, gradjury\n{text}\n")
    return path


def test_check_reports_every_judgement_once(tmp_path: Path) -> None:
    judged = "; ".join(f"gradjury.judge_case(gradjury.read_case({path!r})).show()" for path in (AGREE, WRONG))
    result = run("check", script(tmp_path, judged))
    assert result.exit_code == 1
    assert result.stdout.count("NOBODY IS WRONG") == 1
    assert result.stdout.count("WRONG: mine") == 1


def test_check_of_an_assertion_is_the_report(tmp_path: Path) -> None:
    result = run("check", script(tmp_path, f"gradjury.judge_case(gradjury.read_case({WRONG!r})).assert_ok()"))
    assert result.exit_code == 1
    assert result.stderr == ""


def test_check_passes_arguments_and_finds_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text(f"CASE = {AGREE!r}")
    text = (
        "import neighbour as n; assert sys.argv[1:] == ['--lr', '1']; gradjury.judge_case(gradjury.read_case(n.CASE))"
    )
    path = script(tmp_path, text)
    before = sys.path[:], sys.argv
    assert run("check", path, "--", "--lr", "1").exit_code == 0
    assert (sys.path, sys.argv) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pass", "mine.py: judges nothing; record with gradjury.record(model)"),
        ("raise ValueError('a\\nb')", "mine.py:2: ValueError: a b (-v shows the traceback)"),
        ("def (", "mine.py:2: SyntaxError: invalid syntax"),
        ("sys.exit(3)", "mine.py: ended itself with exit code 3"),
        ("import no_such_module", "mine.py:2: ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_check_of_a_file_that_fails(tmp_path: Path, text: str, message: str) -> None:
    result = run("check", script(tmp_path, text))
    assert result.exit_code == 2
    assert message in one_line(result)


def test_check_of_no_file(tmp_path: Path) -> None:
    assert "expected a Python file, found no such file" in one_line(run("check", tmp_path / "none.py"))
    assert "expected a Python file, found a directory" in one_line(run("check", tmp_path))


def test_a_failure_after_a_judgement_keeps_the_judgement(tmp_path: Path) -> None:
    text = f"gradjury.judge_case(gradjury.read_case({AGREE!r}))\nraise RuntimeError('later')"
    result = run("check", script(tmp_path, text))
    assert result.exit_code == 2
    assert "NOBODY IS WRONG" in result.stdout
    assert "RuntimeError: later" in result.stderr


# ---- case, logs, witnesses


def test_a_new_case_is_valid_and_right(tmp_path: Path) -> None:
    path = tmp_path / "new.safetensors"
    made = run("case", "new", "batchnorm", "--out", path)
    assert made.exit_code == 0
    assert f"gradjury verify {path}" in made.stdout
    assert run("verify", path).exit_code == 0
    again = run("case", "new", "batchnorm", "--out", path)
    assert again.exit_code == 2
    assert "is there already; --force writes over it" in one_line(again)
    assert run("case", "new", "batchnorm", "--out", path, "--force").exit_code == 0


def test_a_new_case_of_no_op(tmp_path: Path) -> None:
    result = run("case", "new", "batchnrm", "--out", tmp_path / "x.npz")
    assert result.exit_code == 2
    assert one_line(result) == "gradjury: op 'batchnrm' is unknown; did you mean 'batchnorm'?"


def test_ops_are_listed() -> None:
    result = run("case", "ops")
    assert result.exit_code == 0
    assert any(line.split()[:4] == ["linear", "x,", "weight,", "bias?"] for line in result.stdout.splitlines())


def test_case_without_command_is_wrong_usage() -> None:
    result = run("case")
    assert result.exit_code == 2
    assert "new" in result.stdout


def test_an_empty_log_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_text("")
    result = run("logs", tmp_path / "empty.log")
    assert result.exit_code == 2
    assert "no printed gradient found" in one_line(result)


def test_logs_that_differ_are_undecided() -> None:
    demo = Path(judge.__file__).parent / "demo" / "ocr_attention.log"
    result = run("logs", demo)
    assert result.exit_code == 3
    assert "UNDECIDED" in result.stdout
    assert json.loads(run("logs", demo, "--json").stdout)["decision"] == "undecided"


def test_witnesses_names_our_own_kernels() -> None:
    found = json.loads(run("witnesses", "--json").stdout)["witnesses"]
    assert "version" in next(w for w in found if w["name"] == "cuda")


# ---- how it starts


def test_help_imports_nothing_heavy() -> None:
    text = "import sys, gradjury.verify.cli; print(sorted({'numpy', 'torch', 'paddle', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_package_imports_no_framework() -> None:
    text = "import gradjury, gradjury.verify.judge, sys; print({'torch', 'paddle', 'cupy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_terminal_without_unicode(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gradjury", "verify", WRONG],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 1
    assert b"WRONG: mine" in done.stdout


@pytest.mark.parametrize("arguments", [["case", "--schema"], ["verify", AGREE], ["verify", "--json", AGREE]])
def test_a_reader_that_goes_away(arguments: list[str]) -> None:
    """The exit code still says what was found."""
    program = [sys.executable, "-m", "gradjury", *arguments]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 0


def test_values_with_infinities_are_still_json(tmp_path: Path) -> None:
    case = read_case(WRONG)
    case.testimonies["mine", "float32"].gradients["W"][0, 0] = np.inf
    write_case(case, tmp_path / "inf.npz")
    result = run("verify", "--json", tmp_path / "inf.npz")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(result.stdout, parse_constant=refuse)
    assert found["tensors"]["W"]["testimony"]["mine"]["float32"]["verdict"] == "nonfinite"
