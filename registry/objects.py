"""The pool of objects: bytes named by their digest, read-only, shared by every version.

Guarantees:
1. An object never changes under its name and goes only by unlink, so who maps it keeps it.
2. An object counts as present only once its bytes and its name are on the disk.
3. ``collect`` drops nothing that was asked for or uploaded in the last ``LEASE_S`` seconds, that a
   publish under way has found, or that ``is_used``.
Thread-safe. ``_lock`` is never held over a sync or while bytes are hashed.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from registry.errors import Conflict, Corrupt, MissingObjects, StoreFull
from registry.files import Files, discard, disk_errors, temporary_path
from registry.hashing import Stamp, hash_object, stamp_of
from registry.ident import check_digest, digest_hex
from registry.kept_uploads import KeptUploads
from registry.uploads import Upload

LEASE_S: Final = 15 * 60.0
_PREFIX: Final = "sha256:"


class ObjectPool:
    """The objects of one store. ``reserve_bytes``: disk space that uploads may not touch."""

    def __init__(
        self,
        objects_dir: Path,
        temporary_dir: Path,
        files: Files,
        monotonic_s: Callable[[], float],
        reserve_bytes: int,
    ) -> None:
        self._dir = objects_dir
        self._temporary_dir = temporary_dir
        self._files = files
        self._monotonic_s = monotonic_s
        self._reserve_bytes = reserve_bytes
        self._lock = threading.Lock()
        self._install_lock = threading.Lock()
        self._stamps: dict[str, Stamp] = {}
        # Of what was once hashed and found good: another size is damage, without a look at a byte.
        self._sizes: dict[str, int] = {}
        self._leases: dict[str, float] = {}
        self._pins: Counter[str] = Counter()
        self.kept = KeptUploads(monotonic_s)
        # Names that are in the folder and count for nothing until the right bytes are uploaded:
        # found damaged, and not (yet) known to be durable.
        self._damaged: set[str] = set()
        # How often an object was not what its digest says, since the start.
        self.damage_found = 0
        self._unsynced: set[str] = set()

    def path(self, digest: str) -> Path:
        """Return where the object of a digest lies, present or not."""
        return self._dir / digest_hex(digest)

    def size(self, digest: str, expected_bytes: int | None = None) -> int | None:
        """Return the object's size and renew its lease; None where it must be uploaded.

        ``expected_bytes``: what it should be, if known; one of another size is damaged.
        """
        check_digest(digest)
        with self._lock:
            status = self._present(digest)
            if status is None or expected_bytes not in (None, status.st_size):
                return None
            self._renew(digest)
            return status.st_size

    def begin_upload(self, digest: str, size_bytes: int | None, offset: int = 0) -> Upload:
        """Return an upload to write the bytes of ``digest`` into, from ``offset`` on."""
        check_digest(digest)
        if offset:
            return self._go_on(digest, size_bytes, offset)
        self.check_room(size_bytes or 0, digest)
        temporary = temporary_path(self._temporary_dir)
        with disk_errors(f"store object {digest}"):
            descriptor = self._files.create(temporary)
        return Upload(self, self._files, digest, size_bytes, temporary, descriptor)

    def keep_upload(self, upload: Upload) -> None:
        """Keep an upload for whoever goes on with it. For Upload.suspend."""
        self.kept.keep(upload)

    def _go_on(self, digest: str, size_bytes: int | None, offset: int) -> Upload:
        upload = self.kept.take(digest)
        if upload is None:
            raise Conflict(
                f"object {digest}: nothing of it is kept that byte {offset} could follow: "
                "send it whole"
            )
        if (upload.written_bytes, upload.size_bytes) != (offset, size_bytes):
            self.kept.keep(upload)
            raise Conflict(
                f"object {digest}: {upload.written_bytes} of {upload.size_bytes} bytes are kept, "
                f"which byte {offset} of {size_bytes} does not follow: go on after them, or send "
                "it whole"
            )
        try:
            self.check_room((size_bytes or 0) - offset, digest)
        except BaseException:
            self.kept.keep(upload)
            raise
        return upload

    def check_room(self, more_bytes: int, digest: str) -> None:
        """Raise StoreFull where ``more_bytes`` would eat into the reserve.

        What broken uploads left gives way first: it can be sent again.
        """
        try:
            self._check_room(more_bytes, digest)
        except StoreFull:
            if not self.kept.drop_all():
                raise
            self._check_room(more_bytes, digest)

    def _check_room(self, more_bytes: int, digest: str) -> None:
        with disk_errors("read the free space"):
            free = self._files.free_bytes(self._dir)
        if free - more_bytes < self._reserve_bytes:
            raise StoreFull(
                f"no room for {more_bytes} more bytes of object {digest}: the disk has {free} "
                f"bytes free, and {self._reserve_bytes} have to stay free for the way back; "
                "remove versions and run gc"
            )

    def install(self, digest: str, temporary: Path, descriptor: int) -> None:
        """Give synced bytes, known to hash to ``digest``, their name. For Upload.commit.

        Where a good object has the name already it stays (others map it) and the new bytes go;
        a damaged one is replaced, and those who map it keep what they have.
        """
        self._examine(digest)
        with self._install_lock:
            # Whoever would have gone on with another one finds the object there.
            if (other := self.kept.take(digest)) is not None:
                other.abort()
            if self._keep(digest):
                discard(self._files, temporary)
                return
            with self._lock:
                self._unsynced.add(digest)
                self._renew(digest)
            with disk_errors(f"store object {digest}"):
                self._files.rename(temporary, self.path(digest))
                self._sync_name(digest)
                # Last of all: the rename and the change of mode before it move the change time.
                stamp = stamp_of(os.fstat(descriptor))
            with self._lock:
                self._note_good(digest, stamp)
                self._unsynced.discard(digest)
                self._renew(digest)

    @contextmanager
    def pinned(self, digests: Iterable[str]) -> Iterator[dict[str, int]]:
        """Hold objects against ``collect`` for the block; yields the size of each.

        Raises MissingObjects naming all that are not there.
        """
        wanted = sorted(set(digests))
        with self._lock:
            found = {digest: self._present(digest) for digest in wanted}
            missing = tuple(digest for digest, status in found.items() if status is None)
            if missing:
                raise MissingObjects(
                    f"manifest names {len(missing)} objects that the store does not hold, "
                    f"first {missing[0]}: upload them",
                    missing,
                )
            self._pins.update(wanted)
        try:
            yield {digest: status.st_size for digest, status in found.items() if status}
        finally:
            with self._lock:
                self._pins.subtract(wanted)
                for digest in wanted:
                    if not self._pins[digest]:
                        del self._pins[digest]

    def release(self, digests: Iterable[str]) -> None:
        """End the leases of objects that a published version now holds."""
        with self._lock:
            for digest in digests:
                self._leases.pop(digest, None)

    def verify(
        self,
        digests: Iterable[str],
        *,
        is_thorough: bool,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Raise Corrupt where objects are not what their digests say, after a look at all of them.

        It names the first, and how many more there are: whoever sends objects again sends all.
        Not thorough: an object that has not been touched since it was last hashed in this process
        is taken as good. ``progress`` gets the bytes done so far, skipped objects included.
        """
        done = 0

        def hashed(count: int) -> None:
            nonlocal done
            done += count
            if progress:
                progress(done)

        found: list[Corrupt] = []
        for digest in digests:
            check_digest(digest)
            status = None if is_thorough else self._unchanged(digest)
            if status is not None:
                hashed(status.st_size)
                continue
            try:
                self._rehash(digest, hashed)
            except Corrupt as error:
                found.append(error)
        raise_first(found)

    def are_untouched(self, digests: Iterable[str]) -> bool:
        """Tell whether all objects are as they were when last found good; reads no byte."""
        return all(self._unchanged(check_digest(digest)) is not None for digest in digests)

    def find_damage(self, sizes: Mapping[str, int | None], *, is_suspect: bool) -> None:
        """Hash objects that are there, so that the damaged ones among them count as absent.

        ``sizes``: what each object should have; one of which that is not known (None) is hashed.
        The others are not unless ``is_suspect``, or one of all is known to be damaged or has
        another size. Those untouched since they were last hashed are skipped.
        """
        there, unsized = [], []
        for digest, expected_bytes in sizes.items():
            with self._lock:
                is_suspect |= digest in self._damaged
                status = self._present(digest)
            if status is not None:
                there.append(digest)
                if expected_bytes is None:
                    unsized.append(digest)
                else:
                    is_suspect |= expected_bytes != status.st_size
        with suppress(Corrupt):
            self.verify(there if is_suspect else unsized, is_thorough=False)

    def collect(self, is_used: Callable[[str], bool]) -> tuple[int, int]:
        """Drop what nobody uses; return how many objects and bytes. Safe beside everything."""
        self.kept.drop_old()
        objects = dropped_bytes = 0
        with disk_errors("drop objects"):
            for digest in self.digests():
                size_bytes = self._drop(digest, is_used)
                if size_bytes is not None:
                    objects += 1
                    dropped_bytes += size_bytes
            if objects:
                self._files.fsync_dir(self._dir)
        return objects, dropped_bytes

    def digests(self) -> tuple[str, ...]:
        """Return the digests that the names in the folder spell, intact or not, in order."""
        with disk_errors("list the objects"), os.scandir(self._dir) as entries:
            names = sorted(entry.name for entry in entries)
        return tuple(_PREFIX + name for name in names if _is_object_name(name))

    def totals(self) -> tuple[int, int]:
        """Return how many objects there are and their bytes."""
        digests = self.digests()
        with disk_errors("look the objects up"):
            sizes = [status.st_size for d in digests if (status := self._status(d))]
        return len(sizes), sum(sizes)

    def _status(self, digest: str) -> os.stat_result | None:
        try:
            status = self.path(digest).lstat()
        except FileNotFoundError:
            return None
        return status if stat.S_ISREG(status.st_mode) else None

    def _present(self, digest: str) -> os.stat_result | None:
        if digest in self._damaged or digest in self._unsynced:
            return None
        with disk_errors(f"look object {digest} up"):
            return self._status(digest)

    def _renew(self, digest: str) -> None:
        self._leases[digest] = self._monotonic_s() + LEASE_S

    def _unchanged(self, digest: str) -> os.stat_result | None:
        """Return the status of an object that is as it was when last hashed, else None."""
        with self._lock:
            status = self._present(digest)
            if status is None or self._stamps.get(digest) != stamp_of(status):
                return None
            return status

    def _examine(self, digest: str) -> None:
        """Make sure that an object which is there, if it is good, has a stamp."""
        with self._lock:
            is_there = self._present(digest) is not None
        if is_there:
            with suppress(Corrupt):
                self.verify([digest], is_thorough=False)

    def _keep(self, digest: str) -> bool:
        """Lease the object that is there, if it is just as it was when last found good."""
        with self._lock:
            status = self._present(digest)
            if status is None or self._stamps.get(digest) != stamp_of(status):
                return False
            self._renew(digest)
            return True

    def _sync_name(self, digest: str) -> None:
        try:
            self._files.fsync_dir(self._dir)
        except OSError:
            # The name may be lost at the next power cut although it shows now, and a second sync
            # could succeed without having written it. So it goes; if it cannot, it counts for
            # nothing until it is uploaded again.
            discard(self._files, self.path(digest))
            raise

    def _rehash(self, digest: str, hashed: Callable[[int], None]) -> None:
        while True:
            before = self._stamp_now(digest)
            try:
                self._check_size(digest, before)
                stamp = hash_object(self.path(digest), digest, hashed)
            except Corrupt:
                with self._lock:
                    # An upload may have put good bytes in the place of the ones just hashed.
                    status = self._status(digest)
                    if status and (before is None or status.st_ino != before.inode):
                        continue
                    self._stamps.pop(digest, None)
                    if status:
                        self._damaged.add(digest)
                    self.damage_found += 1
                raise
            with self._lock:
                self._note_good(digest, stamp)
            return

    def _check_size(self, digest: str, stamp: Stamp | None) -> None:
        right_bytes = self._sizes.get(digest)
        if stamp is not None and right_bytes not in (None, stamp.size_bytes):
            raise Corrupt(
                f"object {digest} is damaged: it has {stamp.size_bytes} bytes instead of "
                f"{right_bytes}"
            )

    def _note_good(self, digest: str, stamp: Stamp) -> None:
        self._stamps[digest] = stamp
        self._sizes[digest] = stamp.size_bytes
        self._damaged.discard(digest)

    def _stamp_now(self, digest: str) -> Stamp | None:
        with disk_errors(f"look object {digest} up"):
            status = self._status(digest)
        return stamp_of(status) if status else None

    def _drop(self, digest: str, is_used: Callable[[str], bool]) -> int | None:
        with self._lock:
            # The lease and the pin are looked at before the uses: a publish adds its use first and
            # lets go of them afterwards, so one of the two is always seen.
            if self._pins[digest] or self._leases.get(digest, 0.0) > self._monotonic_s():
                return None
            if is_used(digest):
                return None
            path = self.path(digest)
            try:
                status = path.lstat()
                self._files.unlink(path)
            except (FileNotFoundError, IsADirectoryError):
                return None
            self._leases.pop(digest, None)
            self._stamps.pop(digest, None)
            self._sizes.pop(digest, None)
            self._damaged.discard(digest)
            self._unsynced.discard(digest)
            return status.st_size


def raise_first(found: Sequence[Corrupt]) -> None:
    """Raise the first of several objects' faults, which says how many more there are."""
    if len(found) > 1:
        raise Corrupt(f"{found[0]}; {len(found) - 1} more are damaged or missing") from found[0]
    if found:
        raise found[0]


def _is_object_name(name: str) -> bool:
    return len(name) == 64 and not set(name) - set("0123456789abcdef")
