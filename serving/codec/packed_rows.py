"""The inputs of a request as the bytes of their numbers: joined with others before they are arrays.

A run of many small requests needs one array for all of them; one for each request would cost more
than its numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, TypeAlias

import numpy as np

from models.servable import Array


@dataclass(frozen=True, slots=True)
class PackedInput:
    """One input: its name, the type of its numbers, and its shape without the rows.

    ``is_whole``: they come from numbers in JSON, which has none for what is missing.
    """

    name: str
    dtype: np.dtype[Any]
    rest: tuple[int, ...]
    is_whole: bool = False


# The inputs (compared by identity), the rows, and the row-major bytes of each input. A plain tuple:
# one is made for each request.
PackedRows: TypeAlias = tuple[tuple[PackedInput, ...], int, list[bytes | memoryview]]
Inputs: TypeAlias = Mapping[str, Array] | PackedRows
_is_whole: Final = attrgetter("is_whole")


def arrays_of(inputs: Inputs) -> Mapping[str, Array]:
    """Return inputs as arrays by name; those that were packed cannot be written to."""
    return _arrays(*inputs) if isinstance(inputs, tuple) else inputs


def joined(requests: Sequence[Inputs]) -> dict[str, Array] | None:
    """Return the inputs of all requests one after another; None where they are not packed alike."""
    first = requests[0]
    if not isinstance(first, tuple):
        return None
    layout = first[0]
    rows = 0
    columns = []
    for request in requests:
        if not isinstance(request, tuple) or request[0] is not layout:
            return None
        rows += request[1]
        columns.append(request[2])
    parts = columns[0]
    if len(columns) > 1:
        parts = [b"".join(column) for column in zip(*columns, strict=True)]
    return _arrays(layout, rows, parts)


def are_whole(requests: Sequence[Inputs]) -> bool:
    """Return whether requests that ``joined`` takes certainly lack no value."""
    first = requests[0]
    return isinstance(first, tuple) and all(map(_is_whole, first[0]))


def _arrays(
    layout: tuple[PackedInput, ...], rows: int, parts: Sequence[bytes | memoryview]
) -> dict[str, Array]:
    return {
        one.name: np.ndarray((rows, *one.rest), one.dtype, part)
        for one, part in zip(layout, parts, strict=True)
    }
