"""Pure data movement: y.flat = x.flat[index]. Every such op is an index map; its backward is the transposed map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradjury.kernels import modes
from gradjury.kernels.calls import Kernels
from gradjury.kernels.tensor import Tensor
from gradjury.verify.ops.base import Attribute, Example, Op, OpError, Shape, Slot, Values, expect


class Movement(Op):
    """An op whose output is elements of its input x, found by moving their numbers."""

    inputs: tuple[Slot, ...] = (Slot("x"),)

    def index(self, shape: Shape, x: Values, attributes: Mapping[str, Any]) -> np.ndarray:
        """For each element of y the flat position in x (or −1: 0), shaped as y."""
        raise NotImplementedError

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        return {"y": self.index(shapes["x"], values, attributes).shape}

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        index = self.index(x["x"].shape, first_case(x), attributes)
        return {"y": k.gather(x["x"], index)}, index

    def backward(
        self,
        k: Kernels,
        x: Values,
        attributes: Mapping[str, Any],
        saved: Any,
        upstream: Mapping[str, Tensor | None],
        wanted: set[str],
    ) -> dict[str, Tensor]:
        flow = upstream["y"]
        assert flow is not None
        return {"x": k.scatter(modes.flatten(flow), saved, x["x"].shape)}

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        index = torch.as_tensor(self.index(tuple(x["x"].shape), _as_numpy(x), attributes))
        flat = x["x"].reshape(-1)[index.clamp(min=0).reshape(-1)] * (index.reshape(-1) >= 0)
        return {"y": flat.reshape(index.shape)}

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        index = self.index(tuple(x["x"].shape), _as_numpy(x), attributes)
        flat = paddle.gather(x["x"].reshape([-1]), paddle.to_tensor(index.ravel().clip(0)))
        kept = paddle.to_tensor((index.ravel() >= 0).astype(np.float64)).astype(flat.dtype)
        return {"y": (flat * kept).reshape(list(index.shape))}


class Move(Movement):
    """y = x.flat[index]: any movement, with the index given; it may repeat, and −1 reads 0."""

    name = "move"
    inputs = (Slot("x"), Slot("index", differentiable=False, integer=True))

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        index = values.get("index")
        if index is not None and index.size:
            size = int(np.prod(shapes["x"], dtype=np.int64))
            good = index.min() >= -1 and index.max() < size
            expect(
                good,
                f"index: expected -1 to {size - 1} for x of shape {shapes['x']}, found {index.min()} to {index.max()}",
            )
        return {"y": shapes["index"]}

    def index(self, shape: Shape, x: Values, attributes: Mapping[str, Any]) -> np.ndarray:
        return np.asarray(x["index"], np.int64)

    def example(self, rng: np.random.Generator) -> Example:
        return Example({"x": rng.standard_normal((3, 4)), "index": np.array([[0, 5, 5], [-1, 11, 2]])})


class Reshape(Movement):
    """The same elements in another `shape`; one entry may be −1."""

    name = "reshape"
    attributes: Mapping[str, Attribute] = {"shape": Attribute([-1], kind=(list, tuple))}

    def index(self, shape: Shape, x: Values, attributes: Mapping[str, Any]) -> np.ndarray:
        try:
            return np.asarray(_numbers(shape).reshape(attributes["shape"]))
        except (ValueError, TypeError):
            raise OpError(
                f"attribute shape: {attributes['shape']} does not hold the elements of x of shape {shape}"
            ) from None

    def example(self, rng: np.random.Generator) -> Example:
        return Example({"x": rng.standard_normal((3, 4))}, {"shape": [2, -1]})


class Transpose(Movement):
    """Axes permuted by `axes`; None reverses them."""

    name = "transpose"
    attributes: Mapping[str, Attribute] = {"axes": Attribute(None, kind=(list, tuple, type(None)))}

    def index(self, shape: Shape, x: Values, attributes: Mapping[str, Any]) -> np.ndarray:
        try:
            return np.ascontiguousarray(np.transpose(_numbers(shape), attributes["axes"]))
        except (ValueError, TypeError):
            raise OpError(
                f"attribute axes: {attributes['axes']} is no permutation of the axes of x of shape {shape}"
            ) from None

    def example(self, rng: np.random.Generator) -> Example:
        return Example({"x": rng.standard_normal((2, 3, 4))}, {"axes": [2, 0, 1]})


class Slice(Movement):
    """x[start:stop:step] along `axis`; stop None: to the end."""

    name = "slice"
    attributes: Mapping[str, Attribute] = {
        "axis": Attribute(0, kind=int),
        "start": Attribute(0, kind=(int, type(None))),
        "stop": Attribute(None, kind=(int, type(None))),
        "step": Attribute(1, kind=int),
    }

    def index(self, shape: Shape, x: Values, attributes: Mapping[str, Any]) -> np.ndarray:
        axis, step = attributes["axis"], attributes["step"]
        expect(
            -len(shape) <= axis < len(shape), f"attribute axis: expected an axis of x of shape {shape}, found {axis}"
        )
        expect(step != 0, "attribute step: expected anything but 0")
        cut: list[slice] = [slice(None)] * len(shape)
        cut[axis] = slice(attributes["start"], attributes["stop"], step)
        return np.ascontiguousarray(_numbers(shape)[tuple(cut)])

    def example(self, rng: np.random.Generator) -> Example:
        return Example({"x": rng.standard_normal((4, 5))}, {"axis": 1, "start": 1, "stop": 4})


class Embedding(Op):
    """weight (rows, features), index (…) -> weight[index]; the row `padding_idx` gets no gradient."""

    name = "embedding"
    inputs = (Slot("weight"), Slot("index", differentiable=False, integer=True))
    attributes: Mapping[str, Attribute] = {"padding_idx": Attribute(None, kind=(int, type(None)))}

    def shapes(self, shapes: Mapping[str, Shape], values: Values, attributes: Mapping[str, Any]) -> dict[str, Shape]:
        weight, index = shapes["weight"], values.get("index")
        expect(len(weight) == 2, f"weight: expected (rows, features), found shape {weight}")
        padding, rows = attributes["padding_idx"], weight[0]
        inside = padding is None or -rows <= padding < rows
        expect(inside, f"attribute padding_idx: expected a row of weight, {-rows} to {rows - 1}, found {padding}")
        if index is not None and index.size:
            good = index.min() >= 0 and index.max() < weight[0]
            expect(good, f"index: expected 0 to {weight[0] - 1}, found {index.min()} to {index.max()}")
        return {"y": (*shapes["index"], weight[1])}

    def forward(self, k: Kernels, x: Values, attributes: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        rows = np.asarray(first_case(x)["index"])
        width = x["weight"].shape[1]
        index = rows[..., None] * width + np.arange(width)
        padding = attributes["padding_idx"]
        hidden = None if padding is None else rows == padding % x["weight"].shape[0]
        y = k.gather(x["weight"], index)
        if hidden is not None and k.scalar.name.startswith("dual"):
            y.data[:, hidden, :, k.scalar.components // 2 :] = 0  # the row is a constant, so it has no derivative
        return {"y": y}, (index, hidden)

    def backward(
        self,
        k: Kernels,
        x: Values,
        attributes: Mapping[str, Any],
        saved: Any,
        upstream: Mapping[str, Tensor | None],
        wanted: set[str],
    ) -> dict[str, Tensor]:
        index, hidden = saved
        flow = upstream["y"]
        assert flow is not None
        seen = index if hidden is None else np.where(hidden[..., None], -1, index)
        return {"weight": k.scatter(modes.flatten(flow), seen, x["weight"].shape)}

    def torch(self, torch: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": torch.nn.functional.embedding(x["index"], x["weight"], padding_idx=attributes["padding_idx"])}

    def paddle(self, paddle: Any, x: Values, attributes: Mapping[str, Any]) -> dict[str, Any]:
        weight, padding = x["weight"], attributes["padding_idx"]
        if padding is not None:  # paddle's own would also read the row as 0
            rows = paddle.arange(weight.shape[0]).unsqueeze(1)
            weight = paddle.where(rows == padding % weight.shape[0], weight.detach(), weight)
        return {"y": paddle.nn.functional.embedding(x["index"], weight)}

    def example(self, rng: np.random.Generator) -> Example:
        return Example(
            {"weight": rng.standard_normal((5, 3)), "index": np.array([[0, 2, 2], [4, 0, 1]])}, {"padding_idx": 0}
        )


def _numbers(shape: Sequence[int]) -> np.ndarray:
    return np.arange(int(np.prod(shape, dtype=np.int64))).reshape(tuple(shape))


def first_case(x: Values) -> dict[str, Any]:
    """Integer inputs of the first case. Raises OpError unless they are the same in all: one map moves a whole batch."""
    found = {}
    for slot, value in x.items():
        if value is not None and not isinstance(value, Tensor):
            first = value[0]
            expect(bool((value == first).all()), f"{slot}: expected the same numbers in all cases of a batch")
            found[slot] = first.get() if hasattr(first, "get") else first
    return found


def _as_numpy(x: Values) -> dict[str, Any]:
    return {slot: value.numpy() for slot, value in x.items() if slot == "index" and value is not None}
