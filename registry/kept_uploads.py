"""Uploads whose sender went away: kept for a while for whoever goes on with them.

They are of this process: a store that is opened again has none. Each has one owner at any time, the
request that writes to it or this, so that two senders of one object never write to one file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from registry.uploads import Upload

KEPT_S: Final = 15 * 60.0
# Two of the largest objects that are usual; also so many open files.
KEPT_BYTES: Final = 8 << 30
KEPT_UPLOADS: Final = 16


@dataclass(frozen=True, slots=True)
class _Kept:
    upload: Upload
    until_s: float


class KeptUploads:
    """At most ``KEPT_UPLOADS`` with ``KEPT_BYTES`` in all, each for ``KEPT_S``. Thread-safe."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        # The oldest first.
        self._kept: dict[str, _Kept] = {}

    def keep(self, upload: Upload) -> None:
        """Take an upload over. Of two of one object the longer one stays, of all the newer ones."""
        given_up = []
        with self._lock:
            former = self._kept.get(upload.digest)
            if former is not None and former.upload.written_bytes >= upload.written_bytes:
                given_up.append(upload)
            else:
                if former is not None:
                    del self._kept[upload.digest]
                    given_up.append(former.upload)
                self._kept[upload.digest] = _Kept(upload, self._monotonic_s() + KEPT_S)
            while self._is_too_much():
                given_up.append(self._kept.pop(next(iter(self._kept))).upload)
        _abort(given_up)

    def take(self, digest: str) -> Upload | None:
        """Return the upload of an object, the caller's from now on; None where there is none."""
        with self._lock:
            found = self._kept.pop(digest, None)
        return found.upload if found is not None else None

    def offset(self, digest: str) -> int:
        """Return how many bytes of an object are kept."""
        with self._lock:
            found = self._kept.get(digest)
        return found.upload.written_bytes if found is not None else 0

    def drop_old(self) -> bool:
        """Give up what was kept long enough; return whether any is kept on."""
        now_s = self._monotonic_s()
        with self._lock:
            old = [digest for digest, kept in self._kept.items() if kept.until_s <= now_s]
            given_up = [self._kept.pop(digest).upload for digest in old]
            is_any_left = bool(self._kept)
        _abort(given_up)
        return is_any_left

    def drop_all(self) -> bool:
        """Give all of them up, for the room that they take; return whether there were any."""
        with self._lock:
            given_up = [kept.upload for kept in self._kept.values()]
            self._kept.clear()
        _abort(given_up)
        return bool(given_up)

    def _is_too_much(self) -> bool:
        total_bytes = sum(kept.upload.written_bytes for kept in self._kept.values())
        return len(self._kept) > KEPT_UPLOADS or total_bytes > KEPT_BYTES


def _abort(uploads: list[Upload]) -> None:
    for upload in uploads:
        upload.abort()
