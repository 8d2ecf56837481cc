"""How GradJury and a witness's process talk, version 1: messages over two pipes, no pickles.

A message is a 4-byte little-endian length, that many bytes of UTF-8 JSON, and the bytes of the arrays the JSON
announces, one after the other, C order, little-endian:

    {"gradjury": 1, …, "arrays": [{"label": ["value", "fc1.weight"], "dtype": "float32", "shape": [3, 7]}, …]}

The process greets with `{"identity": {…}}`. Then it answers each request with one message:

    {"ask": "evidence", "dtype": "float32", "nodes": [{name, op, inputs, outputs, attributes}, … in topological order]}
        with arrays ["value", NAME] and ["upstream", NAME]
    {"answer": "evidence", "absent": [NAME, …]}
        with arrays ["gradient", NAME], ["part", NODE, SLOT] (where a tensor has several consumers), ["forward", NAME]

or, greeting included, with `{"failure": "import" | "error", "message": "one line"}`. It ends when its input does.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

VERSION = 1
LONGEST = 2**26  # bytes of JSON: more is not this protocol
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")

Label = tuple[str, ...]


class ProtocolError(Exception):
    """The other end says something else than this protocol."""


def send(stream: BinaryIO, message: Mapping[str, Any], arrays: Mapping[Label, np.ndarray]) -> None:
    """Writes one message and flushes."""
    plain = {label: _plain(label, array) for label, array in arrays.items()}
    listed = [{"label": label, "dtype": a.dtype.name, "shape": a.shape} for label, a in plain.items()]
    text = json.dumps({"gradjury": VERSION, **message, "arrays": listed}).encode()
    stream.write(struct.pack("<I", len(text)))
    stream.write(text)
    for array in plain.values():
        if array.size:
            stream.write(_bytes(array))
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], dict[Label, np.ndarray]] | None:
    """Reads one message; None where the other end has closed the pipe. Raises ProtocolError."""
    head = _read(stream, bytearray(4))
    if head is None:
        return None
    length = struct.unpack("<I", head)[0]
    if length > LONGEST:
        raise ProtocolError("the other end of the pipe speaks no known protocol")
    text = _read(stream, bytearray(length))
    if text is None:
        return None
    try:
        message = json.loads(text)
        version, listed = message["gradjury"], message.pop("arrays")
    except (ValueError, TypeError, KeyError, UnicodeDecodeError):
        raise ProtocolError("the other end of the pipe speaks no known protocol") from None
    if version != VERSION:
        raise ProtocolError(f"expected protocol {VERSION}, found {version}")
    arrays: dict[Label, np.ndarray] = {}
    for entry in listed:
        if entry["dtype"] not in DTYPES:
            raise ProtocolError(f"expected an array of {', '.join(DTYPES)}, found {entry['dtype']}")
        array = np.empty(entry["shape"], entry["dtype"])
        if array.size and _read(stream, _bytes(array)) is None:
            return None
        arrays[tuple(entry["label"])] = array
    return message, arrays


def _plain(label: Label, array: np.ndarray) -> np.ndarray:
    if array.dtype.name not in DTYPES:
        raise ProtocolError(f"{' '.join(label)}: expected {', '.join(DTYPES)}, found {array.dtype}")
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).reshape(array.shape)


def _bytes(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array that is not empty."""
    return array.reshape(-1).view(np.uint8).data


def _read(stream: BinaryIO, buffer: Any) -> Any:
    """Fills `buffer` from the stream; None where it ends before."""
    view, done = memoryview(buffer), 0
    while done < len(view):
        count = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            return None
        done += count
    return buffer
