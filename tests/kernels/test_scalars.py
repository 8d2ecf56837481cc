"""Double-doubles, doubles, floats and dual numbers against mpmath; absolute deviations and low precision by hand."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradjury.kernels.arithmetic import Arithmetic
from gradjury.kernels.calls import Kernels
from gradjury.kernels.engine import engine
from gradjury.kernels.scalars import SCALARS

mpmath.mp.prec = 1200  # exp(-|x|) next to 1 must still show at |x| = 745

# Claimed relative error of every double-double operation; what subnormals cannot hold comes on top: a few roundings of
# 2^-1075 where the result or an error term is that small.
DD_ERROR = mpmath.mpf(2) ** -98
DD_LOST = 4 * mpmath.mpf(2) ** -1074
# A dual's derivative is a slope (a function and up to three roundings), times the direction.
DUAL_ERROR = {"dual": mpmath.mpf(2) ** -49, "dual-double-double": mpmath.mpf(2) ** -98}

FUNCTIONS: dict[str, Callable[[mpmath.mpf], mpmath.mpf]] = {
    "exp_forward": mpmath.exp,
    "log_forward": mpmath.log,
    "tanh_forward": mpmath.tanh,
    "sigmoid_forward": lambda x: 1 / (1 + mpmath.exp(-x)),
    "square_root": mpmath.sqrt,
    "reciprocal_square_root": lambda x: 1 / mpmath.sqrt(x),
}
SLOPES: dict[str, Callable[[mpmath.mpf], mpmath.mpf]] = {
    "exp_forward": mpmath.exp,
    "log_forward": lambda x: 1 / x,
    "tanh_forward": lambda x: mpmath.sech(x) ** 2,
    "sigmoid_forward": lambda x: mpmath.sech(x / 2) ** 2 / 4,
    "square_root": lambda x: 1 / (2 * mpmath.sqrt(x)),
    "reciprocal_square_root": lambda x: -1 / (2 * x * mpmath.sqrt(x)),
}
# Arguments whose double results neither overflow nor vanish.
RANGES = {
    "exp_forward": (-740.0, 709.0),
    "log_forward": (5e-324, 1.7e308),
    "tanh_forward": (-1e3, 1e3),
    "sigmoid_forward": (-740.0, 1e3),
    "square_root": (5e-324, 1.7e308),
    "reciprocal_square_root": (5e-324, 1.7e308),
}
EDGES = [
    *(2.0**e for e in (-1074, -1022, -970, -600, -200, -121, -119, -61, -59, -49, -41, -30, -20)),
    *(2.0**e for e in (-8, -2, -1, 0, 1, 4, 9, 600, 1000)),
    *(k * float(mpmath.log(2)) / 2 for k in range(1, 9)),  # where the argument of exp is reduced differently
    *(np.nextafter(1.0, 0), np.nextafter(1.0, 2), np.sqrt(0.5), np.nextafter(np.sqrt(0.5), 0), np.sqrt(2.0)),
    *(39.99, 40.0, 40.01, 372.0, 700.0, 708.9),
]


def kernels(scalar: str, arithmetic: Arithmetic | None = None) -> Kernels:
    return Kernels(engine("host"), SCALARS[scalar], arithmetic or Arithmetic(), poison=True)


def apply(kernel: str, scalar: str, parts: np.ndarray) -> np.ndarray:
    """kernel elementwise on (n,) or (n, components) values; the result likewise."""
    k = kernels(scalar)
    x = k.empty(1, (len(parts),))
    x.data[0] = parts
    return np.asarray(k.unary(kernel, x).data[0])


def combine(kernel: str, scalar: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    k = kernels(scalar)
    x, y = k.empty(1, (len(a),)), k.empty(1, (len(b),))
    x.data[0], y.data[0] = a, b
    return np.asarray(k.binary(kernel, x, y).data[0])


def exact(pair: np.ndarray | tuple[float, float]) -> mpmath.mpf:
    return mpmath.mpf(float(pair[0])) + mpmath.mpf(float(pair[1]))


def pairs(low: float, high: float) -> st.SearchStrategy[tuple[float, float]]:
    """Double-doubles whose high part lies in a range; as many small as large ones."""

    def pair(hi: float, fraction: float) -> tuple[float, float]:
        return hi, fraction * float(np.spacing(abs(hi)))

    return st.builds(pair, st.floats(low, high), st.floats(-0.25, 0.25))


def check_function(kernel: str, values: list[tuple[float, float]]) -> None:
    results = apply(kernel, "double-double", np.array(values))
    for value, result in zip(values, results, strict=True):
        truth = FUNCTIONS[kernel](exact(value))
        assert abs(exact(result) - truth) <= DD_ERROR * abs(truth) + DD_LOST, (kernel, value, result)


# ---- double-double


@pytest.mark.parametrize("kernel", FUNCTIONS)
def test_double_double_function_at_edges(kernel: str) -> None:
    low, high = RANGES[kernel]
    values = [v for e in EDGES for v in (e, -e) if low <= v <= high]
    tails = [0.0, 0.25, -0.25]
    check_function(kernel, [(v, t * float(np.spacing(abs(v)))) for v in values for t in tails])


@pytest.mark.parametrize("kernel", FUNCTIONS)
def test_double_double_function(kernel: str) -> None:
    @settings(max_examples=60, deadline=None)
    @given(st.lists(pairs(*RANGES[kernel]), min_size=1, max_size=24))
    def property_holds(values: list[tuple[float, float]]) -> None:
        check_function(kernel, values)

    property_holds()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(pairs(-1e300, 1e300), pairs(-1e300, 1e300)), min_size=1, max_size=24))
def test_double_double_arithmetic(operands: list[tuple[tuple[float, float], tuple[float, float]]]) -> None:
    a, b = (np.array([o[i] for o in operands]) for i in (0, 1))
    close = np.stack([-a[:, 0], b[:, 1] * 0], axis=1)  # sums that cancel down to the low part
    for kernel, right, operation in (
        ("add", b, operator.add),
        ("add", close, operator.add),
        ("subtract", b, operator.sub),
        ("multiply", b, operator.mul),
        ("divide", b, operator.truediv),
    ):
        results = combine(kernel, "double-double", a, right)
        for left, other, result in zip(a, right, results, strict=True):
            if kernel == "divide" and other[0] == 0:
                continue
            truth = operation(exact(left), exact(other))
            if abs(truth) < mpmath.mpf(2) ** 1023:
                assert abs(exact(result) - truth) <= DD_ERROR * abs(truth) + DD_LOST, (kernel, left, other, result)


INF, NAN, HUGE = np.inf, np.nan, np.finfo(np.float64).max


@pytest.mark.parametrize(
    ("kernel", "x", "expected"),
    [
        *[("exp_forward", x, y) for x, y in ((INF, INF), (-INF, 0.0), (NAN, NAN), (709.79, INF))],
        *[("exp_forward", x, y) for x, y in ((1e9, INF), (-746.0, 0.0))],
        *[("log_forward", x, y) for x, y in ((0.0, -INF), (-1.0, NAN), (INF, INF), (NAN, NAN), (1.0, 0.0))],
        *[("tanh_forward", x, y) for x, y in ((INF, 1.0), (-INF, -1.0), (NAN, NAN), (0.0, 0.0))],
        *[("sigmoid_forward", x, y) for x, y in ((INF, 1.0), (-INF, 0.0), (NAN, NAN), (0.0, 0.5))],
        *[("square_root", x, y) for x, y in ((0.0, 0.0), (-1.0, NAN), (INF, INF), (NAN, NAN))],
        *[("reciprocal_square_root", x, y) for x, y in ((0.0, INF), (-1.0, NAN), (INF, 0.0), (NAN, NAN))],
    ],
)
@pytest.mark.parametrize("scalar", ["float64", "double-double"])
def test_function_where_nothing_can_be_computed(scalar: str, kernel: str, x: float, expected: float) -> None:
    if scalar == "float64":
        np.testing.assert_array_equal(apply(kernel, scalar, np.array([x])), [expected])
    else:
        np.testing.assert_array_equal(apply(kernel, scalar, np.array([[x, 0.0]])), [[expected, 0.0]])


@pytest.mark.parametrize(
    ("kernel", "a", "b", "expected"),
    [
        ("add", INF, 1.0, INF), ("add", INF, -INF, NAN), ("add", HUGE, HUGE, INF), ("subtract", -INF, 1.0, -INF),
        ("multiply", INF, 2.0, INF), ("multiply", INF, 0.0, NAN), ("multiply", 1e200, -1e200, -INF),
        ("multiply", 1e-200, 1e-200, 0.0), ("divide", 1.0, 0.0, INF), ("divide", 0.0, 0.0, NAN),
        ("divide", 1.0, INF, 0.0), ("divide", INF, 2.0, INF), ("divide", 1e-300, 1e300, 0.0), ("add", NAN, 1.0, NAN),
    ],
)  # fmt: skip
def test_arithmetic_where_nothing_can_be_computed(kernel: str, a: float, b: float, expected: float) -> None:
    result = combine(kernel, "double-double", np.array([[a, 0.0]]), np.array([[b, 0.0]]))
    np.testing.assert_array_equal(result, [[expected, 0.0]])


def test_double_double_dot_of_cancelling_terms() -> None:
    """The error of a sum of products is a few units of 2^-104 per term of Σ|ab|, however much cancels."""
    rng = np.random.default_rng(5)
    a = rng.standard_normal(64) * 2.0 ** rng.integers(-20, 20, 64)
    b = rng.standard_normal(64)
    a, b = np.concatenate([a, -a]), np.concatenate([b, b * (1 + 1e-9 * rng.standard_normal(64))])
    k = kernels("double-double")
    x, y, out = k.tensor(a[None]), k.tensor(b[None]), k.empty(1, ())
    k.launch("dot", (1, 1, 1), 1, 1, len(a), x, y, out)
    terms = [mpmath.mpf(float(p)) * mpmath.mpf(float(q)) for p, q in zip(a, b, strict=True)]
    error = abs(exact(out.data[0]) - mpmath.fsum(terms))
    assert error <= len(a) * mpmath.mpf(2) ** -104 * mpmath.fsum(abs(t) for t in terms)


# ---- float and double


@pytest.mark.parametrize("kernel", FUNCTIONS)
@pytest.mark.parametrize(("scalar", "u"), [("float32", 2.0**-24), ("float64", 2.0**-53)])
def test_our_functions_are_as_accurate_as_budgets_assume(kernel: str, scalar: str, u: float) -> None:
    """At most `function_error` half units in the last place; the double-double functions are the truth here."""
    low, high = RANGES[kernel]
    rng = np.random.default_rng(1)
    sizes = 2.0 ** rng.uniform(-80, 9.4, 20000) if scalar == "float64" else 2.0 ** rng.uniform(-80, 6.4, 20000)
    near_one = 1 + rng.uniform(-0.4, 0.4, 4000)
    x = np.concatenate([sizes, -sizes, near_one]).astype(SCALARS[scalar].base).astype(np.float64)
    x = x[(low <= x) & (x <= min(high, 708))]
    got = apply(kernel, scalar, x).astype(np.float64)
    truth = apply(kernel, "double-double", np.stack([x, 0 * x], axis=1))
    error = np.abs((got - truth[:, 0]) - truth[:, 1])
    assert np.all(error <= Arithmetic().function_error * u * np.abs(truth[:, 0]))


# ---- dual numbers


def dual_parts(scalar: str, value: tuple[float, float], direction: tuple[float, float]) -> list[float]:
    return [value[0], direction[0]] if scalar == "dual" else [*value, *direction]


def dual_exact(scalar: str, result: np.ndarray) -> tuple[mpmath.mpf, mpmath.mpf]:
    if scalar == "dual":
        return mpmath.mpf(float(result[0])), mpmath.mpf(float(result[1]))
    return exact(result[:2]), exact(result[2:])


def _clear_of_underflow(pair: tuple[float, float]) -> bool:
    """A product's error term must not underflow: the quotient by a tiny value would show it."""
    return pair[0] == 0 or abs(pair[0]) > 1e-100


@pytest.mark.parametrize("kernel", SLOPES)
@pytest.mark.parametrize("scalar", DUAL_ERROR)
def test_dual_function(scalar: str, kernel: str) -> None:
    low, high = max(RANGES[kernel][0], -300.0), min(RANGES[kernel][1], 300.0)
    low = max(low, 1e-90) if low > 0 else low

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.tuples(pairs(low, high), pairs(-10, 10).filter(_clear_of_underflow)), min_size=1, max_size=16))
    def property_holds(points: list[tuple[tuple[float, float], tuple[float, float]]]) -> None:
        results = apply(kernel, scalar, np.array([dual_parts(scalar, v, d) for v, d in points]))
        for (value, direction), result in zip(points, results, strict=True):
            at, along = (exact(p) if scalar != "dual" else mpmath.mpf(p[0]) for p in (value, direction))
            truth = SLOPES[kernel](at) * along
            assert abs(dual_exact(scalar, result)[1] - truth) <= DUAL_ERROR[scalar] * abs(truth) + DD_LOST

    property_holds()


@pytest.mark.parametrize("scalar", DUAL_ERROR)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*[pairs(1e-3, 1e3)] * 4), min_size=1, max_size=16))
def test_dual_arithmetic(scalar: str, points: list[tuple[tuple[float, float], ...]]) -> None:
    """Sums of positive terms, so that an error is relative to the derivative itself."""
    left = np.array([dual_parts(scalar, a, da) for a, da, _, _ in points])
    right = np.array([dual_parts(scalar, b, db) for _, _, b, db in points])
    opposite = right.copy()
    opposite[:, opposite.shape[1] // 2 :] *= -1
    for kernel, other in (("add", right), ("multiply", right), ("subtract", opposite), ("divide", opposite)):
        results = combine(kernel, scalar, left, other)
        for p, q, result in zip(left, other, results, strict=True):
            (a, da), (b, db) = dual_exact(scalar, p), dual_exact(scalar, q)
            truth = {
                "add": da + db,
                "multiply": a * db + b * da,
                "subtract": da - db,
                "divide": da / b - a * db / b**2,
            }[kernel]
            assert abs(dual_exact(scalar, result)[1] - truth) <= DUAL_ERROR[scalar] * abs(truth)


@pytest.mark.parametrize("scalar", DUAL_ERROR)
def test_dual_branches_on_the_value(scalar: str) -> None:
    k = kernels(scalar)
    x = k.tensor(np.array([[-2.0, 3.0, 0.0]]), np.array([[5.0, 7.0, 9.0]]))
    y = k.empty(1, (3,))
    k.elementwise("relu_forward", 1, 3, x, None, None, y)
    derivative = y.data[0, :, y.data.shape[-1] // 2]
    np.testing.assert_array_equal(derivative, [0.0, 7.0, 0.0])


# ---- absolute deviations


def test_bound_arithmetic_by_hand() -> None:
    a, b = np.array([[3.0, 0.5]]), np.array([[-2.0, 0.25]])
    np.testing.assert_array_equal(combine("add", "bound", a, b), [[1.0, 0.75]])
    np.testing.assert_array_equal(combine("subtract", "bound", a, b), [[5.0, 0.75]])
    np.testing.assert_array_equal(combine("multiply", "bound", a, b), [[-6.0, 3 * 0.25 + 2 * 0.5 + 0.125]])
    np.testing.assert_array_equal(combine("divide", "bound", a, b), [[-1.5, (0.5 + 1.5 * 0.25) / 2]])


@pytest.mark.parametrize(
    ("kernel", "x", "expected"),
    [
        ("tanh_forward", 0.0, 1.0), ("sigmoid_forward", 0.0, 0.25), ("exp_forward", 0.0, 1.0), ("negate", 4.0, 1.0),
        ("log_forward", 4.0, 0.25), ("square_root", 4.0, 0.25), ("reciprocal_square_root", 4.0, 0.0625),
    ],
)  # fmt: skip
def test_bound_function_by_hand(kernel: str, x: float, expected: float) -> None:
    deviation = 2.0**-10
    assert apply(kernel, "bound", np.array([[x, deviation]]))[0, 1] == expected * deviation


def test_bound_root_at_zero() -> None:
    np.testing.assert_array_equal(apply("square_root", "bound", np.array([[0.0, 0.0], [0.0, 0.25]]))[:, 1], [0.0, 0.5])


# ---- low precision


def rounded(x: Fraction, bits: int, toward_zero: bool = False) -> Fraction:
    """x at so many significant bits: nearest, ties to even, or toward zero."""
    if x == 0:
        return x
    exponent = int(np.floor(mpmath.log(abs(mpmath.mpf(x.numerator) / x.denominator), 2)))
    unit = Fraction(2) ** (exponent - bits + 1)
    return (int(x / unit) if toward_zero else round(x / unit)) * unit


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.floats(-1e30, 1e30, allow_subnormal=False) | st.integers(-500, 500).map(float), min_size=1, max_size=16
    ),
    st.integers(2, 8) | st.integers(2, 52),
)
def test_stored_results_have_the_bits_they_may_have(values: list[float], bits: int) -> None:
    """Small integers at few bits are often halfway between two results."""
    k = kernels("lowered", Arithmetic(storage_bits=bits))
    y = k.unary("multiply_by", k.tensor(np.array([values])), 1.0)
    assert [Fraction(float(v)) for v in y.data[0]] == [rounded(Fraction(v), bits) for v in values]


@pytest.mark.parametrize("toward_zero", [False, True])
def test_operands_and_running_sums_are_rounded(toward_zero: bool) -> None:
    """tfloat32 operands of a product and a sum of 13 bits, step by step; float64 holds each step exactly before it is rounded."""
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((2, 40))
    k = kernels("lowered", Arithmetic(operand_bits=11, operand_toward_zero=int(toward_zero), accumulator_bits=13))
    out = k.matmul(k.tensor(a[None, None]), k.tensor(b[None, :, None]))
    total = Fraction(0)
    for p, q in zip(a, b, strict=True):
        total = rounded(total + rounded(Fraction(p), 11, toward_zero) * rounded(Fraction(q), 11, toward_zero), 13)
    assert Fraction(float(out.data[0, 0, 0])) == total


def test_lowered_overflow_and_nan_pass() -> None:
    k = kernels("lowered", Arithmetic(storage_bits=8))
    y = k.unary("multiply_by", k.tensor(np.array([[INF, -INF, NAN, HUGE]])), 1.0)
    np.testing.assert_array_equal(y.data[0], [INF, -INF, NAN, INF])
