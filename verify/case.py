"""A case: one backward problem, and what the witnesses say about it (docs/case-format.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gradjury.verify.errors import CaseError
from gradjury.verify.files import read_parts, write_parts

__all__ = ["DTYPES", "LAYOUTS", "Case", "CaseError", "Node", "Testimony", "Witness", "read_case", "write_case"]

VERSION = 1
DTYPES = ("float64", "float32", "tfloat32", "bfloat16", "float16")
LAYOUTS = ("canonical", "torch", "paddle")

Json = dict[str, Any]


@dataclass
class Node:
    """One use of an op: tensor names by slot. `step`: which time of an unrolled loop it is."""

    name: str
    op: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    attributes: dict[str, Any] = field(default_factory=dict)
    step: int | None = None


@dataclass
class Witness:
    """What is known about a party: how its gradients are stored, and what it declares about its arithmetic."""

    name: str
    layout: str = "canonical"
    time_axis: int = 0
    printed_digits: int | None = None
    absent: tuple[str, ...] = ()
    backend: tuple[str, ...] = ()
    arithmetic: dict[str, Any] = field(default_factory=dict)


@dataclass
class Testimony:
    """What one witness says at one dtype, in its own layout. Keys: `NAME`, `NAME@NODE`, `NAME@NODE.SLOT`."""

    __test__ = False  # not a test class

    witness: str
    dtype: str
    gradients: dict[str, np.ndarray] = field(default_factory=dict)
    forward: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class Case:
    """A graph of ops, the values it starts from, the upstream gradients of its outputs, and testimonies.

    `values` and `upstream` are canonical. `notes` are remarks for the report; `distrust` says why a recording may not
    accuse anybody (it could not be replayed), empty if it may.
    """

    name: str
    graph: list[Node]
    values: dict[str, np.ndarray] = field(default_factory=dict)
    upstream: dict[str, np.ndarray] = field(default_factory=dict)
    witnesses: dict[str, Witness] = field(default_factory=dict)
    testimonies: dict[tuple[str, str], Testimony] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    distrust: str = ""

    @classmethod
    def from_parts(cls, description: Any, arrays: Mapping[str, np.ndarray], source: str = "case") -> Case:
        """A case from its JSON object and its arrays. Raises CaseError, each line led by `source`."""
        reader = _Reader(source)
        return reader.case(description, arrays)

    def to_parts(self) -> tuple[Json, dict[str, np.ndarray]]:
        """The JSON object and the arrays that `from_parts` turns into this case again."""
        description: Json = {
            "gradjury": VERSION,
            "name": self.name,
            "graph": [_node_json(node) for node in self.graph],
            "witnesses": {name: _witness_json(witness) for name, witness in self.witnesses.items()},
        }
        if self.notes:
            description["notes"] = list(self.notes)
        if self.distrust:
            description["distrust"] = self.distrust
        arrays = {f"value/{escape(name)}": value for name, value in self.values.items()}
        arrays |= {f"upstream/{escape(name)}": value for name, value in self.upstream.items()}
        for (witness, dtype), testimony in self.testimonies.items():
            place = f"{escape(witness)}/{dtype}"
            arrays |= {f"forward/{place}/{escape(key)}": value for key, value in testimony.forward.items()}
            arrays |= {f"grad/{place}/{escape(key)}": value for key, value in testimony.gradients.items()}
        return description, arrays


def read_case(path: str | Path) -> Case:
    """Reads an `.npz` or `.safetensors` case. Raises CaseError for whatever is wrong with it."""
    text, arrays = read_parts(path)
    return Case.from_parts(parse_json(text, str(path)), arrays, str(path))


def write_case(case: Case, path: str | Path) -> None:
    """Writes the case as `.npz` or `.safetensors`, by the name's ending."""
    description, arrays = case.to_parts()
    write_parts(path, json.dumps(description, ensure_ascii=False, allow_nan=False), arrays)


def escape(name: str) -> str:
    """A name as it stands between the slashes of an array's name."""
    return name.replace("%", "%25").replace("/", "%2F")


def parse_json(text: str, source: str) -> Any:
    """Strict JSON: no NaN, no infinities, no key twice in one object. Raises CaseError."""

    def no_constant(found: str) -> Any:
        raise CaseError(f"{source}: case.json: {found} is not JSON")

    def no_twice(pairs: list[tuple[str, Any]]) -> Json:
        found: Json = {}
        for key, value in pairs:
            if key in found:
                raise CaseError(f"{source}: case.json: key {key!r} is there twice")
            found[key] = value
        return found

    def finite(literal: str) -> float:
        value = float(literal)
        if not math.isfinite(value):
            raise CaseError(f"{source}: case.json: {literal[:20]} is too large a number")
        return value

    try:
        return json.loads(text, parse_constant=no_constant, parse_float=finite, object_pairs_hook=no_twice)
    except CaseError:
        raise
    except RecursionError:
        raise CaseError(f"{source}: case.json: nested too deeply") from None
    except ValueError as error:
        raise CaseError(f"{source}: case.json: expected valid JSON: {error}") from None


class _Reader:
    """Turns parts into a Case, checking every type on the way."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.notes: list[str] = []

    def case(self, description: Any, arrays: Mapping[str, np.ndarray]) -> Case:
        top = self.object(description, "case.json")
        self.note_unknown(top, ("gradjury", "name", "graph", "witnesses", "notes", "distrust"), "case.json")
        version = top.get("gradjury")
        if version != VERSION or isinstance(version, bool):
            raise self.error("gradjury", f"the format's version, {VERSION}", version)
        graph = self.list(top.get("graph"), "graph")
        if not graph:
            raise self.error("graph", "at least one node", graph)
        witnesses = self.object(top.get("witnesses", {}), "witnesses")
        case = Case(
            name=self.text(top.get("name"), "name"),
            graph=[self.node(node, f"graph[{i}]") for i, node in enumerate(graph)],
            witnesses={self.text(n, "witnesses"): self.witness(n, w) for n, w in witnesses.items()},
            notes=[self.text(note, "notes") for note in self.list(top.get("notes", []), "notes")],
            distrust=self.text(top["distrust"], "distrust") if "distrust" in top else "",
        )
        for name, array in arrays.items():
            self.place(case, name, np.asarray(array))
        case.notes += self.notes
        return case

    def node(self, found: Any, where: str) -> Node:
        node = self.object(found, where)
        self.note_unknown(node, ("name", "op", "inputs", "outputs", "attributes", "step"), where)
        step = node.get("step")
        if step is not None and (not isinstance(step, int) or isinstance(step, bool)):
            raise self.error(f"{where}.step", "an integer", step)
        name = self.text(node.get("name"), f"{where}.name")
        where = f"node {name!r}"
        return Node(
            name=name,
            op=self.text(node.get("op"), f"{where}: op"),
            inputs=self.slots(node.get("inputs", {}), f"{where}: inputs"),
            outputs=self.slots(node.get("outputs"), f"{where}: outputs"),
            attributes=self.object(node.get("attributes", {}), f"{where}: attributes"),
            step=step,
        )

    def slots(self, found: Any, where: str) -> dict[str, str]:
        return {
            self.text(slot, where): self.text(name, f"{where}.{slot}")
            for slot, name in self.object(found, where).items()
        }

    def witness(self, name: str, found: Any) -> Witness:
        where = f"witness {name!r}"
        witness = self.object(found, where)
        known = ("layout", "time_axis", "printed_digits", "absent", "backend", "arithmetic")
        self.note_unknown(witness, known, where)
        layout, time_axis, digits = (
            witness.get(k, d) for k, d in (("layout", "canonical"), ("time_axis", 0), ("printed_digits", None))
        )
        if layout not in LAYOUTS:
            raise self.error(f"{where}: layout", " or ".join(map(repr, LAYOUTS)), layout)
        if time_axis not in (0, 1) or isinstance(time_axis, bool):
            raise self.error(f"{where}: time_axis", "0 or 1", time_axis)
        if digits is not None and (not isinstance(digits, int) or isinstance(digits, bool) or not 1 <= digits <= 40):
            raise self.error(f"{where}: printed_digits", "a number of digits from 1 to 40", digits)
        return Witness(
            name=name,
            layout=layout,
            time_axis=time_axis,
            printed_digits=digits,
            absent=self.texts(witness.get("absent", []), f"{where}: absent"),
            backend=self.texts(witness.get("backend", []), f"{where}: backend"),
            arithmetic=self.arithmetic(witness.get("arithmetic", {}), f"{where}: arithmetic"),
        )

    def arithmetic(self, found: Any, where: str) -> Json:
        declared = self.object(found, where)
        for key, value in declared.items():
            place = f"{where}.{key}"
            if key in ("operands", "accumulator"):
                self.dtype(value, place)
            elif key == "storage":
                for dtype in value.values() if isinstance(value, dict) else [value]:
                    self.dtype(dtype, place)
            elif key in ("tanh", "sigmoid", "exp", "log", "rsqrt"):
                if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
                    raise self.error(place, "a relative error between 0 and 1", value)
            elif key == "flush_to_zero":
                if not isinstance(value, bool):
                    raise self.error(place, "true or false", value)
            elif key == "variance":
                if value not in ("one-pass", "two-pass", "welford"):
                    raise self.error(place, "'one-pass', 'two-pass' or 'welford'", value)
            else:
                self.notes.append(f"{place}: unknown, ignored")
        return declared

    def place(self, case: Case, name: str, array: np.ndarray) -> None:
        """Files an array under what its name says it is."""
        where = f"array {name!r}"
        if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
            raise self.error(where, "numbers (float16, float32, float64 or integers)", array.dtype)
        kind, *rest = name.split("/")
        names = [self.unescape(part, where) for part in rest]
        if kind == "value" and len(names) == 1:
            self.once(case.values, names[0], array, where)
        elif kind == "upstream" and len(names) == 1:
            self.once(case.upstream, names[0], self.floats(array, where), where)
        elif kind in ("grad", "forward") and len(names) == 3:
            witness, dtype, key = names
            self.dtype(dtype, where)
            if witness not in case.witnesses:
                declared = ", ".join(map(repr, case.witnesses)) or "none"
                raise self.error(where, f"a witness declared in case.json ({declared})", witness)
            testimony = case.testimonies.setdefault((witness, dtype), Testimony(witness, dtype))
            said = testimony.gradients if kind == "grad" else testimony.forward
            self.once(said, key, self.floats(array, where), where)
        else:
            expected = (
                "value/NAME, upstream/NAME, forward/WITNESS/DTYPE/NAME or grad/WITNESS/DTYPE/NAME (a / in a name: %2F)"
            )
            raise CaseError(f"{self.source}: {where}: expected a name such as {expected}")

    def once(self, there: dict[str, np.ndarray], name: str, array: np.ndarray, where: str) -> None:
        if name in there:
            raise CaseError(f"{self.source}: {where}: {name!r} is there twice")
        there[name] = array

    def floats(self, array: np.ndarray, where: str) -> np.ndarray:
        if array.dtype.kind != "f":
            raise self.error(where, "floating-point numbers", array.dtype)
        return array

    def unescape(self, text: str, where: str) -> str:
        head, *tails = text.split("%")
        name = head
        for tail in tails:
            code = tail[:2].upper()
            if code not in _ESCAPES:
                raise CaseError(f"{self.source}: {where}: expected %2F for / and %25 for %, found '%{tail[:2]}'")
            name += _ESCAPES[code] + tail[2:]
        return self.text(name, where)

    def dtype(self, found: Any, where: str) -> None:
        if found not in DTYPES:
            raise self.error(where, f"a dtype ({', '.join(DTYPES)})", found)

    def note_unknown(self, found: Json, known: tuple[str, ...], where: str) -> None:
        self.notes += [f"{where}: unknown key {key!r}, ignored" for key in found if key not in known]

    def object(self, found: Any, where: str) -> Json:
        if not isinstance(found, dict):
            raise self.error(where, "an object", found)
        return found

    def list(self, found: Any, where: str) -> list[Any]:
        if not isinstance(found, list):
            raise self.error(where, "a list", found)
        return found

    def texts(self, found: Any, where: str) -> tuple[str, ...]:
        return tuple(self.text(item, where) for item in self.list(found, where))

    def text(self, found: Any, where: str) -> str:
        if not isinstance(found, str) or not found:
            raise self.error(where, "a text that is not empty", found)
        if any("\ud800" <= character <= "\udfff" for character in found):
            raise self.error(where, "valid Unicode", found)
        if "\0" in found:
            raise self.error(where, "a text without NUL characters", found)
        return found

    def error(self, where: str, expected: str, found: Any) -> CaseError:
        shown = "nothing" if found is None else repr(found)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return CaseError(f"{self.source}: {where}: expected {expected}, found {shown}")


_ESCAPES = {"2F": "/", "25": "%"}


def _node_json(node: Node) -> Json:
    found: Json = {"name": node.name, "op": node.op, "inputs": node.inputs, "outputs": node.outputs}
    if node.attributes:
        found["attributes"] = node.attributes
    if node.step is not None:
        found["step"] = node.step
    return found


def _witness_json(witness: Witness) -> Json:
    found: Json = {"layout": witness.layout}
    if witness.time_axis:
        found["time_axis"] = witness.time_axis
    if witness.printed_digits is not None:
        found["printed_digits"] = witness.printed_digits
    for key, listed in (("absent", witness.absent), ("backend", witness.backend)):
        if listed:
            found[key] = list(listed)
    if witness.arithmetic:
        found["arithmetic"] = witness.arithmetic
    return found
