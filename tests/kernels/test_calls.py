"""The vocabulary ops are written in: what goes in comes out, shapes, lengths, keys, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from guards import BACKWARD, FORWARD, Guarded, rest, same_bits_however_launched, whole_numbers

from gradjury.kernels.arithmetic import Arithmetic
from gradjury.kernels.calls import Kernels
from gradjury.kernels.engine import EngineMissing, engine
from gradjury.kernels.host_engine import HostEngine
from gradjury.kernels.scalars import SCALARS
from gradjury.kernels.tensor import Mode, Tensor

COARSE = Arithmetic(u=2.0**-24, eta=2.0**-26)  # (η/u)² = 1/16
E = 1 / 16


def plain(scalar: str, **settings: Any) -> Kernels:
    return Kernels(engine("host"), SCALARS[scalar], Arithmetic(**settings))


# ---- data in and out


@pytest.mark.parametrize("scalar", FORWARD)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_go_in_and_come_out(dtype: Any, scalar: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(dtype)
    x[0, 0, :3] = -0.0, np.nan, np.inf
    tensor = plain(scalar).tensor(x)
    assert (tensor.cases, tensor.shape, tensor.length, tensor.modes) == (2, (3, 4), 1, ())
    expected = (x.astype(np.float32) if scalar == "float32" else x).astype(np.float64)
    assert plain(scalar).values(tensor).tobytes() == expected.tobytes()
    if scalar not in ("noisy", "spread"):
        np.testing.assert_array_equal(rest(tensor), np.zeros_like(rest(tensor)))


def test_strided_values_are_copied() -> None:
    x = np.arange(12.0).reshape(1, 3, 4)
    tensor = plain("float64").tensor(x.transpose(0, 2, 1))
    assert tensor.data.flags.c_contiguous
    np.testing.assert_array_equal(tensor.data, x.transpose(0, 2, 1))


@pytest.mark.parametrize(("scalar", "place"), [("double-double", 1), ("dual", 1), ("dual-double-double", 2), ("float64", None)])
def test_second_parts(scalar: str, place: int | None) -> None:
    tensor = plain(scalar).tensor(np.full((1, 2), 3.0), np.full((1, 2), 2.0**-60))
    expected = np.zeros((1, 2, SCALARS[scalar].components))
    expected[..., 0] = 3.0
    if place is not None:
        expected[..., place] = 2.0**-60
    np.testing.assert_array_equal(tensor.data.reshape(expected.shape), expected)


def test_inputs_are_exact_unless_they_underflow() -> None:
    """Below η a value may be lost altogether: (x/u)²."""
    x = np.array([[1.0, 0.0, 2.0**-150, -(2.0**-149)]])
    variance = plain("spread").tensor(x).data[0, :, 1]
    assert variance.tolist() == [0.0, 0.0, (2.0**-150 / 2.0**-24) ** 2, 0.0]


def test_keys_are_of_an_input_an_element_and_a_replica() -> None:
    k = plain("noisy")
    first, second = (np.ascontiguousarray(k.tensor(np.ones((3, 50))).data[..., 1]).view(np.uint64) for _ in range(2))
    assert np.array_equal(first & 0xFFFF, np.repeat([[1], [2], [3]], 50, axis=1))
    elements = np.concatenate((first >> 16, second >> 16), axis=1)
    assert len(np.unique(elements)) == 100  # the same in every replica
    assert np.array_equal(elements[0], elements[2])
    again = plain("noisy").tensor(np.ones((3, 50)))
    assert np.ascontiguousarray(again.data[..., 1]).view(np.uint64).tobytes() == first.tobytes()


def test_integers_masks_and_doubles() -> None:
    k = plain("float32")
    for made, dtype in ((k.integers, np.int64), (k.mask, np.uint8), (k.doubles, np.float64)):
        array = made(np.array([[1, 0], [0, 1]])[:, ::-1])
        assert array.dtype == dtype
        assert array.flags.c_contiguous
        assert array.tolist() == [[0, 1], [1, 0]]


def test_fresh_results() -> None:
    poisoned = Kernels(engine("host"), SCALARS["dual"], poison=True).empty(2, (3,))
    assert poisoned.data.shape == (2, 3, 2)
    assert np.all(np.isnan(poisoned.data))
    np.testing.assert_array_equal(plain("dual").zeros(2, (3,)).data, np.zeros((2, 3, 2)))


@pytest.mark.parametrize("scalar", ["float64", "dual"])
def test_reshape(scalar: str) -> None:
    x = plain(scalar).tensor(np.arange(24.0).reshape(2, 3, 4))
    x = replace(x, length=7, modes=(Mode(x.data, x.data, included=False),))
    y = x.reshape(-1, 2)
    assert (y.shape, y.length, y.modes) == ((6, 2), 7, ())
    np.testing.assert_array_equal(plain(scalar).values(y).ravel(), np.arange(24.0))
    empty = plain(scalar).tensor(np.zeros((2, 0, 3)))
    assert empty.reshape(0, 5).shape == (0, 5)
    assert empty.reshape(3, -1).shape == (3, 0)


# ---- elementwise


@pytest.mark.parametrize("scalar", FORWARD)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (17,), (3, 5)])
def test_add_and_multiply(shape: tuple[int, ...], scalar: str) -> None:
    rng = np.random.default_rng(1)
    a, b = whole_numbers(rng, 3, *shape), whole_numbers(rng, 3, *shape)
    k = Guarded(scalar)
    x, y = k.tensor(a), k.tensor(b)
    np.testing.assert_array_equal(k.whole(k.add(x, y)), a + b)
    np.testing.assert_array_equal(k.whole(k.multiply(x, y)), a * b)
    np.testing.assert_array_equal(k.whole(k.binary("subtract", x, y)), a - b)
    np.testing.assert_array_equal(k.whole(k.unary("negate", x)), -a)
    np.testing.assert_array_equal(k.whole(k.unary("multiply_by", x, -6.0)), -6 * a)
    np.testing.assert_array_equal(k.whole(k.unary("divide_by", k.multiply(x, k.tensor(4 + 0 * a)), 4.0)), a)
    assert k.intact()


@pytest.mark.parametrize("scalar", BACKWARD)
def test_accumulate(scalar: str) -> None:
    rng = np.random.default_rng(2)
    a, b = whole_numbers(rng, 3, 40), whole_numbers(rng, 3, 40)
    k = Guarded(scalar)
    y = k.accumulate(k.tensor(a), replace(k.tensor(b), length=9))
    np.testing.assert_array_equal(k.whole(y), a + b)
    assert y.length == 9
    assert k.intact()


def test_accumulated_noise() -> None:
    """A product of m terms may have started from the total: y² + m·total² + e, and draws of that size."""
    a, b, m, replicas = np.array([[3.0, -1.0]]), np.array([[-2.0, 5.0]]), 11, 2000
    k = Guarded("spread", COARSE)
    total, part = k.tensor(a), replace(k.tensor(b), length=m)
    total.data[..., 1], part.data[..., 1] = 0.5, 0.25
    np.testing.assert_array_equal(k.accumulate(total, part).data[..., 1], 0.75 + (a + b) ** 2 + m * a**2 + E)
    noisy = Guarded("noisy", Arithmetic(eta=0.0))
    every = [noisy.tensor(np.repeat(x, replicas, axis=0)) for x in (a, b)]
    draws = noisy.values(noisy.accumulate(every[0], replace(every[1], length=m))) - (a + b)
    relative = draws / (2.0**-24 * np.sqrt((a + b) ** 2 + m * a**2))
    assert np.all(abs(3 * np.mean(relative**2, axis=0) - 1) <= 5 * np.sqrt(0.8 / replicas))


def test_modes_survive_accumulation() -> None:
    k = plain("spread")
    x = k.tensor(np.ones((1, 2, 3)))
    one, two = (Mode(x.data[..., 0] * n, np.ones((1, 3)), included=False) for n in (1, 2))
    assert k.accumulate(replace(x, modes=(one,)), replace(x, modes=(two,))).modes == (one, two)


@pytest.mark.parametrize("scalar", FORWARD)
def test_elementwise_bits_do_not_depend_on_threads(scalar: str) -> None:
    rng = np.random.default_rng(3)
    k = Guarded(scalar, Arithmetic())
    a, b = (k.tensor(rng.standard_normal((3, 5000))) for _ in range(2))
    assert same_bits_however_launched(lambda: k.multiply(k.add(a, b), b))
    together = k.add(a, b).data
    alone = [k.add(*(replace(t, data=t.data[i : i + 1].copy()) for t in (a, b))).data for i in range(3)]
    assert together.tobytes() == np.concatenate(alone).tobytes()


def test_constants_are_scaled_with_one_rounding() -> None:
    """x·c is the product rounded once, at every scalar that holds it."""
    x = np.random.default_rng(4).standard_normal((1, 50))
    for scalar in ("float64", "lowered"):
        found = plain(scalar).values(plain(scalar).unary("multiply_by", plain(scalar).tensor(x), 1 / 3))
        assert all(y == float(Fraction(v) * Fraction(1 / 3)) for v, y in zip(x[0], found[0], strict=True))


# ---- what is refused, and engines


def test_unknown_kernels_and_strided_arrays() -> None:
    k = plain("float32")
    x = k.tensor(np.ones((2, 4)))
    with pytest.raises(KeyError, match="no kernel nonesuch<float>"):
        k.unary("nonesuch", x)
    with pytest.raises(KeyError, match="no kernel relu_backward<dual<double>>"):
        plain("dual").unary("relu_backward", plain("dual").tensor(np.ones((1, 2))))
    with pytest.raises(ValueError, match="contiguous"):
        k.add(Tensor(x.data[:, ::2], x.scalar), Tensor(x.data[:, ::2], x.scalar))


def test_arguments_of_every_kind() -> None:
    """Numbers of numpy's are numbers; None is a null pointer."""
    k = plain("float64")
    y = k.empty(1, (3,))
    k.launch("multiply_by", (1, 1, 1), 1, np.int64(1), True + 2, np.float64(0.5), k.tensor(np.ones((1, 3))), y)
    np.testing.assert_array_equal(y.data, np.full((1, 3), 0.5))
    k.launch("relu_forward", (1, 1, 1), 1, 1, 3, k.tensor(np.array([[1.0, -1.0, 2.0]])), None, None, y)
    np.testing.assert_array_equal(y.data, [[1.0, 0.0, 2.0]])


def test_engines_by_name() -> None:
    assert engine("host").name == "host"
    assert engine("host") is engine("host")
    with pytest.raises(EngineMissing, match="expected host or cupy, found 'abacus'"):
        engine("abacus")


def test_every_scalar_has_its_kernels() -> None:
    names = HostEngine().kernel_names()
    assert len(set(names)) == len(names)
    for scalar in SCALARS.values():
        own = {name for name in names if name.endswith(f"<{scalar.cpp}>")}
        assert {f"{kernel}<{scalar.cpp}>" for kernel in ("matmul", "sum_middle", "gather", "add", "multiply")} <= own
        assert (f"scatter<{scalar.cpp}>" in own) == (f"accumulate<{scalar.cpp}>" in own) == (scalar.name in BACKWARD)


@pytest.mark.parametrize("settings", [Arithmetic(), COARSE])
def test_arithmetic_is_of_one_launch(settings: Arithmetic) -> None:
    """Two Kernels side by side do not see each other's settings."""
    other = Guarded("spread", Arithmetic(u=2.0**-24, eta=0.0))
    k = Guarded("spread", settings)
    zeros = [t.tensor(np.zeros((1, 1))) for t in (k, other)]
    e = (settings.eta / settings.u) ** 2
    for _ in range(2):
        assert other.add(zeros[1], zeros[1]).data[0, 0, 1] == 0.0
        assert k.add(zeros[0], zeros[0]).data[0, 0, 1] == e
