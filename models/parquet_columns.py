"""The columns of a Parquet file, read by whichever of two libraries is there.

Neither comes with the base install: a reader of its own would be larger than all that reads it.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import math
from collections.abc import Callable, Mapping
from datetime import date, time
from decimal import Decimal
from typing import Any, Final, TypeAlias

Columns: TypeAlias = Mapping[str, list[object]]


def read_columns(data: bytes, limit: int | None = None) -> Columns:
    """Return the first ``limit`` rows (all of them without it) as plain values, None for missing.

    Dates and times are text in ISO form. Raises ValueError that says what is wrong or missing.
    """
    for module, read in _READERS.items():
        if importlib.util.find_spec(module) is not None:
            return {
                name: [_plain(cell, name) for cell in cells]
                for name, cells in read(io.BytesIO(data), limit).items()
            }
    raise ValueError("reading Parquet needs pyarrow or polars: type `pip install pyarrow`")


def _by_pyarrow(file: io.BytesIO, limit: int | None) -> Mapping[str, list[Any]]:
    try:
        table = importlib.import_module("pyarrow.parquet").read_table(file)
    except OSError as error:  # damage; what is no Parquet at all is a ValueError
        raise ValueError(str(error)) from error
    columns: dict[str, list[Any]] = table.slice(0, limit).to_pydict()
    return columns


def _by_polars(file: io.BytesIO, limit: int | None) -> Mapping[str, list[Any]]:
    polars = importlib.import_module("polars")
    try:
        frame = polars.read_parquet(file, n_rows=limit)
    except polars.exceptions.PolarsError as error:
        raise ValueError(str(error).splitlines()[0]) from error
    columns: dict[str, list[Any]] = frame.to_dict(as_series=False)
    return columns


def _plain(cell: object, column: str) -> object:
    if isinstance(cell, float):
        return None if math.isnan(cell) else cell
    if isinstance(cell, date | time):
        return cell.isoformat()
    if isinstance(cell, Decimal):
        return float(cell)
    if isinstance(cell, list):
        return [_plain(inner, column) for inner in cell]
    if cell is None or isinstance(cell, bool | int | str):
        return cell
    raise ValueError(
        f"column {column!r} holds {type(cell).__name__} values: numbers, texts, booleans, dates "
        "and lists can be read"
    )


_READERS: Final[Mapping[str, Callable[[io.BytesIO, int | None], Mapping[str, list[Any]]]]] = {
    "pyarrow": _by_pyarrow,
    "polars": _by_polars,
}
