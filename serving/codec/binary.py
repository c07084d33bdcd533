"""Binary tensors: little-endian bytes beside the JSON document, without copying the numbers.

Arrays that are read from a body share its memory and cannot be written to. An element of BYTES,
whose length stands in the four bytes before it, becomes ``str``; one that is not UTF-8 stays
``bytes``.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from models.servable import Array, numpy_dtype
from registry.errors import InvalidInput

LENGTH_HEADER: Final = "Inference-Header-Content-Length"
_LENGTH: Final = struct.Struct("<I")


def from_bytes(data: memoryview, datatype: str, count: int, where: str) -> Array:
    """Return the ``count`` elements of a datatype that ``data`` holds, or raise InvalidInput."""
    if datatype == "BYTES":
        return _elements(data, count, where)
    dtype = numpy_dtype(datatype).newbyteorder("<")
    if len(data) != count * dtype.itemsize:
        raise InvalidInput(
            f"{where}: {len(data)} bytes, but its shape takes {count} x {dtype.itemsize} bytes"
        )
    if datatype == "BOOL":
        return _booleans(data, where)
    array = np.frombuffer(data, dtype=dtype)
    # A runtime may read through aligned vector loads; the JSON before the tensor decides where
    # it starts, so a copy is the rare case of clients that do not pad.
    return array if array.flags.aligned else array.copy()


def to_bytes(array: Array) -> bytes:
    """Return an array's little-endian row-major bytes; text elements as UTF-8."""
    if array.dtype.kind in "OUS":
        parts: list[bytes] = []
        for item in array.ravel().tolist():
            raw = item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogatepass")
            parts += (_LENGTH.pack(len(raw)), raw)
        return b"".join(parts)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def text_or_bytes(raw: bytes) -> str | bytes:
    """Return the text of UTF-8 bytes, or the bytes as they are."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


def _booleans(data: memoryview, where: str) -> Array:
    raw = np.frombuffer(data, dtype=np.uint8)
    if raw.size and raw.max() > 1:
        index = int((raw > 1).argmax())
        raise InvalidInput(f"{where}: element {index} is the byte {raw[index]}: BOOL takes 0 or 1")
    return raw.view(np.bool_)


def _elements(data: memoryview, count: int, where: str) -> Array:
    # Each element takes 4 bytes at least, so this bounds the array by the body.
    if count * _LENGTH.size > len(data):
        raise InvalidInput(
            f"{where}: {len(data)} bytes, but {count} BYTES elements take at least "
            f"{count * _LENGTH.size}"
        )
    result = np.empty(count, dtype=object)
    position = 0
    for index in range(count):
        start = position + _LENGTH.size
        end = start + _LENGTH.unpack_from(data, position)[0] if start <= len(data) else start
        if end > len(data):
            raise InvalidInput(
                f"{where}: element {index} ends at byte {end}, but there are only {len(data)}"
            )
        result[index] = text_or_bytes(bytes(data[start:end]))
        position = end
    if position != len(data):
        raise InvalidInput(
            f"{where}: {len(data) - position} bytes are left after its {count} elements"
        )
    return result
