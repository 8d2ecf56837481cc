"""What every op keeps to, known from its declaration and its example alone: a new op is tested here without being named."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from guards import BACKWARD, FORWARD, Guarded, launches
from problems import (
    WIDE,
    Run,
    U,
    batch_is_indifferent,
    directional_gap,
    exact_numbers,
    excess,
    float32_values,
    kernels,
    run,
)

from gradjury.kernels.arithmetic import Arithmetic
from gradjury.kernels.modes import total_variance
from gradjury.verify import ops
from gradjury.verify.ops.base import Example, Op

OPS = sorted(ops.all_ops())
CHOICES = [(name, {}) for name in OPS] + [
    (name, {attribute: choice})
    for name in OPS
    for attribute, a in ops.all_ops()[name].attributes.items()
    for choice in a.choices or ()
    if choice != a.default
]


def example(name: str, attributes: dict[str, Any] | None = None) -> tuple[Op, Example, dict[str, np.ndarray]]:
    """An op, its example with values that float32 holds, and an upstream gradient of all outputs."""
    op, rng = ops.all_ops()[name], np.random.default_rng(3)
    given = op.example(rng)
    inputs = {s: a.astype(np.float32).astype(np.float64) if a.dtype.kind == "f" else a for s, a in given.inputs.items()}
    complete = given.attributes | (attributes or {})
    upstream = {output: float32_values(rng, *shape) for output, shape in shapes(op, inputs, complete).items()}
    return op, Example(inputs, complete), upstream


def shapes(op: Op, inputs: dict[str, np.ndarray], attributes: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    integers = {slot.name: inputs.get(slot.name) for slot in op.inputs if slot.integer}
    return op.shapes({slot: a.shape for slot, a in inputs.items()}, integers, op.complete(attributes))


def everything(found: Run) -> dict[str, Any]:
    """Outputs and gradients under keys of their own."""
    return {f"output {n}": t for n, t in found.outputs.items()} | {
        f"gradient {n}": t for n, t in found.gradients.items()
    }


@pytest.mark.parametrize(("name", "attributes"), CHOICES)
def test_declaration(name: str, attributes: dict[str, Any]) -> None:
    """The example is accepted, and outputs and gradients have the shapes that were declared."""
    op, given, upstream = example(name, attributes)
    op.check_attributes(given.attributes)
    assert set(given.inputs) <= {slot.name for slot in op.inputs}
    assert {slot.name for slot in op.inputs if not slot.optional} <= set(given.inputs)
    found = run(op, given.inputs, given.attributes, upstream, kernels("float64"))
    assert {n: t.shape for n, t in found.outputs.items()} == shapes(op, given.inputs, given.attributes)
    wanted = {slot.name for slot in op.inputs if slot.differentiable} & set(given.inputs)
    assert {n: t.shape for n, t in found.gradients.items()} == {n: given.inputs[n].shape for n in wanted}


@pytest.mark.parametrize("scalar", ["float32", "float64"])
@pytest.mark.parametrize(("name", "attributes"), CHOICES)
def test_inside_the_budget(name: str, attributes: dict[str, Any], scalar: str) -> None:
    """Against double-double, by the variance that `spread` propagates."""
    op, given, upstream = example(name, attributes)
    arithmetic = Arithmetic() if scalar == "float32" else WIDE
    noise = everything(run(op, given.inputs, given.attributes, upstream, kernels("spread", **asdict(arithmetic))))
    true = everything(run(op, given.inputs, given.attributes, upstream, kernels("double-double")))
    here = everything(run(op, given.inputs, given.attributes, upstream, kernels(scalar)))
    for key, tensor in here.items():
        budget = total_variance(noise[key])[0]
        assert excess(exact_numbers(tensor), exact_numbers(true[key]), budget, U[scalar]) <= 1, key


@pytest.mark.parametrize(("name", "attributes"), CHOICES)
def test_backward_belongs_to_forward(name: str, attributes: dict[str, Any]) -> None:
    """The derivative by dual numbers is ⟨gradient, direction⟩, to double-double."""
    op, given, _ = example(name, attributes)
    assert directional_gap(op, given.inputs, given.attributes) < 2.0**-98


@pytest.mark.parametrize("scalar", BACKWARD)
@pytest.mark.parametrize("name", OPS)
def test_batch_is_indifferent(name: str, scalar: str) -> None:
    """A case among others has the bits that it has alone."""
    op, given, _ = example(name)
    assert batch_is_indifferent(op, given.inputs, given.attributes, scalar)


@pytest.mark.parametrize("scalar", FORWARD)
@pytest.mark.parametrize("name", OPS)
def test_reads_and_writes_its_own(name: str, scalar: str) -> None:
    """NaN around every array and in every fresh one never shows, and no order of threads changes a bit."""
    op, given, upstream = example(name)
    bits = set()
    for setting in ({"seed": -1}, {"seed": 4}, {"threads": 1}, {"threads": 2}):
        with launches(**setting):
            k = Guarded(scalar)
            found = everything(run(op, given.inputs, given.attributes, upstream, k, cases=2))
        assert k.intact()
        if scalar != "noisy":  # whose keys are any bits
            assert all(np.isfinite(tensor.data).all() for tensor in found.values())
        bits.add(b"".join(tensor.data.tobytes() for tensor in found.values()))
    assert len(bits) == 1


@pytest.mark.parametrize("name", OPS)
def test_each_gradient_alone(name: str) -> None:
    """A gradient is the same whether or not others are wanted, and nothing is computed that is not."""
    op, given, upstream = example(name)
    whole = run(op, given.inputs, given.attributes, upstream, kernels("float64"))
    for slot in whole.gradients:
        alone = run(op, given.inputs, given.attributes, upstream, kernels("float64"), only={slot})
        assert set(alone.gradients) == {slot}
        assert alone.gradients[slot].data.tobytes() == whole.gradients[slot].data.tobytes()


@pytest.mark.parametrize("name", [name for name in OPS if any(slot.optional for slot in ops.all_ops()[name].inputs)])
def test_optional_inputs(name: str) -> None:
    """Every optional input may be absent, alone and with all others."""
    op, given, upstream = example(name)
    optional = {slot.name for slot in op.inputs if slot.optional} & set(given.inputs)
    for absent in [{slot} for slot in optional] + [optional]:
        inputs = {slot: a for slot, a in given.inputs.items() if slot not in absent}
        if name == "join":
            upstream = {"y": np.ones(sum(a.size for a in inputs.values()))}
        found = run(op, inputs, given.attributes, upstream, kernels("float64"))
        assert not absent & set(found.gradients)
        assert all(np.isfinite(tensor.data).all() for tensor in everything(found).values())


@pytest.mark.parametrize("name", [name for name in OPS if len(ops.all_ops()[name].outputs) > 1])
def test_an_output_without_gradient(name: str) -> None:
    """An output that no gradient reaches counts as one with gradient 0."""
    op, given, upstream = example(name)
    for output in op.outputs:
        kept = {n: a for n, a in upstream.items() if n != output}
        without = run(op, given.inputs, given.attributes, kept, kernels("double-double"))
        zero = kept | {output: np.zeros_like(upstream[output])}
        zeros = run(op, given.inputs, given.attributes, zero, kernels("double-double"))
        for slot, tensor in without.gradients.items():
            assert np.array_equal(tensor.data, zeros.gradients[slot].data), slot


@pytest.mark.parametrize("name", OPS)
def test_replicas_stay_under_the_spread(name: str) -> None:
    """The mean square of a thousand replicas is what the variance says, or less, but for the η of an empty sum."""
    op, given, upstream = example(name)
    spread = everything(run(op, given.inputs, given.attributes, upstream, kernels("spread")))
    true = everything(run(op, given.inputs, given.attributes, upstream, kernels("float64")))
    noisy = everything(run(op, given.inputs, given.attributes, upstream, kernels("noisy"), cases=1000))
    for key, tensor in noisy.items():
        errors = (tensor.data[..., 0] - true[key].data) * np.sqrt(3) * 2.0**24
        limit = 2.5 * (total_variance(spread[key])[0] + (Arithmetic().eta / Arithmetic().u) ** 2)
        assert np.all(np.mean(errors**2, axis=0) <= limit), key


@pytest.mark.parametrize("name", OPS)
def test_exact_inputs_have_no_deviation(name: str) -> None:
    """`bound` is as good as float64, and what starts certain stays certain."""
    op, given, upstream = example(name)
    bound = everything(run(op, given.inputs, given.attributes, upstream, kernels("bound")))
    true = everything(run(op, given.inputs, given.attributes, upstream, kernels("double-double")))
    noise = everything(run(op, given.inputs, given.attributes, upstream, kernels("spread", **asdict(WIDE))))
    for key, tensor in bound.items():
        assert not tensor.data[..., 1].any(), key
        budget = total_variance(noise[key])[0]
        assert excess(tensor.data[0, ..., 0], exact_numbers(true[key]), budget, U["float64"]) <= 1, key


def test_wrong_attributes() -> None:
    op = ops.all_ops()["softmax"]
    for attributes in ({"axes": 1}, {"axis": "last"}, {"axis": True}, {"axis": 1.5}):
        with pytest.raises(ops.base.OpError, match="attribute"):
            op.check_attributes(attributes)


def test_an_op_is_a_file() -> None:
    """Every class with a name of its own in a file of the folder is an op, once."""
    assert len({type(op) for op in ops.all_ops().values()}) == len(OPS)
    assert ops.get("no such op") is None
    assert all(op.name == name for name, op in ops.all_ops().items())
