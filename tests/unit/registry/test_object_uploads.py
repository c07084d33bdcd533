"""Objects as they are taken in: what is kept, what is refused, and what a failing disk leaves."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from registry.errors import DigestMismatch, InvalidInput, MissingObjects, StoreFailed, StoreFull
from registry.store import Store
from tests.disk_model import ModelDisk, UnsyncedFiles
from tests.store_driver import digest_of, manifest_of, object_path, payload, upload

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
