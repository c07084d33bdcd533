"""A backup is the store at one moment, whatever happens meanwhile, and becomes that store again."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from registry import backup
from registry.errors import (
    InvalidInput,
    NotFound,
    RegistryError,
    StoreFailed,
    StoreFormat,
    StoreFull,
    StoreLocked,
)
from registry.layout import StoreLock
from registry.snapshots import SnapshotFolder
from registry.store import Store
from tests.disk_model import UnsyncedFiles
from tests.store_driver import digest_of, manifest_of, payload, upload


def back_up(root: Path, target: Path, **options: Any) -> backup.BackupReport:
    return backup.back_up(root, target, **{"files": UnsyncedFiles(), **options})


def restore(folder: Path, root: Path, **options: Any) -> backup.RestoreReport:
    return backup.restore(folder, root, **{"files": UnsyncedFiles(), **options})


def publish(store: Store, model: str, graph: int, *tensors: int) -> int:
    for index in (graph, *tensors):
        upload(store, payload(index))
    return store.publish(manifest_of(model, graph, tensors), {"kind": "publish"})[0].version


def contents(root: Path) -> dict[str, object]:
    """What a store holds, as its own code reads it; every object is hashed."""
    with Store.open(root, files=UnsyncedFiles(), reserve_bytes=0) as store:
        assert store.verify().damaged == {}
        return {
            "versions": {
                (model, record.version): record.digest
                for model in store.models()
                for record in store.versions(model)
            },
            "state": store.read_document("state"),
            "events": [event.to_json() for event in store.events.read()],
        }


@pytest.fixture
def full(store: Store) -> Store:
    """Two models over a shared tensor, a document, an event, and an object without a version."""
    publish(store, "m", 0, 1)
    publish(store, "n", 2, 1)
    store.write_document("state", {"value": 1})
    store.events.append("alias", model="m")
    upload(store, payload(7))
    return store


class Failing(UnsyncedFiles):
    """The n-th call fails, or something happens before it."""

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        self._at, self._act, self.calls = at, act, 0

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        if not name.startswith("_") and callable(value):
            self.calls += 1
            if self.calls == self._at:
                self._act()
        return value


class Killed(BaseException):
    """The process ends here."""


def kill() -> None:
    raise Killed


def no_room() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_backup_becomes_the_same_store_again(full: Store, tmp_path: Path) -> None:
    """While the server holds the store; only what a version needs is copied, caches are not."""
    report = back_up(full.root, tmp_path / "b")
    assert (report.snapshot, report.objects, report.copied_objects) == (1, 3, 3)
    assert report.copied_bytes == report.object_bytes == sum(len(payload(i)) for i in range(3))
    restored = restore(tmp_path / "b", tmp_path / "again")
    assert (restored.snapshot, restored.objects, restored.missing) == (1, 3, ())
    full.close()
    assert contents(tmp_path / "again") == contents(full.root)


def test_an_empty_store_can_be_backed_up(store: Store, tmp_path: Path) -> None:
    """The first backup need not wait for the first push."""
    assert back_up(store.root, tmp_path / "b").objects == 0
    restore(tmp_path / "b", tmp_path / "again")
    assert contents(tmp_path / "again")["versions"] == {}


def test_the_next_backup_copies_only_what_is_new(full: Store, tmp_path: Path) -> None:
    """And drops what only the former one needed, or keeps both where that is asked for."""
    back_up(full.root, tmp_path / "b")
    full.delete_version("n", 1)
    publish(full, "m", 3, 1)
    second = back_up(full.root, tmp_path / "b", keep=2)
    assert (second.copied_objects, second.freed_bytes) == (1, 0)
    restore(tmp_path / "b", tmp_path / "old", snapshot=1)
    assert set(contents(tmp_path / "old")["versions"]) == {("m", 1), ("n", 1)}
    third = back_up(full.root, tmp_path / "b")
    assert (third.copied_objects, third.freed_bytes) == (0, len(payload(2)))
    with pytest.raises(NotFound, match=r"the backup .*/b has no snapshot 1: it has 3"):
        restore(tmp_path / "b", tmp_path / "gone", snapshot=1)


@pytest.mark.slow
@pytest.mark.parametrize("act", [kill, no_room])
def test_a_backup_that_ends_anywhere_leaves_the_former_one(
    full: Store, tmp_path: Path, act: Callable[[], None]
) -> None:
    """Each call is the last one once; then the old snapshot restores, and the next try is whole."""
    back_up(full.root, tmp_path / "b")
    publish(full, "m", 3, 1)
    at, was_cut = 1, True
    while was_cut:
        base = tmp_path / str(at)
        shutil.copytree(tmp_path / "b", base / "b")
        was_cut = False
        try:
            back_up(full.root, base / "b", files=Failing(at, act))
        except (Killed, StoreFull):
            was_cut = True
        restore(base / "b", base / "old")
        versions = set(contents(base / "old")["versions"])
        assert versions >= {("m", 1), ("n", 1)}
        back_up(full.root, base / "b")
        restore(base / "b", base / "new")
        assert set(contents(base / "new")["versions"]) == {("m", 1), ("m", 2), ("n", 1)}
        at += 1
    assert at > 20


@pytest.mark.parametrize("act", [kill, no_room])
def test_a_restore_that_ends_anywhere_is_no_store_and_can_go_on(
    full: Store, tmp_path: Path, act: Callable[[], None]
) -> None:
    """A server never starts on half of a store."""
    back_up(full.root, tmp_path / "b")
    full.close()
    expected = contents(full.root)
    at, was_cut = 1, True
    while was_cut:
        target = tmp_path / f"again{at}"
        was_cut = False
        try:
            restore(tmp_path / "b", target, files=Failing(at, act))
        except (Killed, StoreFull):
            was_cut = True
        if not (target / "FORMAT").exists():
            with pytest.raises(StoreFormat):
                Store.open_read_only(target)
            restore(tmp_path / "b", target)
        assert contents(target) == expected
        at += 1
    assert at > 20


def test_changes_while_records_are_copied_never_mix(full: Store, tmp_path: Path) -> None:
    """A version published in the middle is whole in the snapshot or not in it at all."""
    seen = set()
    for at in range(1, 60, 5):
        number = 10 + at
        files = Failing(at, lambda number=number: publish(full, "m", number))
        back_up(full.root, tmp_path / "b", files=files)
        restore(tmp_path / "b", tmp_path / f"r{at}")
        held = contents(tmp_path / f"r{at}")
        published = {
            (event["model"], event["version"])
            for event in held["events"]
            if event["kind"] == "publish"
        }
        assert set(held["versions"]) == published
        seen.add(len(held["versions"]))
        shutil.rmtree(tmp_path / f"r{at}")
    assert len(seen) > 5


@pytest.mark.slow
def test_an_object_that_went_with_its_version_is_no_loss(tmp_path: Path) -> None:
    """A delete and a gc in the middle: the snapshot is taken anew, without that version."""
    at, is_over = 1, False
    while not is_over:
        base = tmp_path / str(at)
        with Store.open(base / "store", files=UnsyncedFiles(), reserve_bytes=0) as store:
            publish(store, "m", 0, 1)
            publish(store, "n", 2, 1)

            def delete(store: Store = store) -> None:
                store.delete_version("n", 1)
                store.events.append("delete", model="n", version=1)
                store.objects_dir.joinpath(digest_of(payload(2))[7:]).unlink()

            files = Failing(at, delete)
            assert back_up(store.root, base / "b", files=files).missing == ()
            is_over = files.calls < at
        restore(base / "b", base / "again")
        assert ("m", 1) in contents(base / "again")["versions"]
        at += 1
    assert at > 20


def test_a_damaged_object_is_named_and_the_rest_is_copied(full: Store, tmp_path: Path) -> None:
    """A backup of all but one version is better than none; later the object is fetched."""
    path = full.objects_dir / digest_of(payload(2))[7:]
    path.chmod(0o644)
    path.write_bytes(b"x" * len(payload(2)))
    report = back_up(full.root, tmp_path / "b")
    assert report.missing == (digest_of(payload(2)),)
    assert report.objects == 2
    assert restore(tmp_path / "b", tmp_path / "part").missing == report.missing
    path.write_bytes(payload(2))
    assert back_up(full.root, tmp_path / "b").missing == ()


def test_what_rots_in_the_backup_is_found_and_mended(full: Store, tmp_path: Path) -> None:
    """A restore hashes what it copies; a thorough backup reads what it already has."""
    back_up(full.root, tmp_path / "b")
    path = SnapshotFolder.open(tmp_path / "b").object_path(digest_of(payload(1)))
    path.chmod(0o644)
    path.write_bytes(b"x" * len(payload(1)))
    assert restore(tmp_path / "b", tmp_path / "part").missing == (digest_of(payload(1)),)
    assert back_up(full.root, tmp_path / "b").copied_objects == 0
    assert back_up(full.root, tmp_path / "b", is_thorough=True).copied_objects == 1
    assert restore(tmp_path / "b", tmp_path / "again").missing == ()


def test_folders_that_are_something_else_are_refused(full: Store, tmp_path: Path) -> None:
    """Nothing is written over, and the message says what to do instead."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    strange = rf"{tmp_path}/mine is not a backup and not empty .it holds 'thesis.txt'"
    with pytest.raises(StoreFormat, match=strange):
        back_up(full.root, tmp_path / "mine")
    with pytest.raises(StoreFormat, match=f"{full.root}/backup lies inside of the store"):
        back_up(full.root, full.root / "backup")
    with pytest.raises(StoreFormat, match=f"{tmp_path}/mine is not a store: it has no FORMAT file"):
        back_up(tmp_path / "mine", tmp_path / "b")
    with pytest.raises(InvalidInput, match="keep 0 is not allowed: at least 1"):
        back_up(full.root, tmp_path / "b", keep=0)
    assert not (tmp_path / "b").exists()
    back_up(full.root, tmp_path / "b")
    for folder in (full.root, tmp_path / "mine", tmp_path / "b"):
        with pytest.raises(StoreFormat, match=f"{folder} is not empty"):
            restore(tmp_path / "b", folder)
    with pytest.raises(
        StoreFormat, match=f"{tmp_path}/mine is not a backup: it has no BACKUP file"
    ):
        restore(tmp_path / "mine", tmp_path / "again")
    (tmp_path / "b" / "BACKUP").write_text('{"format": 9}')
    with pytest.raises(StoreFormat, match=f"{tmp_path}/b has format 9, this release reads up to 1"):
        restore(tmp_path / "b", tmp_path / "again")


def test_what_is_not_there_or_not_allowed_names_its_folder(full: Store, tmp_path: Path) -> None:
    """Missing folders, files in their place, disks that fail: where, and what to do."""
    (tmp_path / "file").write_text("x")
    back_up(full.root, tmp_path / "b")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "BACKUP").write_text('{"format": 1}')

    class Full(UnsyncedFiles):
        def create(self, path: Path) -> int:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    class Forbidden(UnsyncedFiles):
        def create(self, path: Path) -> int:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    class Broken(UnsyncedFiles):
        def fsync(self, descriptor: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

    missing, new = tmp_path / "none", tmp_path / "new"
    for attempt, says in (
        (lambda: back_up(missing, new), f"no folder {missing}: give the folder that the"),
        (lambda: restore(missing, new), f"no folder {missing}: give the folder that `ram"),
        (lambda: back_up(full.root, tmp_path / "file"), f"backup {tmp_path}/file: .*: there must"),
        (lambda: restore(tmp_path / "b", tmp_path / "file"), f"store {tmp_path}/file: .*: there m"),
        (lambda: restore(tmp_path / "cut", new), f"{tmp_path}/cut holds no complete .*: run `ramr"),
        (lambda: back_up(full.root, new, files=Full()), f"of the backup {new}: give it more space"),
        (lambda: restore(tmp_path / "b", new, files=Full()), f"of the store {new}: give it more"),
        (lambda: back_up(full.root, new, files=Forbidden()), f"{new}: {new}/.*: run the comm"),
        (lambda: back_up(full.root, new, files=Broken()), f"backup {new}: .*: look at"),
    ):  # fmt: skip
        with pytest.raises(RegistryError, match=says):
            attempt()


def test_folders_are_named_whole_however_they_were_given(
    full: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the log of a timer nobody knows what "b" was relative to."""

    class Broken(UnsyncedFiles):
        def fsync(self, descriptor: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

    back_up(full.root, tmp_path / "b")
    monkeypatch.chdir(tmp_path)
    for attempt, folder in (
        (lambda: back_up(full.root, Path("c"), files=Broken()), tmp_path / "c"),
        (lambda: back_up(Path("none"), Path("c")), tmp_path / "none"),
        (lambda: restore(Path("b"), Path("d"), files=Broken()), tmp_path / "d"),
        (lambda: restore(Path("b"), Path("d"), snapshot=9), tmp_path / "b"),
    ):
        with pytest.raises(RegistryError, match=str(folder)):
            attempt()


def test_what_a_file_server_adds_to_the_folders_of_a_backup_stays(
    full: Store, tmp_path: Path
) -> None:
    """Such as the index of a NAS, in each of them: it is no snapshot, no object, and not ours."""
    back_up(full.root, tmp_path / "b")
    added = [tmp_path / "b" / name / "@eaDir" for name in ("snapshots", "objects", ".")]
    for folder in added:
        folder.mkdir()
        (folder / "index").write_text("x")
    back_up(full.root, tmp_path / "b")
    assert all((folder / "index").exists() for folder in added)
    assert restore(tmp_path / "b", tmp_path / "again").missing == ()


def test_two_backups_into_one_folder_wait_for_each_other(full: Store, tmp_path: Path) -> None:
    """The second one is refused before it changes anything."""
    back_up(full.root, tmp_path / "b")
    lock = StoreLock(tmp_path / "b", "backup")
    try:
        with pytest.raises(
            StoreLocked, match=f"the backup {tmp_path}/b is in use by process .*: wait"
        ):
            back_up(full.root, tmp_path / "b")
    finally:
        lock.close()


def test_a_store_that_never_rests_is_given_up(full: Store, tmp_path: Path, monkeypatch) -> None:
    """A bounded number of readings, then words."""
    monkeypatch.setattr("registry.backup.time.sleep", lambda _: None)
    marks = iter(range(1_000_000))

    class Restless(UnsyncedFiles):
        def rename(self, source: Path, target: Path) -> None:
            super().rename(source, target)
            full.write_document("state", {"value": next(marks)})

    with pytest.raises(StoreFailed, match=f"{full.root} changes faster than it can be read"):
        back_up(full.root, tmp_path / "b", files=Restless())
