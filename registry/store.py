"""The store: every object, version, document and event of one server, in one locked folder.

Blocking and thread-safe: asynchronous code calls it through ``asyncio.to_thread``. What a method
acknowledged is there after any crash; what raised left the old state.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from registry import layout
from registry.errors import Corrupt, StoreFailed, StoreFull
from registry.events import EventLog, parse_event
from registry.files import Files, ReadOnlyFiles, discard, disk_errors, temporary_path
from registry.manifest import JsonObject, Manifest
from registry.objects import ObjectPool
from registry.packed import PackedIndex
from registry.publish_log import PublishLog
from registry.reserve import Reserve
from registry.state_folder import StateFolder
from registry.uploads import Upload
from registry.versions import VersionRecord, VersionTable

__all__ = ["GcReport", "Store", "StoreUsage", "Upload", "VerifyReport", "VersionRecord"]

RESERVE_BYTES: Final = 32 << 20
_LOST: Final = (
    "its record is gone although it was never deleted: restore it from a backup, or delete the "
    "version"
)


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a collection dropped."""

    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """What the store takes, and what its disk has."""

    objects: int
    object_bytes: int
    disk_free_bytes: int
    disk_total_bytes: int


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a check of everything read, and what is wrong: digest or record name to reason."""

    objects: int
    bytes: int
    damaged: Mapping[str, str]


class Store:
    """One open store; made by ``open`` or ``open_read_only``, a context manager."""

    def __init__(
        self,
        root: Path,
        files: Files,
        lock: layout.StoreLock | None,
        monotonic_s: Callable[[], float],
        reserve_bytes: int,
    ) -> None:
        self.root = root
        self.objects_dir = root / layout.OBJECTS_DIR
        self._files = files
        self._lock_file = lock
        self._temporary_dir = root / layout.TEMPORARY_DIR
        self._reserve_bytes = reserve_bytes
        self._objects = ObjectPool(
            self.objects_dir, self._temporary_dir, files, monotonic_s, reserve_bytes
        )
        self._versions = VersionTable(root / layout.MODELS_DIR, self._temporary_dir, files)
        self.packed = PackedIndex(root / layout.PACKED_DIR, self._temporary_dir, files)
        self._reserve = Reserve(root / layout.RESERVE_DIR, files)
        self.events = EventLog(
            root / layout.EVENTS_FILE, files, is_read_only=lock is None, reserve=self._reserve
        )
        self._documents = StateFolder(
            root / layout.STATE_DIR,
            self._temporary_dir,
            files,
            self._reserve,
            is_read_only=lock is None,
        )
        self._publish_log = PublishLog(self._versions, self.events)

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        files: Files | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> Store:
        """Open the store at ``root`` for this process alone, making it where there is none.

        ``reserve_bytes``: disk space that uploads leave for everything else.
        Raises StoreLocked, StoreFormat, StoreFull, StoreFailed.
        """
        files = files or Files()
        lock = layout.claim(root, files)
        try:
            store = cls(root, files, lock, monotonic_s, reserve_bytes)
            store._reserve.fill()
            store._versions.sync_folders()
            # A full disk does not stop the start: the next publish tries again.
            with suppress(StoreFull, StoreFailed):
                store._publish_log.complete()
        except BaseException:
            lock.close()
            raise
        return store

    @classmethod
    def open_read_only(cls, root: Path) -> Store:
        """Open a store to look at, also one that a server holds; every change raises."""
        layout.check_format(root)
        return cls(root, ReadOnlyFiles(), None, time.monotonic, 0)

    def close(self) -> None:
        """Give the store up; another server may open it."""
        self.events.close()
        self._objects.kept.drop_all()
        if self._lock_file is not None:
            self._lock_file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def object_size(self, digest: str) -> int | None:
        """Return an object's size, None where it is not there (or damaged): then upload it.

        One that has not the size that a version's manifest says is damaged.
        Keeps the object from ``gc`` for the next 15 minutes.
        """
        return self._objects.size(digest, self._versions.object_bytes(digest))

    def find_damage(self, manifest: Manifest) -> None:
        """Have the damaged objects of a manifest count as absent, so that ``publish`` names all.

        Reads objects only where there is cause: one of them is known to be damaged or has another
        size than the manifest says, or the version is there already, for a push that is repeated
        is how a person mends a store. Those hashed before and untouched since are not read.
        """
        # A manifest does not say how large its graph is, and the record will vouch for its size.
        sizes: dict[str, int | None] = {manifest.graph: self._versions.object_bytes(manifest.graph)}
        sizes |= {entry.digest: entry.size_bytes for entry in manifest.tensors}
        self._objects.find_damage(sizes, is_suspect=self._versions.holds(manifest))

    def begin_upload(self, digest: str, size_bytes: int | None = None, offset: int = 0) -> Upload:
        """Return a context manager that takes the bytes of an object.

        ``size_bytes``: announced size of the whole, if known. ``offset``: go on there with an
        upload that broke off; raises Conflict where that one is not kept, or ends elsewhere.
        Raises StoreFull before the disk's reserve is touched. Several uploads of one digest at
        once all succeed.
        """
        self._reserve.fill()
        return self._objects.begin_upload(digest, size_bytes, offset)

    def upload_offset(self, digest: str) -> int:
        """Return how many bytes of an upload that broke off are kept to go on with."""
        return self._objects.kept.offset(digest)

    def drop_old_uploads(self) -> bool:
        """Give up what was kept for a quarter of an hour; return whether any is kept on."""
        return self._objects.kept.drop_old()

    def release_objects(self, digests: Iterable[str]) -> None:
        """End the leases of objects that an entry of ``packed`` now holds."""
        self._objects.release(digests)

    @contextmanager
    def scratch(self, count: int) -> Iterator[tuple[Path, ...]]:
        """Yield names for ``count`` files beside the objects, which are gone after the block.

        What a crash leaves of them goes when the store is opened next.
        """
        paths = tuple(temporary_path(self._temporary_dir.resolve()) for _ in range(count))
        try:
            yield paths
        finally:
            for path in paths:
                discard(self._files, path)

    def room_bytes(self) -> int:
        """Return what may be written before uploads are refused; 0 where the disk is full."""
        with disk_errors("read the free space"):
            return max(0, self._files.free_bytes(self.objects_dir) - self._reserve_bytes)

    def verify_objects(
        self,
        digests: Iterable[str],
        *,
        thorough: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Raise Corrupt where objects are not right, naming the first one and what is wrong.

        Unless ``thorough``, objects untouched since this process last hashed them are skipped.
        ``progress`` gets the bytes done so far; at the end that is the sum of all sizes.
        """
        self._objects.verify(digests, is_thorough=thorough, progress=progress)

    def are_untouched(self, digests: Iterable[str]) -> bool:
        """Tell whether all objects are as they were when this process last found them good."""
        return self._objects.are_untouched(digests)

    def verify(self, progress: Callable[[int], None] | None = None) -> VerifyReport:
        """Hash every object there is or should be, and read every record; changes nothing."""
        present = self._objects.digests()
        damaged = {f"{m}/{v}": reason for (m, v), reason in self._versions.damaged().items()}
        damaged |= {f"{m}/{v}": _LOST for m, v in self._publish_log.lost()}
        damaged |= self._documents.damaged()
        if self.events.damage:
            damaged["events"] = self.events.damage
        objects = total_bytes = 0
        used = {*self._versions.used_digests(), *self.packed.used_digests()}
        for digest in sorted({*present, *used}):
            before = total_bytes

            def report(count: int, before: int = before) -> None:
                nonlocal total_bytes
                total_bytes = before + count
                if progress:
                    progress(total_bytes)

            try:
                self._objects.verify([digest], is_thorough=True, progress=report)
            except Corrupt as error:
                if digest in present and not self._is_wanted(digest):
                    continue  # gc dropped it while others were read
                damaged[digest] = str(error)
            objects += 1
        return VerifyReport(objects, total_bytes, damaged)

    def publish(
        self, manifest: Manifest, meta_event: JsonObject | None = None
    ) -> tuple[VersionRecord, bool]:
        """Return the version of this manifest and whether it is new.

        ``meta_event``: ``kind`` and, as known, ``who``, ``address``, ``reason`` of an event that
        goes into ``events`` with the version; it is kept in the record first, so that no crash
        loses it. None: no event. Raises MissingObjects; InvalidInput where a declared size is
        wrong; StoreFull and StoreFailed, after which the version may be there: publish again.
        """
        if meta_event is not None:
            parse_event({**meta_event, "seq": 1, "time": ""})
        with self._objects.pinned(manifest.object_digests) as sizes:
            record, is_new = self._versions.publish(manifest, sizes, meta_event)
        self._objects.release(manifest.object_digests)
        if is_new and meta_event is not None:
            self._publish_log.add(record, meta_event)
        self._publish_log.complete()
        return record, is_new

    def models(self) -> tuple[str, ...]:
        """Return the names of the models that have a version, in order."""
        return self._versions.models()

    def versions(self, model: str) -> tuple[VersionRecord, ...]:
        """Return a model's versions in numeric order, or raise NotFound."""
        return self._versions.versions(model)

    def version(self, model: str, version: int) -> VersionRecord:
        """Return one version. Raises NotFound; Corrupt where its record is damaged."""
        return self._versions.version(model, version)

    def damaged_versions(self) -> Mapping[tuple[str, int], str]:
        """Return the versions whose record cannot be read, with the reason."""
        return self._versions.damaged()

    def delete_version(self, model: str, version: int) -> None:
        """Remove a version; its number is never given again, its objects go with ``gc``."""
        self._reserve.run(lambda: self._versions.delete(model, version))

    def gc(self, keep: frozenset[str] = frozenset()) -> GcReport:
        """Drop the objects that no version uses; those uploaded or asked for lately stay.

        What was packed goes with its version, and once it is of another machine or runtime.
        ``keep``: further digests to spare. Safe at any moment. Raises Corrupt, and drops nothing,
        while a version's record is unreadable: what that one uses cannot be known.
        """
        for (model, version), reason in self._versions.damaged().items():
            if version:
                raise Corrupt(f"gc is off while version {version} of model {model} is: {reason}")
        self.packed.drop(self._versions.contents())
        objects, dropped_bytes = self._objects.collect(
            lambda digest: digest in keep or self._is_used(digest)
        )
        self._reserve.fill()
        return GcReport(objects, dropped_bytes)

    @property
    def damage_found(self) -> int:
        """How often an object was not what its digest says, or not there, since the opening.

        One that stays damaged counts at each look.
        """
        return self._objects.damage_found

    def usage(self) -> StoreUsage:
        """Return counts and sizes, those of the disk included."""
        objects, object_bytes = self._objects.totals()
        with disk_errors("read the free space"):
            free = self._files.free_bytes(self.root)
            total = shutil.disk_usage(self.root).total
        return StoreUsage(objects, object_bytes, free, total)

    def read_document(self, name: str) -> JsonObject | None:
        """Return a document, None where it was never written; Corrupt where it is damaged or gone.

        A document that was there and is not any more is no new store: who takes it for one loses
        all that it held.
        """
        return self._documents.read(name)

    def write_document(self, name: str, document: JsonObject) -> None:
        """Replace a document, durably and as a whole.

        After StoreFull or StoreFailed it is the old or the new one, and never a mix.
        """
        self._documents.write(name, document)

    def _is_wanted(self, digest: str) -> bool:
        """Tell whether a missing or damaged object is a loss: a version needs it, or it shows."""
        return self._is_used(digest) or digest in self._objects.digests()

    def _is_used(self, digest: str) -> bool:
        return self._versions.is_used(digest) or self.packed.is_used(digest)
