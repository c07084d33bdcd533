"""The folder of a backup: objects once, and beside them what they meant at each time.

BACKUP        {"format": 1}: its presence makes the folder a backup
LOCK          held by the backup that is under way
objects/      as in the store: named by their digest, shared by the snapshots
snapshots/N/  FORMAT, models/, state/ and events.jsonl of the store at one moment, and SNAPSHOT,
              which is written last: a snapshot without it never was
"""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from registry import layout
from registry.documents import read_document, write_document
from registry.errors import Corrupt, InvalidInput, NotFound, StoreFailed, StoreFormat, StoreFull
from registry.files import TEMPORARY_SUFFIX, Files, ReadOnlyFiles, is_no_room, replace_file
from registry.ident import digest_hex
from registry.manifest import JsonObject
from registry.versions import VersionTable

FORMAT: Final = 1
BACKUP_FILE: Final = "BACKUP"
SNAPSHOT_FILE: Final = "SNAPSHOT"
_SNAPSHOTS_DIR: Final = "snapshots"
_OBJECT_NAME: Final = re.compile("[0-9a-f]{64}")
_HARMLESS: Final = frozenset({layout.LOCK_FILE, "lost+found"})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One complete snapshot. ``taken`` is UTC; ``missing``: digests that could not be had."""

    number: int
    folder: Path
    taken: str
    missing: tuple[str, ...]

    def digests(self) -> frozenset[str]:
        """Return every object that its versions need."""
        table = VersionTable(self.folder / layout.MODELS_DIR, self.folder, ReadOnlyFiles())
        return frozenset(table.used_digests())


class SnapshotFolder:
    """The folder of a backup, to read from or, within ``claim``, to add to."""

    def __init__(self, root: Path, files: Files) -> None:
        self.root = root
        self.objects_dir = root / layout.OBJECTS_DIR
        self._snapshots_dir = root / _SNAPSHOTS_DIR
        self._files = files

    @classmethod
    def open(cls, root: Path) -> SnapshotFolder:
        """Open a backup to read from. Raises StoreFormat where there is none."""
        _check_format(root)
        return cls(root, ReadOnlyFiles())

    @classmethod
    @contextmanager
    def claim(cls, root: Path, files: Files) -> Iterator[SnapshotFolder]:
        """Hold a backup alone for the block, making one of an empty or missing folder.

        Raises StoreFormat for a folder with other things in it, StoreLocked.
        """
        root.mkdir(parents=True, exist_ok=True)
        names = {entry.name for entry in root.iterdir()}
        if BACKUP_FILE in names:
            _check_format(root)
        elif strange := strangers(names):
            raise StoreFormat(
                f"the folder {root} is not a backup and not empty (it holds {strange[0]!r}): "
                "choose an empty or missing folder"
            )
        lock = layout.StoreLock(root, what="backup")
        try:
            folder = cls(root, files)
            folder._prepare()
            yield folder
        finally:
            lock.close()

    def object_path(self, digest: str) -> Path:
        """Return where the object of a digest lies, present or not."""
        return self.objects_dir / digest_hex(digest)

    def snapshots(self) -> tuple[Snapshot, ...]:
        """Return the complete snapshots, oldest first."""
        with suppress(FileNotFoundError):
            found = [_read(folder) for folder in self._numbered()]
            complete = [snapshot for snapshot in found if snapshot]
            return tuple(sorted(complete, key=lambda snapshot: snapshot.number))
        return ()

    def snapshot(self, number: int | None) -> Snapshot:
        """Return one snapshot, the newest where no number is given, or raise NotFound."""
        found = self.snapshots()
        if not found:
            raise NotFound(
                f"the backup {self.root} holds no complete snapshot, the first one was cut short: "
                "run `ramrack backup` to its end, or restore another backup"
            )
        if number is None:
            return found[-1]
        for snapshot in found:
            if snapshot.number == number:
                return snapshot
        numbers = ", ".join(str(snapshot.number) for snapshot in found)
        raise NotFound(f"the backup {self.root} has no snapshot {number}: it has {numbers}")

    def begin(self) -> Path:
        """Make the folder of the next snapshot; it counts for nothing until ``complete``."""
        numbers = [int(folder.name) for folder in self._numbered()]
        folder = self._snapshots_dir / f"{max(numbers, default=0) + 1:08d}"
        self._files.mkdir(folder)
        return folder

    def abandon(self, folder: Path) -> None:
        """Take the folder of a snapshot away, complete or not."""
        (folder / SNAPSHOT_FILE).unlink(missing_ok=True)
        self._files.fsync_dir(folder)
        shutil.rmtree(folder)

    def complete(self, folder: Path, taken: str, missing: tuple[str, ...]) -> Snapshot:
        """Make the snapshot count, once everything it names is durable."""
        self._files.fsync_dir(self.objects_dir)
        self._files.fsync_dir(self._snapshots_dir)
        document: JsonObject = {"taken": taken, "missing": list(missing)}
        write_document(self._files, folder, folder / SNAPSHOT_FILE, document, "the snapshot")
        return Snapshot(int(folder.name), folder, taken, missing)

    def prune(self, keep: int) -> int:
        """Drop all but the newest ``keep`` snapshots and what only they needed; return bytes."""
        kept = self.snapshots()[-keep:]
        needed = {digest_hex(digest) for snapshot in kept for digest in snapshot.digests()}
        folders = {snapshot.folder for snapshot in kept}
        for folder in sorted(set(self._numbered()) - folders):
            self.abandon(folder)
        freed_bytes = 0
        for entry in self.objects_dir.iterdir():
            if _OBJECT_NAME.fullmatch(entry.name) and entry.name not in needed:
                freed_bytes += entry.lstat().st_size
                self._files.unlink(entry)
        return freed_bytes

    def _numbered(self) -> list[Path]:
        """Return the folders of snapshots, also of those that never were; a NAS adds its own."""
        return [folder for folder in self._snapshots_dir.iterdir() if folder.name.isdecimal()]

    def _prepare(self) -> None:
        remove_temporary(self.root, self._files)
        if not (self.root / BACKUP_FILE).exists():
            content = json.dumps({"format": FORMAT}).encode() + b"\n"
            replace_file(self._files, self.root, self.root / BACKUP_FILE, content)
        for folder in (self.objects_dir, self._snapshots_dir):
            self._files.mkdir(folder)
        self._files.fsync_dir(self.root)


def strangers(names: set[str]) -> list[str]:
    """Return the names that keep a folder from being taken for an empty one, in order."""
    return sorted(name for name in names - _HARMLESS if not name.endswith(TEMPORARY_SUFFIX))


def remove_temporary(folder: Path, files: Files) -> None:
    """Remove what a copy that was cut short left anywhere in ``folder``."""
    for path in folder.rglob("*" + TEMPORARY_SUFFIX):
        files.unlink(path)


@contextmanager
def disk_errors(what: str, folder: Path) -> Iterator[None]:
    """Raise OSError of the block as StoreFull or StoreFailed that name ``what`` and its folder."""
    try:
        yield
    except OSError as error:
        if is_no_room(error):
            raise StoreFull(
                f"no room on the disk of {what} {folder}: give it more space and run the command "
                "again; what was copied is kept"
            ) from error
        # Of a copy it may be either side; the file says which.
        seen = error.filename or folder
        reason = f"{seen}: {error.strerror}: {_way_out(error)}"
        raise StoreFailed(f"{what} {folder}: {reason}") from error


@contextmanager
def named(what: str, source: Path, target: Path) -> Iterator[None]:
    """Name both folders in refusals of the block that name neither."""
    try:
        yield
    except (Corrupt, StoreFailed, StoreFull) as error:
        if str(source) in str(error) or str(target) in str(error):
            raise
        raise type(error)(f"{what} of {source} to {target}: {error}") from error


def _way_out(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "run the command as the user whose folder it is"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "there must be a folder, or nothing"
    if error.errno == errno.EROFS:
        return "it is mounted to be read only"
    return "look at the disk (`dmesg`), then run the command again"


def check_keep(keep: int) -> None:
    """Raise InvalidInput unless at least one snapshot is kept."""
    if keep < 1:
        raise InvalidInput(f"keep {keep} is not allowed: at least 1 snapshot is kept")


def _read(folder: Path) -> Snapshot | None:
    try:
        document = read_document(folder / SNAPSHOT_FILE, "the snapshot")
    except Corrupt:
        return None
    match document:
        case {"taken": str(taken), "missing": list(missing)}:
            return Snapshot(int(folder.name), folder, taken, tuple(map(str, missing)))
        case _:
            return None


def _check_format(root: Path) -> None:
    try:
        document = json.loads((root / BACKUP_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"{root.absolute()} is not a backup: it has no BACKUP file"
        if not root.exists():
            what = f"there is no folder {root.absolute()}"
        raise StoreFormat(f"{what}: give the folder that `ramrack backup` wrote to") from error
    except ValueError as error:
        raise StoreFormat(
            f"{root / BACKUP_FILE} is not JSON, it is damaged: use another backup"
        ) from error
    number = document.get("format") if isinstance(document, dict) else None
    if type(number) is not int or not 1 <= number <= FORMAT:
        raise StoreFormat(
            f"the backup {root} has format {number}, this release reads up to {FORMAT}: "
            "use the release that wrote it, or a newer one"
        )
