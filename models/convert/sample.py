"""Sample rows from a user's file (CSV, JSON, NumPy, Parquet), as inputs of a signature."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np

from models.errors import ConversionRefused
from models.parquet_columns import read_columns
from models.servable import Array, numpy_dtype
from models.signature import Signature, TensorSpec
from registry.ident import shown

MAX_ROWS: Final = 10_000
_FLAGS: Final = {"True": 1.0, "true": 1.0, "TRUE": 1.0, "False": 0.0, "false": 0.0, "FALSE": 0.0}
Kind: TypeAlias = Literal["int", "float", "text"]
_SPLIT: Final = frozenset({"columns", "data", "index"})
_MISSING_TEXT: Final = frozenset({"", "nan", "NaN", "null", "None", "NA", "N/A"})


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of a file, column by column; cells are text, numbers, or None where missing.

    ``has_names``: whether the columns have names of their own, or numbers ("0", "1", ...).
    """

    file: str
    columns: Mapping[str, Sequence[object]]
    has_names: bool

    @property
    def rows(self) -> int:
        """Rows read."""
        return min((len(cells) for cells in self.columns.values()), default=0)

    def kind(self, column: str) -> Kind | None:
        """Return what the cells of a column are, or None where the file does not have it."""
        cells = self.columns.get(column)
        if cells is None:
            return None
        kinds = {_kind(cell) for cell in cells}
        if "text" in kinds:
            return "text"
        return "float" if kinds != {"int"} else "int"

    def inputs(self, signature: Signature) -> dict[str, Array]:
        """Return the rows as inputs; raises ConversionRefused naming the column that lacks."""
        found = {}
        for spec in signature.inputs:
            is_column = len(spec.shape) == 2 and spec.shape[1] in (1, -1) and spec.columns is None
            # A matrix of one column without a name takes the one column that there is.
            is_one = len(signature.inputs) > 1 and spec.shape[-1:] == (1,)
            if self._is_tensor(spec.name):
                found[spec.name] = self._tensor(spec)
            elif is_column and (is_one or spec.name in self.columns):
                found[spec.name] = self._column(spec.name, spec)[:, None]
            elif len(spec.shape) == 1:
                found[spec.name] = self._column(spec.name, spec)
            else:
                names = self._matrix_columns(spec)
                found[spec.name] = np.stack([self._column(name, spec) for name in names], axis=1)
        return found

    def _is_tensor(self, name: str) -> bool:
        """Whether the cells of a column are lists: each row then is a whole tensor."""
        return self.has_names and any(isinstance(c, list) for c in self.columns.get(name, ())[:1])

    def _tensor(self, spec: TensorSpec) -> Array:
        """Return rows of one size, such as tokens or pixels, as they lie in the file."""
        try:
            array = np.array(self.columns[spec.name], dtype=numpy_dtype(spec.datatype))
        except (ValueError, TypeError, OverflowError):
            raise ConversionRefused(
                f"sample {self.file}: column {shown(spec.name)}: its rows must be {spec.datatype}, "
                "all of one length (fill short ones up)"
            ) from None
        wanted = spec.shape[1:]
        if len(wanted) != array.ndim - 1 or any(
            size not in (-1, found) for size, found in zip(wanted, array.shape[1:], strict=True)
        ):
            raise ConversionRefused(
                f"sample {self.file}: column {shown(spec.name)}: rows have shape "
                f"{list(array.shape[1:])}, the model takes {list(wanted)}"
            )
        return array

    def _matrix_columns(self, spec: TensorSpec) -> Sequence[str]:
        if spec.columns is not None and self.has_names:
            return spec.columns
        width = spec.shape[1] if len(spec.shape) == 2 else -1
        if len(self.columns) != width:
            raise ConversionRefused(
                f"sample {self.file}: {len(self.columns)} columns, the model takes {width}"
            )
        return list(self.columns)

    def _column(self, name: str, spec: TensorSpec) -> Array:
        cells = self.columns.get(name)
        if cells is None:
            have = ", ".join(list(self.columns)[:8])
            raise ConversionRefused(
                f"sample {self.file}: column {shown(name)} is missing; it has {have}"
            )
        try:
            return _array(cells, spec)
        except (ValueError, OverflowError) as error:
            raise ConversionRefused(
                f"sample {self.file}: column {shown(name)}: {error} (expected {spec.datatype})"
            ) from error


def read_sample(path: Path) -> Sample:
    """Read at most MAX_ROWS rows, or raise ConversionRefused saying what is wrong with the file."""
    readers = {".csv": _read_csv, ".json": _read_json, ".npy": _read_npy, ".parquet": _read_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ConversionRefused(f"sample {path.name}: use a file that ends in {', '.join(readers)}")
    try:
        sample = reader(path)
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConversionRefused(f"sample {path.name} cannot be read: {reason}") from error
    if not sample.rows:
        raise ConversionRefused(f"sample {path.name}: there are no rows in it")
    return sample


def _read_csv(path: Path) -> Sample:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        rows = [row for row, _ in zip(reader, range(MAX_ROWS), strict=False) if row]
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ValueError(f"line {number} has {len(row)} cells, the header has {len(header)}")
    columns = {name: [_cell(row[i]) for row in rows] for i, name in enumerate(header)}
    return Sample(path.name, columns, has_names=True)


def _cell(text: str) -> str | None:
    return None if text.strip() in _MISSING_TEXT else text


def _read_json(path: Path) -> Sample:
    document = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(document, dict):
        keys = ("instances", "inputs", "dataframe_records", "dataframe_split")
        document = next((document[key] for key in keys if key in document), document)
    if isinstance(document, dict) and {"columns", "data"} <= set(document) <= _SPLIT:
        return _split(path.name, document["columns"], document["data"])
    if isinstance(document, dict):
        columns = {str(k): _flat(v) for k, v in document.items()}
        return Sample(path.name, columns, has_names=True)
    if not isinstance(document, list) or not document:
        raise ValueError("expected a list of rows, or an object of columns")
    rows = document[:MAX_ROWS]
    if isinstance(rows[0], dict):
        names = list(rows[0])
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("rows must all be objects")
        return Sample(path.name, {n: [row.get(n) for row in rows] for n in names}, has_names=True)
    matrix = [row if isinstance(row, list) else [row] for row in rows]
    if len({len(row) for row in matrix}) != 1:
        raise ValueError("rows have different lengths")
    return _numbered(path.name, list(zip(*matrix, strict=True)))


def _split(file: str, names: object, rows: object) -> Sample:
    """Read a DataFrame as pandas writes it with ``orient="split"``."""
    if not isinstance(names, list) or not isinstance(rows, list):
        raise ValueError("columns and data must be lists")
    for index, row in enumerate(rows[:MAX_ROWS]):
        if not isinstance(row, list) or len(row) != len(names):
            raise ValueError(f"data[{index}] is no list of {len(names)} values")
    columns = list(zip(*rows[:MAX_ROWS], strict=True))
    if names == list(range(len(names))):
        return _numbered(file, columns)
    cells = {str(name): list(cells) for name, cells in zip(names, columns, strict=True)}
    return Sample(file, cells, has_names=True)


def _flat(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError("expected a list for each column")
    return [cell[0] if isinstance(cell, list) and len(cell) == 1 else cell for cell in value]


def _read_npy(path: Path) -> Sample:
    array = np.load(path, allow_pickle=False)
    if array.ndim != 2:
        raise ValueError(f"expected a matrix, got {array.ndim} dimensions")
    return _numbered(path.name, array[:MAX_ROWS].T.tolist())


def _read_parquet(path: Path) -> Sample:
    return Sample(path.name, read_columns(path.read_bytes(), MAX_ROWS), has_names=True)


def _numbered(file: str, columns: Sequence[Sequence[object]]) -> Sample:
    return Sample(file, {str(i): list(cells) for i, cells in enumerate(columns)}, has_names=False)


def _kind(cell: object) -> Kind:
    if isinstance(cell, bool):
        return "text"
    if cell is None or isinstance(cell, float):
        return "float"
    if isinstance(cell, int):
        return "int"
    text = str(cell).strip()
    for kind, reader in (("int", int), ("float", float)):
        try:
            reader(text)
        except ValueError:
            continue
        return "int" if kind == "int" else "float"
    return "text"


def _array(cells: Sequence[object], spec: TensorSpec) -> Array:
    if spec.datatype == "BYTES":
        missing = spec.missing if spec.missing is not None else ""
        text = _digits if spec.integers else str
        values = [missing if _is_missing(cell) else text(cell) for cell in cells]
        array = np.empty(len(values), dtype=object)
        array[:] = values
        return array
    if spec.datatype.startswith("FP"):
        numbers = [math.nan if _is_missing(cell) else _number(cell) for cell in cells]
        with np.errstate(over="ignore"):
            return np.array(numbers, dtype=np.float64).astype(numpy_dtype(spec.datatype))
    return np.array([_whole(cell) for cell in cells], dtype=numpy_dtype(spec.datatype))


def _digits(cell: object) -> str:
    """Return a category as the server takes it: a text, or the digits of a whole number."""
    if isinstance(cell, float):
        raise ValueError(f"{cell} is neither a text nor a whole number")
    return str(int(cell)) if isinstance(cell, bool) else str(cell)


def _number(cell: object) -> float:
    # A column of booleans is one of floats to the model that was trained on it.
    flag = _FLAGS.get(str(cell))
    return float(str(cell)) if flag is None else flag


def _whole(cell: object) -> int:
    if _is_missing(cell):
        raise ValueError("a value is missing, which whole numbers cannot say")
    if isinstance(cell, float):
        if not cell.is_integer():
            raise ValueError(f"{cell} is no whole number")
        return int(cell)
    return int(str(cell))


def _is_missing(cell: object) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))
