"""Other definitions: found where the gradient is exact for one, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import small_cases
from small_cases import Gradients

from gradjury.verify import ops
from gradjury.verify.case import Case
from gradjury.verify.causes import definition
from gradjury.verify.new import new_case
from gradjury.verify.verdict import Finding

GRU = [
    ("gru_step", {"update": "keeps-candidate"}, "gru.update-convention", "definition"),
    ("gru_step", {"reset": "before"}, "gru.reset-placement", "definition"),
    ("gru", {"update": "keeps-candidate"}, "gru.update-convention", "definition"),
    ("batchnorm", {"epsilon": 1e-3}, "batchnorm.epsilon", "definition"),
]


def case_of(op: str, **attributes: Any) -> Case:
    """The op's small case with these attributes changed, nobody having testified."""
    case = new_case(op)
    case.witnesses, case.testimonies = {}, {}
    case.graph[0].attributes |= attributes
    return case


def explained(case: Case, said: Gradients, dtype: str = "float64") -> list[Finding]:
    judges = small_cases.court(small_cases.say(case, "mine", said, dtype))
    (statement,) = judges.statements
    over = [key for key, m in small_cases.measured(judges, statement).items() if not m.within]
    assert over, "nothing to explain"
    return definition.explain(judges, statement, over)


@pytest.mark.parametrize(("op", "attributes", "code", "kind"), GRU, ids=[f"{op}-{code}" for op, _, code, _ in GRU])
def test_a_gradient_that_is_exact_for_another_definition(op: str, attributes: dict[str, Any], code: str, kind: str) -> None:
    case = case_of(op)
    said = small_cases.honest(case_of(op, **attributes), "float64")
    (found,) = explained(case, said)
    assert (found.code, found.kind, found.details["attributes"]) == (code, kind, attributes)
    assert code not in found.details["ruled_out"]
    assert op != "gru_step" or len(found.details["ruled_out"]) == 1, "the other convention was tried"
    own, changed = found.details["excess"]["mine"]
    assert own > 1 >= changed
    assert found.details["definitions"]["case"] != found.details["definitions"]["witness"]


@pytest.mark.parametrize("op", ops.all_ops())
def test_an_error_that_no_definition_explains_is_left_alone(op: str) -> None:
    """All gradients a percent too large, in every op."""
    case = case_of(op)
    said = {key: array * 1.01 for key, array in small_cases.honest(case, "float64").items() if array.any()}
    if said:
        assert explained(case, said) == []


def test_one_wrong_tensor_beside_another_definition_is_not_excused() -> None:
    """Every tensor has to fit, not only most."""
    case = case_of("gru_step")
    said = small_cases.honest(case_of("gru_step", update="keeps-candidate"), "float64")
    said["weight_ih"] = said["weight_ih"] * 1.001
    assert explained(case, said) == []


def test_a_definition_explains_what_is_over_the_line_only() -> None:
    """Tensors that are right under both stay out of it, and right ones under neither refute it."""
    case = case_of("batchnorm")
    said = small_cases.honest(case_of("batchnorm", epsilon=1e-3), "float64")
    (found,) = explained(case, said)
    assert "bias" not in found.tensors, "the gradient of the bias knows no epsilon"
    said["bias"] = said["bias"] * 1.01
    assert explained(case, said) == []


def test_epsilon_kept_as_float32_is_told_from_another_epsilon() -> None:
    rounded = float(np.float32(1e-5))
    (found,) = explained(case_of("batchnorm"), small_cases.honest(case_of("batchnorm", epsilon=rounded), "float64"))
    assert (found.code, found.kind) == ("batchnorm.epsilon", "precision") and "stored as float32" in found.evidence


def test_only_the_node_that_differs_is_changed() -> None:
    case = small_cases.linear()
    assert list(definition.variants(case)) == []
    case = case_of("gru_step")
    node, variant = next(definition.variants(case))
    changed = definition.changed_case(case, node, variant)
    assert changed.graph[0].attributes == dict(variant.attributes) and case.graph[0].attributes == {}
