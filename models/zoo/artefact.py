"""One model of the zoo as files on disk: what to push, and how to try it."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.parity import jsonable
from models.servable import Array
from registry.manifest import Json, JsonObject


@dataclass(frozen=True, slots=True)
class Artefact:
    """A trained model.

    ``sample``: rows for ``ramrack push --sample``. ``next_path``: a second version of it.
    ``example_request``: body of a V1 predict request; ``expected``: for each output, what the
    native library answers to it.
    """

    name: str
    path: Path
    format: str
    sample: Path | None
    next_path: Path | None
    example_request: JsonObject
    expected: JsonObject

    def to_json(self) -> JsonObject:
        """Return the entry for the index."""
        return {
            "path": str(self.path),
            "format": self.format,
            "sample": str(self.sample) if self.sample is not None else None,
            "next_path": str(self.next_path) if self.next_path is not None else None,
            "example_request": {
                "method": "POST",
                "path": f"/v1/models/{self.name}:predict",
                "body": self.example_request,
            },
            "expected": self.expected,
        }


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    """Write a table with a header; missing cells are empty."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in rows:
            writer.writerow(["" if _is_missing(cell) else cell for cell in row])
    return path


def named_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> JsonObject:
    """Return a V1 body with rows by column name; missing cells are null."""
    instances: list[Json] = [
        {
            name: None if _is_missing(cell) else jsonable(cell)
            for name, cell in zip(columns, row, strict=True)
        }
        for row in rows
    ]
    return {"instances": instances}


def listed_rows(rows: Array) -> JsonObject:
    """Return a V1 body with rows as plain lists."""
    return {"instances": jsonable(rows)}


def answers(outputs: Mapping[str, Array]) -> JsonObject:
    """Return what a native model answered, as JSON."""
    return {name: jsonable(np.asarray(values)) for name, values in outputs.items()}


def _is_missing(cell: object) -> bool:
    return cell is None or (isinstance(cell, float) and cell != cell)
