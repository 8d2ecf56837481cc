"""What is particular to torch as a witness: settings put back, tensors of their own, who it says it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'gradjury[torch]'")

from gradjury.verify.witnesses.torch import Framework, identity  # noqa: E402


@pytest.fixture(scope="module")
def framework() -> Framework:
    return Framework("cpu")


def readable(read: Callable[[], Any]) -> Any:
    """A setting; torch refuses to read some where others were set."""
    try:
        return read()
    except RuntimeError as error:
        return type(error)


def settings() -> list[Any]:
    backends = torch.backends
    fine = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul, backends.mkldnn.conv)
    new = hasattr(backends, "fp32_precision")
    return [
        readable(torch.get_float32_matmul_precision),
        readable(lambda: backends.cuda.matmul.allow_tf32),
        readable(lambda: backends.cudnn.allow_tf32),
        [place.fp32_precision for place in fine] if new else [],
        backends.cudnn.deterministic,
        backends.cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled(),
    ]


def legacy() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True


def fine() -> None:
    if not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("this torch has one switch for all")
    torch.backends.cuda.matmul.fp32_precision = "tf32"


CARELESS: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "legacy": legacy,
    "fine": fine,
}


@pytest.fixture(params=CARELESS)
def careless(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    """Settings that allow what a witness may not do, made in each of torch's ways."""
    new = hasattr(torch.backends, "fp32_precision")
    places = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul] if new else []
    before = [place.fp32_precision for place in places]
    torch.backends.cudnn.benchmark = True
    CARELESS[request.param]()
    try:
        yield settings()
    finally:
        torch.backends.cudnn.benchmark = False
        torch.set_float32_matmul_precision("highest")
        for place, value in zip(places, before, strict=True):
            place.fp32_precision = value


def test_identity(framework: Framework) -> None:
    said = framework.identity()
    assert (said.framework, said.version, said.device) == ("torch", torch.__version__, "cpu")
    assert said.backends and set(said.backends) <= {"mkl", "onednn", "openblas"}
    assert said.to_json()["flags"] == {"deterministic": True, "tf32": False, "threads": torch.get_num_threads()}


def test_without_its_libraries_it_names_the_one_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in (torch.backends.mkl, torch.backends.mkldnn):
        monkeypatch.setattr(library, "is_available", lambda: False)
    assert identity(torch).backends == ["openblas"]


def test_a_gpu_that_is_not_there() -> None:
    if torch.cuda.is_available():
        pytest.skip("this torch sees a GPU")
    with pytest.raises(RuntimeError, match="sees no GPU"):
        Framework("gpu")


def test_full_precision_inside_and_everything_put_back(framework: Framework, careless: list[Any]) -> None:
    with torch.no_grad(), framework.precision():
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
        assert torch.are_deterministic_algorithms_enabled() and torch.is_grad_enabled()
    assert settings() == careless


def test_settings_are_put_back_after_an_error(framework: Framework, careless: list[Any]) -> None:
    with pytest.raises(ZeroDivisionError), framework.precision():
        1 / 0  # noqa: B018
    assert settings() == careless


def test_no_autocast_inside(framework: Framework) -> None:
    x = torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with framework.precision():
            assert (x @ x).dtype == torch.float32


def test_tensors_share_no_memory_with_arrays(framework: Framework) -> None:
    array = np.array([1.0, 2.0], np.float32)
    tensor = framework.tensor(array, "float32", True)
    array[0] = 9
    assert framework.array(tensor).tolist() == [1.0, 2.0]
    framework.array(tensor)[0] = 7
    assert framework.array(tensor).tolist() == [1.0, 2.0]
    assert framework.tracked(tensor) and not framework.tracked(framework.tensor(array, None, False))


def test_read_only_arrays_are_taken_without_a_warning(framework: Framework) -> None:
    array = np.array([1.0, 2.0])
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        framework.tensor(array, "float64", False)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_dtypes(framework: Framework, dtype: str) -> None:
    tensor = framework.tensor(np.array([0.5, -3.0]), dtype, True)
    assert tensor.dtype == getattr(torch, dtype) and tensor.is_leaf
    found = framework.array(tensor)
    assert found.tolist() == [0.5, -3.0] and found.dtype == ("float32" if dtype == "bfloat16" else dtype)


def test_integers_stay_as_they_are(framework: Framework) -> None:
    assert framework.tensor(np.array([3, 4]), None, False).dtype == torch.int64


def test_an_alias_sees_one_consumers_part(framework: Framework) -> None:
    x = framework.tensor(np.array([2.0]), "float64", True)
    one, other = framework.alias(x), framework.alias(x)
    framework.watch(one)
    framework.watch(other)
    framework.backward([one * 3 + other * 5], [framework.tensor(np.array([1.0]), "float64", False)])
    assert [framework.gradient(t).tolist() for t in (one, other, x)] == [[3.0], [5.0], [8.0]]  # type: ignore[union-attr]


def test_several_outputs_in_one_backward_and_none_at_all(framework: Framework) -> None:
    x = framework.tensor(np.array([2.0]), "float64", True)
    framework.backward([], [])
    assert framework.gradient(x) is None
    ones = framework.tensor(np.array([1.0]), "float64", False)
    framework.backward([x * 3, x * x], [ones, ones])
    assert framework.gradient(x).tolist() == [7.0]  # type: ignore[union-attr]
