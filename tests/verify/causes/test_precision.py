"""Low precision and weak algorithms: named where they are what happened, never an excuse for a mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import small_cases
from small_cases import Gradients

from gradjury.verify.case import Case, Node, Witness
from gradjury.verify.causes import precision
from gradjury.verify.measure import Measurement
from gradjury.verify.precision import round_to_bits
from gradjury.verify.reference import Exact
from gradjury.verify.verdict import Finding

Found = tuple[Finding | None, Finding | None]


def explained(case: Case, said: Gradients, dtype: str = "float32") -> Found:
    """What the tight and what the loose explanations find."""
    judges = small_cases.court(small_cases.say(case, "mine", said, dtype))
    (statement,) = judges.statements
    found = small_cases.measured(judges, statement)
    over = [key for key, m in found.items() if not m.within]
    assert over, "nothing to explain"
    return precision.tight(judges, statement, found, over), precision.loose(judges, statement, found, over)


def arithmetic(found: Finding | None) -> str | None:
    return None if found is None else str(found.details["arithmetic"])


def product(case: Case, bits: int, *, toward_zero: bool = False) -> Gradients:
    """The backward of a linear layer with operands of so many bits and wide sums."""

    def rounded(x: np.ndarray) -> np.ndarray:
        if not toward_zero:
            return round_to_bits(x, bits, 0.0)
        kept = 2.0**bits
        mantissa, exponent = np.frexp(x.astype(float))
        return np.asarray(np.ldexp(np.trunc(mantissa * kept) / kept, exponent))

    x, weight, dy = (rounded(a) for a in (case.values["x"], case.values["W"], case.upstream["y"]))
    return {"x": (dy @ weight).astype(np.float32), "W": (dy.T @ x).astype(np.float32)}


@pytest.mark.parametrize(
    ("bits", "name", "toward_zero"), [(11, "tfloat32", False), (11, "tfloat32", True), (8, "bfloat16", False)]
)
def test_operands_of_fewer_bits_are_recognised_by_emulation(bits: int, name: str, toward_zero: bool) -> None:
    case = small_cases.linear(64, 40, 20)
    tight, _ = explained(case, product(case, bits, toward_zero=toward_zero))
    assert arithmetic(tight) == name
    assert tight is not None and set(tight.tensors) == {"x", "W"} and tight.verdict == "low-precision"


@pytest.mark.parametrize("bits", [11, 8])
def test_a_mistake_among_low_precision_is_not_covered_by_it(bits: int) -> None:
    """One tensor scaled as well: whatever is said of the other, it stays unexplained here."""
    case = small_cases.linear(64, 40, 20)
    said = product(case, bits)
    said["W"] = said["W"] * np.float32(1.1)
    tight, loose = explained(case, said)
    assert tight is None or "W" not in tight.tensors
    assert loose is None


def test_float64_that_is_float32_has_only_float32_values() -> None:
    case = small_cases.linear()
    said = {key: array.astype(np.float64) for key, array in small_cases.honest(case).items()}
    tight, _ = explained(case, said, "float64")
    assert arithmetic(tight) == "float32"
    case = small_cases.linear()
    said["W"][0, 0] *= 1 + 2.0**-40  # no float32 any more
    assert explained(case, said, "float64")[0] is None


def test_float32_sums_kept_as_float64_are_told_by_their_size() -> None:
    """Computed in float32 and converted late: the values are no float32, but all errors have its size."""
    case = small_cases.linear(64, 40, 20)
    exact, narrow = small_cases.honest(case, "float64"), small_cases.honest(case)
    said = {key: exact[key] + 0.9 * (narrow[key] - exact[key]) for key in ("x", "W")}
    tight, loose = explained(case, said, "float64")
    assert tight is None and arithmetic(loose) == "float32"


def test_wrong_float32_values_under_a_float64_label_are_not_excused() -> None:
    case = small_cases.linear()
    said = {key: array.astype(np.float64) for key, array in small_cases.honest(case).items()}
    said["W"] = (said["W"] * 1.01).astype(np.float32).astype(np.float64)
    assert explained(case, said, "float64") == (None, None)


def test_flushing_subnormal_numbers_is_right_and_said() -> None:
    case = small_cases.linear()
    case.upstream = {"y": (case.upstream["y"] * np.float32(1e-38)).astype(np.float32)}
    said = {key: np.where(np.abs(a) < 2.0**-126, 0, a) for key, a in small_cases.honest(case).items()}
    exact = small_cases.honest(case, "float64")
    assert any((np.abs(said[key] - exact[key]) > 2.0**-140).any() for key in said), "nothing was flushed"
    tight, _ = explained(case, said)
    assert arithmetic(tight) == "flush-to-zero" and tight is not None and tight.verdict == "agrees"


def normed(offset: float, dtype: str, *, one_pass: bool) -> tuple[Case, Gradients]:
    """Batchnorm of values around `offset`, and its backward at `dtype`."""
    rng = np.random.default_rng(4)
    values = {"x": (rng.standard_normal((64, 6)) + offset).astype(np.float32), "g": np.ones(6, np.float32)}
    node = Node("bn", "batchnorm", {"x": "x", "weight": "g"}, {"y": "y"}, {"epsilon": 2.0**-17})
    case = Case("bn", [node], values, {"y": small_cases.float32(rng, 64, 6)})
    x, dy = values["x"].astype(dtype), case.upstream["y"].astype(dtype)
    mean = x.mean(0)
    variance = (x * x).mean(0) - mean * mean if one_pass else ((x - mean) ** 2).mean(0)
    spread = np.sqrt(np.maximum(variance, 0) + x.dtype.type(2.0**-17))
    normal = (x - mean) / spread
    return case, {"x": (dy - dy.mean(0) - normal * (dy * normal).mean(0)) / spread, "g": (dy * normal).sum(0)}


def test_one_pass_variance_is_named() -> None:
    case, said = normed(30.0, "float32", one_pass=True)
    tight, loose = explained(case, said)
    assert tight is None and arithmetic(loose) == "one-pass variance"
    assert loose is not None and loose.verdict == "unstable"


@pytest.mark.parametrize("offset", [150.0, 300.0, 500.0, 700.0, 1000.0])
def test_a_budget_that_swallows_the_gradient_explains_nothing(offset: float) -> None:
    """At such mean/std the budget of a one-pass variance is over a tenth of the gradient: it would hide mistakes of that
    size. Nor is it float16, as which the errors would pass by their size."""
    case, said = normed(offset, "float32", one_pass=True)
    assert explained(case, said)[1] is None


def test_a_mistake_is_no_one_pass_variance() -> None:
    case, said = normed(30.0, "float32", one_pass=False)
    said = {key: array * np.float32(1.01) for key, array in said.items()}
    assert explained(case, said) == (None, None)


def test_weak_algorithms_are_those_of_normalisation() -> None:
    case = small_cases.linear(64, 40, 20)
    said = small_cases.honest(case)
    said["W"] = said["W"] + np.float32(1e-3)
    assert explained(case, said)[1] is None


def rounding_like(**changes: Any) -> Measurement:
    rng = np.random.default_rng(9)
    settings: dict[str, Any] = {
        "key": "g", "testimony": np.zeros(200), "exact": Exact(rng.standard_normal(200)),
        "error": rng.standard_normal(200) * 1e-5, "budget": np.full(200, 1e-6), "scale": np.ones(200), "unit": 2.0**-24,
        "excess": 10.0, "worst": (0,), "mismatch": False, "undefined": False, "zero": False,
    }
    return Measurement(**{**settings, **changes})


def test_rounding_is_spread_and_not_parallel_to_the_gradient() -> None:
    assert precision.looks_like_rounding(rounding_like())
    exact = rounding_like().exact
    assert not precision.looks_like_rounding(rounding_like(error=1e-5 * exact.high))
    few = np.zeros(200)
    few[:20] = 1e-5
    assert not precision.looks_like_rounding(rounding_like(error=few))
    assert not precision.looks_like_rounding(rounding_like(error=np.zeros(200)))


def test_declared_arithmetic_is_judged_by_its_own_budget() -> None:
    """bfloat16 operands that a witness declares are no finding: its budget allows them."""
    case = small_cases.linear(64, 40, 20)
    case.witnesses["mine"] = Witness("mine", arithmetic={"operands": "bfloat16"})
    judges = small_cases.court(small_cases.say(case, "mine", product(case, 8)))
    assert all(m.within for m in small_cases.measured(judges, judges.statements[0]).values())
    case.testimonies["mine", "float32"].gradients["W"] *= np.float32(1.5)
    judges = small_cases.court(case)
    assert not small_cases.measured(judges, judges.statements[0])["W"].within
