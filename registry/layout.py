"""The store's folder: what makes it a store, its format version, and the lock that one server has.

FORMAT      {"format": 1}: its presence makes the folder a store
LOCK        held by the server that has the store open
objects/    every graph and tensor, named by its digest
models/     NAME/versions/N.json, and NAME/numbers.json: the highest number that was deleted
state/      small documents of the server
packed/     what was built of versions for this machine: a cache, see registry.packed
events.jsonl
reserve/    room on the disk for changes when it is full
tmp/        files on their way to the other folders; emptied at each open
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from registry.errors import StoreFormat, StoreLocked
from registry.files import TEMPORARY_SUFFIX, Files, disk_errors, replace_file

FORMAT: Final = 1
FORMAT_FILE: Final = "FORMAT"
LOCK_FILE: Final = "LOCK"
EVENTS_FILE: Final = "events.jsonl"
OBJECTS_DIR: Final = "objects"
MODELS_DIR: Final = "models"
STATE_DIR: Final = "state"
RESERVE_DIR: Final = "reserve"
PACKED_DIR: Final = "packed"
TEMPORARY_DIR: Final = "tmp"
# What a folder may hold and still become a store: a start that was cut short left the first two,
# and the top of a fresh disk has the last.
_HOLDER_BYTES: Final = 32
_HARMLESS: Final = frozenset({LOCK_FILE, TEMPORARY_DIR, "lost+found"})


class StoreLock:
    """The exclusive right to a store or a backup, until ``close`` or the end of the process."""

    def __init__(self, root: Path, what: str = "store") -> None:
        self._what, self._root = what, root
        with disk_errors(f"open the lock of the {what}"):
            self._descriptor = os.open(
                root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        try:
            self._take()
        except BaseException:
            self.close()
            raise

    def _take(self) -> None:
        with disk_errors(f"lock the {self._what}"):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = (
                    os.pread(self._descriptor, _HOLDER_BYTES, 0).decode("ascii", "replace").strip()
                )
                way_out = (
                    "stop that server, or use another --store"
                    if self._what == "store"
                    else "wait until it has ended"
                )
                raise StoreLocked(
                    f"the {self._what} {self._root} is in use by process {holder or 'unknown'}: "
                    f"{way_out}"
                ) from error
            # Only for the message above; a full disk must not keep a server from its start.
            with suppress(OSError):
                os.pwrite(self._descriptor, f"{os.getpid()}\n".ljust(_HOLDER_BYTES).encode(), 0)

    def close(self) -> None:
        """Let another server have the store."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def claim(root: Path, files: Files) -> StoreLock:
    """Lock the store at ``root``, first making one of an empty or missing folder.

    Raises StoreLocked, StoreFormat (also for a folder with other things in it), StoreFull,
    StoreFailed.
    """
    with disk_errors("make the store's folder"):
        root.mkdir(parents=True, exist_ok=True)
    check_adoptable(root)
    lock = StoreLock(root)
    try:
        _prepare(root, files)
    except BaseException:
        lock.close()
        raise
    return lock


def check_format(root: Path) -> None:
    """Raise StoreFormat unless this release can read the store at ``root``."""
    with disk_errors("read the store's format"):
        try:
            text = (root / FORMAT_FILE).read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreFormat(_no_store(root)) from error
    try:
        document = json.loads(text)
    except ValueError as error:
        raise StoreFormat(
            f"{root / FORMAT_FILE} is not JSON: restore the store from a backup"
        ) from error
    number = document.get("format") if isinstance(document, dict) else None
    if type(number) is not int or number < 1:
        raise StoreFormat(f"{root / FORMAT_FILE} names no format: restore the store from a backup")
    if number > FORMAT:
        raise StoreFormat(
            f"the store {root} has format {number}, this release reads up to {FORMAT}: "
            "use the release that wrote it, or a newer one"
        )


def _no_store(root: Path) -> str:
    what = f"{root.absolute()} is not a store: it has no FORMAT file"
    if not root.exists():
        what = f"there is no folder {root.absolute()}"
    return f"{what}: give the folder that the server has as its --store"


def check_adoptable(root: Path) -> None:
    """Raise StoreFormat unless the folder is a store or can become one; changes nothing."""
    with disk_errors("read the store's folder"):
        names = {entry.name for entry in root.iterdir()}
        if FORMAT_FILE in names:
            check_format(root)
            return
        strange = sorted(names - _HARMLESS)
        temporary = root / TEMPORARY_DIR
        if not strange and temporary.is_dir():
            strange = sorted(
                entry.name for entry in temporary.iterdir() if entry.suffix != TEMPORARY_SUFFIX
            )
    if strange:
        raise StoreFormat(
            f"the folder {root} is not a store and not empty (it holds {strange[0]!r}): "
            "choose an empty or missing folder for --store"
        )


def _prepare(root: Path, files: Files) -> None:
    temporary = root / TEMPORARY_DIR
    with disk_errors("prepare the store's folder"):
        files.mkdir(temporary)
        for entry in temporary.iterdir():
            if not entry.is_dir() or entry.is_symlink():
                files.unlink(entry)
        if not (root / FORMAT_FILE).exists():
            content = json.dumps({"format": FORMAT}).encode() + b"\n"
            replace_file(files, temporary, root / FORMAT_FILE, content)
        check_format(root)
        for name in (OBJECTS_DIR, MODELS_DIR, STATE_DIR, PACKED_DIR):
            files.mkdir(root / name)
        # A server that died between a rename and the sync of its folder left names that the next
        # power cut may take. Nothing is built on them before they are durable.
        files.fsync_dir(root)
        files.fsync_dir(root / OBJECTS_DIR)
        files.fsync_dir(root / STATE_DIR)
