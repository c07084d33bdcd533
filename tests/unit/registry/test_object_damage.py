"""Objects that are damaged: found, named, and healed by the right bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from registry.errors import Corrupt
from registry.store import Store
from tests.disk_model import UnsyncedFiles
from tests.store_driver import digest_of, object_path, payload, upload


def damage(path: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)


def flip_middle(data: bytearray) -> None:
    data[len(data) // 2] ^= 1


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


def test_progress_counts_all_bytes_of_all_objects(store: Store) -> None:
    """The last report is the sum of the sizes, whether bytes were read or skipped."""
    digests = [upload(store, payload(index)) for index in range(4)]
    total = sum(len(payload(index)) for index in range(4))
    for thorough in (False, True):
        seen: list[int] = []
        store.verify_objects(digests, thorough=thorough, progress=seen.append)
        assert seen == sorted(seen)
        assert seen[-1] == total
