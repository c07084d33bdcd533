"""UBJSON as XGBoost writes it, read and checked here: its own reader can crash on a cut-off file.

Format: ubjson.org, draft 12; big-endian, arrays of one type with ``$`` and ``#``.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

_NUMBERS: Final = {
    b"i": ">i1", b"U": ">u1", b"I": ">i2", b"l": ">i4", b"L": ">i8", b"d": ">f4", b"D": ">f8",
}  # fmt: skip
_CONSTANTS: Final = {b"T": True, b"F": False, b"Z": None}
_MAX_DEPTH: Final = 64


def parse_ubjson(data: bytes) -> Any:
    """Return the document, typed arrays as numpy arrays; raises ValueError on a damaged one."""
    reader = _Reader(data)
    document = reader.value(reader.take(1), 0)
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} bytes stand behind its end")
    return document


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self._data):
            raise ValueError(f"it is cut off at byte {len(self._data)}")
        self.at += size
        return self._data[self.at - size : self.at]

    def value(self, kind: bytes, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
        if kind == b"{":
            return self._object(depth)
        if kind == b"[":
            return self._array(depth)
        if kind == b"S":
            return self._text()
        if kind in _NUMBERS:
            return self._number(kind)
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        raise ValueError(f"byte {self.at - 1} is no UBJSON type")

    def _number(self, kind: bytes) -> int | float:
        dtype = np.dtype(_NUMBERS[kind])
        value = np.frombuffer(self.take(dtype.itemsize), dtype)[0]
        return int(value) if dtype.kind in "iu" else float(value)

    def _count(self) -> int:
        kind = self.take(1)
        if kind not in _NUMBERS or kind in b"dD":
            raise ValueError(f"byte {self.at - 1} is no length")
        return int(self._number(kind))

    def _text(self) -> str:
        return self.take(self._count()).decode()

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._data[self.at : self.at + 1] != b"}":
            key = self._text()
            found[key] = self.value(self.take(1), depth + 1)
        self.at += 1
        return found

    def _array(self, depth: int) -> Any:
        kind = self._marker(b"$")
        if kind:
            if self.take(1) != b"#" or kind not in _NUMBERS:
                raise ValueError(f"byte {self.at - 1}: an array of one type has no length")
            dtype = np.dtype(_NUMBERS[kind])
            return np.frombuffer(self.take(self._count() * dtype.itemsize), dtype)
        if self._data[self.at : self.at + 1] == b"#":
            self.at += 1
            count = self._count()
            if not 0 <= count <= len(self._data):
                raise ValueError(f"an array of {count} values does not fit the file")
            return [self.value(self.take(1), depth + 1) for _ in range(count)]
        found = []
        while (mark := self.take(1)) != b"]":
            found.append(self.value(mark, depth + 1))
        return found

    def _marker(self, mark: bytes) -> bytes:
        if self._data[self.at : self.at + 1] != mark:
            return b""
        self.at += 1
        return self.take(1)
