"""A witness that has already spoken: arrays of any framework, as a testimony."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradjury.verify.case import Testimony


def as_array(value: Any) -> tuple[np.ndarray, str]:
    """A numpy array with the value's numbers, and the name of its dtype; bfloat16 becomes float32, dtype `bfloat16`.

    Takes numpy arrays and scalars, tensors of torch, paddle, jax and cupy, and nested lists. Raises TypeError.
    """
    dtype = str(getattr(value, "dtype", "")).rpartition(".")[2]
    if hasattr(value, "detach"):  # torch, paddle
        value = value.detach()
        if dtype == "bfloat16":
            value = value.float() if hasattr(value, "float") else value.astype("float32")
        value = value.cpu().numpy()
    elif hasattr(value, "get") and hasattr(value, "__cuda_array_interface__"):  # cupy
        value = value.get()
    elif dtype == "bfloat16":  # jax, ml_dtypes
        value = np.asarray(value).astype(np.float32)
    array = np.array(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"expected an array of numbers, found {type(value).__name__} of dtype {array.dtype}")
    return array, "bfloat16" if dtype == "bfloat16" else str(array.dtype)


def testimony(witness: str, gradients: Mapping[str, Any], dtype: str | None = None) -> tuple[Testimony, list[str]]:
    """What `witness` says, from arrays of any framework by tensor name or part key; None stands under `absent`.

    `dtype`: what the gradients were computed in; None: the narrowest float dtype among the arrays (a float64 array
    beside float32 ones was only stored wider). Lists and integers say nothing and count as float64.
    """
    arrays: dict[str, np.ndarray] = {}
    absent, dtypes = [], set()
    for name, value in gradients.items():
        if value is None:
            absent.append(name)
            continue
        try:
            arrays[name], found = as_array(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{witness}, gradient of {name}: {error}") from None
        dtypes.add(found)
    order = ("bfloat16", "float16", "float32")
    said = dtype or next((name for name in order if name in dtypes), "float64")
    return Testimony(witness, said, arrays, {}), absent
