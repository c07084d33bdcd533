"""Tensors of strings, which lie one by one in the runtime's own memory: all in a few calls."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Sequence
from ctypes import c_char_p, c_int64, c_size_t, c_void_p
from typing import Final

import numpy as np

from models.runtime.ort_library import OrtLibrary, list_of
from models.servable import Array

STRING: Final = 8
# What a text may take that is kept: the object, and four bytes a character with room to grow.
KEPT_TEXT_BYTES: Final = 32 + 2 * 4 * 64
_MOST_CHARACTERS: Final = 64
# Above it, preparing arrays pays.
_FEW: Final = 32
_END: Final = "\0"
# A thread keeps no more than this for reading; longer texts get memory of their own.
_SCRATCH_BYTES: Final = 16 * 1024
_SCRATCH_TEXTS: Final = 1024


def fill_texts(library: OrtLibrary, tensor: c_void_p, texts: Sequence[str]) -> None:
    """Copy one text or more into a tensor of as many. Raises OrtError, UnicodeEncodeError."""
    joined = _END.join(texts)
    if joined.count(_END) >= len(texts):
        _fill_singly(library, tensor, texts)
        return
    if len(texts) <= _FEW:
        places = list_of(c_char_p, len(texts))(*[text.encode() for text in texts])
        library.call("FillStringTensor", tensor, places, len(texts))
        return
    data = np.frombuffer((joined + _END).encode(), np.uint8)
    starts = np.empty(len(texts), np.uint64)
    starts[0] = 0
    starts[1:] = np.flatnonzero(data == 0)[:-1] + 1
    starts += np.uint64(_address(data))
    library.call("FillStringTensor", tensor, _address(starts), len(texts))


def empty_texts(library: OrtLibrary, shape: tuple[int, ...]) -> c_void_p:
    """Return a new tensor of empty texts. Raises OrtError."""
    sizes = list_of(c_int64, len(shape))(*shape)
    return library.made("CreateTensorAsOrtValue", library.allocator, sizes, len(shape), STRING)


class KeptTexts:
    """A tensor of texts that is filled again and again, by assigning to all of it as to an array.

    Texts stay in it until the next ones come, so it takes none that are long.
    """

    def __init__(self, library: OrtLibrary, shape: tuple[int, ...]) -> None:
        self._library = library
        self.value = empty_texts(library, shape)

    def __setitem__(self, _: object, array: Array) -> None:
        """Copy texts in; raises TextTooLong, OrtError."""
        texts = array.ravel().tolist()
        if not texts:
            return
        if max(map(len, texts)) > _MOST_CHARACTERS:
            raise TextTooLong
        fill_texts(self._library, self.value, texts)


class TextTooLong(Exception):
    """A text would take more memory than one that is kept may."""


def _fill_singly(library: OrtLibrary, tensor: c_void_p, texts: Sequence[str]) -> None:
    """As fill_texts, where a text has a NUL, which ends it for the function for many."""
    place = c_void_p()
    for index, text in enumerate(texts):
        data = text.encode()
        library.call(
            "GetResizedStringTensorElementBuffer", tensor, index, len(data), ctypes.byref(place)
        )
        if data:
            ctypes.memmove(place, data, len(data))


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class _Scratch(threading.local):
    """Memory of one thread that texts are read into: an address costs more than what is at it."""

    def __init__(self) -> None:
        self.length = c_size_t()
        self.length_at = ctypes.addressof(self.length)
        self.data = np.empty(_SCRATCH_BYTES, np.uint8)
        self.data_at = _address(self.data)
        self.starts = np.empty(_SCRATCH_TEXTS, np.uint64)
        self.starts_at = _address(self.starts)


_scratch: Final = _Scratch()


def read_texts(library: OrtLibrary, tensor: int, shape: tuple[int, ...]) -> Array:
    """Return the texts of a tensor. Raises OrtError, UnicodeDecodeError."""
    texts = np.empty(shape, dtype=object)
    count, scratch = texts.size, _scratch
    if not count:
        return texts
    if status := library.texts_length(tensor, scratch.length_at):
        raise library.error(status)
    size = scratch.length.value
    data, data_at = scratch.data, scratch.data_at
    if size > _SCRATCH_BYTES:
        data = np.empty(size, np.uint8)
        data_at = _address(data)
    starts, starts_at = scratch.starts, scratch.starts_at
    if count > _SCRATCH_TEXTS:
        starts = np.empty(count, np.uint64)
        starts_at = _address(starts)
    if status := library.texts_content(tensor, data_at, size, starts_at, count):
        raise library.error(status)
    joined = data[:size].tobytes()
    ends = starts[:count].tolist()
    ends.append(size)
    if joined.isascii():
        # Bytes are characters: they are decoded once, and cut where they lie.
        text = joined.decode("ascii")
        found = [text[start:end] for start, end in itertools.pairwise(ends)]
    else:
        found = [joined[start:end].decode() for start, end in itertools.pairwise(ends)]
    texts.reshape(-1)[:] = found
    return texts
