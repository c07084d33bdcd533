"""External data of an ONNX file: read only from plain files beneath the model's own folder.

A file that somebody hands over may name any path as the place of a tensor. Following it would put
the pusher's secrets into a model that answers with them, so every step is opened without following
links, and whatever is odd is refused rather than guessed at.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
import onnx
from numpy.typing import NDArray

from models.convert.skim import SELF_LOCATION
from models.errors import ConversionRefused
from models.graph_walk import tensor_bytes
from models.package import CHUNK_BYTES, FileSlice
from registry.ident import shown

_KEYS: Final = frozenset({"location", "offset", "length", "checksum"})
_NUMBER: Final = re.compile("[0-9]{1,19}")
_MAX_LOCATION: Final = 1024


@dataclass(frozen=True, slots=True)
class _File:
    descriptor: int
    path: Path
    size_bytes: int


class ExternalFolder:
    """The folder of a model file; a context manager that holds the files it opened."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._folder = model.parent
        self._files: dict[str, _File] = {}
        self._slices: dict[tuple[str, int, int], str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            os.close(file.descriptor)
        self._files.clear()

    def slice_of(self, tensor: onnx.TensorProto, where: str) -> FileSlice:
        """Return the bytes of an external tensor, hashed as they lie in the file."""
        file, offset, size = self._locate(tensor, where)
        hasher = hashlib.sha256()
        for chunk in _chunks(file, offset, size, where):
            hasher.update(chunk)
        return FileSlice(file.path, offset, size, "sha256:" + hasher.hexdigest())

    def read(self, tensor: onnx.TensorProto, where: str) -> bytes:
        """Return the bytes of a small external tensor."""
        return b"".join(_chunks(*self._locate(tensor, where), where))

    def pieces(self, tensor: onnx.TensorProto, where: str) -> Iterator[bytes]:
        """Yield the bytes of an external tensor, never all of them at once."""
        return _chunks(*self._locate(tensor, where), where)

    def array(self, tensor: onnx.TensorProto, where: str) -> NDArray[np.float32]:
        """Return a float32 tensor as a view of its file: it takes no memory of its own."""
        file, offset, size = self._locate(tensor, where)
        if not size:
            return np.zeros(tensor.dims, dtype=np.float32)
        mapped = mmap.mmap(file.descriptor, file.size_bytes, access=mmap.ACCESS_READ)
        flat = np.frombuffer(mapped, dtype="<f4", count=size // 4, offset=offset)
        return flat.reshape(tensor.dims).astype(np.float32, copy=False)

    def check_overlap(self) -> None:
        """Refuse files whose tensors share some of their bytes; sharing all of them is reuse."""
        end, location, before = 0, "", ""
        for (name, offset, size), where in sorted(self._slices.items()):
            if name == location and offset < end:
                raise ConversionRefused(f"{where}: its external data overlaps that of {before}")
            end, location, before = offset + size, name, where

    def _locate(self, tensor: onnx.TensorProto, where: str) -> tuple[_File, int, int]:
        fields = _fields(tensor, where)
        location = fields.get("location")
        is_own = location == SELF_LOCATION
        file = self._open_own() if is_own else self._open(_parts(location, where), where)
        expected = tensor_bytes(tensor, where, ConversionRefused)
        offset = _number(fields.get("offset", "0"), f"{where}: external offset")
        length = _number(
            fields.get("length", str(max(file.size_bytes - offset, 0))), f"{where}: external length"
        )
        if is_own and length != expected:
            raise ConversionRefused(f"{where}: has {length} bytes, its shape needs {expected}")
        if length != expected:
            raise ConversionRefused(
                f"{where}: external length {length} disagrees with its shape, "
                f"which needs {expected} bytes"
            )
        if offset + length > file.size_bytes:
            raise ConversionRefused(
                f"{where}: external data ends at byte {offset + length}, but "
                f"{shown(file.path.name)} has {file.size_bytes}"
            )
        if length:
            self._slices.setdefault((str(file.path), offset, length), where)
        return file, offset, length

    def _open_own(self) -> _File:
        if SELF_LOCATION not in self._files:
            # The user named this file, so links to it are followed.
            descriptor = os.open(self._model, os.O_RDONLY | os.O_CLOEXEC)
            size = os.fstat(descriptor).st_size
            self._files[SELF_LOCATION] = _File(descriptor, self._model, size)
        return self._files[SELF_LOCATION]

    def _open(self, parts: tuple[str, ...], where: str) -> _File:
        location = "/".join(parts)
        if location not in self._files:
            descriptor = _open_beneath(self._folder, parts, where)
            size = os.fstat(descriptor).st_size
            self._files[location] = _File(descriptor, self._folder.joinpath(*parts), size)
        return self._files[location]


def _fields(tensor: onnx.TensorProto, where: str) -> dict[str, str]:
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        raise ConversionRefused(f"{where}: external data on a tensor that is not external")
    if tensor.HasField("raw_data"):
        raise ConversionRefused(f"{where}: has both external data and data of its own")
    fields: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key not in _KEYS:
            raise ConversionRefused(f"{where}: unknown external data key {shown(entry.key)}")
        if entry.key in fields:
            raise ConversionRefused(f"{where}: external data key {shown(entry.key)} stands twice")
        fields[entry.key] = entry.value
    return fields


def _parts(location: str | None, where: str) -> tuple[str, ...]:
    if not location:
        raise ConversionRefused(f"{where}: external data without a location")
    parts = tuple(part for part in location.split("/") if part not in ("", "."))
    if (
        location.startswith("/")
        or ".." in parts
        or not parts
        or "\0" in location
        or "\\" in location
        or len(location) > _MAX_LOCATION
    ):
        raise ConversionRefused(
            f"{where}: external location {shown(location)} leaves the folder of the model: "
            "use a plain file beside it"
        )
    return parts


def _number(text: str, what: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > 2**63 - 1:
        raise ConversionRefused(f"{what} {shown(text)} is not a number from 0 to 2^63-1")
    return int(text)


def _open_beneath(folder: Path, parts: tuple[str, ...], where: str) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    location = "/".join(parts)
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for index, part in enumerate(parts):
            # O_NONBLOCK: opening a FIFO would wait for its writer.
            last = index == len(parts) - 1
            step = flags | (os.O_NONBLOCK if last else os.O_DIRECTORY)
            above = descriptor
            try:
                descriptor = os.open(part, step, dir_fd=above)
            finally:
                os.close(above)
    except FileNotFoundError:
        raise ConversionRefused(
            f"{where}: its external data file {shown(location)} is not beside the model"
        ) from None
    except OSError as error:
        raise ConversionRefused(
            f"{where}: external data file {shown(location)} cannot be opened as a plain file "
            f"({os.strerror(error.errno or 0)}); links are not followed: copy the file in place"
        ) from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise ConversionRefused(
            f"{where}: external data file {shown(location)} is not a plain file with one name; "
            "links are not followed: copy the file in place"
        )
    return descriptor


def _chunks(file: _File, offset: int, size_bytes: int, where: str) -> Iterator[bytes]:
    end = offset + size_bytes
    while offset < end:
        chunk = os.pread(file.descriptor, min(CHUNK_BYTES, end - offset), offset)
        if not chunk:
            raise ConversionRefused(f"{where}: {shown(file.path.name)} shrank while it was read")
        offset += len(chunk)
        yield chunk
