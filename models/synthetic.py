"""Inputs made up from a signature, to try a version before anybody sends a real one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from models.errors import InputRefused, ModelsError, RunFailed
from models.servable import Array, numpy_dtype
from models.signature import Signature, TensorSpec

Run: TypeAlias = Callable[[Mapping[str, Array], Sequence[str] | None], list[Array]]

# Rows of one style are the same whatever the number of rows asked for.
MAX_ROWS: Final = 32
_STYLES: Final = ("varied", "binary", "ones", "zeros")
# Sizes tried for open dimensions behind the rows: sequence lengths, then image sides.
_SIZES: Final = (8, 1, 2, 3, 4, 16, 32, 64, 224)


@dataclass(frozen=True, slots=True)
class Style:
    """One way to fill inputs. ``size`` stands in for every open dimension but the rows."""

    values: str
    size: int


def styles(signature: Signature) -> tuple[Style, ...]:
    """Return the styles to try, the most telling first."""
    has_open = any(-1 in spec.shape[1:] for spec in signature.inputs)
    sizes = _SIZES if has_open else _SIZES[:1]
    return tuple(Style(values, size) for size, values in itertools.product(sizes, _STYLES))


def make_inputs(signature: Signature, style: Style, rows: int) -> dict[str, Array]:
    """Return inputs of ``rows`` rows (at most MAX_ROWS), the same each time."""
    return {spec.name: _make(spec, style, rows, seed) for seed, spec in enumerate(signature.inputs)}


def first_inputs(run: Run, signature: Signature, rows: int = 1) -> tuple[Style, list[Array]]:
    """Return the first style that ``run`` accepts and what it answered, or raise its last error."""
    failure: ModelsError = RunFailed("it has no inputs to try")
    for style in styles(signature):
        try:
            return style, run(make_inputs(signature, style, rows), None)
        except (InputRefused, RunFailed) as error:
            failure = error
    raise failure


def _make(spec: TensorSpec, style: Style, rows: int, seed: int) -> Array:
    shape = tuple(style.size if size == -1 else size for size in spec.shape[1:])
    if not spec.shape or spec.shape[0] != -1:
        whole = (*spec.shape[:1], *shape)
        return _fill(spec, style.values, whole, seed)
    # The generators fill in order, so fewer rows are the first of more; making all of them each
    # time left the scratch of 32 images in the heap of a thread, where no trim reaches it.
    return _fill(spec, style.values, (rows, *shape), seed)


def _fill(spec: TensorSpec, values: str, shape: tuple[int, ...], seed: int) -> Array:
    dtype = numpy_dtype(spec.datatype)
    if spec.datatype == "BYTES":
        return _texts(spec, values, shape)
    if values == "ones":
        return np.ones(shape, dtype)
    if values == "zeros":
        return np.zeros(shape, dtype)
    random = np.random.default_rng(seed)
    if values == "binary" or dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    if dtype.kind == "f":
        return random.uniform(-1.0, 1.0, shape).astype(dtype)
    return random.integers(0, 8, shape).astype(dtype)


def _texts(spec: TensorSpec, values: str, shape: tuple[int, ...]) -> Array:
    known: tuple[str, ...] = spec.categories or ("a", "b", "c")
    if values != "varied":
        known = {"binary": ("0", "1"), "ones": ("1",), "zeros": ("0",)}[values]
    count = int(np.prod(shape, dtype=np.int64))
    texts = np.empty(count, dtype=object)
    texts[:] = list(itertools.islice(itertools.cycle(known), count))
    return texts.reshape(shape)
