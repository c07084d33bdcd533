"""Requests that are the text of an earlier one but for its numbers: only these are read.

A client writes one request like the next. Where all the text around the lists of ``data`` was read
before, byte for byte, what it says is known, and just the lists are parsed. That is exact: a JSON
list may stand wherever another one stood, and an earlier request proves where it stands (see
``_is_proven``). Whatever is not exactly so is left to the long way.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
import orjson
from orjson import loads

from models.servable import Array
from serving.codec.number_lists import LONG_BYTES, floats
from serving.codec.packed_rows import PackedInput, PackedRows
from serving.codec.tensors import PACK_CODES

C = TypeVar("C")
Pack: TypeAlias = Callable[[bytes], bytes | None]
_KEY: Final = b'"data":'
# struct refuses what is out of a datatype's range; of what JSON has, it takes numbers and booleans.
_CODES: Final = {
    **PACK_CODES,
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
}  # fmt: skip
_FLOATS: Final = frozenset({"FP32", "FP64"})
_MAX_TEMPLATES: Final = 64
_MAX_TEXT_BYTES: Final = 4096
_IN_PLACE_BYTES: Final = 16 * 1024
# Of the widest number; what a bytes object holds begins at a multiple of it.
_ALIGNMENT: Final = 8


class Template(Generic[C]):
    """A known text, and what it says: ``call`` of all its requests, and how lists become bytes."""

    __slots__ = ("call", "head", "layout", "packs", "rows", "tail")

    def __init__(
        self,
        texts: tuple[bytes, ...],
        call: C,
        rows: int,
        layout: tuple[PackedInput, ...],
        packs: tuple[Pack, ...],
    ) -> None:
        self.head, self.tail = texts[0], texts[-1]
        self.call = call
        self.rows = rows
        self.layout = layout
        self.packs = packs

    def packed(self, lists: Sequence[bytes]) -> PackedRows | None:
        """Return the inputs whose lists of data are these texts, or None."""
        parts: list[bytes | memoryview] = []
        for text, pack in zip(lists, self.packs, strict=True):
            part = pack(text)
            if part is None:
                return None
            parts.append(part)
        return self.layout, self.rows, parts


def _pack(datatype: str, dtype: np.dtype[Any], count: int) -> Pack:
    """Return what makes bytes of the text of a list of ``count`` numbers, None of any other."""
    pack = struct.Struct(f"<{count}{_CODES[datatype]}").pack
    may_be_long = datatype in _FLOATS

    def packed(text: bytes) -> bytes | None:
        # The letters of true, false and null: struct would take a boolean for a number.
        if b"u" in text or b"l" in text:
            return None
        if may_be_long and len(text) >= LONG_BYTES:
            return floats(text, dtype, count)
        try:
            return pack(*loads(text))
        except (ValueError, TypeError, OverflowError, struct.error):
            return None

    return packed


class V2Templates(Generic[C]):
    """The texts of requests to one version, learned from those that were read the long way."""

    def __init__(self, inputs: Mapping[str, tuple[str, PackedInput]]) -> None:
        """Know no text yet. ``inputs``: by name, the datatype of each and its form."""
        self._inputs = inputs
        self._lists = len(inputs) if all(kind in _CODES for kind, _ in inputs.values()) else 0
        self._layouts: dict[tuple[str, ...], tuple[PackedInput, ...]] = {}
        self._known: dict[tuple[bytes, ...], Template[C]] = {}
        # The text of the latest request with one list: the next is mostly like it.
        self._latest: Template[C] | None = None
        self._passed_over = 0

    def read(self, body: bytes) -> tuple[C, PackedRows] | None:
        """Return what the text of a request says, and its inputs; None where it is not known."""
        template = self._latest
        if template is not None and body.startswith(template.head) and body.endswith(template.tail):
            text = body[len(template.head) : -len(template.tail)]
            part = template.packs[0](text)
            if part is not None:
                return template.call, (template.layout, template.rows, [part])
        if not self._known:
            return None
        texts, lists = _apart(body, self._lists)
        template = self._known.get(texts)
        packed = template.packed(lists) if template is not None else None
        if template is None or packed is None:
            return None
        if self._lists == 1:
            self._latest = template
        return template.call, packed

    def learn(self, body: bytes, document: Mapping[str, Any], rows: int, call: C) -> None:
        """Keep the text of a request of the usual form, if it is of use, and what it says.

        The more is known, the less often: where every text is new, learning would cost for nothing.
        """
        if self._passed_over < len(self._known):
            self._passed_over += 1
            return
        self._passed_over = 0
        texts, _ = _apart(body, self._lists)
        items = document["inputs"]
        is_of_use = self._lists > 0 and rows > 0 and sum(map(len, texts)) <= _MAX_TEXT_BYTES
        if not is_of_use or not _is_proven(texts, document):
            return
        if len(self._known) >= _MAX_TEMPLATES:
            del self._known[next(iter(self._known))]
        names = tuple(item["name"] for item in items)
        packs = tuple(
            _pack(self._inputs[name][0], self._inputs[name][1].dtype, len(item["data"]))
            for name, item in zip(names, items, strict=True)
        )
        # One object for each order of the inputs, for that is what requests are joined by.
        layout = tuple(self._inputs[name][1] for name in names)
        layout = self._layouts.setdefault(names, layout)
        self._known[texts] = Template(texts, call, rows, layout, packs)


def _apart(body: bytes, lists: int) -> tuple[tuple[bytes, ...], list[bytes]]:
    """Return the texts around the lists of data, and the lists, if there are as many."""
    texts, found = [], []
    position = 0
    for _ in range(lists):
        start = body.find(_KEY, position) + len(_KEY)
        end = body.find(b"]", start) + 1
        if start < len(_KEY) or not end:
            break
        texts.append(body[position:start])
        found.append(body[start:end])
        position = end
    texts.append(body[position:])
    return tuple(texts), found


def _is_proven(texts: tuple[bytes, ...], document: Mapping[str, Any]) -> bool:
    """Whether lists between ``texts`` are just the data of the inputs, in order.

    Lists that no request of the usual form can hold are put there. Where they come back as the data
    and all else is as it was, each stood where a value is expected, and so may any other list.
    """
    if len(texts) != len(document["inputs"]) + 1:
        return False
    marks = [[f"list {index}"] for index in range(len(texts) - 1)]
    body = texts[0] + b"".join(
        orjson.dumps(mark) + text for mark, text in zip(marks, texts[1:], strict=True)
    )
    items = [{**item, "data": mark} for item, mark in zip(document["inputs"], marks, strict=True)]
    try:
        return bool(orjson.loads(body) == {**document, "inputs": items})
    except orjson.JSONDecodeError:
        return False


class BinaryHeads(Generic[C]):
    """The JSON parts of requests whose inputs all follow as bytes: what a known one says, holds."""

    def __init__(self, inputs: Mapping[str, tuple[str, PackedInput]]) -> None:
        """Know no part yet. ``inputs``: by name, the datatype of each and its form."""
        self._inputs = inputs
        # The bytes of a boolean or a text are to be looked at each time.
        self._is_of_use = all(kind in _CODES for kind, _ in inputs.values()) and bool(inputs)
        self._known: dict[bytes, tuple[C, tuple[PackedInput, ...], int, list[int]]] = {}
        self._passed_over = 0

    def read(self, body: bytes, json_bytes: int) -> tuple[C, PackedRows] | None:
        """Return what a request says, and its inputs; None where its JSON part is not known."""
        known = self._known.get(body[:json_bytes]) if self._known else None
        if known is None:
            return None
        call, layout, rows, sizes = known
        parts: list[bytes | memoryview] = []
        start = json_bytes
        for size in sizes:
            # A large tensor stays where it is, as ``binary.from_bytes`` leaves it; of a small one a
            # copy costs less than a view.
            is_in_place = size >= _IN_PLACE_BYTES and not start % _ALIGNMENT
            source = memoryview(body) if is_in_place else body
            parts.append(source[start : start + size])
            start += size
        # Too few or too many bytes: the long way says so.
        return (call, (layout, rows, parts)) if start == len(body) else None

    def learn(self, head: bytes, arrays: Mapping[str, Array], rows: int, call: C) -> None:
        """Keep the JSON part of a request that was read the long way, if it is of use."""
        if self._passed_over < len(self._known):
            self._passed_over += 1
            return
        self._passed_over = 0
        if not self._is_of_use or len(head) > _MAX_TEXT_BYTES:
            return
        # Inputs stand in the order of the document, which is that of their bytes; columns that
        # were put together do not.
        items = loads(head)["inputs"]
        if [item["name"] for item in items] != list(arrays):
            return
        sizes = []
        for item, (name, array) in zip(items, arrays.items(), strict=True):
            size = (item.get("parameters") or {}).get("binary_data_size")
            rest = self._inputs[name][1].rest
            if size != array.nbytes or array.shape != (rows, *rest):
                return
            sizes.append(array.nbytes)
        if len(self._known) >= _MAX_TEMPLATES:
            del self._known[next(iter(self._known))]
        self._known[head] = call, tuple(self._inputs[name][1] for name in arrays), rows, sizes
