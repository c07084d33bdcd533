"""Bodies of DataFrames as MLflow's clients send them, turned into rows.

``{"dataframe_records": [{column: value}, ...]}`` is rows by name. ``{"dataframe_split":
{"columns": [...], "data": [[...], ...]}}`` says the names once; an ``index`` is ignored, for no
model sees it. Columns without names (0, 1, ...) are taken in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from registry.errors import InvalidInput
from registry.ident import shown
from serving.codec.parse import kind_of

RECORDS: Final = "dataframe_records"
SPLIT: Final = "dataframe_split"
_SPLIT_KEYS: Final = frozenset({"columns", "data", "index"})


def field_of(document: Mapping[str, Any]) -> str:
    """Return the field that holds a DataFrame, or "" where the body has none."""
    found = [name for name in (RECORDS, SPLIT) if name in document]
    if len(found) == 2 or (found and ("instances" in document or "inputs" in document)):
        raise InvalidInput(
            f'body: exactly one of "{RECORDS}", "{SPLIT}", "instances" and "inputs" is needed'
        )
    return found[0] if found else ""


def rows_of(document: Mapping[str, Any], field: str) -> list[Any]:
    """Return the rows of a DataFrame: objects by column name, or lists where it has no names."""
    value = document[field]
    if field == RECORDS:
        if type(value) is not list:
            raise InvalidInput(f"{field}: expected a list of rows, got {kind_of(value)}")
        for index, row in enumerate(value):
            if type(row) is not dict:
                raise InvalidInput(f"{field}[{index}]: expected an object, got {kind_of(row)}")
        return list(value)
    return _split(value)


@contextmanager
def named(field: str) -> Iterator[None]:
    """Let errors about rows name the field in which the caller sent them."""
    try:
        yield
    except InvalidInput as error:
        text = str(error)
        if not field or not text.startswith("instances"):
            raise
        raise InvalidInput(field + text.removeprefix("instances")) from None


def _split(value: Any) -> list[Any]:
    if type(value) is not dict:
        raise InvalidInput(f"{SPLIT}: expected an object, got {kind_of(value)}")
    for name in ("columns", "data"):
        if type(value.get(name)) is not list:
            raise InvalidInput(f"{SPLIT}.{name}: expected a list, got {kind_of(value.get(name))}")
    for name in value:
        if name not in _SPLIT_KEYS:
            raise InvalidInput(f"{SPLIT}: unknown field {shown(name)}")
    columns, data = value["columns"], value["data"]
    for index, row in enumerate(data):
        if type(row) is not list or len(row) != len(columns):
            found = f"{len(row)} values" if type(row) is list else kind_of(row)
            raise InvalidInput(f"{SPLIT}.data[{index}]: {found} under {len(columns)} columns")
    if columns == list(range(len(columns))) and not any(type(n) is bool for n in columns):
        return list(data)
    _check_names(columns)
    return [dict(zip(columns, row, strict=True)) for row in data]


def _check_names(columns: list[Any]) -> None:
    seen = set()
    for index, name in enumerate(columns):
        if type(name) is not str:
            raise InvalidInput(f"{SPLIT}.columns[{index}]: expected a name, got {kind_of(name)}")
        if name in seen:
            raise InvalidInput(f"{SPLIT}.columns: the name {shown(name)} stands twice")
        seen.add(name)
