"""Values for a model's inputs, made up from its metadata: names, datatypes, shapes, categories.

Metadata says what a model takes and not what it makes of it: a graph may want short sequences, or
indices that exist in its table. So values come in styles, to be tried until one is answered.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Value: TypeAlias = bool | int | float | str

# Sizes tried for open dimensions behind the rows: sequence lengths, then image sides.
_SIZES: Final = (8, 1, 2, 3, 4, 16, 32, 64, 224)
_VALUES: Final = ("varied", "binary", "ones", "zeros")
_INTEGERS_BELOW: Final = 8
_MOST_ELEMENTS: Final = 8_000_000


class NotMadeUp(Exception):
    """No request can be made for a model; the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One tensor as the metadata describes it; -1 in ``shape`` is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    columns: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    @property
    def has_rows(self) -> bool:
        """Whether its first dimension is the rows."""
        return bool(self.shape) and self.shape[0] == -1


@dataclass(frozen=True, slots=True)
class Style:
    """How inputs are filled. ``size`` stands in for every open dimension but the rows."""

    values: str
    size: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input with its values, row by row."""

    spec: Spec
    shape: tuple[int, ...]
    data: Sequence[Value]


def specs(metadata: Mapping[str, Any], side: str) -> list[Spec]:
    """Return the ``inputs`` or ``outputs`` of a model's V2 metadata; raises NotMadeUp."""
    try:
        return [
            Spec(
                str(item["name"]), str(item["datatype"]), tuple(map(int, item["shape"])),
                tuple(item.get("columns") or ()), tuple(item.get("categories") or ()),
            )
            for item in metadata[side]
        ]  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotMadeUp(f"metadata without readable {side}: is this a V2 server?") from error


def styles(inputs: Sequence[Spec]) -> list[Style]:
    """Return the styles to try, the most telling first."""
    has_open = any(-1 in spec.shape[1:] for spec in inputs)
    sizes = _SIZES if has_open else _SIZES[:1]
    return [Style(values, size) for size, values in itertools.product(sizes, _VALUES)]


def tensors(inputs: Sequence[Spec], style: Style, rows: int, seed: int) -> list[Tensor]:
    """Return values for all inputs; the same ``seed`` gives the same ones.

    Raises NotMadeUp for shapes that no request could carry.
    """
    source = random.Random(seed)
    return [_tensor(spec, style, rows, source) for spec in inputs]


def _tensor(spec: Spec, style: Style, rows: int, source: random.Random) -> Tensor:
    shape = tuple(style.size if size == -1 else size for size in spec.shape)
    if spec.has_rows:
        shape = (rows, *shape[1:])
    count = math.prod(shape)
    if count > _MOST_ELEMENTS:
        raise NotMadeUp(
            f"input {spec.name!r}: {count} values a request are too many to make up, at most "
            f"{_MOST_ELEMENTS}: ask for fewer rows, or give a request of your own"
        )
    return Tensor(spec, shape, [_value(spec, style.values, source) for _ in range(count)])


def _value(spec: Spec, values: str, source: random.Random) -> Value:
    datatype = spec.datatype
    if datatype == "BYTES":
        return source.choice(spec.categories) if spec.categories else _text(values, source)
    if values in ("ones", "zeros"):
        number = int(values == "ones")
    elif values == "binary" or datatype == "BOOL":
        number = source.randrange(2)
    elif datatype.startswith("FP"):
        # Three digits: what a client sends of a measured number, and exact enough in FP16.
        return round(source.uniform(-1.0, 1.0), 3)
    else:
        number = source.randrange(_INTEGERS_BELOW)
    if datatype == "BOOL":
        return bool(number)
    return float(number) if datatype.startswith("FP") else number


def _text(values: str, source: random.Random) -> str:
    return "text" if values in ("ones", "zeros") else f"text {source.randrange(_INTEGERS_BELOW)}"
