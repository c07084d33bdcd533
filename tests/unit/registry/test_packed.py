"""The index of what was packed for this machine: a cache that gc, verify and a restart know."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from registry.errors import InvalidInput
from registry.manifest import Manifest, TensorEntry
from registry.objects import LEASE_S
from registry.packed import PackedEntry, PackedTensor, parse_packed_tensor
from registry.store import Store
from tests.store_driver import Clock

HERE = "this machine"


def put(store: Store, data: bytes) -> str:
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    with store.begin_upload(digest, len(data)) as upload:
        upload.write(data)
        upload.commit()
    return digest


def publish(store: Store, model: str = "m", tensor: bytes = b"tensor") -> Manifest:
    entry = TensorEntry(put(store, tensor), len(tensor))
    manifest = Manifest(model, put(store, b"graph"), (entry,), {}, {"name": "onnx"})
    store.publish(manifest)
    return manifest


def entry_of(store: Store, manifest: Manifest, data: bytes = b"packed") -> PackedEntry:
    return PackedEntry(manifest.content_digest, HERE, (put(store, data),), {"mode": "packed"})


@pytest.fixture
def here(store: Store) -> Store:
    store.packed.environment = HERE
    return store


def test_an_entry_is_found_by_content_here_and_after_a_start(here: Store) -> None:
    """Two models of one content share it; another signature is another content."""
    manifest = publish(here)
    entry = entry_of(here, manifest)
    here.packed.add(entry)
    assert here.packed.find(publish(here, "other").content_digest) == entry
    other = replace(manifest, signature={"inputs": []})
    assert here.packed.find(other.content_digest) is None
    with Store.open_read_only(here.root) as again:
        assert again.packed.find(manifest.content_digest) is None
        again.packed.environment = HERE
        assert again.packed.find(manifest.content_digest) == entry


def test_an_entry_of_another_machine_does_not_count(here: Store) -> None:
    """Where the store is copied to, everything is packed anew."""
    manifest = publish(here)
    here.packed.add(entry_of(here, manifest))
    here.packed.environment = "another"
    assert here.packed.find(manifest.content_digest) is None


def test_tensors_and_shapes_are_found_here_and_after_a_start(here: Store) -> None:
    """By any tensor of the version; not on another machine, and not without a shape."""
    manifest = publish(here)
    source = manifest.tensors[0].digest
    blob = put(here, b"packed")
    own = PackedTensor("use", source, blob, {"offset": "0", "length": "6"}, 6)
    made = PackedTensor("other use", put(here, b"computed"), blob, {}, 6)
    entry = replace(entry_of(here, manifest), shape="shape", tensors=(own, made))
    here.packed.add(entry)
    root = here.root
    for _ in range(2):
        assert here.packed.tensors_of({source}) == (own, made)
        assert here.packed.tensors_of({blob}) == ()
        assert here.packed.of_shape("shape") == (entry,)
        assert here.packed.of_shape("") == here.packed.of_shape("other") == ()
        here.packed.environment = "another"
        assert here.packed.tensors_of({source}) == here.packed.of_shape("shape") == ()
        here.close()
        here = Store.open(root)
        here.packed.environment = HERE
    here.close()


@pytest.mark.parametrize(
    "wrong", [{"use": 1}, {"source": "x"}, {"served_bytes": -1}, {"names": []}]
)
def test_what_describes_no_tensor_is_refused(wrong: dict[str, object]) -> None:
    """The child says so, or an entry on the disk."""
    tensor = PackedTensor("use", "sha256:" + "0" * 64, "sha256:" + "1" * 64, {}, 6)
    with pytest.raises(InvalidInput):
        parse_packed_tensor(tensor.to_json() | wrong)
    assert parse_packed_tensor(tensor.to_json()) == tensor


def test_gc_keeps_what_an_entry_of_a_version_names(here: Store, clock: Clock) -> None:
    """Packed objects of a version stay, whether it is loaded or not."""
    manifest = publish(here)
    entry = entry_of(here, manifest)
    here.packed.add(entry)
    here.release_objects(entry.objects)
    clock.now_s += 2 * LEASE_S
    assert here.gc().objects == 0
    here.verify_objects(entry.objects, thorough=True)


@pytest.mark.parametrize("why", ["version gone", "other environment", "replaced"])
def test_gc_drops_what_no_entry_names_any_more(here: Store, clock: Clock, why: str) -> None:
    """An entry goes with the last version of its content, and with its runtime."""
    manifest = publish(here)
    here.packed.add(entry_of(here, manifest))
    if why == "version gone":
        here.delete_version("m", 1)
    elif why == "other environment":
        here.packed.environment = "another"
    else:
        here.packed.add(entry_of(here, manifest, b"packed anew"))
    clock.now_s += 2 * LEASE_S
    report = here.gc()
    assert report.objects == (3 if why == "version gone" else 1)
    assert here.packed.find(manifest.content_digest) is None or why == "replaced"


def test_one_of_two_versions_of_a_content_keeps_the_entry(here: Store, clock: Clock) -> None:
    """Deleting the other takes nothing away."""
    manifest = publish(here)
    publish(here, "other")
    here.packed.add(entry_of(here, manifest))
    here.delete_version("m", 1)
    clock.now_s += 2 * LEASE_S
    assert here.gc().objects == 0
    assert here.packed.find(manifest.content_digest) is not None


@pytest.mark.parametrize("damage", ["truncated", "foreign", "not an entry"])
def test_a_damaged_entry_counts_as_none_and_goes_with_gc(here: Store, damage: str) -> None:
    """It is a cache: what is unreadable is built again."""
    manifest = publish(here)
    here.packed.add(entry_of(here, manifest))
    (path,) = (here.root / "packed").iterdir()
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-9])
    elif damage == "foreign":
        path.rename(path.with_name("0" * 64 + ".json"))
    else:
        path.write_bytes((here.root / "FORMAT").read_bytes())
    root = here.root
    here.close()
    with Store.open(root) as again:
        again.packed.environment = HERE
        assert again.packed.find(manifest.content_digest) is None
        again.gc()
        assert not list((root / "packed").iterdir())
        assert again.verify().damaged == {}


def test_verify_names_packed_objects_that_are_damaged_or_lost(here: Store) -> None:
    """They can be built again, and the operator learns that the disk loses bytes."""
    manifest = publish(here)
    digests = []
    for data in (b"one", b"two"):
        entry = entry_of(here, manifest, data)
        digests += entry.objects
    here.packed.add(replace(entry, objects=tuple(digests)))
    paths = [here.objects_dir / digest.removeprefix("sha256:") for digest in digests]
    paths[0].unlink()
    paths[1].chmod(0o644)
    paths[1].write_bytes(b"owt")
    assert set(here.verify().damaged) == set(digests)


def test_a_store_of_an_older_release_opens(here: Store) -> None:
    """It has no folder of entries; looking at it makes none, serving it does."""
    root = here.root
    publish(here)
    here.close()
    (root / "packed").rmdir()
    with Store.open_read_only(root) as seen:
        assert seen.packed.used_digests() == ()
    assert not (root / "packed").exists()
    with Store.open(root) as again:
        again.packed.add(entry_of(again, publish(again)))


def test_scratch_files_are_gone_after_the_block(here: Store, tmp_path: Path) -> None:
    """Also after an error; names that were never written are no error."""

    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError

    with pytest.raises(RuntimeError), here.scratch(2) as (path, _):
        fail(path)
    assert not list((here.root / "tmp").iterdir())
