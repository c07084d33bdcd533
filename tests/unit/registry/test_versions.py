"""Versions: numbers, records, what a publish refuses."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from registry.errors import Corrupt, InvalidInput, MissingObjects, NotFound, StoreFailed, StoreFull
from registry.manifest import TensorEntry
from registry.objects import LEASE_S
from registry.store import Store
from tests.disk_model import ModelDisk, UnsyncedFiles
from tests.store_driver import Clock, digest_of, manifest_of, payload, upload


@pytest.fixture
def filled(store: Store) -> Store:
    for index in range(3):
        upload(store, payload(index))
    return store


def test_the_same_content_again_is_the_same_version(filled: Store) -> None:
    """Another commit or hour makes no new version; other bytes do."""
    first, is_new = filled.publish(manifest_of("m", 0, (1,)))
    assert (first.version, is_new) == (1, True)
    again = replace(manifest_of("m", 0, (1,)), meta={"commit": "other"}, created="2030")
    assert filled.publish(again) == (first, False)
    assert filled.publish(manifest_of("m", 0, (2,)))[0].version == 2
    assert first.disk_bytes == len(payload(0)) + len(payload(1))


def test_versions_order_as_numbers(filled: Store) -> None:
    """C05: 9 comes before 10."""
    for mark in range(11):
        filled.publish(manifest_of("m", 0, mark=mark))
    assert [record.version for record in filled.versions("m")] == list(range(1, 12))


def test_stray_files_among_the_records_are_no_versions(tmp_path: Path) -> None:
    """C05: only canonical numbers count, whatever else lies in the folder."""
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        upload(store, payload(0))
        store.publish(manifest_of("m", 0))
        folder = tmp_path / "models" / "m" / "versions"
        record = (folder / "1.json").read_bytes()
        for name in ("010.json", "latest", ".tmp", "3.bak", "-1.json", "\u0662.json", "2.JSON"):
            (folder / name).write_bytes(record)
        (tmp_path / "models" / ".hidden").mkdir()
        (tmp_path / "models" / "stats").mkdir()
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        assert store.models() == ("m",)
        assert [r.version for r in store.versions("m")] == [1]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_c07_a_number_is_never_given_twice(tmp_path: Path, is_restarted: bool) -> None:
    """The highest version deleted, even the whole model: the next push gets a new number."""
    store = Store.open(tmp_path, files=UnsyncedFiles())
    upload(store, payload(0))
    for mark in range(3):
        store.publish(manifest_of("m", 0, mark=mark))
    for version in (2, 3, 1):
        store.delete_version("m", version)
    assert store.models() == ()
    if is_restarted:
        store.close()
        store = Store.open(tmp_path, files=UnsyncedFiles())
    with store:
        assert store.models() == ()
        assert store.publish(manifest_of("m", 0, mark=0))[0].version == 4


def test_c07_a_number_whose_record_is_lost_stays_used(tmp_path: Path) -> None:
    """The log of changes remembers it, so that an alias never comes to mean other content."""
    event = {"kind": "publish"}
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        upload(store, payload(0))
        for mark in range(2):
            store.publish(manifest_of("m", 0, mark=mark), event)
        store.publish(manifest_of("n", 0), event)
    (tmp_path / "models" / "m" / "versions" / "2.json").unlink()
    shutil.rmtree(tmp_path / "models" / "n")
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        assert store.models() == ("m",)
        assert store.publish(manifest_of("m", 0, mark=2), event)[0].version == 3
        assert store.publish(manifest_of("n", 0, mark=2), event)[0].version == 2


def test_names_that_differ_in_case_or_hold_dots_are_different_models(tmp_path: Path) -> None:
    """Every name of the pattern is a folder of its own, and comes back after a restart."""
    names = ("a", "A", "a.b", "a..b", "a.", "a-b", "a_b", "0", "versions", "x" * 64)
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        upload(store, payload(0))
        for name in names:
            assert store.publish(manifest_of(name, 0))[0].version == 1
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        assert store.models() == tuple(sorted(names))


@pytest.mark.parametrize(
    "name", ["../x", "..", ".", "", "a/b", "a\0", "a\n", "\u0430", "x" * 65, "stats", "-a", "a b"]
)
def test_a_name_that_is_not_allowed_never_touches_the_disk(filled: Store, name: str) -> None:
    """A manifest made in code with a bad name is refused like one that was sent."""
    before = sorted(filled.root.rglob("*"))
    with pytest.raises(InvalidInput, match="model name"):
        filled.publish(manifest_of(name, 0))
    for call in (filled.versions, lambda n: filled.version(n, 1)):
        with pytest.raises(NotFound):
            call(name)
    assert sorted(filled.root.rglob("*")) == before


def test_a_manifest_that_names_missing_objects_lists_them_all(filled: Store) -> None:
    """The error carries every digest to upload, and nothing is published."""
    manifest = manifest_of("m", 0, (1, 8, 9))
    with pytest.raises(MissingObjects) as caught:
        filled.publish(manifest)
    assert set(caught.value.digests) == {digest_of(payload(8)), digest_of(payload(9))}
    assert filled.models() == ()


def test_a_wrong_declared_size_is_refused(filled: Store) -> None:
    """The size in the manifest is checked against the object."""
    size = len(payload(1))
    manifest = replace(manifest_of("m", 0), tensors=(TensorEntry(digest_of(payload(1)), size + 1),))
    with pytest.raises(InvalidInput, match=rf"tensors\[0\].bytes {size + 1} .* has {size}"):
        filled.publish(manifest)
    assert filled.models() == ()


def test_an_object_of_another_size_than_a_version_says_is_absent(tmp_path: Path) -> None:
    """Cut on the disk, graph or tensor, it is asked for again and replaced; its use ends that."""
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        digests = [upload(store, payload(index)) for index in range(2)]
        store.publish(manifest_of("m", 0, (1,)))
    for digest in digests:
        cut(tmp_path, digest)
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        assert [store.object_size(digest) for digest in digests] == [None, None]
        for index in range(2):
            upload(store, payload(index))
        assert [store.object_size(d) for d in digests] == [len(payload(i)) for i in range(2)]
        assert store.verify().damaged == {}


def test_a_cut_tensor_is_missing_and_no_wrong_manifest(filled: Store) -> None:
    """A manifest of another version that says its right size gets it named, not refused."""
    cut(filled.root, digest_of(payload(1)))
    manifest = manifest_of("m", 0, (1, 2))
    filled.find_damage(manifest)
    with pytest.raises(MissingObjects) as caught:
        filled.publish(manifest)
    assert caught.value.digests == (digest_of(payload(1)),)


def test_a_cut_graph_is_missing_also_from_the_first_version(tmp_path: Path) -> None:
    """Nothing says how large it should be, so it is read before a record vouches for its size."""
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        cut(tmp_path, upload(store, payload(0)))
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        store.find_damage(manifest_of("m", 0))
        with pytest.raises(MissingObjects):
            store.publish(manifest_of("m", 0))


def test_a_repeated_publish_names_all_that_is_damaged(tmp_path: Path) -> None:
    """The same size and other bytes: only reading finds it, and one look finds all of it."""
    manifest = manifest_of("m", 0, (1, 2))
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        digests = [upload(store, payload(index)) for index in range(3)]
        store.publish(manifest)
    for digest in digests[1:]:
        path = object_path(tmp_path, digest)
        path.chmod(0o644)
        path.write_bytes(bytes(path.stat().st_size))
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        store.find_damage(manifest)
        with pytest.raises(MissingObjects) as caught:
            store.publish(manifest)
        assert set(caught.value.digests) == set(digests[1:])
        upload(store, payload(1))
        upload(store, payload(2))
        store.find_damage(manifest)
        assert store.publish(manifest)[1] is False


def object_path(root: Path, digest: str) -> Path:
    return root / "objects" / digest.removeprefix("sha256:")


def cut(root: Path, digest: str) -> None:
    path = object_path(root, digest)
    path.chmod(0o644)
    path.write_bytes(b"")


def test_unknown_models_and_versions_are_not_found(filled: Store) -> None:
    """The message names what is unknown."""
    with pytest.raises(NotFound, match="'m' is not known"):
        filled.versions("m")
    with pytest.raises(NotFound, match="'m' is not known"):
        filled.version("m", 1)
    filled.publish(manifest_of("m", 0))
    with pytest.raises(NotFound, match="no version 2"):
        filled.version("m", 2)
    with pytest.raises(NotFound):
        filled.delete_version("m", 2)


@pytest.mark.parametrize("damage", ["flipped", "truncated", "swapped"])
def test_a_damaged_record_takes_no_other_version_down(tmp_path: Path, damage: str) -> None:
    """It is listed with the reason, its number stays used, and gc waits until it is mended."""
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        upload(store, payload(0))
        for mark in range(3):
            store.publish(manifest_of("m", 0, mark=mark))
    folder = tmp_path / "models" / "m" / "versions"
    record = bytearray((folder / "3.json").read_bytes())
    if damage == "flipped":
        record[40] ^= 1
    elif damage == "truncated":
        del record[-10:]
    else:
        record = bytearray((folder / "1.json").read_bytes())
    (folder / "3.json").write_bytes(record)
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        assert [r.version for r in store.versions("m")] == [1, 2]
        with pytest.raises(Corrupt, match="model m version 3"):
            store.version("m", 3)
        assert list(store.damaged_versions()) == [("m", 3)]
        assert list(store.verify().damaged) == ["m/3"]
        with pytest.raises(Corrupt, match="gc is off"):
            store.gc()
        assert store.publish(manifest_of("m", 0, mark=9))[0].version == 4


def test_a_damaged_list_of_used_numbers_stops_only_new_versions(tmp_path: Path) -> None:
    """Without it a number could come back, so a publish is refused and all else goes on."""
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        upload(store, payload(0))
        store.publish(manifest_of("m", 0, mark=1))
        store.publish(manifest_of("m", 0, mark=2))
        store.delete_version("m", 2)
    (tmp_path / "models" / "m" / "numbers.json").write_bytes(b"{}")
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        assert [r.version for r in store.versions("m")] == [1]
        with pytest.raises(Corrupt, match="used numbers"):
            store.publish(manifest_of("m", 0, mark=3))
        assert store.publish(manifest_of("m", 0, mark=1))[1] is False
        store.gc()


def test_a_publish_event_is_in_the_log_with_the_version(filled: Store) -> None:
    """Who, address and reason go into the durable record; the same push again adds none."""
    meta = {"kind": "published", "who": "ci", "address": "127.0.0.1", "reason": "nightly"}
    record, _ = filled.publish(manifest_of("m", 0), meta)
    filled.publish(manifest_of("m", 0), meta)
    (event,) = filled.events.read()
    assert (event.kind, event.who, event.reason) == ("published", "ci", "nightly")
    assert (event.model, event.version, event.after) == ("m", 1, {"digest": record.digest})
    assert event.time == record.published


def test_an_event_that_no_log_can_hold_is_refused_before_anything_changes(filled: Store) -> None:
    """Unknown fields are the caller's mistake."""
    with pytest.raises(InvalidInput):
        filled.publish(manifest_of("m", 0), {"kind": "published", "colour": "red"})
    assert filled.models() == ()


@pytest.mark.parametrize("is_undone", [False, True])
def test_a_publish_that_may_have_failed_leaves_a_whole_version_or_none(
    tmp_path: Path, clock: Clock, is_undone: bool
) -> None:
    """A record whose folder could not be synced goes; if it cannot, gc spares its objects."""
    root = tmp_path / "store"
    root.mkdir()
    disk = ModelDisk(root)
    store = Store.open(root, files=disk, monotonic_s=clock, reserve_bytes=0)
    upload(store, payload(0))
    store.publish(manifest_of("m", 0))
    upload(store, payload(1))
    # create, write, fsync, close and rename go well; the sync of the folder is the sixth step,
    # the unlink that undoes it the seventh.
    disk.fail_in(6, errno.EIO, count=1 if is_undone else 2)
    with pytest.raises(StoreFailed):
        store.publish(manifest_of("m", 1))
    assert [record.version for record in store.versions("m")] == [1]
    clock.now_s += LEASE_S + 1
    store.gc()
    store.close()
    with Store.open(root, files=UnsyncedFiles()) as store:
        assert store.verify().damaged == {}
        versions = [record.version for record in store.versions("m")]
        assert versions == ([1] if is_undone else [1, 2])


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_publish_whose_event_found_no_room_is_completed(
    tmp_path: Path, is_restarted: bool
) -> None:
    """It is refused, and told once: by the next try, or by the next start that has room."""
    disk = ModelDisk(tmp_path / "store")
    disk.sets_aside = False
    (tmp_path / "store").mkdir()
    store = Store.open(tmp_path / "store", files=disk, reserve_bytes=0)
    upload(store, payload(0))
    steps = disk.steps
    store.publish(manifest_of("warm-up", 0), {"kind": "published"})
    steps = disk.steps - steps
    # A second model takes the same steps; the last two write and sync the event.
    disk.fail_in(steps, errno.ENOSPC)
    with pytest.raises(StoreFull):
        store.publish(manifest_of("m", 0), {"kind": "published"})
    assert store.version("m", 1).version == 1
    if is_restarted:
        store.close()
        store = Store.open(tmp_path / "store", files=UnsyncedFiles(), reserve_bytes=0)
    else:
        assert store.publish(manifest_of("m", 0), {"kind": "published"})[1] is False
    with store:
        assert [e.model for e in store.events.read()] == ["warm-up", "m"]


def test_a_lost_publish_event_is_written_at_the_next_start(tmp_path: Path) -> None:
    """The record holds the event, so a crash between the two loses nothing and doubles nothing."""
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        upload(store, payload(0))
        store.publish(manifest_of("m", 0, mark=1), {"kind": "published"})
        store.publish(manifest_of("m", 0, mark=2), {"kind": "published"})
    log = tmp_path / "events.jsonl"
    log.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
    for _ in range(2):
        with Store.open(tmp_path, files=UnsyncedFiles()) as store:
            assert [(e.seq, e.version) for e in store.events.read()] == [(1, 1), (2, 2)]
