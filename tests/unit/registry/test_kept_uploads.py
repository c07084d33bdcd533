"""Uploads that broke off: who may go on with them, and how long and how many are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry import kept_uploads
from registry.errors import Conflict, DigestMismatch, StoreFull
from registry.kept_uploads import KEPT_S, KEPT_UPLOADS
from registry.store import Store
from tests.disk_model import UnsyncedFiles
from tests.store_driver import Clock, digest_of

WHOLE = bytes(range(100))
DIGEST = digest_of(WHOLE)


@pytest.fixture(autouse=True)
def _small_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.uploads.LEAST_KEPT_BYTES", 10)


def broken_off(store: Store, count: int, data: bytes = WHOLE) -> str:
    """Send the first bytes of an object and leave; return its digest."""
    digest = digest_of(data)
    upload = store.begin_upload(digest, len(data))
    upload.write(data[:count])
    upload.suspend()
    return digest


def leftovers(store: Store) -> list[Path]:
    return list(store.root.joinpath("tmp").iterdir())


def test_an_upload_goes_on_where_it_broke_off(store: Store) -> None:
    """As often as it has to; the digest is that of the whole, and nothing is left over."""
    broken_off(store, 30)
    assert (store.upload_offset(DIGEST), store.object_size(DIGEST)) == (30, None)
    upload = store.begin_upload(DIGEST, 100, 30)
    upload.write(WHOLE[30:60])
    upload.suspend()
    with store.begin_upload(DIGEST, 100, store.upload_offset(DIGEST)) as upload:
        upload.write(WHOLE[60:])
        upload.commit()
    store.verify_objects([DIGEST], thorough=True)
    assert (store.upload_offset(DIGEST), leftovers(store)) == (0, [])


@pytest.mark.parametrize(("size", "offset"), [(100, 29), (100, 31), (101, 30), (None, 30)])
def test_what_does_not_follow_is_refused_and_what_is_kept_stays(
    store: Store, size: int | None, offset: int
) -> None:
    """The answer says where it goes on."""
    broken_off(store, 30)
    with pytest.raises(Conflict, match="30 of 100 bytes are kept, which byte"):
        store.begin_upload(DIGEST, size, offset)
    assert store.upload_offset(DIGEST) == 30


def test_nothing_follows_what_is_not_kept(store: Store) -> None:
    """A short part is not worth it, a whole one of unknown size has no end to wait for."""
    broken_off(store, 9)
    upload = store.begin_upload(DIGEST)
    upload.write(WHOLE[:50])
    upload.suspend()
    with pytest.raises(Conflict, match="nothing of it is kept that byte 50 could follow"):
        store.begin_upload(DIGEST, 100, 50)
    assert leftovers(store) == []


def test_wrong_bytes_behind_right_ones_are_refused_and_not_kept(store: Store) -> None:
    """What goes on is held to the digest as what is sent whole."""
    broken_off(store, 30)
    with store.begin_upload(DIGEST, 100, 30) as upload:
        upload.write(bytes(70))
        with pytest.raises(DigestMismatch, match="the 100 bytes sent hash to"):
            upload.commit()
    assert (store.upload_offset(DIGEST), leftovers(store)) == (0, [])


def test_two_senders_of_one_object_never_share_a_file(store: Store) -> None:
    """The longer part is kept, one of them goes on with it, the other one sends the whole."""
    first, second = (store.begin_upload(DIGEST, 100) for _ in range(2))
    first.write(WHOLE[:40])
    second.write(WHOLE[:60])
    second.suspend()
    first.suspend()
    assert store.upload_offset(DIGEST) == 60
    assert len(leftovers(store)) == 1
    taken = store.begin_upload(DIGEST, 100, 60)
    with pytest.raises(Conflict):
        store.begin_upload(DIGEST, 100, 60)
    with store.begin_upload(DIGEST, 100) as whole:
        whole.write(WHOLE)
        whole.commit()
    taken.write(WHOLE[60:])
    taken.commit()
    store.verify_objects([DIGEST], thorough=True)
    assert leftovers(store) == []


def test_the_object_makes_what_is_kept_of_it_useless(store: Store) -> None:
    """It takes no room any more."""
    broken_off(store, 30)
    with store.begin_upload(DIGEST, 100) as whole:
        whole.write(WHOLE)
        whole.commit()
    assert (store.upload_offset(DIGEST), leftovers(store)) == (0, [])


@pytest.mark.parametrize("sweep", [Store.drop_old_uploads, Store.gc])
def test_it_is_kept_for_a_while_and_no_longer(store: Store, clock: Clock, sweep) -> None:
    """Neither gc nor the look for old ones takes it sooner."""
    broken_off(store, 30)
    clock.now_s += KEPT_S - 1
    sweep(store)
    assert store.upload_offset(DIGEST) == 30
    assert store.drop_old_uploads()
    clock.now_s += 1
    sweep(store)
    assert (store.upload_offset(DIGEST), leftovers(store)) == (0, [])
    assert not store.drop_old_uploads()


def test_only_so_many_are_kept(store: Store) -> None:
    """The oldest goes first."""
    digests = [broken_off(store, 30, WHOLE + bytes([n])) for n in range(KEPT_UPLOADS + 1)]
    assert [store.upload_offset(digest) for digest in digests] == [0] + [30] * KEPT_UPLOADS
    assert len(leftovers(store)) == KEPT_UPLOADS


def test_only_so_many_bytes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number: the oldest goes first, too."""
    monkeypatch.setattr(kept_uploads, "KEPT_BYTES", 100)
    with Store.open(tmp_path / "store", files=UnsyncedFiles()) as store:
        digests = [broken_off(store, 40, WHOLE + bytes([n])) for n in range(3)]
        assert [store.upload_offset(digest) for digest in digests] == [0, 40, 40]


def test_a_restart_leaves_none(tmp_path: Path) -> None:
    """Neither its bytes nor a promise; also where the process ended without closing the store."""
    store = Store.open(tmp_path / "store", files=UnsyncedFiles())
    broken_off(store, 30)
    (kept,) = leftovers(store)
    data = kept.read_bytes()
    store.close()
    assert leftovers(store) == []
    kept.write_bytes(data)
    with Store.open(tmp_path / "store", files=UnsyncedFiles()) as store:
        assert (store.upload_offset(DIGEST), leftovers(store)) == (0, [])


def test_what_is_kept_gives_way_to_what_is_sent(tmp_path: Path) -> None:
    """Nobody gets a 507 for the sake of an upload that may never go on."""

    class SmallDisk(UnsyncedFiles):
        free = 1000

        def write(self, descriptor: int, data: bytes | bytearray | memoryview) -> None:
            self.free -= len(data)
            super().write(descriptor, data)

        def unlink(self, path: Path) -> None:
            self.free += path.stat().st_size
            super().unlink(path)

        def free_bytes(self, path: Path) -> int:
            return self.free

    with Store.open(tmp_path / "store", files=SmallDisk(), reserve_bytes=600) as store:
        broken_off(store, 90)
        assert store.upload_offset(DIGEST) == 90
        other = digest_of(bytes(350))
        with store.begin_upload(other, 350) as upload:
            upload.write(bytes(350))
            upload.commit()
        assert store.upload_offset(DIGEST) == 0
        with pytest.raises(StoreFull):
            store.begin_upload(DIGEST, 100)
