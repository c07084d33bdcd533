"""The reserve: what still works on a disk that something else filled."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.errors import StoreFull
from registry.files import Files
from registry.reserve import BLOCK_BYTES, BLOCKS, Reserve
from registry.store import Store
from tests.disk_model import ModelDisk
from tests.store_driver import manifest_of, payload, upload
from tests.tmpfs import fill, small_disk

MIB = 1 << 20


def publish(store: Store) -> None:
    for index in range(3):
        upload(store, payload(index))
    for mark in range(3):
        store.publish(manifest_of("m", 0, (1,), mark=mark), {"kind": "publish"})
    store.write_document("state", {"generation": 1})


def change_everything(store: Store) -> None:
    """Do what an operator does to get out: change the state, remove versions, collect."""
    for generation in range(2, 40):
        store.write_document("state", {"generation": generation, "text": "x" * 20_000})
        store.events.append("route", model="m", reason="y" * 1000)
    store.delete_version("m", 2)
    store.gc()
    assert store.read_document("state") == {"generation": 39, "text": "x" * 20_000}
    assert store.events.last_seq == 41
    assert [record.version for record in store.versions("m")] == [1, 3]


def test_a_full_disk_lets_the_way_back_through(tmp_path: Path) -> None:
    """Without a byte and a file left, documents, events, deletions and gc go on; uploads do not."""
    with small_disk(tmp_path / "disk", 16 * MIB, files=200) as disk:
        store = Store.open(disk / "store", reserve_bytes=0)
        publish(store)
        filler = fill(disk)
        with pytest.raises(StoreFull):
            upload(store, payload(4))
        change_everything(store)
        store.close()
        # A start needs no room either, and what was acknowledged is there.
        with Store.open(disk / "store", reserve_bytes=0) as again:
            assert again.events.last_seq == 41
            again.write_document("state", {"generation": 40})
            filler.unlink()
            (disk / "someone-elses" / "0").unlink()
            again.gc()
            assert len(list((disk / "store" / "reserve").iterdir())) == BLOCKS


def test_the_reserve_is_whole_again_after_each_change(tmp_path: Path) -> None:
    """A block that a change needed for a moment is not left to whoever filled the disk."""
    root = tmp_path / "store"
    root.mkdir()
    disk = ModelDisk(root)
    disk.room = (BLOCKS + 1) * BLOCK_BYTES
    store = Store.open(root, files=disk, reserve_bytes=0)
    publish(store)
    disk.room = 0
    change_everything(store)
    # Half of it: a document of 20 KB and a record of events of 40 KB now have a block for good.
    held = len(disk._allocated)
    assert held == BLOCKS - 1
    store.close()


def test_a_reserve_that_is_used_up_says_so(tmp_path: Path) -> None:
    """Each block is given up once; then the disk is full, and what was there stays."""
    disk = ModelDisk(tmp_path)
    reserve = Reserve(tmp_path / "reserve", disk, blocks=3, block_bytes=100)
    assert reserve.held_bytes == 0
    reserve.fill()
    assert reserve.held_bytes == 300
    disk.room = 0
    calls = []

    def work() -> None:
        calls.append(disk.room)
        raise StoreFull("no room")

    with pytest.raises(StoreFull):
        reserve.run(work)
    assert calls == [0, 100, 200, 300]
    # Nothing was written in the end, so all of it came back.
    assert reserve.held_bytes == 300


def test_blocks_take_room_that_the_disk_has_set_aside(tmp_path: Path) -> None:
    """A block is no sparse file; one that was cut short is made anew."""
    reserve = Reserve(tmp_path / "reserve", Files(), blocks=2, block_bytes=8192)
    reserve.fill()
    blocks = sorted((tmp_path / "reserve").iterdir())
    assert [path.stat().st_blocks * 512 >= 8192 for path in blocks] == [True, True]
    blocks[0].write_bytes(b"")
    assert Reserve(tmp_path / "reserve", Files(), blocks=2, block_bytes=8192).held_bytes == 8192
