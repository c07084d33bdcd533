"""Strings for ONNX Runtime: it takes and gives UTF-8 only, clients may send any bytes.

An element that is not UTF-8 crosses the runtime as private code points U+10FF00 + byte, and its
UTF-8 form never looks like anything else: an element that already has such code points is written
that way too. So every value comes back bit for bit, and equal values stay equal inside the graph.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import numpy as np

from models.errors import InputRefused
from models.servable import Array

_BASE: Final = 0x10FF00
_PRIVATE: Final = re.compile("[\U0010ff00-\U0010ffff]")


def to_runtime(array: Array, name: str) -> Array:
    """Return a BYTES tensor as the runtime takes it, or raise InputRefused."""
    elements = array.ravel().tolist()
    if all(type(item) is str for item in elements) and _is_plain(elements):
        return array
    escaped = np.empty(len(elements), dtype=object)
    for index, item in enumerate(elements):
        escaped[index] = _escape(item, name, index)
    return escaped.reshape(array.shape)


def from_runtime(array: Array) -> Array:
    """Return a string output as object array of ``str``, or ``bytes`` where not UTF-8."""
    array = np.asarray(array, dtype=object)
    elements = array.ravel().tolist()
    if not _PRIVATE.search("".join(elements)):
        return array
    plain = np.empty(len(elements), dtype=object)
    for index, item in enumerate(elements):
        plain[index] = _unescape(item)
    return plain.reshape(array.shape)


def _is_plain(elements: Iterable[str]) -> bool:
    text = "".join(elements)
    if text.isascii():
        return True
    # A lone surrogate can come out of a JSON escape; it has no UTF-8 form.
    return not _PRIVATE.search(text) and not re.search("[\ud800-\udfff]", text)


def _escape(item: object, name: str, index: int) -> str:
    if isinstance(item, str):
        try:
            data = item.encode()
        except UnicodeEncodeError:
            raise InputRefused(
                f"input {name!r}: element {index} has a lone surrogate, which is no character"
            ) from None
    elif isinstance(item, bytes):
        data = item
        try:
            item = data.decode()
        except UnicodeDecodeError:
            return _as_code_points(data)
    else:
        raise InputRefused(
            f"input {name!r}: element {index} is {type(item).__name__}, expected a string"
        )
    return _as_code_points(data) if _PRIVATE.search(item) else item


def _as_code_points(data: bytes) -> str:
    return "".join(chr(_BASE + byte) for byte in data)


def _unescape(item: str) -> str | bytes:
    if not item or any(ord(char) < _BASE for char in item):
        # The graph joined it with other text: only the escaped stretches are bytes.
        if not _PRIVATE.search(item):
            return item
        data = b"".join(
            bytes([ord(char) - _BASE]) if ord(char) >= _BASE else char.encode() for char in item
        )
    else:
        data = bytes(ord(char) - _BASE for char in item)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
