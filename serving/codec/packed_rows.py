"""The inputs of a request as the bytes of their numbers: joined with others before they are arrays.

A run of many small requests needs one array for all of them; one for each request would cost more
than its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.servable import Array


@dataclass(frozen=True, slots=True)
class PackedInput:
    """One input: its name, the type of its numbers, and its shape without the rows."""

    name: str
    dtype: np.dtype[Any]
    rest: tuple[int, ...]


class PackedRows(Mapping[str, Array]):
    """Inputs by name, as the signature wants them; arrays are made when they are asked for.

    ``parts``: the row-major bytes of each input of ``layout``, which is compared by identity.
    """

    __slots__ = ("_arrays", "layout", "parts", "rows")

    def __init__(
        self, layout: tuple[PackedInput, ...], rows: int, parts: Sequence[bytes]
    ) -> None:
        self.layout = layout
        self.rows = rows
        self.parts = parts
        self._arrays: dict[str, Array] | None = None

    def arrays(self) -> dict[str, Array]:
        """Return the inputs, which cannot be written to."""
        if self._arrays is None:
            self._arrays = _arrays(self.layout, self.rows, self.parts)
        return self._arrays

    def __getitem__(self, name: str) -> Array:
        return self.arrays()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays())

    def __len__(self) -> int:
        return len(self.layout)


def joined(requests: Sequence[Mapping[str, Array]]) -> dict[str, Array] | None:
    """Return the inputs of all requests one after another; None where they are not packed alike."""
    first = requests[0]
    if type(first) is not PackedRows:
        return None
    layout = first.layout
    columns = []
    rows = 0
    for request in requests:
        if type(request) is not PackedRows or request.layout is not layout:
            return None
        rows += request.rows
        columns.append(request.parts)
    return _arrays(layout, rows, [b"".join(column) for column in zip(*columns, strict=True)])


def _arrays(layout: tuple[PackedInput, ...], rows: int, parts: Sequence[bytes]) -> dict[str, Array]:
    return {
        one.name: np.ndarray((rows, *one.rest), one.dtype, part)
        for one, part in zip(layout, parts, strict=True)
    }
