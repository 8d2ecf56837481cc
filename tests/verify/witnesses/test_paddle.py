"""What is particular to paddle as a witness: settings put back, tensors of their own, who it says it is."""

from __future__ import annotations

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

from gradjury.verify.witnesses.paddle import Framework, cpu_backends, known_flags  # noqa: E402


@pytest.fixture(scope="module")
def framework() -> Framework:
    return Framework("cpu")


def test_identity(framework: Framework) -> None:
    said = framework.identity()
    assert said.framework == "paddle" and said.version == paddle.__version__ and said.device == "cpu"
    assert said.backends == cpu_backends(paddle)
    assert said.to_json()["flags"]["tf32"] is False


def test_a_gpu_that_is_not_there() -> None:
    if paddle.is_compiled_with_cuda():
        pytest.skip("this paddle may see a GPU")
    with pytest.raises(RuntimeError, match="sees no GPU"):
        Framework("gpu")


def test_only_known_flags_are_touched() -> None:
    assert known_flags(paddle, ["FLAGS_no_such_flag"]) == {}
    assert set(known_flags(paddle, ["FLAGS_check_nan_inf"])) == {"FLAGS_check_nan_inf"}


def test_precision_is_put_back_even_after_an_error(framework: Framework) -> None:
    before = known_flags(paddle, ["FLAGS_embedding_deterministic", "FLAGS_cudnn_deterministic"])
    with pytest.raises(ZeroDivisionError), framework.precision():
        assert paddle.is_grad_enabled()
        1 / 0  # noqa: B018
    assert known_flags(paddle, before) == before


def test_tensors_share_no_memory_with_arrays(framework: Framework) -> None:
    array = np.array([1.0, 2.0], np.float32)
    tensor = framework.tensor(array, "float32", True)
    array[0] = 9
    assert framework.array(tensor).tolist() == [1.0, 2.0]
    framework.array(tensor)[0] = 7
    assert framework.array(tensor).tolist() == [1.0, 2.0]
    assert framework.tracked(tensor) and not framework.tracked(framework.tensor(array, None, False))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_dtypes(framework: Framework, dtype: str) -> None:
    tensor = framework.tensor(np.array([0.5, -3.0]), dtype, False)
    assert str(tensor.dtype) == f"paddle.{dtype}"
    found = framework.array(tensor)
    assert found.tolist() == [0.5, -3.0] and found.dtype == ("float32" if dtype == "bfloat16" else dtype)


def test_an_alias_sees_one_consumers_part(framework: Framework) -> None:
    x = framework.tensor(np.array([2.0]), "float64", True)
    one, other = framework.alias(x), framework.alias(x)
    framework.watch(one)
    framework.watch(other)
    framework.backward([one * 3 + other * 5], [framework.tensor(np.array([1.0]), "float64", False)])
    assert [framework.gradient(t).tolist() for t in (one, other, x)] == [[3.0], [5.0], [8.0]]  # type: ignore[union-attr]
