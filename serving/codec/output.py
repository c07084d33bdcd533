"""Result arrays as JSON: exact numbers, ``null`` for NaN and infinity, text for BYTES.

Bytes that are not UTF-8 cannot stand in JSON: each wrong byte becomes U+FFFD. A caller who needs
them exactly asks for the output in binary.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import orjson

from models.servable import Array

_DATATYPES: Final = {
    "b1": "BOOL", "u1": "UINT8", "u2": "UINT16", "u4": "UINT32", "u8": "UINT64",
    "i1": "INT8", "i2": "INT16", "i4": "INT32", "i8": "INT64",
    "f2": "FP16", "f4": "FP32", "f8": "FP64",
}  # fmt: skip


def v2_datatype(array: Array) -> str:
    """Return the V2 datatype of an array; text of any numpy kind is BYTES."""
    return _DATATYPES.get(array.dtype.str[1:], "BYTES")


def json_elements(array: Array) -> Any:
    """Return an array's elements in row-major order, flat, as ``dumped`` takes them."""
    if array.dtype.kind in "OUS":
        return [_text(item) for item in array.ravel().tolist()]
    return np.ascontiguousarray(array).ravel()


def json_nested(array: Array) -> Any:
    """Return an array as ``dumped`` takes it, nested as its shape is; rank 0 gives one value."""
    if array.dtype.kind in "OUS":
        return _nested_text(array.tolist())
    if array.ndim == 0:
        return array[()]
    # ascontiguousarray keeps the rank here; orjson takes no other layout.
    return np.ascontiguousarray(array)


def json_rows(array: Array) -> list[Any]:
    """Return one value for each row, as ``dumped`` takes them."""
    if array.dtype.kind in "OUS":
        return [_nested_text(item) for item in array.tolist()]
    return list(np.ascontiguousarray(array))


def dumped(document: Any) -> bytes:
    """Return a document that holds arrays as JSON bytes."""
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _nested_text(value: Any) -> Any:
    return [_nested_text(item) for item in value] if isinstance(value, list) else _text(value)


def _text(item: Any) -> str:
    if isinstance(item, bytes):
        return item.decode("utf-8", "replace")
    text = str(item)
    # A lone surrogate has no UTF-8 form; "?" is what the codec makes of it.
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
