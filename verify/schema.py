"""JSON Schemas (draft 2020-12) of a case's `case.json` and of the answer that `gradjury verify --json` prints.

The values they allow are those that the reader and the judge know; `tests/verify/test_schema.py` holds them together.
"""

from __future__ import annotations

from typing import Any

from gradjury.verify.case import DTYPES, LAYOUTS, VERSION

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
VERDICTS = ("agrees", "zero-noise", "low-precision", "unstable", "wrong", "nonfinite", "missing", "undecided")
DECISIONS = ("agree", "wrong", "undecided")
KINDS = ("mistake", "definition", "harness", "precision", "convention")

TEXT: Schema = {"type": "string"}
NAME: Schema = {"type": "string", "minLength": 1}
NAMES: Schema = {"type": "array", "items": NAME}
COUNT: Schema = {"type": "integer", "minimum": 0}
DTYPE: Schema = {"enum": list(DTYPES)}
NUMBER: Schema = {
    "anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}],
    "description": "JSON has no infinity",
}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(required: dict[str, Schema], optional: dict[str, Schema], *, closed: bool = False) -> Schema:
    found: Schema = {"type": "object", "required": list(required), "properties": {**required, **optional}}
    return {**found, "additionalProperties": False} if closed else found


def _map(values: Schema, names: Schema | None = None) -> Schema:
    found: Schema = {"type": "object", "additionalProperties": values}
    return {**found, "propertyNames": names} if names is not None else found


RELATIVE_ERROR: Schema = {"type": "number", "minimum": 0, "maximum": 1}
ARITHMETIC = _object(
    {},
    {
        "operands": DTYPE,
        "accumulator": DTYPE,
        "storage": {"anyOf": [DTYPE, _map(DTYPE)]},
        **dict.fromkeys(("tanh", "sigmoid", "exp", "log", "rsqrt"), RELATIVE_ERROR),
        "flush_to_zero": {"type": "boolean"},
        "variance": {"enum": ["one-pass", "two-pass", "welford"]},
    },
)
NODE = _object(
    {"name": NAME, "op": NAME, "outputs": {**_map(NAME), "description": "tensor names by output slot"}},
    {
        "inputs": {**_map(NAME), "description": "tensor names by input slot; optional slots are left out"},
        "attributes": {"type": "object"},
        "step": {**_or_null({"type": "integer"}), "description": "which time of an unrolled loop this node is"},
    },
)
WITNESS = _object(
    {},
    {
        "layout": {"enum": list(LAYOUTS), "default": "canonical"},
        "time_axis": {"enum": [0, 1], "default": 0},
        "printed_digits": _or_null({"type": "integer", "minimum": 1, "maximum": 40}),
        "absent": {**NAMES, "description": "tensors for which the witness returned None"},
        "backend": {**NAMES, "description": "maths libraries behind it"},
        "arithmetic": ARITHMETIC,
    },
)
CASE: Schema = {
    "$schema": DIALECT,
    "title": "GradJury case",
    "description": "The text case.json of a case file. The arrays beside it are named value/NAME, upstream/NAME, "
    "forward/WITNESS/DTYPE/NAME and grad/WITNESS/DTYPE/NAME, with / and % in names written %2F and %25.",
    **_object(
        {"gradjury": {"const": VERSION}, "name": NAME, "graph": {"type": "array", "items": NODE, "minItems": 1}},
        {
            "witnesses": _map(WITNESS, NAME),
            "notes": NAMES,
            "distrust": {**NAME, "description": "why a recording may accuse nobody"},
        },
    ),
}

TESTIMONY = _object(
    {"verdict": {"enum": list(VERDICTS)}},
    {
        "excess": NUMBER,
        "unit_roundoff": {"type": "number"},
        "max_abs": NUMBER,
        "max_rel": _or_null(NUMBER),
        "worst_index": {"type": "array", "items": COUNT},
        "difference": {**NUMBER, "description": "|testimony − reference| at the worst element"},
        "allowed": {**NUMBER, "description": "budget at the worst element"},
        "resolution": {**NUMBER, "description": "smallest relative error of the tensor that would have shown"},
        "outside": {**COUNT, "description": "elements over their budget"},
        "size": COUNT,
        "why": TEXT,
        "arithmetic": TEXT,
    },
)
BY_WITNESS = _map(_map(TESTIMONY, DTYPE))
TENSOR = _object(
    {"scale": _or_null(NUMBER), "exact_zero": _or_null({"type": "boolean"}), "testimony": BY_WITNESS},
    {
        "vote": {"type": "array", "items": NAMES},
        "shape": {"type": "array", "items": COUNT},
        "max_abs": _or_null(NUMBER),
    },
)
CAUSE = _object(
    {"witness": NAME, "cause": NAME, "kind": {"enum": list(KINDS)}, "tensors": NAMES, "evidence": TEXT},
    {
        "node": _or_null(NAME),
        "step": _or_null({"type": "integer"}),
        "attributes": {"type": "object"},
        "definitions": _object({"case": TEXT, "witness": TEXT}, {}),
        "excess": {
            **_map({"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2}),
            "description": "by witness, the largest excess under the case's definition and under the other one",
        },
        "ruled_out": {**NAMES, "description": "codes of the other definitions that were tried and do not fit"},
    },
)
FINDING = _object(
    {"witness": NAME, "verdict": {"enum": list(VERDICTS)}, "arithmetic": TEXT, "tensors": NAMES}, {"evidence": TEXT}
)
PLACE = _object({"witness": NAME, "node": NAME, "step": _or_null({"type": "integer"})}, {})
FAILURE = _object({"witness": NAME, "kind": NAME, "message": TEXT}, {})
AUDIT = _object(
    {"kernels_agree": _or_null({"type": "boolean"}), "directional_excess": _or_null(NUMBER)},
    {"kernels_why": TEXT, "directional_why": TEXT},
)
REPORT = _object(
    {
        "gradjury": {"const": VERSION},
        "case": NAME,
        "decision": {"enum": list(DECISIONS)},
        "wrong": NAMES,
        "tensors": _map(TENSOR),
        "causes": {"type": "array", "items": CAUSE},
        "findings": {"type": "array", "items": FINDING},
        "first_wrong": _or_null(PLACE),
        "forward": _map(BY_WITNESS),
        "failures": {"type": "array", "items": FAILURE},
        "audit": AUDIT,
    },
    {"notes": {"type": "array", "items": TEXT}},
)
ERROR = _object({"gradjury": {"const": VERSION}, "case": NAME, "error": TEXT}, {}, closed=True)
ANSWER: Schema = {
    "$schema": DIALECT,
    "title": "GradJury answer",
    "description": "One case's report or error; with several cases, all of them under `cases`.",
    "anyOf": [
        {"$ref": "#/$defs/report"},
        {"$ref": "#/$defs/error"},
        _object(
            {
                "gradjury": {"const": VERSION},
                "cases": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/report"}, {"$ref": "#/$defs/error"}]}},
            },
            {},
            closed=True,
        ),
    ],
    "$defs": {"report": REPORT, "error": ERROR},
}

SCHEMAS: Schema = {"case": CASE, "answer": ANSWER}
