"""The system calls that change the store, one method each, so that a test can fail any of them."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from registry.errors import StoreFailed, StoreFull

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
TEMPORARY_SUFFIX: Final = ".part"


class Files:
    """Every write to the store goes through here.

    A subclass may raise at the n-th call, or keep back what was not synced. All methods raise
    OSError; ``disk_errors`` turns that into words for the user.
    """

    def create(self, path: Path) -> int:
        """Make a new file and return its descriptor; fails where the name is taken."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def open_append(self, path: Path) -> int:
        """Open a file, made where missing, whose writes all go to its end."""
        return os.open(
            path,
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW,
            0o600,
        )

    def write(self, descriptor: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data``."""
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(descriptor, view) :]

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Cut the file to ``size_bytes``."""
        os.ftruncate(descriptor, size_bytes)

    def make_read_only(self, descriptor: int) -> None:
        """Take the write permission from everybody."""
        os.fchmod(descriptor, 0o444)

    def fsync(self, descriptor: int) -> None:
        """Return once the content is on the disk."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Give ``source`` the name ``target``; a file that had it loses it in the same step."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Take a name away; who has the file open or mapped keeps its bytes."""
        path.unlink()

    def mkdir(self, path: Path) -> None:
        """Make a folder where there is none."""
        path.mkdir(exist_ok=True)

    def rmdir(self, path: Path) -> None:
        """Take an empty folder away."""
        path.rmdir()

    def fsync_dir(self, path: Path) -> None:
        """Return once the folder's names are on the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def allocate(self, path: Path, size_bytes: int) -> None:
        """Make a file whose bytes the disk has set aside; there is none after an error."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise
        finally:
            os.close(descriptor)

    def give_up(self, path: Path) -> None:
        """Return the room of a file that ``allocate`` made to the disk, to be used at once."""
        path.unlink()
        with suppress(OSError):
            # A journal may hold freed blocks back until the change that freed them is written.
            self.fsync_dir(path.parent)

    def free_bytes(self, path: Path) -> int:
        """Return what an unprivileged writer may still write on the disk of ``path``."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


def is_no_room(error: OSError) -> bool:
    """Tell whether the disk is full, or a quota of it."""
    return error.errno in _NO_ROOM


def planned_error(error: OSError, action: str) -> StoreFull | StoreFailed:
    """Return what the user is told of ``error``; it names no path of the machine."""
    if is_no_room(error):
        return StoreFull(
            f"no room on the store's disk to {action}: remove versions and run gc, "
            "or give the disk more space"
        )
    cause = os.strerror(error.errno) if error.errno else type(error).__name__
    return StoreFailed(f"the store's disk failed to {action}: {cause}")


@contextmanager
def disk_errors(action: str) -> Iterator[None]:
    """Raise OSError of the block as StoreFull or StoreFailed; ``action`` follows "failed to"."""
    try:
        yield
    except OSError as error:
        raise planned_error(error, action) from error


def temporary_path(folder: Path) -> Path:
    """Return a name in ``folder`` that nothing else has."""
    return folder / (secrets.token_hex(16) + TEMPORARY_SUFFIX)


def replace_file(files: Files, temporary_dir: Path, path: Path, data: bytes) -> None:
    """Make ``path`` hold ``data``, durably; after any crash it holds the old or the new bytes.

    Raises OSError. After a failed sync the caller must not count on either.
    """
    temporary = temporary_path(temporary_dir)
    try:
        descriptor = files.create(temporary)
        try:
            files.write(descriptor, data)
            files.fsync(descriptor)
        finally:
            files.close(descriptor)
        files.rename(temporary, path)
    except OSError:
        discard(files, temporary)
        raise
    files.fsync_dir(path.parent)


def discard(files: Files, path: Path) -> None:
    """Remove a temporary file if the disk lets us; the next open of the store removes the rest."""
    with suppress(OSError):
        files.unlink(path)


class ReadOnlyFiles(Files):
    """Files of a store that is only looked at: every change fails as on a read-only disk."""

    def create(self, path: Path) -> int:
        """Refuse."""
        raise _read_only(path)

    def open_append(self, path: Path) -> int:
        """Refuse."""
        raise _read_only(path)

    def rename(self, source: Path, target: Path) -> None:
        """Refuse."""
        raise _read_only(source, target)

    def unlink(self, path: Path) -> None:
        """Refuse."""
        raise _read_only(path)

    def mkdir(self, path: Path) -> None:
        """Refuse."""
        raise _read_only(path)

    def allocate(self, path: Path, size_bytes: int) -> None:  # noqa: ARG002 - as in Files
        """Refuse."""
        raise _read_only(path)

    def give_up(self, path: Path) -> None:
        """Refuse."""
        raise _read_only(path)


def _read_only(*paths: Path) -> OSError:
    return OSError(errno.EROFS, os.strerror(errno.EROFS), *map(str, paths[:1]))
