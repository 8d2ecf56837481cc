"""Case files: what is written is what is read, and whatever is wrong is one line of CaseError."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradjury.verify.case import Case, CaseError, Node, Testimony, Witness, read_case, write_case

SUFFIXES = (".npz", ".safetensors")
FUZZ = settings(deadline=None, max_examples=150, database=None)

Description = dict[str, Any]
Arrays = dict[str, np.ndarray]


def small() -> tuple[Description, Arrays]:
    """The parts of a valid case of one linear layer."""
    node = {"name": "fc", "op": "linear", "inputs": {"x": "x", "weight": "W"}, "outputs": {"y": "y"}}
    description = {"gradjury": 1, "name": "small", "graph": [node], "witnesses": {"mine": {"layout": "canonical"}}}
    rng = np.random.default_rng(0)
    arrays = {
        "value/x": rng.standard_normal((3, 2)).astype(np.float32),
        "value/W": rng.standard_normal((4, 2)).astype(np.float32),
        "upstream/y": np.ones((3, 4), np.float32),
        "grad/mine/float32/W": np.zeros((4, 2), np.float32),
        "forward/mine/float64/y": np.zeros((3, 4)),
    }
    return description, arrays


def write_npz(path: Path, text: Any, arrays: Arrays) -> Path:
    """An npz as numpy writes it; `text` may be anything."""
    np.savez(path, **{"case.json": np.array(json.dumps(text) if isinstance(text, dict) else text)}, **arrays)
    return path


def read_small(tmp_path: Path, change: Callable[[Description, Arrays], None]) -> Case:
    description, arrays = small()
    change(description, arrays)
    return read_case(write_npz(tmp_path / "case.npz", description, arrays))


def assert_same(a: Case, b: Case) -> None:
    """Equal in every field; arrays equal in every bit, dtype and shape."""
    first, second = a.to_parts(), b.to_parts()
    assert first[0] == second[0]
    assert first[1].keys() == second[1].keys()
    for name, array in first[1].items():
        other = second[1][name]
        assert (array.dtype, array.shape) == (other.dtype, other.shape), name
        assert array.tobytes() == other.tobytes(), name


# ---- what is written is what is read

names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12
) | st.sampled_from(["a/b", "%2F", "100%", "x@GRAD", "h@left.x", "%", "/", "case.json", "ß", "层"])
arrays = st.sampled_from(["<f8", "<f4", "<f2", "<i8", "|u1", "|b1"]).flatmap(
    lambda dtype: st.lists(st.integers(0, 3), max_size=3).map(lambda shape: np.ones(shape, dtype))
)
float_arrays = st.sampled_from([np.array(-0.0), np.array([np.nan, np.inf], "f4"), np.zeros((0, 2)), np.eye(2)[:, :1]])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any case that the format can hold; its graph need not make sense."""
    slots = st.dictionaries(names, names, max_size=2)
    scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | names
    nodes = st.builds(
        Node, names, names, slots, slots, st.dictionaries(names, scalars, max_size=2), st.none() | st.integers(0, 5)
    )
    witnesses = draw(st.dictionaries(names, st.sampled_from(["canonical", "torch", "paddle"]), max_size=2))
    made = {
        name: Witness(
            name,
            layout,
            draw(st.integers(0, 1)),
            draw(st.none() | st.integers(1, 9)),
            tuple(draw(st.lists(names, max_size=1))),
        )
        for name, layout in witnesses.items()
    }
    testimonies = {}
    for name in made:
        dtype = draw(st.sampled_from(["float64", "float32", "tfloat32", "bfloat16", "float16"]))
        said = draw(st.dictionaries(names, float_arrays, min_size=1, max_size=2))
        testimonies[name, dtype] = Testimony(name, dtype, said, draw(st.dictionaries(names, float_arrays, max_size=1)))
    return Case(
        draw(names),
        draw(st.lists(nodes, min_size=1, max_size=3)),
        draw(st.dictionaries(names, arrays, max_size=3)),
        draw(st.dictionaries(names, float_arrays, max_size=2)),
        made,
        testimonies,
        draw(st.lists(names, max_size=1)),
        draw(st.just("") | names),
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(case=cases())
@FUZZ
def test_reads_what_it_wrote(case: Case, suffix: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("case") / f"case{suffix}"
    write_case(case, path)
    assert_same(read_case(path), case)


def test_names_are_escaped_as_documented() -> None:
    case = Case.from_parts(*small())
    case.values["a/b%c"] = np.zeros(1)
    assert "value/a%2Fb%25c" in case.to_parts()[1]


def test_a_file_is_replaced_only_by_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "case.npz"
    case = Case.from_parts(*small())
    write_case(case, path)
    broken = Case.from_parts(*small())
    broken.graph[0].attributes["epsilon"] = float("nan")
    with pytest.raises(ValueError):
        write_case(broken, path)
    assert_same(read_case(path), case)
    assert [p.name for p in tmp_path.iterdir()] == ["case.npz"]


def test_bfloat16_of_safetensors_is_widened_exactly(tmp_path: Path) -> None:
    description, _ = small()
    bits = np.array([0x3F80, 0xC000, 0x7F80, 0x0001], np.uint16)  # 1, -2, inf, the least subnormal
    header = {
        "__metadata__": {"case.json": json.dumps(description)},
        "grad/mine/bfloat16/W": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
    }
    text = json.dumps(header).encode()
    path = tmp_path / "case.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bits.tobytes())
    found = read_case(path).testimonies["mine", "bfloat16"].gradients["W"]
    assert found.dtype == np.float32
    assert found.tolist() == [[1.0, -2.0], [np.inf, 2.0**-133]]


def test_byte_order_and_memory_order_do_not_matter(tmp_path: Path) -> None:
    def turn(_: Description, arrays: Arrays) -> None:
        arrays["value/x"] = np.asfortranarray(arrays["value/x"].astype(">f4"))

    assert_same(read_small(tmp_path, turn), Case.from_parts(*small()))


def test_bytes_text_is_read(tmp_path: Path) -> None:
    description, arrays = small()
    path = write_npz(tmp_path / "case.npz", json.dumps(description).encode(), arrays)
    assert_same(read_case(path), Case.from_parts(*small()))


def test_arrays_can_be_written_to(tmp_path: Path) -> None:
    case = read_small(tmp_path, lambda d, a: None)
    assert all(array.flags.writeable for array in case.to_parts()[1].values())


# ---- what is wrong is one line

Change = Callable[[Description, Arrays], Any]
BAD: dict[str, tuple[Change, str]] = {
    "version": (lambda d, a: d.update(gradjury=2), "gradjury: expected the format's version, 1, found 2"),
    "version true": (lambda d, a: d.update(gradjury=True), "expected the format's version, 1, found True"),
    "no name": (lambda d, a: d.pop("name"), "name: expected a text that is not empty, found nothing"),
    "graph object": (lambda d, a: d.update(graph={}), "graph: expected a list, found {}"),
    "graph empty": (lambda d, a: d.update(graph=[]), "graph: expected at least one node"),
    "node text": (lambda d, a: d.update(graph=["fc"]), "graph[0]: expected an object, found 'fc'"),
    "inputs list": (lambda d, a: d["graph"][0].update(inputs=["x"]), "node 'fc': inputs: expected an object"),
    "no outputs": (lambda d, a: d["graph"][0].pop("outputs"), "node 'fc': outputs: expected an object, found nothing"),
    "input null": (lambda d, a: d["graph"][0]["inputs"].update(bias=None), "inputs.bias: expected a text"),
    "step": (lambda d, a: d["graph"][0].update(step="1"), "graph[0].step: expected an integer, found '1'"),
    "attributes": (lambda d, a: d["graph"][0].update(attributes=[]), "attributes: expected an object, found []"),
    "layout": (lambda d, a: d["witnesses"]["mine"].update(layout="jax"), "layout: expected 'canonical' or 'torch' or"),
    "time axis": (lambda d, a: d["witnesses"]["mine"].update(time_axis=2), "time_axis: expected 0 or 1, found 2"),
    "digits": (lambda d, a: d["witnesses"]["mine"].update(printed_digits=0), "printed_digits: expected a number"),
    "absent": (lambda d, a: d["witnesses"]["mine"].update(absent="W"), "absent: expected a list, found 'W'"),
    "arithmetic": (
        lambda d, a: d["witnesses"]["mine"].update(arithmetic={"operands": "fp8"}),
        "operands: expected a dtype",
    ),
    "function": (
        lambda d, a: d["witnesses"]["mine"].update(arithmetic={"tanh": -1}),
        "tanh: expected a relative error",
    ),
    "nul": (lambda d, a: d.update(name="a\0"), "name: expected a text without NUL"),
    "surrogate": (lambda d, a: d.update(name="\ud800"), "name: expected valid Unicode"),
    "dtype": (lambda d, a: a.update({"grad/mine/f32/W": np.zeros(1)}), "expected a dtype (float64, float32,"),
    "witness": (
        lambda d, a: a.update({"grad/you/float32/W": np.zeros(1)}),
        "declared in case.json ('mine'), found 'you'",
    ),
    "place": (
        lambda d, a: a.update({"gradient/W": np.zeros(1)}),
        "array 'gradient/W': expected a name such as value/NAME",
    ),
    "depth": (lambda d, a: a.update({"value/a/b": np.zeros(1)}), "(a / in a name: %2F)"),
    "escape": (lambda d, a: a.update({"value/a%20b": np.zeros(1)}), "expected %2F for / and %25 for %, found '%20'"),
    "twice": (lambda d, a: a.update({"value/a%2f": np.zeros(1), "value/a%2F": np.zeros(1)}), "'a/' is there twice"),
    "text array": (lambda d, a: a.update({"value/t": np.array("abc")}), "expected numbers (float16, float32"),
    "complex": (lambda d, a: a.update({"value/t": np.array(1j)}), "expected numbers (float16, float32"),
    "integer gradient": (lambda d, a: a.update({"grad/mine/float32/x": np.zeros(1, int)}), "expected floating-point"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_parts(tmp_path: Path, change: Change, message: str) -> None:
    with pytest.raises(CaseError) as error:
        read_small(tmp_path, change)
    said = str(error.value)
    assert message in said
    assert said.startswith(str(tmp_path / "case.npz"))
    assert "\n" not in said


TEXTS = {
    "{": "expected valid JSON",
    "": "expected valid JSON",
    "[]": "case.json: expected an object, found []",
    '{"gradjury": NaN}': "NaN is not JSON",
    '{"gradjury": -Infinity}': "-Infinity is not JSON",
    '{"gradjury": 1e999}': "1e999 is too large a number",
    '{"gradjury": 1, "gradjury": 1}': "key 'gradjury' is there twice",
    '{"gradjury": ' + "9" * 5000 + "}": "expected valid JSON",
    "[" * 100_000: "nested too deeply",
}


@pytest.mark.parametrize(("text", "message"), TEXTS.items(), ids=range(len(TEXTS)))
def test_bad_text(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CaseError, match=r"case\.json") as error:
        read_case(write_npz(tmp_path / "case.npz", text, {}))
    assert message in str(error.value)


def test_unknown_keys_are_noted(tmp_path: Path) -> None:
    def add(description: Description, _: Arrays) -> None:
        description["author"] = "me"
        description["graph"][0]["colour"] = "red"
        description["witnesses"]["mine"]["mood"] = "good"

    assert sorted(read_small(tmp_path, add).notes) == [
        "case.json: unknown key 'author', ignored",
        "graph[0]: unknown key 'colour', ignored",
        "witness 'mine': unknown key 'mood', ignored",
    ]


def file_bytes() -> bytes:
    """A valid npz."""
    stream = io.BytesIO()
    description, arrays = small()
    np.savez(stream, **{"case.json": np.array(json.dumps(description))}, **arrays)
    return stream.getvalue()


def npz_with(tmp_path: Path, entry: str, content: bytes) -> Path:
    path = tmp_path / "case.npz"
    path.write_bytes(file_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(entry, content)
    return path


def npy_header(shape: str, dtype: str = "<f8") -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _without_json(folder: Path) -> Path:
    np.savez(folder / "case.npz", x=np.zeros(1))
    return folder / "case.npz"


def _pickled(folder: Path) -> Path:
    np.savez(folder / "case.npz", **{"case.json": np.array("{}"), "value/x": np.array([{}], object)})
    return folder / "case.npz"


def _twice(folder: Path) -> Path:
    with pytest.warns(UserWarning, match="Duplicate name"):
        return npz_with(folder, "value/x.npy", b"")


def _foreign(folder: Path) -> Path:
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(1)}, folder / "case.safetensors")
    return folder / "case.safetensors"


FILES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "none": (lambda p: p / "no.npz", "no such file"),
    "directory": (lambda p: p, "found a directory"),
    "empty": (lambda p: _written(p / "case.npz", b""), "found an empty file"),
    "text": (lambda p: _written(p / "case.npz", b"hello"), "expected an .npz (a zip archive) or .safetensors file"),
    "truncated": (lambda p: _written(p / "case.npz", file_bytes()[:700]), "damaged or not a case file"),
    "no json": (_without_json, "expected an entry 'case.json'"),
    "pickle": (_pickled, "expected numbers"),
    "huge": (lambda p: npz_with(p, "value/z.npy", npy_header("(1000000000000,)")), "more than the"),
    "negative": (lambda p: npz_with(p, "value/z.npy", npy_header("(-1,)")), "more than the"),
    "longer": (lambda p: npz_with(p, "value/z.npy", npy_header("(1,)") + bytes(16)), "the file differs"),
    "extra": (lambda p: npz_with(p, "readme.txt", b"hi"), "expected arrays only"),
    "structured": (lambda p: npz_with(p, "value/z.npy", b"\x93NUMPY\x03\x00" + bytes(9)), "npy version (3, 0)"),
    "header": (lambda p: npz_with(p, "value/z.npy", npy_header("(1,", "<f8")), "damaged or not a case file"),
    "entry twice": (_twice, "is there twice"),
    "safetensors": (lambda p: _written(p / "case.safetensors", b"\xff" * 64), "damaged or not a case file"),
    "short safetensors": (lambda p: _written(p / "case.safetensors", b"\x01"), "damaged or not a case file"),
    "foreign safetensors": (_foreign, "expected the metadata key 'case.json'"),
}


@pytest.mark.parametrize(("make", "message"), FILES.values(), ids=FILES.keys())
def test_bad_files(tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    path = make(tmp_path)
    with pytest.raises(CaseError) as error:
        read_case(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_cannot_write(tmp_path: Path) -> None:
    case = Case.from_parts(*small())
    with pytest.raises(CaseError, match=r"expected a name that ends in \.npz or \.safetensors"):
        write_case(case, tmp_path / "case.json")
    with pytest.raises(CaseError, match="cannot be written: No such file"):
        write_case(case, tmp_path / "nowhere" / "case.npz")


# ---- fuzzing: never anything but a case or a CaseError


def survives(path: Path) -> None:
    try:
        read_case(path)
    except CaseError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(data=st.data())
@FUZZ
def test_damaged_bytes(suffix: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fuzz") / f"case{suffix}"
    write_case(Case.from_parts(*small()), path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.just(len(content)) | st.integers(0, len(content)))
    path.write_bytes(bytes(content[:cut]))
    survives(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data())
@FUZZ
def test_damaged_json(data: st.DataObject) -> None:
    """Any value anywhere in the description: a case or a CaseError."""
    description, arrays = small()
    place: Any = description
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(json_values)
        break
    try:
        Case.from_parts(description, arrays)
    except CaseError as error:
        assert "\n" not in str(error)
