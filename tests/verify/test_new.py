"""`gradjury case new`: for every op a valid case in which nobody is wrong, and one line for what is no op."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradjury.kernels.engine import EngineMissing
from gradjury.verify import ops
from gradjury.verify.case import CaseError, read_case, write_case
from gradjury.verify.judge import judge_case
from gradjury.verify.new import DTYPE, WITNESS, new_case
from gradjury.verify.witnesses import cuda


@pytest.mark.parametrize("name", ops.all_ops())
def test_every_op_starts_right(name: str, tmp_path: Path) -> None:
    write_case(new_case(name), tmp_path / "new.npz")
    report = judge_case(read_case(tmp_path / "new.npz"))
    assert report.decision == "agree", str(report)
    assert report.data["tensors"]
    assert report.data["audit"]["directional_excess"] is not None


@pytest.mark.parametrize("name", ops.all_ops())
def test_every_op_can_go_wrong(name: str) -> None:
    """Doubling the largest gradient of the example is seen, so the example is not vacuous."""
    case = new_case(name)
    gradients = case.testimonies[WITNESS, DTYPE].gradients
    key = max(gradients, key=lambda k: float(np.max(np.abs(gradients[k]))))
    gradients[key] = 2 * gradients[key]
    report = judge_case(case)
    assert report.wrong == [WITNESS], str(report)


def test_the_same_case_every_time() -> None:
    first, second = new_case("linear").to_parts(), new_case("linear").to_parts()
    assert first[0] == second[0]
    assert all(np.array_equal(first[1][name], second[1][name]) for name in first[1])


def test_unknown_op() -> None:
    with pytest.raises(CaseError, match="op 'linnear' is unknown; did you mean 'linear'"):
        new_case("linnear")
    with pytest.raises(CaseError, match="op 'zzz' is unknown; known are add, "):
        new_case("zzz")


def test_without_an_engine_the_case_has_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise EngineMissing("no C++ compiler")

    monkeypatch.setattr(cuda, "engine", none)
    case = new_case("linear")
    assert case.testimonies == {}
    assert case.notes == ["no gradients yet: no C++ compiler"]
