"""A CSV body, its first line the column names, turned into rows as JSON would have them.

What is no value of its column's datatype stays text: the reader of rows refuses it by its place.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from typing import Any, Final

from models.signature import Signature
from registry.errors import InvalidInput
from registry.ident import shown
from serving.codec import shapes

# What pandas reads as missing, as far as people write it.
_MISSING: Final = frozenset({"", "NA", "N/A", "NaN", "nan", "NULL", "null", "None"})
_FLAGS: Final = {"true": True, "True": True, "TRUE": True,
                 "false": False, "False": False, "FALSE": False}  # fmt: skip


def rows_of(body: bytes | memoryview, signature: Signature) -> list[Any]:
    """Return the rows: objects by column name, or lists where the model's columns have no names.

    Raises InvalidInput naming the line.
    """
    header, lines = _lines(body)
    if (types := _positional(header, signature)) is not None:
        readers = [_reader(kind) for kind in types]
        return [[read(cell) for read, cell in zip(readers, line, strict=True)] for line in lines]
    for index, name in enumerate(header):
        if name in header[:index]:
            raise InvalidInput(f"csv line 1: the name {shown(name)} stands twice")
    kinds = _kinds(signature)
    named = [(name, _reader(kinds.get(name, "BYTES"))) for name in header]
    return [
        {name: read(cell) for (name, read), cell in zip(named, line, strict=True)} for line in lines
    ]


def _lines(body: bytes | memoryview) -> tuple[list[str], list[list[str]]]:
    try:
        text = bytes(body).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"csv: not UTF-8 at byte {error.start}") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    lines: list[list[str]] = []
    try:
        for line in reader:
            if not line:
                continue
            if not header:
                header = line
            elif len(line) != len(header):
                raise InvalidInput(
                    f"csv line {reader.line_num}: {len(line)} cells under {len(header)} columns"
                )
            else:
                lines.append(line)
    except csv.Error as error:
        raise InvalidInput(f"csv line {reader.line_num}: {error}") from error
    if not header:
        raise InvalidInput("csv: the body is empty: the first line names the columns")
    return header, lines


def _positional(header: list[str], signature: Signature) -> list[str] | None:
    """Return the datatype of each cell where columns go by their place, or None."""
    if len(signature.inputs) == 1 and not signature.inputs[0].columns:
        return [signature.inputs[0].datatype] * len(header)
    if header != [str(index) for index in range(len(header))]:
        return None
    table = shapes.table_spec(signature)
    kinds = [table.datatype] * len(header) if table else [s.datatype for s in signature.inputs]
    return kinds if len(kinds) == len(header) else None


def _kinds(signature: Signature) -> dict[str, str]:
    kinds = {spec.name: spec.datatype for spec in signature.inputs}
    table = shapes.table_spec(signature)
    if table is not None and table.columns:
        kinds |= dict.fromkeys(table.columns, table.datatype)
    return kinds


def _reader(datatype: str) -> Callable[[str], Any]:
    if datatype == "BYTES":
        return lambda cell: None if cell in _MISSING else cell
    # A column of booleans that is a float to the model holds these words as well.
    return _flag if datatype in ("BOOL", "FP16", "FP32", "FP64") else _number


def _flag(cell: str) -> Any:
    value = _FLAGS.get(cell.strip())
    return _number(cell) if value is None else value


def _number(cell: str) -> Any:
    text = cell.strip()
    if text in _MISSING:
        return None
    if "_" in text:  # Python takes 1_000 for a number; nobody else does
        return cell
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return cell
    # A finite number that no double holds is refused, as in JSON.
    return cell if math.isinf(number) and "inf" not in text.lower() else number
