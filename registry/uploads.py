"""One upload: bytes hashed as they arrive, kept only if they are what they were said to be."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from registry.errors import DigestMismatch, InvalidInput, StoreFailed, StoreFull
from registry.files import Files, discard, planned_error

# How much may be written between two looks at the free space.
_ROOM_STEP_BYTES: Final = 16 << 20
# What is shorter is sent again as soon as it is asked for.
LEAST_KEPT_BYTES: Final = 4 << 20


class UploadTarget(Protocol):
    """What an upload needs of the pool that it ends in."""

    def check_room(self, more_bytes: int, digest: str) -> None:
        """Raise StoreFull where ``more_bytes`` do not fit."""
        ...

    def install(self, digest: str, temporary: Path, descriptor: int) -> None:
        """Give the synced file at ``temporary`` its name in the pool."""
        ...

    def keep_upload(self, upload: Upload) -> None:
        """Own an upload from now on, for whoever goes on with it."""
        ...


class Upload:
    """A context manager: without ``commit`` nothing stays. For one thread at a time.

    ``size_bytes``: as announced, None where it was not; ``written_bytes``: how far it came.
    """

    def __init__(
        self,
        target: UploadTarget,
        files: Files,
        digest: str,
        size_bytes: int | None,
        temporary: Path,
        descriptor: int,
    ) -> None:
        self.digest = digest
        self._target = target
        self._files = files
        self.size_bytes = size_bytes
        self._temporary = temporary
        self._descriptor = descriptor
        self._sha256 = hashlib.sha256()
        self.written_bytes = 0
        self._room_bytes = _ROOM_STEP_BYTES
        self._is_open = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes. Raises InvalidInput past the announced size, StoreFull, StoreFailed."""
        self._check_open()
        count = memoryview(data).nbytes
        total = self.written_bytes + count
        if self.size_bytes is not None and total > self.size_bytes:
            self.abort()
            raise InvalidInput(
                f"object {self.digest}: more than the {self.size_bytes} bytes announced were sent"
            )
        self._room_bytes -= count
        try:
            if self._room_bytes < 0:
                self._target.check_room(count, self.digest)
                self._room_bytes = _ROOM_STEP_BYTES
            self._files.write(self._descriptor, data)
        except OSError as error:
            self.abort()
            raise planned_error(error, f"store object {self.digest}") from error
        except (StoreFull, StoreFailed):
            self.abort()
            raise
        self._sha256.update(data)
        self.written_bytes = total

    def commit(self) -> None:
        """Return once the object is in the store for good.

        Raises DigestMismatch, StoreFull, StoreFailed; after any of them nothing was stored.
        """
        self._check_open()
        try:
            self._check_content()
            self._files.make_read_only(self._descriptor)
            self._files.fsync(self._descriptor)
            self._target.install(self.digest, self._temporary, self._descriptor)
        except OSError as error:
            raise planned_error(error, f"store object {self.digest}") from error
        else:
            self._is_open = False
            self._close()
        finally:
            self.abort()

    def suspend(self) -> None:
        """Leave what was written to whoever goes on with it, if it is worth it; else ``abort``.

        Not to be touched after it: the next owner may write already.
        """
        is_part = self.written_bytes < (self.size_bytes or 0)
        if self._is_open and is_part and self.written_bytes >= LEAST_KEPT_BYTES:
            self._target.keep_upload(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Give the bytes up; after ``commit`` or a second time it does nothing."""
        if self._is_open:
            self._is_open = False
            self._close()
            discard(self._files, self._temporary)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()

    def _check_open(self) -> None:
        if not self._is_open:
            raise InvalidInput(f"object {self.digest}: this upload is over")

    def _check_content(self) -> None:
        found = "sha256:" + self._sha256.hexdigest()
        if found != self.digest:
            raise DigestMismatch(
                f"object {self.digest}: the {self.written_bytes} bytes sent hash to {found}"
            )

    def _close(self) -> None:
        # The bytes were synced, or nobody wants them: a close that fails changes nothing.
        try:
            self._files.close(self._descriptor)
        except OSError:
            return
