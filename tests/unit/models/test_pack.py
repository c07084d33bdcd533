"""Packing as the parent does it: storing, remembering, and what may go wrong."""

from __future__ import annotations

import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from models import pack
from models.errors import LoadFailed
from models.pack import VersionInspector, environment
from models.servable import Inspection
from models.weight_mode import MIB
from registry.files import Files
from registry.manifest import JsonObject
from registry.store import Store
from tests.disk_model import PowerCut
from tests.store_driver import digest_of
from tests.unit.models.pack_desk import Desk


class TestRemembering:
    def test_a_version_is_inspected_and_packed_once(self, desk: Desk, store: Store) -> None:
        """Another load, also under another name or after a start, asks no child."""
        found = desk.inspect(store, desk.push(store))
        assert found.mode == "packed"
        assert found.graph == digest_of(desk.child.graph)
        assert set(found.resident) == {digest_of(data) for data in desk.child.blobs} | {found.graph}
        assert desk.child.tasks == ["describe", "inspect", "pack", "compare"]
        assert desk.inspect(store, desk.push(store, "other")) == found
        store.close()
        with desk.open() as again:
            assert desk.inspect(again, desk.push(again)) == found
        assert len(desk.child.tasks) == 4

    @pytest.mark.parametrize("in_graph", [False, True])
    def test_a_little_time_is_measured_again_before_it_decides(
        self, desk: Desk, store: Store, monkeypatch: pytest.MonkeyPatch, in_graph: bool
    ) -> None:
        """One slow moment does not have each worker hold its own copy for ever."""
        monkeypatch.setattr(pack, "is_in_graph", lambda _: in_graph)
        desk.child.blobs = () if in_graph else desk.child.blobs
        desk.child.packed_ratios = [1.06, 1.05]
        manifest = desk.push(store)

        found = desk.inspect(store, manifest)

        assert found.graph == digest_of(desk.child.graph)
        assert desk.child.tasks.count("compare") == 3
        assert store.packed.find(manifest.content_digest) is not None

    def test_a_close_decision_is_not_kept(self, desk: Desk, store: Store) -> None:
        """The reason says that the next load measures again, which then may find otherwise."""
        desk.child.packed_ratios = [1.06, 1.05, 1.07]
        manifest = desk.push(store)

        found = desk.inspect(store, manifest)

        assert found.mode == "private"
        assert "packed takes 1.05 x the time at 1 rows" in found.mode_reason
        assert "the next load measures again" in found.mode_reason
        assert store.packed.find(manifest.content_digest) is None
        assert desk.inspect(store, manifest).mode == "packed"

    def test_a_clear_gap_decides_at_once(self, desk: Desk, store: Store) -> None:
        """Nobody waits for a second measurement where the first leaves no doubt; it is kept."""
        desk.child.packed_ratios = [1.3]
        manifest = desk.push(store)

        assert desk.inspect(store, manifest).mode == "private"

        assert desk.child.tasks.count("compare") == 1
        assert store.packed.find(manifest.content_digest) is not None

    def test_trees_in_another_format_are_private_all_the_same(
        self, desk: Desk, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The graph that workers open is the compact one, of which serving reads nothing."""
        monkeypatch.setattr(pack, "is_in_graph", lambda _: True)
        desk.child.blobs = ()
        found = desk.inspect(store, desk.push(store))
        assert (found.mode, found.graph) == ("private", digest_of(desk.child.graph))
        assert found.resident == {found.graph: 0}

    def test_a_graph_is_stored_without_being_held(
        self, desk: Desk, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A graph of trees has hundreds of megabytes, which the parent neither keeps nor reads at
        once."""
        monkeypatch.setattr(pack, "is_in_graph", lambda _: True)
        desk.child.blobs = ()
        desk.child.graph = bytes(16 * MIB)
        manifest = desk.push(store)
        tracemalloc.start()
        try:
            found = desk.inspect(store, manifest)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert found.graph == digest_of(desk.child.graph)
        assert peak_bytes < 6 * MIB

    def test_what_its_own_library_computes_is_inspected_at_each_load(
        self, desk: Desk, store: Store
    ) -> None:
        """Nothing of it can be packed, and another release of the library is not passed over."""
        runtime: JsonObject = {"name": "native", "library": "lightgbm", "version": "4"}
        manifest = replace(desk.push(store), runtime=runtime)
        for _ in range(2):
            found = desk.inspect(store, manifest)
            assert (found.mode, found.mode_reason) == ("private", "computed by its own library")
        assert desk.child.tasks == ["inspect", "inspect"]

    @pytest.mark.parametrize("what", ["threads", "runtime", "processor"])
    def test_another_environment_packs_anew(
        self, desk: Desk, store: Store, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        """Blobs are of one runtime and one processor; what they cost also of the threads."""
        manifest = desk.push(store)
        desk.inspect(store, manifest)
        threads = 1
        if what == "threads":
            threads = 2
        elif what == "runtime":
            monkeypatch.setattr(pack, "installed_version", lambda _: "99.0")
        else:
            monkeypatch.setattr(pack, "_read_cpu_info", lambda: "flags : avx1024")
        found = VersionInspector(store, threads, 60.0)(manifest, 1 << 30)
        assert found.mode == "packed"
        assert desk.child.tasks.count("pack") == 2
        assert environment(1) != environment(2)

    def test_more_private_memory_than_allowed_is_refused(self, desk: Desk, store: Store) -> None:
        """Also from memory: the limit may have become smaller since."""
        manifest = desk.push(store)
        desk.child.failing["pack"] = "no"
        with pytest.raises(LoadFailed, match="more than 1 MiB"):
            VersionInspector(store, 1, 60.0)(manifest, MIB)
        desk.inspect(store, manifest)
        with pytest.raises(LoadFailed, match="more than 1 MiB"):
            VersionInspector(store, 1, 60.0)(manifest, MIB)


class TestDamage:
    @pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
    @pytest.mark.parametrize("index", [0, 2], ids=["blob", "graph"])
    def test_damaged_objects_are_built_again(
        self, desk: Desk, store: Store, damage: str, index: int
    ) -> None:
        """The version is the truth, and what was packed of it a cache."""
        manifest = desk.push(store)
        found = desk.inspect(store, manifest)
        path = desk.packed_paths(store)[index]
        good = path.read_bytes()
        path.chmod(0o644)
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(b"x" + good[1:] if damage == "flipped" else good[:-1])
        assert desk.inspect(store, manifest) == found
        assert path.read_bytes() == good
        # That a tensor is damaged shows when it is to be used again.
        assert desk.child.tasks.count("pack") == (2 if index == 2 else 3)
        packed = [*desk.child.blobs, *desk.child.blobs[: 1 if index == 0 else 0]]
        assert desk.child.packed_blobs == packed
        assert not store.verify().damaged

    def test_a_child_that_lies_is_not_believed(self, desk: Desk, store: Store) -> None:
        """Bytes are hashed on their way into the store, whoever named them."""
        desk.child.lie = True
        found = desk.inspect(store, desk.push(store))
        assert (found.mode, found.graph) == ("private", "")
        assert "packing failed" in found.mode_reason

    @pytest.mark.parametrize("count", [-1, 11])
    def test_a_child_that_counts_what_is_not_there_is_not_believed(
        self, desk: Desk, store: Store, count: int
    ) -> None:
        """The memory budget is made of these figures."""
        desk.child.count = count
        found = desk.inspect(store, desk.push(store))
        assert (found.mode, found.graph) == ("private", "")
        assert f"counts {count} bytes" in found.mode_reason

    def test_a_child_that_dies_leaves_the_version_private(self, desk: Desk, store: Store) -> None:
        """It served without packing before, and does so again; nothing is left behind."""
        desk.child.failing["pack"] = "killed by SIGSEGV"
        found = desk.inspect(store, desk.push(store))
        assert (found.mode, found.graph) == ("private", "")
        assert "packing failed: killed by SIGSEGV" in found.mode_reason
        assert not list((desk.root / "tmp").iterdir())

    def test_a_stop_is_no_reason_to_serve_in_another_mode(self, desk: Desk, store: Store) -> None:
        """What was cut short is not remembered as if it had been found out."""
        stopped = threading.Event()
        stopped.set()
        desk.child.failing["pack"] = "the inspection was cancelled"
        manifest = desk.push(store)
        with pytest.raises(LoadFailed, match="cancelled"):
            VersionInspector(store, 1, 60.0, stopped)(manifest, 1 << 30)
        assert store.packed.find(manifest.content_digest) is None


class TestFullDisk:
    def test_no_room_is_told_before_anything_is_written(
        self, desk: Desk, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Packing needs a multiple of the weights on the disk."""
        manifest = desk.push(store)
        monkeypatch.setattr(Files, "free_bytes", lambda *_: 23)
        found = desk.inspect(store, manifest)
        assert found.mode == "private"
        assert "no room to pack: it needs up to 44 bytes of disk, 23 are free" in found.mode_reason
        assert desk.child.tasks == ["describe", "inspect", "compare"]

    @pytest.mark.parametrize(("free_bytes", "is_why"), [(0, True), (1 << 40, False)])
    def test_what_the_runtime_says_of_a_full_disk_is_told_as_that(
        self,
        desk: Desk,
        store: Store,
        monkeypatch: pytest.MonkeyPatch,
        free_bytes: int,
        is_why: bool,
    ) -> None:
        """It reports a write that failed in words of its own, which name nothing to mend."""
        manifest = desk.push(store)

        def fail(request: JsonObject) -> JsonObject:
            Path(str(request["data_path"])).write_bytes(b"half of it")
            monkeypatch.setattr(Files, "free_bytes", lambda *_: free_bytes)
            raise LoadFailed("the runtime refuses the graph")

        monkeypatch.setattr(desk.child, "_pack", fail)
        found = desk.inspect(store, manifest)
        assert found.mode == "private"
        assert found.mode_reason.startswith(
            "no room to pack: the store's disk ran full while the runtime wrote the packed "
            "weights; packing had written 10 bytes of up to 44 that it needs, 0 are free"
            if is_why else "packing failed: the runtime refuses the graph"
        )  # fmt: skip

    def test_a_disk_that_fills_up_leaves_the_version_private(
        self, desk: Desk, store: Store
    ) -> None:
        """Whichever write fails, the version loads, nothing half-made counts, the reason shows."""
        manifest = desk.push(store)
        # What one try stored the next one finds; last of all, the index cannot be written.
        for writes, mode in ((0, "private"), (1, "private"), (1, "private"), (1, "packed")):
            desk.files.writes_left = writes
            found = desk.inspect(store, manifest)
            assert found.mode == mode
            assert (
                mode == "packed" or "no room to pack: no room on the store's" in found.mode_reason
            )
            assert mode == "packed" or "bytes of up to 44 that it needs," in found.mode_reason
            assert store.packed.find(manifest.content_digest) is None or mode == "packed"
            desk.files.writes_left = -1
            assert not store.verify().damaged
            assert not list((desk.root / "tmp").iterdir())


class TestCrash:
    def test_a_crash_before_the_index_loses_only_time(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The objects are there, no entry names them: built again, nothing is stored twice."""

        def cut(*_: object) -> None:
            raise PowerCut

        store = desk.open()
        manifest = desk.push(store)
        with monkeypatch.context() as broken:
            broken.setattr(store.packed, "add", cut)
            with pytest.raises(PowerCut):
                desk.inspect(store, manifest)
        store.close()
        inodes = [path.stat().st_ino for path in desk.packed_paths(store)]
        with desk.open() as again:
            assert again.packed.find(manifest.content_digest) is None
            assert desk.inspect(again, manifest).mode == "packed"
            assert [path.stat().st_ino for path in desk.packed_paths(again)] == inodes

    def test_what_a_crash_left_unnamed_goes_with_gc(self, desk: Desk) -> None:
        """Packed objects without an entry are used by nobody."""
        store = desk.open()
        manifest = desk.push(store)
        desk.inspect(store, manifest)
        store.close()
        (entry,) = (desk.root / "packed").iterdir()
        entry.write_bytes(entry.read_bytes()[:-5])  # damaged: as if it were not there
        with desk.open() as again:
            assert again.gc().objects == 3
            assert not list((desk.root / "packed").iterdir())
            assert not any(path.exists() for path in desk.packed_paths(again))

    def test_two_builders_at_once_make_one_of_each(self, desk: Desk, store: Store) -> None:
        """What they build is named by its content."""
        manifest = desk.push(store)
        start = threading.Barrier(4)

        def build(_: int) -> Inspection:
            start.wait()
            return desk.inspect(store, manifest)

        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(build, range(4)))
        assert found == [found[0]] * 4
        assert store.usage().objects == 5
        assert not store.verify().damaged
