"""Objects: what is taken in, what is found damaged, what gc may drop."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from registry.errors import (
    Corrupt,
    DigestMismatch,
    InvalidInput,
    MissingObjects,
    StoreFailed,
    StoreFull,
)
from registry.objects import LEASE_S
from registry.store import Store
from tests.disk_model import ModelDisk, UnsyncedFiles
from tests.store_driver import Clock, digest_of, manifest_of, payload, upload

BAD_DIGESTS = [
    "",
    "sha256:",
    "sha256:" + "0" * 63,
    "sha256:" + "0" * 65,
    "sha256:" + "A" * 64,
    "sha256:../../../../etc/passwd",
    "sha256:" + "0" * 63 + "\0",
    "sha256:" + "0" * 63 + "\n",
    "sha256:" + "\uff10" * 64,
    "md5:" + "0" * 64,
    "0" * 64,
]


def object_path(store: Store, digest: str) -> Path:
    return store.objects_dir / digest.removeprefix("sha256:")


def damage(path: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)


def flip_middle(data: bytearray) -> None:
    data[len(data) // 2] ^= 1


def leftovers(store: Store) -> list[Path]:
    return list(store.root.joinpath("tmp").iterdir())


def test_an_uploaded_object_lies_read_only_under_its_digest(store: Store) -> None:
    """The file's name is the hex digest, its content the bytes, its mode 0444."""
    digest = upload(store, payload(1), len(payload(1)))
    path = object_path(store, digest)
    assert path.read_bytes() == payload(1)
    assert path.stat().st_mode & 0o777 == 0o444
    assert store.object_size(digest) == len(payload(1))
    assert leftovers(store) == []


def test_an_empty_object_is_an_object(store: Store) -> None:
    """Zero bytes have a digest too."""
    assert store.object_size(upload(store, b"", 0)) == 0


@pytest.mark.parametrize("digest", BAD_DIGESTS)
def test_a_name_that_is_not_a_digest_is_refused(store: Store, digest: str) -> None:
    """Nothing but sha256 and 64 lower-case hex digits ever becomes a file name."""
    for call in (store.object_size, store.begin_upload, lambda d: store.verify_objects([d])):
        with pytest.raises(InvalidInput, match="digest"):
            call(digest)
    assert leftovers(store) == []


def test_wrong_bytes_are_refused_and_not_kept(store: Store) -> None:
    """An upload that hashes to something else raises DigestMismatch and leaves nothing."""
    digest = digest_of(b"right")
    with store.begin_upload(digest) as transfer:
        transfer.write(b"wrong")
        with pytest.raises(DigestMismatch, match=digest_of(b"wrong")):
            transfer.commit()
    assert store.object_size(digest) is None
    assert leftovers(store) == []


def test_half_an_upload_leaves_nothing(store: Store) -> None:
    """A caller that goes away in the middle leaves no object and no temporary file."""
    digest = digest_of(b"whole")
    with store.begin_upload(digest, 5) as transfer:
        transfer.write(b"wh")
    assert store.object_size(digest) is None
    assert leftovers(store) == []
    with pytest.raises(InvalidInput, match="over"):
        transfer.write(b"ole")


def test_more_bytes_than_announced_are_refused_at_once(store: Store) -> None:
    """The announced size is a limit, not a hint."""
    with store.begin_upload(digest_of(b"abc"), 3) as transfer:
        transfer.write(b"ab")
        with pytest.raises(InvalidInput, match="3 bytes announced"):
            transfer.write(b"cd")
    assert leftovers(store) == []


def test_an_upload_stops_before_the_reserve_of_the_disk(tmp_path: Path) -> None:
    """507 before the last bytes go, announced or found while they arrive; the rest still works."""

    class SmallDisk(UnsyncedFiles):
        free = 1000

        def free_bytes(self, path: Path) -> int:
            return self.free

    disk = SmallDisk()
    with Store.open(tmp_path / "store", files=disk, reserve_bytes=600) as store:
        with pytest.raises(StoreFull, match="1000 bytes free, and 600 have to stay free"):
            store.begin_upload(digest_of(b""), 401)
        with store.begin_upload(digest_of(b"")) as transfer:
            transfer.write(bytes(10 << 20))
            disk.free = 599
            with pytest.raises(StoreFull):
                transfer.write(bytes(10 << 20))
        assert leftovers(store) == []
        store.write_document("state", {"route": 1})
        assert store.events.append("routed") == 1


@pytest.mark.parametrize(("error", "told"), [(errno.ENOSPC, StoreFull), (errno.EIO, StoreFailed)])
def test_a_failing_sync_is_never_an_acknowledgement(
    tmp_path: Path, error: int, told: type[Exception]
) -> None:
    """The object does not count, not even where its name could not be taken away again."""

    class NoSync(UnsyncedFiles):
        is_failing = False

        def fsync_dir(self, path: Path) -> None:
            if self.is_failing:
                raise OSError(error, "injected")
            super().fsync_dir(path)

        def unlink(self, path: Path) -> None:
            if self.is_failing:
                raise OSError(error, "injected")
            super().unlink(path)

    disk = NoSync()
    with Store.open(tmp_path / "store", files=disk, reserve_bytes=0) as store:
        disk.is_failing = True
        with pytest.raises(told):
            upload(store, payload(0))
        disk.is_failing = False
        digest = digest_of(payload(0))
        assert object_path(store, digest).exists()
        store.verify_objects([digest], thorough=True)
        assert store.object_size(digest) is None
        with pytest.raises(MissingObjects):
            store.publish(manifest_of("m", 0))
        upload(store, payload(0))
        assert store.object_size(digest) == len(payload(0))


def test_an_object_whose_name_could_not_be_synced_is_taken_away(tmp_path: Path) -> None:
    """The next process, which cannot know of the failure, does not find it."""
    root = tmp_path / "store"
    root.mkdir()
    disk = ModelDisk(root)
    with Store.open(root, files=disk, reserve_bytes=0) as store:
        # create, two writes, mode, sync and rename go well; the sync of the folder does not.
        disk.fail_in(7, errno.EIO)
        with pytest.raises(StoreFailed):
            upload(store, payload(0))
    assert any(step.startswith("rename objects") for step in disk.log)
    with Store.open(root, files=UnsyncedFiles()) as store:
        assert store.object_size(digest_of(payload(0))) is None


def test_two_uploads_of_one_digest_both_succeed(store: Store) -> None:
    """Both are acknowledged, and the file that the first one made stays the same file."""
    digest = digest_of(payload(3))
    with store.begin_upload(digest) as first, store.begin_upload(digest) as second:
        first.write(payload(3))
        second.write(payload(3))
        first.commit()
        inode = object_path(store, digest).stat().st_ino
        second.commit()
    assert object_path(store, digest).stat().st_ino == inode
    assert leftovers(store) == []


@pytest.mark.slow
def test_many_threads_upload_the_same_objects(store: Store) -> None:
    """Eight callers that send the same ten objects at once all succeed."""
    start = threading.Barrier(8, timeout=30)

    def send() -> list[str]:
        start.wait()
        return [upload(store, payload(index)) for index in range(10)]

    with ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(send) for _ in range(8)]
        digests = {tuple(run.result(timeout=60)) for run in runs}
    assert digests == {tuple(digest_of(payload(index)) for index in range(10))}
    assert store.verify().damaged == {}
    assert leftovers(store) == []


def test_an_upload_is_not_hashed_again_at_load(store: Store) -> None:
    """The stamp taken at the end of an upload spares the first verification the reading."""
    data = bytes(3 << 20)
    digest = upload(store, data)
    skipped: list[int] = []
    store.verify_objects([digest], progress=skipped.append)
    assert skipped == [3 << 20]
    read: list[int] = []
    store.verify_objects([digest], thorough=True, progress=read.append)
    assert read == [1 << 20, 2 << 20, 3 << 20]


@pytest.mark.parametrize(
    "change",
    [
        flip_middle,
        lambda data: data.pop(),
        lambda data: data.append(0),
        lambda data: data.clear(),
        lambda data: data.__setitem__(0, data[0] ^ 0x80),
        lambda data: data.__setitem__(-1, data[-1] ^ 1),
    ],
)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_damage_is_found_and_named(
    tmp_path: Path, change: Callable[[bytearray], None], is_restarted: bool
) -> None:
    """One flipped bit, a missing byte, an extra one: Corrupt, with the digest, and not present."""
    with Store.open(tmp_path / "store", files=UnsyncedFiles()) as store:
        digest = upload(store, payload(5))
        damage(object_path(store, digest), change)
        if not is_restarted:
            with pytest.raises(Corrupt, match=digest):
                store.verify_objects([digest])
            assert store.object_size(digest) is None
    with Store.open(tmp_path / "store", files=UnsyncedFiles()) as store:
        with pytest.raises(Corrupt, match="damaged"):
            store.verify_objects([digest], thorough=False)
        assert store.object_size(digest) is None


def test_all_that_is_damaged_is_found_at_once(store: Store) -> None:
    """A verification goes on after the first: whoever sends objects again sends them all."""
    digests = [upload(store, payload(index)) for index in range(3)]
    for digest in digests[:2]:
        damage(object_path(store, digest), flip_middle)
    with pytest.raises(Corrupt, match=f"{digests[0]} is damaged.*; 1 more are damaged or missing"):
        store.verify_objects(digests)
    assert [store.object_size(d) is None for d in digests] == [True, True, False]


def test_a_missing_object_is_corrupt(store: Store) -> None:
    """A digest that a load needs and the folder lacks is named."""
    with pytest.raises(Corrupt, match="missing"):
        store.verify_objects([digest_of(b"never uploaded")])


def test_a_cut_object_is_found_by_its_size(store: Store) -> None:
    """Who waits for it, waits for no hash: it was whole once, so its right size is known."""
    digest = upload(store, payload(1), len(payload(1)))
    damage(object_path(store, digest), lambda data: data.pop())
    seen: list[int] = []

    with pytest.raises(Corrupt, match=f"{digest} is damaged: it has .* bytes instead of"):
        store.verify_objects([digest], progress=seen.append)

    assert seen == []
    assert upload(store, payload(1), len(payload(1))) == digest
    store.verify_objects([digest], thorough=True)


def test_a_touched_object_is_told_from_an_untouched_one_without_reading(store: Store) -> None:
    """Also where its bytes are the same; a missing one counts as touched."""
    kept, touched = upload(store, payload(1)), upload(store, payload(2))
    assert store.are_untouched([kept, touched])

    damage(object_path(store, touched), lambda _: None)
    assert store.are_untouched([kept])
    assert not store.are_untouched([kept, touched])

    store.verify_objects([touched])
    assert store.are_untouched([touched])
    object_path(store, kept).unlink()
    assert not store.are_untouched([kept])


@pytest.mark.parametrize("kind", ["symlink", "hard link", "folder", "pipe"])
def test_what_is_not_a_plain_file_is_refused(store: Store, tmp_path: Path, kind: str) -> None:
    """A link or a pipe in the place of an object is Corrupt, even if the bytes behind it match."""
    other = tmp_path / "elsewhere"
    other.write_bytes(payload(1))
    digest = digest_of(payload(1))
    path = object_path(store, digest)
    if kind == "symlink":
        path.symlink_to(other)
    elif kind == "hard link":
        os.link(other, path)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(Corrupt, match="hard links" if kind == "hard link" else "regular file"):
        store.verify_objects([digest])
    assert store.object_size(digest) is None
    assert set(store.verify().damaged) == {digest}


def test_the_right_bytes_heal_a_damaged_object(store: Store) -> None:
    """An upload replaces damaged bytes by a new file; who has the old one open keeps it."""
    digest = upload(store, payload(2))
    path = object_path(store, digest)
    damage(path, flip_middle)
    with path.open("rb") as held:
        damaged = held.read()
        upload(store, payload(2))
        held.seek(0)
        assert held.read() == damaged
    assert path.read_bytes() == payload(2)
    assert store.object_size(digest) == len(payload(2))
    store.verify_objects([digest], thorough=True)


def test_an_object_healed_while_it_is_read_is_good(store: Store) -> None:
    """A verification that read the damaged bytes looks again once they were replaced."""
    data = bytes(2 << 20)
    digest = upload(store, data)
    damage(object_path(store, digest), flip_middle)
    reports: list[int] = []

    def heal(done: int) -> None:
        reports.append(done)
        if len(reports) == 1:
            with pytest.raises(Corrupt):
                store.verify_objects([digest])
            upload(store, data)

    store.verify_objects([digest], progress=heal)
    assert store.object_size(digest) == len(data)


def test_an_upload_waits_for_the_sync_of_another_and_keeps_its_file(tmp_path: Path) -> None:
    """An object whose name is not yet durable does not count; the second caller waits for it."""

    class SlowSync(UnsyncedFiles):
        def __init__(self) -> None:
            self.is_syncing = threading.Event()
            self.may_go_on = threading.Event()
            self.second_is_written = threading.Event()

        def fsync(self, descriptor: int) -> None:
            if self.is_syncing.is_set():
                self.second_is_written.set()

        def fsync_dir(self, path: Path) -> None:
            if path.name == "objects" and threading.current_thread() is not main:
                self.is_syncing.set()
                assert self.may_go_on.wait(30)

    main = threading.current_thread()
    files = SlowSync()
    digest = digest_of(payload(0))
    with Store.open(tmp_path / "store", files=files) as store, ThreadPoolExecutor(2) as pool:
        first = pool.submit(upload, store, payload(0))
        assert files.is_syncing.wait(30)
        inode = object_path(store, digest).stat().st_ino
        assert store.object_size(digest) is None
        second = pool.submit(upload, store, payload(0))
        assert files.second_is_written.wait(30)
        files.may_go_on.set()
        assert first.result(timeout=30) == second.result(timeout=30) == digest
        assert object_path(store, digest).stat().st_ino == inode
        assert store.object_size(digest) == len(payload(0))


def test_a_good_object_of_an_earlier_run_is_kept_not_replaced(tmp_path: Path) -> None:
    """After a restart an upload reads what is there, and leaves it: workers share its pages."""
    with Store.open(tmp_path / "store", files=UnsyncedFiles()) as store:
        inode = object_path(store, upload(store, payload(2))).stat().st_ino
    with Store.open(tmp_path / "store", files=UnsyncedFiles()) as store:
        assert object_path(store, upload(store, payload(2))).stat().st_ino == inode


def test_progress_counts_all_bytes_of_all_objects(store: Store) -> None:
    """The last report is the sum of the sizes, whether bytes were read or skipped."""
    digests = [upload(store, payload(index)) for index in range(4)]
    total = sum(len(payload(index)) for index in range(4))
    for thorough in (False, True):
        seen: list[int] = []
        store.verify_objects(digests, thorough=thorough, progress=seen.append)
        assert seen == sorted(seen)
        assert seen[-1] == total


def test_gc_drops_what_no_version_uses_once_leases_are_over(store: Store, clock: Clock) -> None:
    """Fresh uploads stay for the lease; then unused ones go and used ones stay."""
    for index in range(3):
        upload(store, payload(index))
    store.publish(manifest_of("m", 0, (1,)))
    assert store.gc().objects == 0
    clock.now_s += LEASE_S - 1
    assert store.gc().objects == 0
    clock.now_s += 2
    report = store.gc()
    assert (report.objects, report.bytes) == (1, len(payload(2)))
    assert store.object_size(digest_of(payload(2))) is None
    assert store.verify().damaged == {}


def test_asking_for_an_object_renews_its_lease(store: Store, clock: Clock) -> None:
    """A client that was told an object is there may publish with it for the next 15 minutes."""
    digest = upload(store, payload(0))
    clock.now_s += LEASE_S - 1
    assert store.object_size(digest) is not None
    clock.now_s += LEASE_S - 1
    assert store.gc().objects == 0
    clock.now_s += 2
    assert store.gc().objects == 1


def test_a_publish_ends_the_leases_of_its_objects(store: Store) -> None:
    """Removing a version right after its push frees its bytes with the next gc."""
    upload(store, payload(0))
    store.publish(manifest_of("m", 0))
    store.delete_version("m", 1)
    assert store.gc().objects == 1


def test_gc_spares_what_it_is_told_to(store: Store, clock: Clock) -> None:
    """Digests in ``keep`` stay although no version uses them."""
    kept, dropped = upload(store, payload(0)), upload(store, payload(1))
    clock.now_s += LEASE_S + 1
    assert store.gc(keep=frozenset({kept})).objects == 1
    assert store.object_size(kept) is not None
    assert store.object_size(dropped) is None


def test_an_object_shared_by_two_versions_goes_with_the_second(store: Store) -> None:
    """Deleting one of two versions that share a tensor leaves the tensor."""
    for index in range(3):
        upload(store, payload(index))
    store.publish(manifest_of("a", 0, (2,)))
    store.publish(manifest_of("b", 1, (2,)))
    store.delete_version("a", 1)
    assert store.gc().objects == 1
    store.verify_objects(store.version("b", 1).manifest.object_digests, thorough=True)
    store.delete_version("b", 1)
    assert store.gc().objects == 2


def test_gc_leaves_names_that_are_no_digests(store: Store) -> None:
    """A stranger's file in the objects folder is not ours to remove."""
    stranger = store.objects_dir / "lost+found"
    stranger.mkdir()
    assert store.gc().objects == 0
    assert stranger.is_dir()


def test_gc_at_every_step_of_upload_and_publish_harms_neither(tmp_path: Path, clock: Clock) -> None:
    """F20: a collection between any two system calls drops nothing that is on its way in.

    Not even where the leases run out in the middle of the publish.
    """

    class CollectingFiles(UnsyncedFiles):
        store: Store | None = None
        collections = 0
        is_late = False

        def collect(self) -> None:
            store, self.store = self.store, None
            if store is not None:
                clock.now_s += LEASE_S + 1 if self.is_late else 0
                store.gc()
                self.collections += 1
                self.store = store

        def create(self, path: Path) -> int:
            self.collect()
            return super().create(path)

        def fsync(self, descriptor: int) -> None:
            super().fsync(descriptor)
            self.collect()

        def rename(self, source: Path, target: Path) -> None:
            self.collect()
            super().rename(source, target)
            self.collect()

        def fsync_dir(self, path: Path) -> None:
            self.collect()
            super().fsync_dir(path)
            self.collect()

    files = CollectingFiles()
    with Store.open(tmp_path / "store", files=files, monotonic_s=clock) as store:
        files.store = store
        for index in range(3):
            upload(store, payload(index))
        files.is_late = True
        record, _ = store.publish(manifest_of("m", 0, (1, 2)))
        store.verify_objects(record.manifest.object_digests, thorough=True)
        store.gc()
        assert store.usage().objects == 3
    assert files.collections > 15


@pytest.mark.slow
def test_f20_gc_against_upload_against_publish_against_verify(store: Store, clock: Clock) -> None:
    """In 200 rounds of races nothing that a version uses goes, and no call fails unplanned."""
    rounds = 200
    stop = threading.Event()

    def collect() -> None:
        while not stop.is_set():
            store.gc()

    def push(model: str) -> None:
        for mark in range(rounds):
            upload(store, payload(0))
            upload(store, payload(mark % 5))
            manifest = manifest_of(model, 0, (mark % 5,), mark)
            while True:
                try:
                    record, _ = store.publish(manifest)
                    break
                except MissingObjects:  # another's publish ended the lease and its delete followed
                    upload(store, payload(0))
                    upload(store, payload(mark % 5))
            store.verify_objects(record.manifest.object_digests, thorough=True)
            store.delete_version(model, record.version)

    with ThreadPoolExecutor(3) as pool:
        collector = pool.submit(collect)
        pushes = [pool.submit(push, model) for model in ("a", "b")]
        try:
            for run in pushes:
                run.result(timeout=100)
        finally:
            stop.set()
        collector.result(timeout=30)
    assert store.models() == ()
    clock.now_s += LEASE_S + 1
    store.gc()
    assert store.usage().objects == 0
