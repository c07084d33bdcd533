"""The store's folder, lock, format and documents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from registry.errors import Corrupt, InvalidInput, StoreFailed, StoreFormat, StoreLocked
from registry.store import Store
from tests.disk_model import UnsyncedFiles
from tests.store_driver import digest_of, manifest_of, payload, upload


def make_store(root: Path) -> None:
    Store.open(root, files=UnsyncedFiles()).close()


def test_a_store_is_made_where_there_is_none(tmp_path: Path) -> None:
    """Missing parents are made too, and an empty folder or a fresh disk will do."""
    make_store(tmp_path / "a" / "b")
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)
    make_store(tmp_path / "disk")
    assert json.loads((tmp_path / "disk" / "FORMAT").read_bytes()) == {"format": 1}


@pytest.mark.parametrize("name", ["notes.txt", "objects", "models", "tmp/letter.txt"])
def test_a_folder_with_other_things_in_it_is_never_adopted(tmp_path: Path, name: str) -> None:
    """A mistyped --store harms nothing: the folder is left exactly as it was."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreFormat, match="not a store and not empty"):
        Store.open(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_in_the_place_of_the_store_is_refused(tmp_path: Path) -> None:
    """The error names no path of the machine."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreFailed) as caught:
        Store.open(tmp_path / "file")
    assert os.fspath(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        (b'{"format": 2}', "use the release that wrote it"),
        (b'{"format": true}', "restore"),
        (b'{"format": 0}', "restore"),
        (b"{}", "restore"),
        (b"[]", "restore"),
        (b"\xff", "restore"),
        (b"", "restore"),
    ],
)
def test_another_format_is_refused_with_advice(tmp_path: Path, content: bytes, advice: str) -> None:
    """A newer or unreadable format is told, changes nothing and leaves the store unlocked."""
    make_store(tmp_path)
    (tmp_path / "FORMAT").write_bytes(content)
    for opened in (Store.open, Store.open_read_only):
        with pytest.raises(StoreFormat, match=advice):
            opened(tmp_path)
    (tmp_path / "FORMAT").write_bytes(b'{"format": 1}')
    make_store(tmp_path)


def test_two_servers_cannot_share_a_store(tmp_path: Path) -> None:
    """The second is told the process that holds it; after a close it may have it."""
    with Store.open(tmp_path), pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
        Store.open(tmp_path)
    make_store(tmp_path)


@pytest.mark.slow
def test_a_killed_server_leaves_no_lock(tmp_path: Path) -> None:
    """The lock ends with its process, so kill -9 needs no cleaning up; children do not hold it."""
    code = (
        "import subprocess, sys, time\n"
        "from pathlib import Path\n"
        "from registry.store import Store\n"
        "store = Store.open(Path(sys.argv[1]))\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        assert server.stdout is not None
        child = int(server.stdout.readline())
        try:
            with pytest.raises(StoreLocked, match=f"process {server.pid}"):
                Store.open(tmp_path / "store")
            server.kill()
            server.wait(timeout=30)
            make_store(tmp_path / "store")
        finally:
            os.kill(child, 9)


def test_leftovers_of_a_crash_go_at_the_next_open(tmp_path: Path) -> None:
    """Half-written files in tmp are removed."""
    make_store(tmp_path)
    (tmp_path / "tmp" / "half.part").write_bytes(b"half")
    make_store(tmp_path)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    """Versions, objects, documents and events of one run are those of the next."""
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        upload(store, payload(0))
        record, _ = store.publish(manifest_of("a.b", 0))
        store.write_document("state", {"generation": 7})
        store.events.append("kind")
        usage = store.usage()
    with Store.open(tmp_path, files=UnsyncedFiles()) as store:
        assert store.versions("a.b") == (record,)
        assert store.version("a.b", 1) == record
        assert store.read_document("state") == {"generation": 7}
        assert [event.kind for event in store.events.read()] == ["kind"]
        assert (store.usage().objects, store.usage().object_bytes) == (1, usage.object_bytes)


def test_a_store_in_use_can_be_looked_at_and_not_changed(store: Store) -> None:
    """Reading needs no lock; every change is refused and leaves no trace."""
    upload(store, payload(0))
    upload(store, payload(1))
    store.publish(manifest_of("m", 0))
    store.events.append("kind")
    before = sorted(store.root.rglob("*"))
    with Store.open_read_only(store.root) as looked_at:
        assert [r.version for r in looked_at.versions("m")] == [1]
        assert [e.kind for e in looked_at.events.read()] == ["kind"]
        assert looked_at.verify().damaged == {}
        changes = (
            lambda: looked_at.begin_upload(digest_of(b"")),
            lambda: looked_at.publish(manifest_of("m", 1)),
            lambda: looked_at.delete_version("m", 1),
            lambda: looked_at.write_document("state", {}),
            lambda: looked_at.events.append("kind"),
            lambda: looked_at.gc(),
        )
        for change in changes:
            with pytest.raises(StoreFailed):
                change()
    assert sorted(store.root.rglob("*")) == before
    assert store.version("m", 1).version == 1


def test_a_folder_that_is_no_store_cannot_be_looked_at(tmp_path: Path) -> None:
    """open_read_only makes nothing."""
    with pytest.raises(StoreFormat, match=f"there is no folder {tmp_path}/missing"):
        Store.open_read_only(tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []


def test_verify_names_all_damage_and_goes_on(store: Store) -> None:
    """Every object is looked at, whatever is wrong with those before it; one cut short needs no
    reading."""
    digests = [upload(store, payload(index)) for index in range(4)]
    store.publish(manifest_of("m", 0, (1,)))
    (store.objects_dir / digests[1][7:]).unlink()
    for index, content in ((0, b"x"), (3, payload(3)[::-1])):
        path = store.objects_dir / digests[index][7:]
        path.chmod(0o644)
        path.write_bytes(content)
    seen: list[int] = []
    report = store.verify(seen.append)
    assert report.objects == 4
    assert set(report.damaged) == {digests[0], digests[1], digests[3]}
    assert report.bytes == len(payload(2)) + len(payload(3)) == seen[-1]
    assert seen == sorted(seen)
    assert store.damage_found == 3


def test_documents_are_replaced_as_a_whole(store: Store) -> None:
    """The last write counts, and one that was never written is None."""
    assert store.read_document("state") is None
    store.write_document("state", {"a": [1, 2.5, None, "\u2713\n"], "n": 2**60})
    assert store.read_document("state") == {"a": [1, 2.5, None, "\u2713\n"], "n": 2**60}
    store.write_document("state", {})
    assert store.read_document("state") == {}


@pytest.mark.parametrize("change", ["flip", "cut", "empty", "no object"])
def test_a_damaged_document_is_corrupt(store: Store, change: str) -> None:
    """A state that is not what was written is never acted on."""
    store.write_document("state", {"generation": 12345})
    path = store.root / "state" / "state.json"
    data = path.read_bytes()
    path.write_bytes(
        {
            "flip": data.replace(b"12345", b"12344"),
            "cut": data[:-5],
            "empty": b"",
            "no object": data.replace(b"{", b"["),
        }[change]
    )
    with pytest.raises(Corrupt, match="document state is damaged"):
        store.read_document("state")


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A", "state.json", "a\0", "x" * 65, "-a"])
def test_document_names_are_checked(store: Store, name: str) -> None:
    """A name never leaves the state folder."""
    for call in (store.read_document, lambda n: store.write_document(n, {})):
        with pytest.raises(InvalidInput, match="document name"):
            call(name)


def test_a_document_that_json_cannot_hold_is_refused(store: Store) -> None:
    """NaN, or nesting without end, changes nothing."""
    store.write_document("state", {"a": 1})
    deep: dict[str, object] = {}
    for _ in range(5000):
        deep = {"a": deep}
    for bad in ({"a": float("inf")}, deep):
        with pytest.raises(InvalidInput, match="JSON"):
            store.write_document("state", bad)  # type: ignore[arg-type]  # on purpose
    assert store.read_document("state") == {"a": 1}
