"""Request bodies of the Open Inference Protocol V2, as JSON and as binary, written to files."""

from __future__ import annotations

import csv
import itertools
import json
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

Datatype: TypeAlias = Literal["FP32", "INT64"]

_SEED: Final = 7
_FORMAT: Final[dict[Datatype, str]] = {"FP32": "f", "INT64": "q"}
_USERS: Final = 5000
_ROWS_A_MIB: Final = 4096
_WORDS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input: its values row by row."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: Sequence[float] | Sequence[int]


def as_json(tensors: Sequence[Tensor]) -> bytes:
    """Return the body with the values as JSON numbers."""
    inputs = [
        {"name": t.name, "shape": list(t.shape), "datatype": t.datatype, "data": list(t.data)}
        for t in tensors
    ]
    return json.dumps({"inputs": inputs}, separators=(",", ":")).encode()


def as_binary(tensors: Sequence[Tensor]) -> tuple[bytes, str]:
    """Return the body with the values as bytes behind its JSON head, and the header for it."""
    blobs = [struct.pack(f"<{len(t.data)}{_FORMAT[t.datatype]}", *t.data) for t in tensors]
    inputs = [
        {"name": t.name, "shape": list(t.shape), "datatype": t.datatype,
         "parameters": {"binary_data_size": len(blob)}}
        for t, blob in zip(tensors, blobs, strict=True)
    ]  # fmt: skip
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return head + b"".join(blobs), f"Inference-Header-Content-Length: {len(head)}"


def table_rows(sample: Path, rows: int) -> list[Tensor]:
    """Return the first rows of a CSV of numbers as one matrix, over again if it has fewer."""
    with sample.open(newline="", encoding="utf-8") as file:
        table = [[float(cell) for cell in row] for row in itertools.islice(csv.reader(file), 1, 65)]
    values = [value for row in itertools.islice(itertools.cycle(table), rows) for value in row]
    return [Tensor("input", "FP32", (rows, len(table[0])), values)]


def pairs(mib: int, rows: int) -> list[Tensor]:
    """Return users and items for the recommender over a table of ``mib`` MiB."""
    source = random.Random(_SEED)
    users = [source.randrange(_USERS) for _ in range(rows)]
    items = [source.randrange(mib * _ROWS_A_MIB) for _ in range(rows)]
    return [Tensor("user", "INT64", (rows,), users), Tensor("item", "INT64", (rows,), items)]


def tokens(length: int) -> list[Tensor]:
    """Return one text of ``length`` tokens for the encoder."""
    source = random.Random(_SEED)
    words = [source.randrange(_WORDS) for _ in range(length)]
    return [
        Tensor("input_ids", "INT64", (1, length), words),
        Tensor("attention_mask", "INT64", (1, length), [1] * length),
    ]
