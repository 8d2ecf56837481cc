"""Files of one JSON text and named arrays: `.npz` and `.safetensors` (DESIGN section 3). Nothing is ever unpickled.

What is read may come from anywhere, so sizes are checked before memory is taken, and whatever is wrong with a file
becomes a CaseError.
"""

from __future__ import annotations

import json
import math
import os
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from gradjury.verify.errors import CaseError

JSON_ENTRY = "case.json"
FORMATS = (".npz", ".safetensors")
KINDS = "fiub"  # arrays hold floats, signed and unsigned integers or booleans
WIDEST_FLOAT = 8  # bytes: longer floats differ from machine to machine

Parts = tuple[str, dict[str, np.ndarray]]


def read_parts(path: str | Path) -> Parts:
    """The JSON text and the arrays of a file. Raises CaseError."""
    path = Path(path)
    with _as_case_error(path):
        if path.is_dir():
            raise CaseError(f"{path}: expected a case file, found a directory")
        with path.open("rb") as stream:
            start = stream.read(4)
            stream.seek(0)
            if start[:2] == b"PK":
                return _read_npz(stream, path)
            if path.suffix == ".safetensors":
                return _read_safetensors(stream, path)
    found = "an empty file" if not start else f"a file that begins with {start!r}"
    raise CaseError(f"{path}: expected an .npz (a zip archive) or .safetensors file, found {found}")


def write_parts(path: str | Path, text: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the JSON text and the arrays; a file that is there is replaced only once the new one is whole."""
    path = Path(path)
    writers: dict[str, Callable[[Path, str, Mapping[str, np.ndarray]], None]] = {
        ".npz": _write_npz,
        ".safetensors": _write_safetensors,
    }
    if path.suffix not in writers:
        raise CaseError(f"{path}: expected a name that ends in {' or '.join(FORMATS)}")
    for name in arrays:
        if "\0" in name:
            raise CaseError(f"{path}: array {name!r}: a name may not hold NUL characters")
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
        os.close(handle)
        try:
            writers[path.suffix](Path(name), text, arrays)
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise CaseError(f"{path}: cannot be written: {error.strerror or error}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def _as_case_error(path: Path) -> Iterator[None]:
    """Whatever the readers of zip, npy and JSON raise on alien bytes, said in one line.

    They raise almost anything (zlib.error, struct.error, RuntimeError, NotImplementedError, SyntaxError, …), so all of
    it is caught here, around the parsing alone.
    """
    try:
        yield
    except CaseError:
        raise
    except FileNotFoundError:
        raise CaseError(f"{path}: no such file") from None
    except OSError as error:
        raise CaseError(f"{path}: cannot be read: {error.strerror or error}") from None
    except Exception as error:
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise CaseError(f"{path}: damaged or not a case file: {said}") from None


# ---- npz


def _read_npz(stream: IO[bytes], path: Path) -> Parts:
    with zipfile.ZipFile(stream) as archive:
        entries = archive.infolist()
        names = [entry.filename for entry in entries]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise CaseError(f"{path}: entry {twice!r} is there twice")
        _check_memory(path, sum(entry.file_size for entry in entries))
        text: str | None = None
        arrays: dict[str, np.ndarray] = {}
        for entry in entries:
            if not entry.filename.endswith(".npy"):
                raise CaseError(f"{path}: entry {entry.filename!r}: expected arrays only (names that end in .npy)")
            name = entry.filename.removesuffix(".npy")
            with archive.open(entry) as member:
                array = _read_npy(member, entry.file_size, f"{path}: {name}", text=name == JSON_ENTRY)
            if name == JSON_ENTRY:
                text = str(array[()])
            else:
                arrays[name] = array
    if text is None:
        raise CaseError(f"{path}: expected an entry {JSON_ENTRY!r} that describes the case, found none")
    return text, arrays


def _read_npy(member: IO[bytes], size: int, where: str, *, text: bool) -> np.ndarray:
    version = npy.read_magic(member)
    headers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in headers:
        raise CaseError(f"{where}: npy version {version} holds structured arrays; expected plain ones")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shape, fortran, dtype = headers[version](member)
    if text:
        if shape != () or dtype.kind not in "US":
            raise CaseError(f"{where}: expected one text (a 0-d string array), found {dtype} of shape {shape}")
    else:
        _check_dtype(dtype, where)
    count = math.prod(shape)
    if any(n < 0 for n in shape) or count * dtype.itemsize > size:
        raise CaseError(f"{where}: the header says {dtype} of shape {shape}, which is more than the {size} bytes there")
    data = member.read(count * dtype.itemsize)
    if len(data) < count * dtype.itemsize or member.read(1):
        raise CaseError(
            f"{where}: expected {count * dtype.itemsize} bytes for {dtype} of shape {shape}; the file differs"
        )
    array = np.frombuffer(data, dtype)
    if text:
        return np.array(array.item().decode("utf-8") if dtype.kind == "S" else array.item())
    array = array.astype(dtype.newbyteorder("="))  # a copy: arrays from a buffer cannot be written to
    return array.reshape(shape[::-1]).T.copy() if fortran else array.reshape(shape)


def _write_npz(path: Path, text: str, arrays: Mapping[str, np.ndarray]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in ((JSON_ENTRY, np.array(text)), *arrays.items()):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, np.asarray(array, order="C"), allow_pickle=False)


# ---- safetensors


def _read_safetensors(stream: IO[bytes], path: Path) -> Parts:
    from safetensors import deserialize

    _check_memory(path, os.fstat(stream.fileno()).st_size)
    data = stream.read()
    tensors: list[tuple[str, dict[str, Any]]] = deserialize(data)  # type: ignore[no-untyped-call]  # checks header, offsets and sizes
    (length,) = struct.unpack("<Q", data[:8])
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
    if JSON_ENTRY not in metadata:
        raise CaseError(f"{path}: expected the metadata key {JSON_ENTRY!r} that describes the case, found none")
    return metadata[JSON_ENTRY], {
        name: _from_safetensors(found["dtype"], found["shape"], found["data"], f"{path}: {name}")
        for name, found in tensors
    }


def _from_safetensors(dtype: str, shape: list[int], data: bytes, where: str) -> np.ndarray:
    if dtype == "BF16":
        bits = np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)
        return np.asarray(bits.view(np.float32).reshape(shape))
    if dtype not in _SAFETENSORS:
        raise CaseError(f"{where}: expected one of {', '.join(_SAFETENSORS)} or BF16, found {dtype}")
    stored = np.dtype(_SAFETENSORS[dtype])
    return np.frombuffer(data, stored).astype(stored.newbyteorder("=")).reshape(shape)


_SAFETENSORS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "<u1", "BOOL": "|b1",
}  # fmt: skip


def _write_safetensors(path: Path, text: str, arrays: Mapping[str, np.ndarray]) -> None:
    from safetensors.numpy import save_file

    save_file({name: np.array(array, order="C") for name, array in arrays.items()}, path, metadata={JSON_ENTRY: text})


# ---- limits


def _check_dtype(dtype: np.dtype, where: str) -> None:
    if dtype.kind not in KINDS or dtype.itemsize > WIDEST_FLOAT:
        raise CaseError(f"{where}: expected numbers (float16, float32, float64 or integers), found {dtype}")


def _check_memory(path: Path, size: int) -> None:
    """An archive of a few megabytes can unpack to more than any machine holds."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise CaseError(
            f"{path}: unpacks to {size / 2**30:.0f} GiB, more than the {memory / 2**30:.0f} GiB of this machine"
        )
