"""Reads prediction input: JSON, CSV or Parquet, with CSV cells typed by the model's inputs.

What a file holds is told by its name; on standard input, which has none, by its first bytes.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from registry.errors import InvalidInput
from registry.ident import shown
from serving.cli.output import count_text

STDIN: Final = Path("-")

_INTEGERS = frozenset(
    {"UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"}
)  # fmt: skip
_BODIES = frozenset({"instances", "inputs", "dataframe_records", "dataframe_split"})
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class InputFile:
    """Either a whole request body, or rows."""

    rows: list[Any]
    body: dict[str, Any] | None = None


def read_input(path: Path, inputs: Callable[[], Sequence[Mapping[str, Any]]]) -> InputFile:
    """Return the file's content; ``inputs`` (not asked for JSON) gives the model's inputs."""
    name = shown_name(path)
    suffix = path.suffix.lower()
    if path != STDIN and suffix not in (".json", ".csv", ".parquet"):
        raise InvalidInput(f"{name}: cannot read {suffix or 'this'}: use .json, .csv or .parquet")
    data = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
    if path == STDIN:
        suffix = _suffix_of(data)
    if suffix == ".json":
        return _json(name, data)
    specs = inputs()
    if suffix == ".csv":
        return InputFile(_without_names(_csv(name, data, _datatypes(specs)), specs))
    return InputFile(_without_names(_parquet(name, data), specs))


def shown_name(path: Path) -> str:
    """Return how messages call the file."""
    return "standard input" if path == STDIN else path.name


def _suffix_of(data: bytes) -> str:
    if data.startswith(b"PAR1"):
        return ".parquet"
    return ".json" if data.lstrip()[:1] in (b"[", b"{") else ".csv"


def _json(name: str, data: bytes) -> InputFile:
    try:
        content = json.loads(data.decode("utf-8-sig"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{name}: not JSON: {error}") from error
    if isinstance(content, list):
        return InputFile(content)
    if isinstance(content, dict) and not _BODIES.isdisjoint(content):
        return InputFile([], content)
    raise InvalidInput(
        f"{name}: expected a list of rows, or an object with {' or '.join(sorted(_BODIES))}"
    )


def _no_constant(text: str) -> None:
    raise InvalidInput(f"{text} is no JSON: use null for a missing value")


def _datatypes(inputs: Sequence[Mapping[str, Any]]) -> Callable[[str], str | None]:
    """Return what gives a column's datatype; None where the model does not know the column."""
    by_name: dict[str, str] = {}
    for item in inputs:
        # A table that goes in as one matrix has columns; each cell is one of its elements.
        for name in item.get("columns") or (item["name"],):
            by_name[name] = item["datatype"]
    # A matrix without column names takes any here; the server knows which ones exist.
    matrix = inputs[0]["datatype"] if _is_matrix(inputs) else None

    def datatype(column: str) -> str | None:
        return by_name.get(column, matrix)

    return datatype


def _without_names(rows: list[Any], inputs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return rows as lists where the model's columns have no names: they go by their order."""
    if not rows or not _is_matrix(inputs) or inputs[0]["name"] in rows[0]:
        return rows
    return [list(row.values()) for row in rows]


def _is_matrix(inputs: Sequence[Mapping[str, Any]]) -> bool:
    return len(inputs) == 1 and len(inputs[0]["shape"]) > 1 and not inputs[0].get("columns")


def _csv(name: str, data: bytes, datatype: Callable[[str], str | None]) -> list[Any]:
    rows = []
    try:
        reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        header = next(reader, [])
        _check_header(name, header)
        types = [datatype(column) for column in header]
        for cells in reader:
            if not cells:
                continue
            where = f"{name} line {reader.line_num}"
            if len(cells) != len(header):
                raise InvalidInput(
                    f"{where}: {count_text(len(cells), 'cell')} under "
                    f"{count_text(len(header), 'column')}"
                )
            rows.append({
                column: _cell(cell, kind, f"{where}, column {column!r}")
                for column, cell, kind in zip(header, cells, types, strict=True)
            })  # fmt: skip
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidInput(f"{name}: not CSV in UTF-8: {error}") from error
    return rows


def _check_header(name: str, header: Sequence[str]) -> None:
    if not header or not all(header):
        raise InvalidInput(f"{name}: the first line must name every column")
    twice = [column for column in header if header.count(column) > 1]
    if twice:
        raise InvalidInput(f"{name}: column {shown(twice[0])} stands twice")


def _cell(text: str, datatype: str | None, where: str) -> object:
    """Return a cell as JSON wants it; an empty one is a missing value."""
    if text == "":
        return None
    if datatype is None or datatype == "BYTES":
        return text
    try:
        if datatype in _INTEGERS:
            return int(text)
        if datatype == "BOOL":
            return _BOOLEANS[text.lower()]
        if text.lower() in ("true", "false"):
            return text.lower() == "true"  # a column of booleans that is a float to the model
        number = float(text)
    except (ValueError, KeyError) as error:
        raise InvalidInput(f"{where}: {shown(text)} is no {datatype}") from error
    # JSON has no word for these; NaN is what a missing value becomes in the server.
    if math.isnan(number):
        return None
    if math.isinf(number):
        raise InvalidInput(f"{where}: {shown(text)} cannot be sent as JSON")
    return number


def _parquet(name: str, data: bytes) -> list[Any]:
    from models.parquet_columns import read_columns

    try:
        columns = read_columns(data)
    except ValueError as error:
        raise InvalidInput(f"{name}: {error}") from error
    for column, cells in columns.items():
        for index, cell in enumerate(cells):
            if isinstance(cell, float) and math.isinf(cell):
                raise InvalidInput(
                    f"{name} row {index}, column {column!r}: {cell} cannot be sent as JSON"
                )
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
