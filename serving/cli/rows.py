"""Reads prediction input: JSON, CSV or Parquet, with CSV cells typed by the model's inputs."""

from __future__ import annotations

import csv
import importlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.errors import InvalidInput
from registry.ident import shown

_INTEGERS = frozenset(
    {"UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"}
)  # fmt: skip
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class InputFile:
    """Either a whole request body, or rows."""

    rows: list[Any]
    body: dict[str, Any] | None = None


def read_input(path: Path, inputs: Callable[[], Sequence[Mapping[str, Any]]]) -> InputFile:
    """Return the file's content; ``inputs`` (asked for CSV only) gives the model's inputs."""
    suffix = path.suffix.lower()
    if suffix == ".json":
        return _json(path)
    if suffix == ".csv":
        return InputFile(_csv(path, _datatypes(inputs())))
    if suffix == ".parquet":
        return InputFile(_parquet(path))
    raise InvalidInput(f"{path.name}: cannot read {suffix or 'this'}: use .json, .csv or .parquet")


def _json(path: Path) -> InputFile:
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path.name}: not JSON: {error}") from error
    if isinstance(content, list):
        return InputFile(content)
    if isinstance(content, dict) and ("instances" in content or "inputs" in content):
        return InputFile([], content)
    raise InvalidInput(
        f"{path.name}: expected a list of rows, or an object with 'instances' or 'inputs'"
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
    is_matrix = len(inputs) == 1 and len(inputs[0]["shape"]) > 1 and not inputs[0].get("columns")
    matrix = inputs[0]["datatype"] if is_matrix else None

    def datatype(column: str) -> str | None:
        return by_name.get(column, matrix)

    return datatype


def _csv(path: Path, datatype: Callable[[str], str | None]) -> list[Any]:
    rows = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            _check_header(path, header)
            types = [datatype(column) for column in header]
            for cells in reader:
                if not cells:
                    continue
                where = f"{path.name} line {reader.line_num}"
                if len(cells) != len(header):
                    raise InvalidInput(f"{where}: {len(cells)} cells under {len(header)} columns")
                rows.append({
                    column: _cell(cell, kind, f"{where}, column {column!r}")
                    for column, cell, kind in zip(header, cells, types, strict=True)
                })  # fmt: skip
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path.name}: not CSV in UTF-8: {error}") from error
    return rows


def _check_header(path: Path, header: Sequence[str]) -> None:
    if not header or not all(header):
        raise InvalidInput(f"{path.name}: the first line must name every column")
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise InvalidInput(f"{path.name}: column {shown(twice[0])} stands twice")


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
        number = float(text)
    except (ValueError, KeyError) as error:
        raise InvalidInput(f"{where}: {shown(text)} is no {datatype}") from error
    # JSON has no word for these; NaN is what a missing value becomes in the server.
    if math.isnan(number):
        return None
    if math.isinf(number):
        raise InvalidInput(f"{where}: {shown(text)} cannot be sent as JSON")
    return number


def _parquet(path: Path) -> list[Any]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InvalidInput(
            f"{path.name}: reading Parquet needs the package pyarrow: pip install pyarrow"
        ) from error
    try:
        rows: list[Any] = parquet.read_table(path).to_pylist()
    except (ValueError, OSError) as error:
        raise InvalidInput(f"{path.name}: not Parquet: {error}") from error
    return [{key: _plain(value) for key, value in row.items()} for row in rows]


def _plain(value: object) -> object:
    return None if isinstance(value, float) and math.isnan(value) else value
