"""Copies a store while a server changes it, and makes a store of such a copy again.

Guarantees:
1. A snapshot is the store at one moment: no file of its records changed while they were read, and
   every object that they name is there and hashes to its name, or is listed as missing.
2. Until a snapshot is complete the ones before it are as they were.
3. What was copied before is not copied again.
Nothing is asked of the server, and nothing in its folder is changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from registry import layout, snapshots
from registry.errors import Corrupt, StoreFailed, StoreFormat
from registry.events import utc_now
from registry.files import Files, discard, replace_file, temporary_path
from registry.hashing import Stamp, hash_object, stamp_of
from registry.ident import digest_hex
from registry.snapshots import Snapshot, SnapshotFolder

Progress = Callable[[int, int], None]
# One change a second in a busy store, and a reading takes milliseconds.
_READINGS: Final = 50
_PAUSE_S: Final = 0.05
_CHUNK_BYTES: Final = 1 << 20
_RESTORING_FILE: Final = "RESTORING"


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup did. ``missing``: objects that the store itself no longer has intact."""

    snapshot: int
    taken: str
    objects: int
    object_bytes: int
    copied_objects: int
    copied_bytes: int
    freed_bytes: int
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore did. ``missing``: objects that the backup does not have intact."""

    snapshot: int
    taken: str
    objects: int
    object_bytes: int
    missing: tuple[str, ...]


@dataclass(slots=True)
class _Copied:
    objects: int = 0
    object_bytes: int = 0
    copied_objects: int = 0
    copied_bytes: int = 0


def back_up(
    store: Path,
    target: Path,
    *,
    keep: int = 1,
    is_thorough: bool = False,
    files: Files | None = None,
    progress: Progress = lambda _done, _total: None,
) -> BackupReport:
    """Add a snapshot of the store to the backup at ``target``; keep the newest ``keep``.

    ``is_thorough``: what was copied earlier is read and copied again where it is damaged.
    ``progress`` gets the bytes done and in all. Raises InvalidInput, StoreFormat, StoreLocked,
    StoreFull, StoreFailed.
    """
    snapshots.check_keep(keep)
    # As they were given, such as "b", they are found in any message, and name nothing in a log.
    store, target = store.absolute(), target.absolute()
    files = files or Files()
    with (
        snapshots.named("backup", store, target),
        snapshots.disk_errors("the backup", target),
    ):
        layout.check_format(store)
        _check_apart(store, target)
        with SnapshotFolder.claim(target, files) as folder:
            return _add_snapshot(store, folder, keep, is_thorough, files, progress)


def _add_snapshot(
    store: Path,
    folder: SnapshotFolder,
    keep: int,
    is_thorough: bool,
    files: Files,
    progress: Progress,
) -> BackupReport:
    for _ in range(_READINGS):
        draft = folder.begin()
        taken = utc_now()
        stamps = _copy_records(store, draft, files)
        copied = _Copied()
        needed = Snapshot(int(draft.name), draft, taken, ()).digests()
        missing = _copy_objects(store, folder, sorted(needed), files, is_thorough, copied, progress)
        # An object that went with its version while others were copied is no loss.
        if missing and _stamps(store) != stamps:
            folder.abandon(draft)
            continue
        snapshot = folder.complete(draft, taken, missing)
        freed_bytes = folder.prune(keep)
        return BackupReport(
            snapshot.number, taken, copied.objects, copied.object_bytes,
            copied.copied_objects, copied.copied_bytes, freed_bytes, missing,
        )  # fmt: skip
    raise StoreFailed(
        f"versions were deleted all the time while the store {store} was copied: try again"
    )


def restore(
    backup: Path,
    store: Path,
    *,
    snapshot: int | None = None,
    files: Files | None = None,
    progress: Progress = lambda _done, _total: None,
) -> RestoreReport:
    """Make a store at ``store``, an empty or missing folder, of a snapshot: the newest, or one.

    One that was cut short goes on where it stopped, and is no store before it is whole.
    Raises NotFound, StoreFormat, StoreLocked, StoreFull, StoreFailed.
    """
    backup, store = backup.absolute(), store.absolute()
    with snapshots.disk_errors("the backup", backup):
        source = SnapshotFolder.open(backup)
        chosen = source.snapshot(snapshot)
    files = files or Files()
    with (
        snapshots.named("restore", backup, store),
        snapshots.disk_errors("the store", store),
    ):
        store.mkdir(parents=True, exist_ok=True)
        _check_restorable(store)
        lock = layout.StoreLock(store)
        try:
            snapshots.remove_temporary(store, files)
            if not (store / _RESTORING_FILE).exists():
                replace_file(files, store, store / _RESTORING_FILE, f"{chosen.number}\n".encode())
            copied = _Copied()
            missing = _fill(source, chosen, store, files, copied, progress)
            # Last of all: with it the folder is a store.
            replace_file(
                files, store, store / layout.FORMAT_FILE,
                (chosen.folder / layout.FORMAT_FILE).read_bytes(),
            )  # fmt: skip
            files.unlink(store / _RESTORING_FILE)
            files.fsync_dir(store)
        finally:
            lock.close()
    return RestoreReport(chosen.number, chosen.taken, copied.objects, copied.object_bytes, missing)


def _fill(
    source: SnapshotFolder,
    chosen: Snapshot,
    store: Path,
    files: Files,
    copied: _Copied,
    progress: Progress,
) -> tuple[str, ...]:
    objects_dir = store / layout.OBJECTS_DIR
    files.mkdir(objects_dir)
    digests = sorted(chosen.digests())
    paths = [(digest, source.object_path(digest), objects_dir / digest_hex(digest))
             for digest in digests]  # fmt: skip
    missing = _copy_all(paths, files, True, copied, progress)
    files.fsync_dir(objects_dir)
    for path in _record_paths(chosen.folder):
        if path.name != layout.FORMAT_FILE:
            _copy_record(chosen.folder / path, store / path, files)
    return missing


def _check_apart(store: Path, target: Path) -> None:
    inner, outer = target.resolve(), store.resolve()
    if inner == outer or outer in inner.parents:
        raise StoreFormat(
            f"the backup's folder {target} lies inside of the store {store}: choose one elsewhere, "
            "best on another disk"
        )


def _check_restorable(store: Path) -> None:
    names = {entry.name for entry in store.iterdir()}
    if _RESTORING_FILE in names:
        return
    if strange := snapshots.strangers(names):
        raise StoreFormat(
            f"the folder {store} is not empty (it holds {strange[0]!r}): restore into an empty or "
            "missing folder, and move the old store away first"
        )


def _copy_records(store: Path, draft: Path, files: Files) -> dict[Path, Stamp]:
    """Copy all but the objects, just as it was at one moment."""
    for _ in range(_READINGS):
        for name in (layout.MODELS_DIR, layout.STATE_DIR):
            files.mkdir(draft / name)
        before = _stamps(store)
        try:
            for path in before:
                _copy_record(store / path, draft / path, files)
        except FileNotFoundError:
            pass
        if before == _stamps(store):
            return before
        shutil.rmtree(draft)
        files.mkdir(draft)
        time.sleep(_PAUSE_S)
    raise StoreFailed(f"the store {store} changes faster than it can be read: try again")


def _stamps(store: Path) -> dict[Path, Stamp]:
    found = {}
    for path in _record_paths(store):
        try:
            found[path] = stamp_of((store / path).lstat())
        except FileNotFoundError:
            continue
    return found


def _record_paths(root: Path) -> list[Path]:
    """Return what a store holds besides objects and caches, relative to its folder."""
    wanted = [root / layout.FORMAT_FILE, root / layout.EVENTS_FILE]
    for folder in (root / layout.STATE_DIR, root / layout.MODELS_DIR):
        wanted += sorted(path for path in folder.rglob("*") if path.is_file())
    return [path.relative_to(root) for path in wanted if path.is_file()]


def _copy_record(source: Path, target: Path, files: Files) -> None:
    data = source.read_bytes()
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(files, target.parent, target, data)


def _copy_objects(
    store: Path,
    folder: SnapshotFolder,
    digests: list[str],
    files: Files,
    is_thorough: bool,
    copied: _Copied,
    progress: Progress,
) -> tuple[str, ...]:
    paths = [
        (digest, store / layout.OBJECTS_DIR / digest_hex(digest), folder.object_path(digest))
        for digest in digests
    ]
    return _copy_all(paths, files, is_thorough, copied, progress)


def _copy_all(
    paths: list[tuple[str, Path, Path]],
    files: Files,
    is_thorough: bool,
    copied: _Copied,
    progress: Progress,
) -> tuple[str, ...]:
    """Bring each object to its place; return those that the source does not have intact."""
    sizes = {digest: _size(source) for digest, source, _ in paths}
    total, done, missing = sum(sizes.values()), 0, []

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress(done, total)

    for digest, source, target in paths:
        size = sizes[digest]
        if _is_there(digest, target, size, is_thorough):
            count(size)
        else:
            try:
                copied.copied_bytes += _copy_object(digest, source, target, files, count)
            except Corrupt:
                missing.append(digest)
                continue
            copied.copied_objects += 1
        copied.objects += 1
        copied.object_bytes += size
    return tuple(missing)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


def _is_there(digest: str, path: Path, size: int, is_thorough: bool) -> bool:
    if not path.exists():
        return False
    if not is_thorough:
        # It got its name only after its bytes were right and on the disk.
        return _size(path) == size
    try:
        hash_object(path, digest, lambda _count: None)
    except Corrupt:
        return False
    return True


def _copy_object(
    digest: str, source: Path, target: Path, files: Files, count: Callable[[int], None]
) -> int:
    """Copy one object, hashing as it goes; Corrupt where the source has other bytes or none."""
    try:
        reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise Corrupt(f"object {digest} cannot be opened") from error
    temporary = temporary_path(target.parent)
    try:
        writing = files.create(temporary)
        try:
            sha256, total = hashlib.sha256(), 0
            while chunk := os.read(reading, _CHUNK_BYTES):
                sha256.update(chunk)
                files.write(writing, chunk)
                total += len(chunk)
                count(len(chunk))
            if "sha256:" + sha256.hexdigest() != digest:
                raise Corrupt(f"object {digest} is damaged")
            files.make_read_only(writing)
            files.fsync(writing)
        finally:
            files.close(writing)
        files.rename(temporary, target)
    except (OSError, Corrupt):
        discard(files, temporary)
        raise
    finally:
        os.close(reading)
    return total
