"""Answers that are kept: the same numbers to the same version are not computed twice.

Off unless the setting ``response_cache_bytes`` gives it room. One for a worker, bounded by bytes,
the least recently used goes first; what a version left goes with the version.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
from cachetools import LRUCache

from models.servable import Array
from serving.fleet import VersionKey

Key: TypeAlias = tuple[VersionKey, bytes]
_LENGTH: Final = struct.Struct("<Q")
# What an entry takes beside its numbers: key, list, array objects, links.
_ENTRY_BYTES: Final = 512


class ResponseCache:
    """The outputs of all versions of a worker by what was asked. Event-loop thread only."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: LRUCache[Key, tuple[Array, ...]] = LRUCache(max_bytes, getsizeof=_size_bytes)

    @property
    def held_bytes(self) -> int:
        """What the entries take."""
        return int(self._entries.currsize)

    def get(self, key: Key) -> tuple[Array, ...] | None:
        """Return the outputs that were kept under ``key``."""
        return self._entries.get(key)

    def put(self, key: Key, arrays: Sequence[Array]) -> None:
        """Keep outputs, unless they alone would take more than all may."""
        # Copies: outputs are views into those of the whole batch, which must not be kept by one.
        kept = tuple(np.array(array) for array in arrays)
        if _size_bytes(kept) <= self._max_bytes:
            self._entries[key] = kept

    def forget(self, version: VersionKey) -> None:
        """Drop what a version answered."""
        for key in [key for key in self._entries if key[0] == version]:
            del self._entries[key]


def key_of(
    version: VersionKey, digest: str, inputs: Mapping[str, Array], outputs: Sequence[str] | None
) -> Key:
    """Return the key of a request: everything that its outputs can depend on.

    Each part is written with its length, so that no two requests read the same.
    """
    hasher = hashlib.blake2b(digest.encode("ascii"), digest_size=32)
    for name in outputs or ():
        _add(hasher, name.encode())
    _add(hasher, b"inputs" if outputs is None else b"outputs, inputs")
    for name in sorted(inputs):
        array = inputs[name]
        _add(hasher, f"{name} {array.dtype.str} {array.shape}".encode("utf-8", "surrogatepass"))
        if array.dtype.hasobject:
            for item in array.ravel().tolist():
                is_text = isinstance(item, str)
                raw = item.encode("utf-8", "surrogatepass") if is_text else item
                _add(hasher, raw)
                hasher.update(b"s" if is_text else b"b")
        else:
            _add(hasher, np.ascontiguousarray(array).tobytes())
    return version, hasher.digest()


def _add(hasher: hashlib.blake2b, part: bytes) -> None:
    hasher.update(_LENGTH.pack(len(part)))
    hasher.update(part)


def _size_bytes(arrays: Sequence[Array]) -> int:
    size_bytes = _ENTRY_BYTES
    for array in arrays:
        size_bytes += array.nbytes
        if array.dtype.hasobject:
            # 49 bytes of head for each text, up to four for each character.
            size_bytes += sum(64 + 4 * len(item) for item in array.ravel().tolist())
    return size_bytes
