"""The command line. Everything heavy is imported by the command that needs it, so that help comes at once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from gradjury.verify import outcome
from gradjury.verify.errors import CaseError
from gradjury.verify.outcome import Outcome

if TYPE_CHECKING:
    from gradjury.verify.report import Report

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Two implementations disagree about a gradient: which one is wrong, why, where; or proof that it is rounding.",
    epilog="Exit codes: 0 nobody is wrong, 1 somebody is, 2 unreadable input, 3 undecided, 4 a witness failed to run.",
)
case_app = typer.Typer(
    help="Case files: a new one, the ops they may hold, their JSON Schema.", invoke_without_command=True
)
app.add_typer(case_app, name="case")

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, all else on standard error.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Every gradient, the audit, who the witnesses are.")]
Strict = Annotated[bool, typer.Option("--strict", help="Precision below the declared dtype counts as wrong.")]


def main() -> None:
    """Entry of the `gradjury` command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without Unicode gets question marks, not a crash
    app()


@app.command()
def check(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE.py", help="Records or judges something: see gradjury.record, gradjury.judge."),
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]…", help="Passed on to the file.")] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a Python file and report every judgement that it makes."""
    from gradjury.verify.script import run_script

    with _stdout_kept_clean(as_json):
        outcomes = run_script(file, arguments or [], verbose=verbose)
    _finish(outcomes, as_json=as_json, verbose=verbose, single=True)


@app.command()
def verify(
    cases: Annotated[list[Path], typer.Argument(metavar="CASE…", help="Case files, .npz or .safetensors.")],
    witness: Annotated[
        list[str] | None,
        typer.Option("--witness", "-w", help="Also run these now: torch, paddle, cuda, old=paddle:/path/to/python."),
    ] = None,
    define: Annotated[
        list[str] | None, typer.Option("--define", help="Accept another definition: gru.update=keeps-candidate.")
    ] = None,
    as_json: Json = False,
    strict: Strict = False,
    verbose: Verbose = False,
) -> None:
    """Judge case files."""
    from gradjury.verify.progress import progress

    live = [_witness(name) for listed in witness or [] for name in listed.split(",") if name]
    definitions = dict(_definition(text) for text in define or [])
    outcomes: list[Outcome] = []
    with _stdout_kept_clean(as_json), progress(len(cases), cases[0].name) as advance:
        for i, path in enumerate(cases):
            outcomes.append(outcome.attempt(str(path), partial(_judge, path, live, strict, definitions)))
            advance(cases[min(i + 1, len(cases) - 1)].name)
    _finish(outcomes, as_json=as_json, verbose=verbose, single=len(cases) == 1)


def _judge(path: Path, live: list[str], strict: bool, definitions: dict[str, Any]) -> Report:
    from gradjury.verify.case import read_case
    from gradjury.verify.judge import judge_case

    case = read_case(path)
    if not live and not case.testimonies and not any(w.absent for w in case.witnesses.values()):
        raise CaseError(f"{path}: no witness says anything in this case; add gradients, or run one: --witness torch")
    return judge_case(case, live=live, strict=strict, define=definitions)


def _witness(text: str) -> str:
    from gradjury.verify.witnesses.base import parse

    try:
        parse(text)
    except ValueError as error:
        _refuse(str(error))
    return text


def _definition(text: str) -> tuple[str, Any]:
    setting, equals, value = text.partition("=")
    if not equals or "." not in setting:
        _refuse(f"--define {text!r}: expected OP.ATTRIBUTE=VALUE such as gru.update=keeps-candidate")
    try:
        return setting, json.loads(value)
    except ValueError:
        return setting, value


@app.command()
def logs(
    a: Annotated[Path, typer.Argument(metavar="A", help="A training log with printed gradients.")],
    b: Annotated[Path | None, typer.Argument(metavar="[B]", help="The other party's log, if it has its own.")] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Read printed gradients out of one or two training logs, align them, and judge what can be judged."""
    from gradjury.verify.intake.compare import compare

    found = outcome.attempt(str(a), lambda: compare(a, b))
    _finish([found], as_json=as_json, verbose=verbose, single=True)


@case_app.callback()
def case(
    context: typer.Context,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of case and answer.")] = False,
) -> None:
    """Case files: a new one, the ops they may hold, their JSON Schema."""
    if schema:
        from gradjury.verify.schema import SCHEMAS

        with _reader_may_leave():
            print(json.dumps(SCHEMAS, indent=2, ensure_ascii=False))
    elif context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(outcome.UNREADABLE)


@case_app.command("new")
def case_new(
    op: Annotated[str, typer.Argument(metavar="OP", help="An op, such as linear, batchnorm, gru_step.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to write: .npz (OP.npz) or .safetensors.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a small valid case to start from."""
    from gradjury.verify.case import write_case
    from gradjury.verify.new import new_case

    path = out or Path(f"{op}.npz")
    try:
        made = new_case(op)
        if path.exists() and not force:
            raise CaseError(f"{path}: is there already; --force writes over it")
        write_case(made, path)
    except CaseError as error:
        _refuse(str(error))
    print(f"{path}: {op} with {', '.join(made.values)}; put your gradients under grad/mine/float32/NAME, then")
    print(f"  gradjury verify {path}")


@case_app.command("ops")
def case_ops() -> None:
    """List the ops with their inputs, outputs and attributes."""
    from gradjury.verify.listing import ops_table

    with _reader_may_leave():
        print(ops_table())


@app.command()
def witnesses(as_json: Json = False) -> None:
    """List what this machine can call, with versions, devices and backends, and how to get the rest."""
    from gradjury.verify.progress import progress
    from gradjury.verify.witnesses import witnesses as listed

    with _stdout_kept_clean(as_json), progress(1, "asking the frameworks"):
        found = listed()
    if as_json:
        answers = [
            {"name": w.name, **(w.identity.to_json() if w.identity else {"missing": str(w.failure), "how": w.how})}
            for w in found
        ]
        print(json.dumps({"gradjury": 1, "witnesses": answers}, ensure_ascii=False))
        return
    for w in found:
        if w.identity is not None:
            known = w.identity
            flags = ", ".join(f"{key} {value}" for key, value in known.flags.items())
            parts = [f"{known.framework} {known.version}", known.device, " ".join(known.backends), flags]
            print(f"{w.name:8} {' · '.join(part for part in parts if part)}")
        else:
            print(f"{w.name:8} missing: {w.failure}{f'; get it: {w.how}' if w.how else ''}")


@app.command()
def demo(verbose: Verbose = False) -> None:
    """Run the field reports that ship with the project, with the frameworks that are installed."""
    from importlib.util import find_spec

    from gradjury.verify.demo import field_reports
    from gradjury.verify.progress import progress

    live = [name for name in ("torch", "paddle") if find_spec(name)]
    stories = field_reports()
    failed: list[Outcome] = []
    with progress(len(stories), stories[0].name) as advance:
        answers = []
        for story in stories:
            answers.append(outcome.attempts(story.name, partial(story.run, live)))
            advance(story.name)
    for story, found in zip(stories, answers, strict=True):
        print(f"\n━━ {story.name}\n{story.question}\n")
        for i, one in enumerate(found):
            if i:
                print()
            if one.report is None:
                _complain(one.error)
                failed.append(one)
            else:
                one.report.show(verbose=verbose)
    raise typer.Exit(outcome.exit_code(failed))


def _finish(outcomes: list[Outcome], *, as_json: bool, verbose: bool, single: bool) -> None:
    """Prints what was found and exits with the code that says it."""
    with _reader_may_leave():
        if as_json:
            print(json.dumps(outcome.as_json(outcomes, single=single), ensure_ascii=False, allow_nan=False))
        for i, found in enumerate(outcomes):
            if found.report is None:
                _complain(found.error)
            elif not as_json:
                if i:
                    print()
                found.report.show(verbose=verbose)
    raise typer.Exit(outcome.exit_code(outcomes))


def _refuse(message: str) -> NoReturn:
    """Ends the command over input that cannot be used."""
    _complain(message)
    raise typer.Exit(outcome.UNREADABLE)


def _complain(message: str) -> None:
    from gradjury.verify.report.text import safe

    print(f"gradjury: {safe(message)}", file=sys.stderr)


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Lets `head` or `less` close the pipe: what was found, and the exit code that says it, stay."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _stdout_kept_clean(wanted: bool) -> Iterator[None]:
    """Sends whatever is printed inside, also by libraries written in C, to standard error."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # standard output is closed
        yield
        return
    python_stdout = sys.stdout
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout = python_stdout
        os.dup2(kept, 1)
        os.close(kept)
