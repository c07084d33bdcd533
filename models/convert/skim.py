"""Reading an ONNX file without its large weights: each becomes a run of bytes of the file itself.

A weight inside the file is otherwise in memory three times during a push: in the file's bytes, in
the parsed message, and in the object that is sent.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnx

from models.package import OBJECT_THRESHOLD_BYTES

# No path can hold this; it stands for the file that was skimmed.
SELF_LOCATION: Final = "\0self"

# Field numbers of onnx.proto, and the wire type of what has a length.
_GRAPH: Final = 7
_INITIALIZER: Final = 5
_DATA_TYPE: Final = 2
_RAW_DATA: Final = 9
# Lists whose values lie in the file as raw bytes would: to the type that they are of.
_PLAIN_LISTS: Final = {4: onnx.TensorProto.FLOAT, 10: onnx.TensorProto.DOUBLE}
_EXTERNAL_DATA: Final = 13
_DATA_LOCATION: Final = 14
_VARINT: Final = 0
_LENGTH: Final = 2
_MAX_VARINT_BYTES: Final = 10


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a message: its number, where it begins, and where its content lies."""

    number: int
    wire_type: int
    begin: int
    start: int
    end: int


class _Odd(Exception):
    """The bytes are not what a plain writer makes: the whole file is parsed instead."""


def skim(path: Path) -> tuple[bytes, int] | None:
    """Return a file's message with its large weights pointing into the file, and their number.

    None where there is none to leave out, or the file is odd in any way: parse it as it is.
    Only dense initializers of the outermost graph are left out, that hold raw bytes or a list of
    FLOAT or DOUBLE; what is in other lists is parsed, and takes several times its size meanwhile.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _model(data)
        except _Odd:
            return None


def _model(data: mmap.mmap) -> tuple[bytes, int] | None:
    out = bytearray()
    graphs = moved = 0
    for field in _fields(data, 0, len(data)):
        if field.number == _GRAPH and field.wire_type == _LENGTH:
            graphs += 1
            graph, moved = _graph(data, field)
            _put(out, _GRAPH, graph)
        else:
            out += data[field.begin : field.end]
    # Two graphs in one message are merged by the parser.
    return (bytes(out), moved) if graphs == 1 and moved else None


def _graph(data: mmap.mmap, graph: _Field) -> tuple[bytearray, int]:
    out = bytearray()
    moved = 0
    for field in _fields(data, graph.start, graph.end):
        is_large = field.end - field.start >= OBJECT_THRESHOLD_BYTES
        if field.number == _INITIALIZER and field.wire_type == _LENGTH and is_large:
            tensor = _tensor(data, field)
            if tensor is not None:
                _put(out, _INITIALIZER, tensor)
                moved += 1
                continue
        out += data[field.begin : field.end]
    return out, moved


def _tensor(data: mmap.mmap, tensor: _Field) -> bytearray | None:
    """Return the tensor without its bytes, or None where it stays as it is."""
    out = bytearray()
    values: _Field | None = None
    data_type = int(onnx.TensorProto.UNDEFINED)
    for field in _fields(data, tensor.start, tensor.end):
        if field.number == _DATA_TYPE and field.wire_type == _VARINT:
            data_type, _ = _varint(data, field.start, field.end)
        if field.number in (_RAW_DATA, *_PLAIN_LISTS) and field.wire_type == _LENGTH:
            if values is not None:
                raise _Odd
            values = field
        elif field.number == _DATA_LOCATION and _is_default(data, field):
            # A model loaded from external data and saved in one file says so of every weight.
            continue
        elif field.number in (_EXTERNAL_DATA, _DATA_LOCATION):
            return None
        elif field.end - field.start >= OBJECT_THRESHOLD_BYTES:
            return None  # its values stand in a list of numbers of changing length
        else:
            out += data[field.begin : field.end]
    if values is None or values.end - values.start < OBJECT_THRESHOLD_BYTES:
        return None
    if _PLAIN_LISTS.get(values.number, data_type) != data_type:
        return None
    pointer = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
    fields = {"location": SELF_LOCATION, "offset": str(values.start),
              "length": str(values.end - values.start)}  # fmt: skip
    for key, value in fields.items():
        pointer.external_data.add(key=key, value=value)
    out += pointer.SerializeToString()
    return out


def _is_default(data: mmap.mmap, location: _Field) -> bool:
    """Return whether a data location says that the values are in the message, as no word does."""
    if location.wire_type != _VARINT:
        return False
    value, _ = _varint(data, location.start, location.end)
    return value == onnx.TensorProto.DEFAULT


def _fields(data: mmap.mmap, position: int, end: int) -> Iterator[_Field]:
    while position < end:
        begin = position
        key, position = _varint(data, position, end)
        wire_type, start = key & 7, position
        if wire_type == _VARINT:
            _, position = _varint(data, position, end)
        elif wire_type == 1:
            position += 8
        elif wire_type == _LENGTH:
            length, start = _varint(data, position, end)
            position = start + length
        elif wire_type == 5:
            position += 4
        else:
            raise _Odd
        if position > end:
            raise _Odd
        yield _Field(key >> 3, wire_type, begin, start, position)


def _varint(data: mmap.mmap, position: int, end: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if position + index >= end:
            raise _Odd
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise _Odd


def _put(out: bytearray, number: int, content: bytes | bytearray) -> None:
    for value in (number << 3 | _LENGTH, len(content)):
        left = value
        while left >= 0x80:
            out.append(left & 0x7F | 0x80)
            left >>= 7
        out.append(left)
    out += content
