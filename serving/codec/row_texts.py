"""The outputs of a run as JSON, written once for all who shared it: each takes its rows' text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final, TypeAlias

import numpy as np
import orjson

from models.servable import Array
from serving.codec.output import v2_datatype

# The type of an output's numbers, and its shape without the rows.
Form: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
_MAX_HEADS: Final = 256
_END: Final = b"]}]}"


class AnswerHeads:
    """What stands around the numbers of answers with outputs of certain forms, by their rows."""

    def __init__(self, start: bytes, names: Sequence[str], forms: tuple[Form, ...]) -> None:
        """``start``: an answer up to its outputs."""
        self.forms = forms
        self._start = start
        self._names = names
        self._heads: dict[int, list[bytes]] = {}

    def of(self, rows: int) -> list[bytes]:
        """Return what comes before the numbers of each output of ``rows`` rows."""
        heads = self._heads.get(rows)
        if heads is None:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            heads = self._heads[rows] = self._made(rows)
        return heads

    def _made(self, rows: int) -> list[bytes]:
        heads = []
        before = self._start + b',"outputs":['
        for name, (dtype, rest) in zip(self._names, self.forms, strict=True):
            entry = {
                "name": name,
                "datatype": v2_datatype(np.empty(0, dtype)),
                "shape": [rows, *rest],
            }
            heads.append(before + orjson.dumps(entry)[:-1] + b',"data":[')
            before = b"]},"
        return heads


class RowTexts:
    """The text of each row of each output of one run, without brackets."""

    __slots__ = ("_columns", "_heads", "_single", "row_bytes")

    def __init__(self, heads: AnswerHeads, arrays: Sequence[Array]) -> None:
        """``arrays``: numbers, with the same rows first, and at least one number in each row."""
        self._heads = heads
        self._columns = [_texts(array) for array in arrays]
        # The answers of one row each, if any was asked for: most are, and all at once cost less.
        self._single: list[bytes] | None = None
        self.row_bytes = sum([array.nbytes // len(array) for array in arrays])

    def body(self, start: int, end: int) -> bytes:
        """Return the answer of the rows from ``start`` to ``end``."""
        if end - start == 1:
            single = self._single
            if single is None:
                single = self._single = self._of_one_row()
            return single[start]
        parts: list[bytes] = []
        for head, column in zip(self._heads.of(end - start), self._columns, strict=True):
            parts += (head, b",".join(column[start:end]))
        parts.append(_END)
        return b"".join(parts)

    def _of_one_row(self) -> list[bytes]:
        parts: list[Iterable[bytes]] = []
        for head, column in zip(self._heads.of(1), self._columns, strict=True):
            parts += (repeat(head), column)
        return list(map(b"".join, zip(*parts, repeat(_END), strict=False)))


def form_of(array: Array, rows: int) -> Form | None:
    """Return the form of an output of ``rows`` rows, or None where it has no texts by row."""
    if array.ndim == 0 or len(array) != rows or not array.size or array.dtype.kind in "OUS":
        return None
    return array.dtype, array.shape[1:]


def _texts(array: Array) -> list[bytes]:
    table = np.ascontiguousarray(array).reshape(len(array), -1)
    return orjson.dumps(table, option=orjson.OPT_SERIALIZE_NUMPY)[2:-2].split(b"],[")
