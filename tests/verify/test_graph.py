"""Graphs: order, consumers, the names of parts, and what check refuses in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradjury.verify import graph, ops
from gradjury.verify.case import Case, CaseError, Node, Testimony, Witness

FUZZ = settings(deadline=None, max_examples=60, database=None)


def linear(name: str, x: str, y: str, **attributes: Any) -> Node:
    return Node(name, "linear", {"x": x, "weight": f"{name}.weight"}, {"y": y}, attributes)


def chain() -> Case:
    """x -> a -> h -> b -> y, listed backwards; h also goes into the sum s = h + h."""
    nodes = [
        linear("b", "h", "y"),
        Node("double", "add", {"a": "h", "b": "h"}, {"y": "s"}),
        Node("a", "relu", {"x": "x"}, {"y": "h"}),
    ]
    values = {"x": np.ones((2, 3), np.float32), "b.weight": np.ones((4, 3), np.float32)}
    case = Case("chain", nodes, values, {"y": np.ones((2, 4), np.float32)}, {"mine": Witness("mine")})
    case.testimonies["mine", "float32"] = Testimony("mine", "float32", {"x": np.ones((2, 3), np.float32)})
    return case


def loss_case(**values: np.ndarray) -> Case:
    """cross_entropy of logits, whose loss needs no upstream gradient."""
    node = Node("ce", "cross_entropy", {"logits": "logits", "target": "target"}, {"loss": "loss"})
    given_ = {"logits": np.zeros((2, 3), np.float32), "target": np.array([0, 2])}
    return Case("loss", [node], {**given_, **values})


def test_order_follows_use() -> None:
    assert [node.name for node in graph.order(chain())] == ["a", "b", "double"]


def test_order_keeps_what_needs_no_change() -> None:
    nodes = [Node(f"n{i}", "relu", {"x": f"t{i}"}, {"y": f"t{i + 1}"}) for i in range(2000)]
    assert graph.order(Case("long", nodes)) == nodes


def test_a_cycle_is_named() -> None:
    nodes = [
        Node("a", "relu", {"x": "u"}, {"y": "v"}),
        Node("b", "relu", {"x": "v"}, {"y": "u"}),
        Node("c", "relu", {"x": "u"}, {"y": "w"}),
    ]
    with pytest.raises(CaseError, match="loop: graph: a cycle runs through a <- b <- a"):
        graph.order(Case("loop", nodes))


def test_consumers_are_where_gradient_comes_from() -> None:
    case = loss_case()
    assert [(node.name, slot) for node, slot in graph.consumers(case, "logits")] == [("ce", "logits")]
    assert graph.consumers(case, "target") == []
    assert [slot for _, slot in graph.uses(case, "target")] == ["target"]


def test_opaque_nodes() -> None:
    case = chain()
    case.graph.append(Node("custom", "somebodys.op", {"x": "y"}, {"y": "z"}))
    assert [node.name for node in graph.opaque(case)] == ["custom"]
    assert "z" not in graph.check(case)


# ---- parts


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("h", ("h", None, None)),
        ("h@b", ("h", "b", None)),
        ("h@b.x", ("h", "b", "x")),
        ("h@double", ("h", "double", None)),
        ("h@double.b", ("h", "double", "b")),
        ("h@double.c", ("h@double.c", None, None)),
        ("h@a", ("h@a", None, None)),  # a makes h, it does not use it
        ("x@GRAD", ("x@GRAD", None, None)),
        ("x@GRAD@a", ("x@GRAD@a", None, None)),
        ("@a", ("@a", None, None)),
    ],
)
def test_split_part(key: str, expected: tuple[str, str | None, str | None]) -> None:
    assert graph.split_part(chain(), key) == expected


def test_part_of_a_name_with_at() -> None:
    case = chain()
    case.graph[2].inputs["x"] = "x@GRAD"
    assert graph.split_part(case, "x@GRAD@a") == ("x@GRAD", "a", None)


def test_part_keys_name_the_slot_where_they_must() -> None:
    case = chain()
    assert graph.part_key(case, "h", "b", "x") == "h@b"
    assert graph.part_key(case, "h", "double", "a") == "h@double.a"


# ---- what a case leaves to be understood


def test_shapes() -> None:
    shapes = graph.check(chain())
    assert shapes == {"x": (2, 3), "b.weight": (4, 3), "h": (2, 3), "y": (2, 4), "s": (2, 3)}


def test_a_lone_scalar_output_gets_one() -> None:
    case = loss_case()
    completed = graph.complete(case, graph.check(case))
    assert completed.upstream["loss"].tolist() == 1.0
    assert graph.remarks(completed) == []


def test_an_output_that_is_not_scalar_gets_nothing() -> None:
    case = chain()
    case.upstream.clear()
    completed = graph.complete(case, graph.check(case))
    assert completed.upstream == {}
    assert graph.remarks(completed) == ["no upstream gradient, hence no reference: record upstream/y"]


def test_upstream_takes_the_shape_of_its_tensor() -> None:
    case = loss_case()
    case.upstream["loss"] = np.full((1, 1), 2.0)
    completed = graph.complete(case, graph.check(case))
    assert completed.upstream["loss"].shape == ()


def test_whole_numbers_become_integers() -> None:
    case = loss_case(target=np.array([0.0, 2.0]))
    assert graph.complete(case, graph.check(case)).values["target"].dtype == np.int64


def test_remarks() -> None:
    case = chain()
    case.values["unused"] = np.zeros(1)
    del case.values["x"]
    case.graph.append(Node("typo", "lineer", {"x": "y"}, {"y": "z"}))
    assert graph.remarks(case) == [
        "no value of x: what depends on it has no reference",
        "node typo: op lineer is unknown; did you mean linear?",
        "value of unused: not used by the graph",
    ]


def test_define() -> None:
    weights = {slot: slot for slot in ("x", "h", "weight_ih", "weight_hh")}
    case = Case("gru", [Node("cell", "gru_step", weights, {"h_next": "n"}), Node("r", "relu", {"x": "n"}, {"y": "y"})])
    changed = graph.define(case, {"gru.update": "keeps-candidate"})
    assert [node.attributes for node in changed.graph] == [{"update": "keeps-candidate"}, {}]
    assert case.graph[0].attributes == {}
    for setting in ("lstm.update", "update", ".update"):
        with pytest.raises(CaseError, match=r"expected OP\.ATTRIBUTE with an op of the graph \(gru_step, relu\)"):
            graph.define(case, {setting: 1})


# ---- what check refuses


def _rename(case: Case) -> None:
    case.graph[1].name = "b"


def _twice(case: Case) -> None:
    case.graph[1].outputs["y"] = "h"


Change = Callable[[Case], Any]
BAD: dict[str, tuple[Change, str]] = {
    "node twice": (_rename, "chain: graph: two nodes are called 'b'"),
    "tensor twice": (_twice, "'h' is produced by 'double' and again by 'a'"),
    "given and made": (
        lambda c: c.values.update(h=np.zeros(1)),
        "'h' is given as value/h and produced by 'a'; leave one out",
    ),
    "slot": (
        lambda c: c.graph[0].inputs.update(w="x"),
        "node 'b' (linear): input 'w': unknown; linear takes x, weight, bias",
    ),
    "slot missing": (lambda c: c.graph[0].inputs.pop("weight"), "node 'b' (linear): input 'weight' is missing"),
    "output": (lambda c: c.graph[0].outputs.update(z="z"), "node 'b' (linear): output 'z': unknown; linear gives y"),
    "no output": (lambda c: c.graph[0].outputs.clear(), "node 'b' (linear): expected at least one output (y)"),
    "attribute": (lambda c: c.graph[0].attributes.update(eps=1), "node 'b' (linear): attribute eps: unknown"),
    "shape": (
        lambda c: c.values.update({"b.weight": np.zeros((4, 5))}),
        "node 'b' (linear): weight: expected (out, 3)",
    ),
    "upstream shape": (
        lambda c: c.upstream.update(y=np.zeros((4, 2))),
        "upstream/y: expected shape (2, 4), found (4, 2)",
    ),
    "upstream name": (
        lambda c: c.upstream.update(x=np.zeros((2, 3))),
        "upstream/x: expected an output of the graph (y, s)",
    ),
    "gradient name": (
        lambda c: c.testimonies["mine", "float32"].gradients.update({"b.wieght": np.zeros(1)}),
        "grad/mine/float32/b.wieght: 'b.wieght' is no tensor of the graph; did you mean 'b.weight'?",
    ),
    "part name": (
        lambda c: c.testimonies["mine", "float32"].gradients.update({"h@nobody": np.zeros(1)}),
        "'h@nobody' is no tensor of the graph",
    ),
    "forward name": (
        lambda c: c.testimonies["mine", "float32"].forward.update({"h@b": np.zeros(1)}),
        "forward/mine/float32/h@b: 'h@b' is no tensor of the graph",
    ),
    "absent name": (
        lambda c: c.witnesses.update(mine=Witness("mine", absent=("q",))),
        "absent of witness 'mine': 'q' is no tensor",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_graphs(change: Change, message: str) -> None:
    case = chain()
    change(case)
    with pytest.raises(CaseError) as error:
        graph.check(case)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_fractions_are_no_integers() -> None:
    with pytest.raises(CaseError, match="value/target: node 'ce' needs integers, found float64 with fractions"):
        graph.check(loss_case(target=np.array([0.5, 1.0])))


def test_a_target_out_of_range() -> None:
    with pytest.raises(CaseError, match=r"node 'ce' \(cross_entropy\): target: expected classes 0 to 2"):
        graph.check(loss_case(target=np.array([0, 3])))


def test_integers_have_no_gradient() -> None:
    case = loss_case()
    case.witnesses["mine"] = Witness("mine")
    case.testimonies["mine", "float32"] = Testimony("mine", "float32", {"target": np.zeros(2)})
    with pytest.raises(CaseError, match="'target' holds integers"):
        graph.check(case)


def test_one_name_cannot_be_both_integers_and_numbers() -> None:
    case = loss_case()
    case.graph.append(Node("r", "relu", {"x": "target"}, {"y": "y"}))
    with pytest.raises(CaseError, match="read as integers by 'ce' and as numbers by 'r'"):
        graph.check(case)


# ---- any shapes, any attributes: shapes or a CaseError

shape = st.lists(st.integers(0, 4), max_size=4).map(tuple)
value = (
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.floats()
    | st.text(max_size=3)
    | st.lists(st.integers(-3, 3), max_size=3)
)


@pytest.mark.parametrize("name", ops.all_ops())
@given(data=st.data())
@FUZZ
def test_no_shapes_or_attributes_break_an_op(name: str, data: st.DataObject) -> None:
    op = ops.get(name)
    assert op is not None
    example = op.example(np.random.default_rng(0))
    values = {slot: np.asarray(array) for slot, array in example.inputs.items() if array is not None}
    for slot in data.draw(st.sets(st.sampled_from(sorted(values)), max_size=2)):
        dtype = data.draw(st.sampled_from([np.float32, np.int64]))
        values[slot] = np.full(data.draw(shape), data.draw(st.integers(-2, 5)), dtype)
    attributes = dict(example.attributes)
    if op.attributes and data.draw(st.booleans()):
        attributes[data.draw(st.sampled_from(sorted(op.attributes)))] = data.draw(value)
    node = Node(
        "n", name, {slot: slot for slot in values}, {output: f"out.{output}" for output in op.outputs}, attributes
    )
    case = Case("fuzz", [node], values)
    try:
        shapes = graph.check(case)
    except CaseError as error:
        assert "\n" not in str(error)
        return
    assert all(isinstance(n, int) and n >= 0 for found in shapes.values() for n in found)


def test_a_mask_is_not_differentiable() -> None:
    case = Case("drop", [Node("d", "dropout", {"x": "x", "mask": "m"}, {"y": "y"})])
    assert graph.differentiable(case, "x")
    assert not graph.differentiable(case, "m")
