"""Reading a .safetensors file: a header of JSON, then the tensors as they lie in memory.

Format: https://github.com/huggingface/safetensors#format. Nothing in it can run code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.errors import ConversionRefused
from registry.ident import shown

Weights = Mapping[str, NDArray[np.float32]]
_LENGTH_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 100_000_000  # as the format's own reader
_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
# Buffers that checkpoints carry along; no weight of a model is made of whole numbers.
_PASSED_OVER: Final = frozenset({"I64", "I32", "I16", "I8", "U8", "BOOL", "F64"})


def read_safetensors(path: Path) -> Weights:
    """Return the tensors by name, float32 and mapped where the file has them so.

    Raises ConversionRefused saying what is wrong with the file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 2 <= length <= min(_MAX_HEADER_BYTES, size - _LENGTH_BYTES):
            raise ConversionRefused(
                f"{shown(path.name)} is no .safetensors file, or it was cut short"
            )
        try:
            header = json.loads(file.read(length))
        except ValueError:
            header = None
    if not isinstance(header, dict):
        raise ConversionRefused(f"{shown(path.name)}: its header is not JSON")
    start = _LENGTH_BYTES + length
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        array = _tensor(path, name, entry, start, size)
        if array is not None:
            found[name] = array
    return found


def _tensor(
    path: Path, name: str, entry: object, start: int, size: int
) -> NDArray[np.float32] | None:
    where = f"{shown(path.name)}: tensor {shown(name)}"
    try:
        kind, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])  # type: ignore[index]
        begin, end = (int(n) for n in entry["data_offsets"])  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        raise ConversionRefused(f"{where}: dtype, shape and data_offsets are needed") from None
    if kind in _PASSED_OVER:
        return None
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise ConversionRefused(f"{where}: {shown(kind)} cannot be read: F32, F16 and BF16 can")
    count = int(np.prod(shape, dtype=np.int64))
    if min(shape, default=0) < 0 or begin < 0 or end - begin != count * dtype.itemsize:
        raise ConversionRefused(f"{where}: its {end - begin} bytes do not fill {list(shape)}")
    if start + end > size:
        raise ConversionRefused(f"{where}: it ends after the file, which was cut short")
    if not count:
        return np.zeros(shape, np.float32)
    raw: NDArray[Any] = np.memmap(path, dtype, "r", start + begin, (count,))
    if kind == "BF16":  # the upper half of a float32
        values = (raw.astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.asarray(raw if kind == "F32" else raw.astype(np.float32))
    return values.reshape(shape)
