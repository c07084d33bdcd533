"""Weights on their way to a smaller form: read piece by piece, rounded, written to one file.

Nothing here holds a tensor as a whole, but for its scales.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from models.errors import ConversionRefused
from models.servable import Array
from registry.ident import shown

# Each block of a column has a scale of its own: 4 bytes for 64, and a block may hold an outlier.
BLOCK_ROWS: Final = 64
_PIECE_VALUES: Final = 1 << 21
_ALIGNMENT_BYTES: Final = 64
_LEVELS: Final = np.float32(127)
_ZERO_POINT: Final = 128

Weights = NDArray[np.float32]


class WeightsFile:
    """The file that the tensors of a model are moved to; a context manager."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._folder = path.parent
        # Without a buffer: what waits in one would fail when the file is closed.
        self._file = path.open("wb", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(
        self, name: str, data_type: int, dims: Iterable[int], pieces: Iterable[Array | bytes]
    ) -> onnx.TensorProto:
        """Write the pieces, which fill ``dims`` in order, and return the tensor that names them."""
        self._write(bytes(-self._file.tell() % _ALIGNMENT_BYTES))
        offset = self._file.tell()
        for piece in pieces:
            self._write(piece if isinstance(piece, bytes) else np.ascontiguousarray(piece).data)
        tensor = TensorProto(
            name=name, data_type=data_type, dims=dims, data_location=TensorProto.EXTERNAL
        )
        length = self._file.tell() - offset
        fields = {"location": self._name, "offset": str(offset), "length": str(length)}
        for key, value in fields.items():
            tensor.external_data.add(key=key, value=value)
        return tensor

    def _write(self, data: bytes | memoryview) -> None:
        left = memoryview(data).cast("B")
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ConversionRefused(
                f"no room in {self._folder} for the smaller weights: set TMPDIR to a folder on "
                "another disk, or free some space"
            ) from error


def halves(weights: Weights, name: str) -> Iterator[Array]:
    """Yield the weights as float16; raises ConversionRefused where one has no place in it."""
    for piece in _pieces(weights.reshape(-1, weights.shape[-1])):
        with np.errstate(over="ignore"):
            half = piece.astype(np.float16)
        if not np.isfinite(half).all():
            raise ConversionRefused(
                f"weights {shown(name)}: a value is not finite, or too large for fp16 (65504): "
                "use --quantize int8-weights"
            )
        yield half


def row_scales(weights: Weights, name: str) -> Weights:
    """Return ``(rows, 1)``: what one step of int8 is worth in each row."""
    scales = np.empty((len(weights), 1), dtype=np.float32)
    start = 0
    for piece in _pieces(weights):
        scales[start : start + len(piece)] = np.abs(piece).max(axis=1, keepdims=True)
        start += len(piece)
    return _steps(scales, name)


def column_scales(weights: Weights, name: str) -> Weights:
    """Return ``(columns,)``: what one step of int8 is worth in each column."""
    largest = np.zeros(weights.shape[1], dtype=np.float32)
    for piece in _pieces(weights):
        np.maximum(largest, np.abs(piece).max(axis=0), out=largest)
    return _steps(largest, name)


def as_int8(weights: Weights, scales: Weights) -> Iterator[Array]:
    """Yield the weights as int8, piece by piece; scales are ``(rows, 1)`` or ``(columns,)``."""
    start = 0
    for piece in _pieces(weights):
        step = scales if scales.ndim == 1 else scales[start : start + len(piece)]
        yield np.rint(piece / step).astype(np.int8)
        start += len(piece)


def block_scales(weights: Weights, name: str) -> Weights:
    """Return ``(columns, blocks)``: the step of each BLOCK_ROWS rows of each column."""
    parts = [np.abs(blocks).max(axis=2) for blocks in _column_blocks(weights)]
    return _steps(np.concatenate(parts), name)


def as_blocks(weights: Weights, scales: Weights) -> Iterator[Array]:
    """Yield ``(columns, blocks, BLOCK_ROWS) uint8`` around 128, some columns at a time."""
    start = 0
    for blocks in _column_blocks(weights):
        steps = scales[start : start + len(blocks), :, None]
        yield (np.rint(blocks / steps) + _ZERO_POINT).astype(np.uint8)
        start += len(blocks)


def blocks_of(rows: int) -> int:
    """Return how many blocks a column of ``rows`` has; the last one is filled up with zeros."""
    return math.ceil(rows / BLOCK_ROWS)


def _column_blocks(weights: Weights) -> Iterator[Weights]:
    rows, columns = weights.shape
    blocks = blocks_of(rows)
    count = max(1, _PIECE_VALUES // rows)
    for start in range(0, columns, count):
        piece = weights[:, start : start + count].T
        padded = np.zeros((len(piece), blocks * BLOCK_ROWS), dtype=np.float32)
        padded[:, :rows] = piece
        yield padded.reshape(len(piece), blocks, BLOCK_ROWS)


def _pieces(weights: Weights) -> Iterator[Weights]:
    count = max(1, _PIECE_VALUES // max(1, weights.shape[1]))
    for start in range(0, len(weights), count):
        yield weights[start : start + count]


def _steps(largest: Weights, name: str) -> Weights:
    if not np.isfinite(largest).all():
        raise ConversionRefused(f"weights {shown(name)}: a value is NaN or infinite")
    # Where all are zero any step will do; one so small that it vanishes would divide by zero.
    steps: Weights = np.maximum(largest / _LEVELS, np.finfo(np.float32).tiny)
    return steps
