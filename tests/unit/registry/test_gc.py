"""What a collection drops and what it spares, beside uploads and publishes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from registry.errors import MissingObjects
from registry.objects import LEASE_S
from registry.store import Store
from tests.disk_model import UnsyncedFiles
from tests.store_driver import Clock, digest_of, manifest_of, payload, upload


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
