"""Packing as the parent does it: choosing, storing, remembering, and what may go wrong."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
import onnx
import pytest

from models import pack
from models.child import Limits
from models.convert.onnx_file import package_onnx
from models.errors import LoadFailed
from models.pack import VersionInspector, environment
from models.packed_object import PackedObject, Part
from models.runtime.onnx import OnnxLoader
from models.servable import Inspection, LoadSpec
from models.signature import Signature, TensorSpec
from models.synthetic import first_inputs, make_inputs
from models.weight_mode import (
    MIB,
    Measured,
    choose,
    choose_compact,
    is_in_graph,
    reason_not_to_pack,
)
from registry.files import Files
from registry.ident import digest_hex
from registry.manifest import Json, JsonObject, Manifest, TensorEntry
from registry.objects import LEASE_S
from registry.packed import PackedTensor, parse_packed_tensor
from registry.store import Store
from tests import graphs
from tests.disk_model import PowerCut, UnsyncedFiles
from tests.store_driver import Clock
from tests.tmpfs import small_disk

SIGNATURE = Signature(
    inputs=(TensorSpec("x", "FP32", (-1, 2)),), outputs=(TensorSpec("y", "FP32", (-1, 2)),)
)
WEIGHT_BYTES = 8 * MIB


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def form(private_mib: float, *ratios: float, difference: float = 0.0) -> Measured:
    by_rows = dict(zip((1, 8, 32), ratios, strict=False))
    return Measured(0.01, int(private_mib * MIB), difference, by_rows, by_rows)


class TestChoosing:
    def test_a_table_is_mapped_at_once(self) -> None:
        """Where under 5 % of the bytes are copied, packing 2 GB to save them is not worth it."""
        choice = reason_not_to_pack(2048 * MIB, 12 * MIB)
        assert choice is not None
        assert choice.mode == "mapped"
        assert reason_not_to_pack(100 * MIB, 12 * MIB) is None

    def test_weights_inside_the_graph_are_private(self) -> None:
        """Trees stand in attributes of nodes, which nothing maps."""
        choice = reason_not_to_pack(0, MIB)
        assert choice is not None
        assert choice.mode == "private"
        assert is_in_graph(0)
        assert not is_in_graph(100 * MIB)

    def test_packed_is_chosen_where_it_is_as_fast(self) -> None:
        """It says what it saves and at which sizes it was timed."""
        choice = choose(
            {
                "private": form(100, 1, 1, 1),
                "mapped": form(1, 1, 2.5, 1.5),
                "packed": form(1, 1, 1.02, 0.99),
            }
        )
        assert choice.mode == "packed"
        assert "1.0 MiB private instead of 100 MiB" in choice.text
        assert "1.02 x the time at 1, 8, 32 rows" in choice.text

    def test_mapped_is_chosen_where_packing_gains_nothing(self) -> None:
        """It needs no disk and no second reading at each load."""
        forms = {"private": form(100, 1), "mapped": form(1, 1.0), "packed": form(1, 1.0)}
        assert choose(forms).mode == "mapped"

    @pytest.mark.parametrize(("compact_mib", "mode"), [(25, "packed"), (90, "private")])
    def test_trees_take_the_format_that_saves(self, compact_mib: float, mode: str) -> None:
        """The reason says what each worker holds."""
        choice = choose_compact({"private": form(100, 1), "packed": form(compact_mib, 1)})
        assert choice.mode == mode
        assert f"{compact_mib:.0f} MiB private" in choice.text

    @pytest.mark.parametrize(
        ("packed", "reason"),
        [
            (form(1, 1, 1.2, 1), "packed takes 1.20 x the time at 8 rows"),
            (form(60, 1, 1, 1), "packed saves too little: 60 MiB private instead of 100 MiB"),
            (form(1, 1, 1, difference=0.01), "packed answers differently, by 0.01"),
        ],
    )
    def test_private_says_why_not_packed(self, packed: Measured, reason: str) -> None:
        """What a form costs is the reason against it."""
        forms = {"private": form(100, 1, 1, 1), "mapped": form(1, 3), "packed": packed}
        choice = choose(forms)
        assert choice.mode == "private"
        assert reason in choice.text


class FakeChild:
    """Answers as the child would, for a version whose blobs are its tensors, which it packs."""

    def __init__(self) -> None:
        self.tasks: list[str] = []
        self.blobs: tuple[bytes, ...] = (b"first blob", b"second blob")
        self.graph = b"packed graph"
        self.failing: dict[str, str] = {}
        self.lie = False
        self.tensor_lie: JsonObject = {}  # what it says of each tensor instead
        self.count: int | None = None  # bytes of each object that it says are served
        self.shape = "a shape"
        self.ratios = {"private": 1.0, "mapped": 2.0, "packed": 1.0}
        self.packed_ratios: list[float] = []  # in turn, before that of ``ratios``
        self.difference = 0.0  # of the packed form to the published one
        self.private_bytes = 0  # of the packed form
        self.packed_blobs: list[bytes] = []
        self.lock = threading.Lock()

    def __call__(self, *_: object) -> FakeChild:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, request: JsonObject, limits: Limits) -> JsonObject:
        task = str(request["task"])
        with self.lock:
            self.tasks.append(task)
        if task in self.failing:
            raise LoadFailed(self.failing[task])
        if task == "describe":
            return {"shape": self.shape}
        if task == "inspect":
            return self._inspect(request)
        if task == "pack":
            return self._pack(request)
        packed = self.packed_ratios.pop(0) if self.packed_ratios else self.ratios["packed"]
        return {
            "private": _form_json(100 * MIB, 1.0),
            "mapped": _form_json(0, self.ratios["mapped"]),
            "packed": _form_json(0, packed),
        }

    def _pack(self, request: JsonObject) -> JsonObject:
        Path(str(request["graph_path"])).write_bytes(self.graph)
        Path(str(request["data_path"])).write_bytes(b"".join(self.blobs))
        items: list[PackedObject] = []
        tensors: list[JsonObject] = []
        reused: list[Json] = []
        resident: dict[str, Json] = {}
        offset = 0
        known = request["known"]
        assert isinstance(known, list)
        uses = {parse_packed_tensor(item).use for item in known}
        for blob in self.blobs:
            size, digest = len(blob), digest_of(blob)
            resident[digest] = size if self.count is None else self.count
            if digest in uses:
                reused.append(digest)
            else:
                self.packed_blobs.append(blob)
                items.append(PackedObject(digest, (Part(0, offset, size),)))
                names = {"offset": "0", "length": str(size)}
                tensor = PackedTensor(digest, digest, digest, names, size).to_json()
                tensors.append(tensor | self.tensor_lie)
            offset += size
        # A table, which nobody packs: the published tensor stands in for itself.
        table = digest_of(b"tensor")
        if "table" in uses:
            reused.append("table")
        else:
            tensors.append(
                PackedTensor("table", table, table, {"offset": "0", "length": "6"}, 6).to_json()
            )
        if self.lie:
            items[0] = replace(items[0], digest=digest_of(b"what is not there"))
        return {
            "objects": [item.to_json() for item in items],
            "resident": resident, "tensors": [*tensors], "reused": reused,
        }  # fmt: skip

    def _inspect(self, request: JsonObject) -> JsonObject:
        found = Inspection(
            SIGNATURE, True, "", False, 0.001, 0.01,
            self.private_bytes if "packed_graph" in request else WEIGHT_BYTES,
            has_prepacking=bool(request.get("has_prepacking", True)),
        ).to_json()  # fmt: skip
        return found | ({"difference": self.difference} if "packed_graph" in request else {})


def _form_json(private_bytes: int, ratio: float) -> JsonObject:
    by_rows: JsonObject = {"1": ratio, "8": ratio}
    return {"load_s": 0.01, "private_bytes": private_bytes, "difference": 0.0,
            "ratios": by_rows, "run_s": by_rows}  # fmt: skip


class FullDisk(UnsyncedFiles):
    """Has no room for writes after so many; -1: has room."""

    def __init__(self) -> None:
        self.writes_left = -1

    def write(self, descriptor: int, data: bytes | bytearray | memoryview) -> None:
        if self.writes_left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.writes_left -= self.writes_left > 0
        super().write(descriptor, data)


@dataclass
class Desk:
    """A store with one version, and an inspector with a fake child."""

    root: Path
    child: FakeChild
    files: FullDisk = field(default_factory=FullDisk)
    clock: Clock = field(default_factory=Clock)

    def open(self) -> Store:
        return Store.open(self.root, files=self.files, monotonic_s=self.clock, reserve_bytes=0)

    def push(self, store: Store, model: str = "m", graph: bytes = b"graph") -> Manifest:
        for data in (graph, b"tensor"):
            with store.begin_upload(digest_of(data), len(data)) as upload:
                upload.write(data)
                upload.commit()
        entry = TensorEntry(digest_of(b"tensor"), 6)
        manifest = Manifest(
            model, digest_of(graph), (entry,), SIGNATURE.to_json(), {"name": "onnx"}
        )
        store.publish(manifest)
        return manifest

    def inspect(self, store: Store, manifest: Manifest) -> Inspection:
        return VersionInspector(store, 1, 60.0)(manifest, 1 << 30)

    def packed_paths(self, store: Store) -> list[Path]:
        data = (*self.child.blobs, self.child.graph)
        return [store.objects_dir / digest_hex(digest_of(item)) for item in data]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Weights count as large, whatever the size of the tensor that stands for them."""
    child = FakeChild()
    monkeypatch.setattr(pack, "InspectionChild", child)
    monkeypatch.setattr(pack, "reason_not_to_pack", lambda *_: None)
    monkeypatch.setattr(pack, "is_in_graph", lambda _: False)
    return Desk(tmp_path / "store", child)


@pytest.fixture
def store(desk: Desk) -> Iterator[Store]:
    with desk.open() as opened:
        yield opened


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


ONE, TWO, OTHER = b"first blob", b"second blob", b"another blob"


class TestSharing:
    def pair(self, desk: Desk, store: Store) -> tuple[Manifest, Manifest]:
        """Inspect one version; return it, and another that differs in one of two tensors."""
        first, second = desk.push(store), desk.push(store, graph=b"other graph")
        desk.inspect(store, first)
        desk.child.tasks.clear()
        desk.child.blobs, desk.child.graph = (ONE, OTHER), b"another packed graph"
        return first, second

    def test_what_a_version_shares_is_packed_and_measured_once(
        self, desk: Desk, store: Store
    ) -> None:
        """The other one is inspected as it is served, and says why it is not measured."""
        _, second = self.pair(desk, store)
        before = store.usage()
        found = desk.inspect(store, second)
        assert desk.child.tasks == ["describe", "pack", "inspect"]
        assert desk.child.packed_blobs == [ONE, TWO, OTHER]
        assert found.mode == "packed"
        assert "as measured for another version of the same graph" in found.mode_reason
        assert set(found.resident) == {digest_of(ONE), digest_of(OTHER), found.graph}
        after = store.usage()
        assert after.objects - before.objects == 2
        assert after.object_bytes - before.object_bytes == len(OTHER) + len(desk.child.graph)

    def test_it_is_found_after_a_start_too(self, desk: Desk, store: Store) -> None:
        """The index on the disk says it all."""
        _, second = self.pair(desk, store)
        store.close()
        with desk.open() as again:
            assert desk.inspect(again, second).mode == "packed"
        assert desk.child.packed_blobs == [ONE, TWO, OTHER]

    @pytest.mark.parametrize("what", ["runtime", "processor"])
    def test_nothing_of_another_environment_is_shared(
        self, desk: Desk, store: Store, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        """Neither what was packed nor what was measured."""
        _, second = self.pair(desk, store)
        if what == "runtime":
            monkeypatch.setattr(pack, "installed_version", lambda _: "99.0")
        else:
            monkeypatch.setattr(pack, "_read_cpu_info", lambda: "flags : avx1024")
        desk.inspect(store, second)
        assert desk.child.tasks == ["describe", "inspect", "pack", "compare"]
        assert desk.child.packed_blobs == [ONE, TWO, ONE, OTHER]

    def test_a_graph_of_another_shape_is_measured_and_shares_tensors(
        self, desk: Desk, store: Store
    ) -> None:
        """What kernels make of a tensor does not depend on the rest of the graph."""
        _, second = self.pair(desk, store)
        desk.child.shape = "another shape"
        desk.inspect(store, second)
        assert desk.child.tasks == ["describe", "inspect", "pack", "compare"]
        assert desk.child.packed_blobs == [ONE, TWO, OTHER]

    @pytest.mark.parametrize("damage", ["flipped", "missing"])
    def test_a_shared_object_that_is_damaged_is_built_again(
        self, desk: Desk, store: Store, damage: str
    ) -> None:
        """Both versions have it again."""
        first, second = self.pair(desk, store)
        path = store.objects_dir / digest_hex(digest_of(ONE))
        path.chmod(0o644)
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(b"x" + ONE[1:])
        found = desk.inspect(store, second)
        assert path.read_bytes() == ONE
        assert not store.verify().damaged
        assert digest_of(ONE) in found.resident
        desk.child.tasks.clear()
        assert desk.inspect(store, first).mode == "packed"
        assert desk.child.tasks == []

    def test_gc_keeps_what_the_other_version_uses(self, desk: Desk, store: Store) -> None:
        """It goes with the last of them."""
        _, second = self.pair(desk, store)
        desk.inspect(store, second)
        paths = {
            data: store.objects_dir / digest_hex(digest_of(data)) for data in (ONE, TWO, OTHER)
        }
        for version, left in ((1, [ONE, OTHER]), (2, [])):
            store.delete_version("m", version)
            desk.clock.now_s += 2 * LEASE_S
            store.gc()
            assert [data for data, path in paths.items() if path.exists()] == left

    def test_a_crash_on_the_way_leaves_the_other_version_as_it_was(self, desk: Desk) -> None:
        """What was stored and is named by nobody goes with gc; what is shared stays."""

        def cut(*_: object) -> None:
            raise PowerCut

        store = desk.open()
        first, second = self.pair(desk, store)
        store.packed.add = cut  # type: ignore[method-assign]  # the process ends with this store
        with pytest.raises(PowerCut):
            desk.inspect(store, second)
        store.close()
        with desk.open() as again:
            desk.child.tasks.clear()
            assert desk.inspect(again, first).mode == "packed"
            assert desk.child.tasks == []
            assert again.gc().objects == 2
            assert not again.verify().damaged
            assert desk.inspect(again, second).mode == "packed"

    @pytest.mark.parametrize(
        "lie",
        [
            {"source": digest_of(OTHER)},
            {"names": {"offset": "4", "length": "10"}},
            {"object": digest_of(b"tensor")},
        ],
        ids=["another tensor", "another place", "another object"],
    )
    def test_what_does_not_hold_a_tensor_stands_in_for_none(
        self, desk: Desk, store: Store, lie: JsonObject
    ) -> None:
        """Else a pushed graph could slip its weights under those of another model."""
        desk.child.tensor_lie = lie
        found = desk.inspect(store, desk.push(store))
        assert (found.mode, found.graph) == ("private", "")
        assert "which it does not" in found.mode_reason

    @pytest.mark.parametrize(
        ("what", "value"),
        [("difference", 0.5), ("difference", float("nan")), ("private_bytes", 64 * MIB)],
    )
    def test_what_does_not_hold_for_its_like_is_measured(
        self, desk: Desk, store: Store, what: str, value: float
    ) -> None:
        """Other answers, or weights that the runtime copies all the same."""
        _, second = self.pair(desk, store)
        setattr(desk.child, what, value)
        desk.inspect(store, second)
        assert "compare" in desk.child.tasks

    def test_what_cannot_be_compared_is_packed_without_what_was_known(
        self, desk: Desk, store: Store
    ) -> None:
        """An object that does not fit this version costs time, and not its packed form."""
        _, second = self.pair(desk, store)
        desk.child.shape = "another shape"
        desk.child.failing["compare"] = "the runtime refuses the graph"
        assert desk.inspect(store, second).mode == "private"
        assert desk.child.packed_blobs == [ONE, TWO, OTHER, ONE, OTHER]
        assert store.packed.find(second.content_digest) is None

    def test_that_nothing_pays_is_measured_again(self, desk: Desk, store: Store) -> None:
        """It may have been the hour: what else ran, or how full the disk was."""
        desk.child.ratios["packed"] = 1.5
        _, second = self.pair(desk, store)
        desk.child.ratios["packed"] = 1.0
        assert desk.inspect(store, second).mode == "packed"
        assert "compare" in desk.child.tasks

    def test_that_mapping_is_as_fast_holds_for_its_like(self, desk: Desk, store: Store) -> None:
        """Then nothing is packed."""
        desk.child.ratios["mapped"] = 1.0
        _, second = self.pair(desk, store)
        found = desk.inspect(store, second)
        assert (found.mode, found.has_prepacking) == ("mapped", False)
        assert desk.child.tasks == ["describe", "inspect"]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for all that is packed for real, so that little is packed twice."""
    root = tmp_path_factory.mktemp("packed") / "store"
    with Store.open(root, files=UnsyncedFiles(), reserve_bytes=0) as opened:
        yield opened


@pytest.mark.slow
class TestForReal:
    """With real children and the real runtime, on 12 MiB of weights."""

    def push(self, store: Store, model: onnx.ModelProto) -> Manifest:
        package = package_onnx("m", model)
        for item in package.objects:
            with store.begin_upload(item.digest, item.size_bytes) as upload:
                for chunk in item.chunks():
                    upload.write(chunk)
                upload.commit()
        store.publish(package.manifest)
        return package.manifest

    def load_and_answer(
        self, store: Store, manifest: Manifest, inspection: Inspection
    ) -> list[np.ndarray]:
        spec = LoadSpec("m", 1, manifest, store.objects_dir, 1, inspection)
        servable = OnnxLoader(1).load(spec)
        style, _ = first_inputs(servable.run, servable.signature)
        answers = [servable.run(make_inputs(servable.signature, style, n))[0] for n in (1, 32)]
        servable.close()
        return answers

    def test_a_version_is_packed_damaged_and_packed_again(self, shelf: Store) -> None:
        """Answers stay the same bit for bit; workers copy next to nothing."""
        manifest = self.push(shelf, graphs.layers(1, 2, 3))
        inspect = VersionInspector(shelf, 1, 120.0)
        found = inspect(manifest, 64 * MIB)
        assert found.mode == "packed", found.mode_reason
        assert found.private_bytes < 0.2 * manifest.weight_bytes
        assert manifest.weight_bytes <= sum(found.resident.values()) < 1.1 * manifest.weight_bytes
        plain = replace(found, graph="", resident={})
        expected = self.load_and_answer(shelf, manifest, plain)
        for left, right in zip(expected, self.load_and_answer(shelf, manifest, found), strict=True):
            assert np.array_equal(left, right)
        path = shelf.objects_dir / digest_hex(max(found.resident))
        path.chmod(0o644)
        os.truncate(path, path.stat().st_size // 2)
        again = inspect(manifest, 64 * MIB)
        assert (again.graph, again.resident) == (found.graph, found.resident)
        for left, right in zip(expected, self.load_and_answer(shelf, manifest, again), strict=True):
            assert np.array_equal(left, right)

    def test_a_disk_that_fills_while_the_runtime_writes_is_the_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The version serves as it is, nothing of what was written stays, and the rest is whole."""
        monkeypatch.setattr("models.pack_build._ROOM_FACTOR", 0)  # what else fills it comes later
        with (
            small_disk(tmp_path / "disk", 24 * MIB) as disk,
            Store.open(disk / "store", files=UnsyncedFiles(), reserve_bytes=0) as store,
        ):
            manifest = self.push(store, graphs.layers(1, 2, 3))
            found = VersionInspector(store, 1, 120.0)(manifest, 64 * MIB)
            assert (found.mode, found.graph) == ("private", "")
            assert "no room to pack: the store's disk ran full" in found.mode_reason
            assert str(tmp_path) not in found.mode_reason
            assert not list((disk / "store" / "tmp").iterdir())
            assert not store.verify().damaged
            self.load_and_answer(store, manifest, found)

    def test_a_version_that_changed_one_layer_shares_the_others(self, shelf: Store) -> None:
        """On disk and in memory only the changed layer comes on top."""
        inspect = VersionInspector(shelf, 1, 120.0)
        manifests = [self.push(shelf, graphs.layers(1, 2, last)) for last in (3, 4)]
        found = [inspect(manifest, 64 * MIB) for manifest in manifests]
        assert "another version" in found[1].mode_reason
        plain = replace(found[1], graph="", resident={})
        for left, right in zip(
            self.load_and_answer(shelf, manifests[1], plain),
            self.load_and_answer(shelf, manifests[1], found[1]),
            strict=True,
        ):
            assert np.array_equal(left, right)
        own = {key: size for key, size in found[1].resident.items() if key not in found[0].resident}
        assert sum(own.values()) < 0.4 * sum(found[1].resident.values())

    def test_a_worker_opens_the_version_where_its_packed_form_does_not(self, shelf: Store) -> None:
        """A runtime that refuses what was packed costs memory, never the version."""
        manifest = self.push(shelf, graphs.layers(1, 2, 3))
        signature = Signature(
            (TensorSpec("x", "FP32", (-1, 1024)),), (TensorSpec("t2", "FP32", (-1, 1024)),)
        )
        wrong = Inspection(
            signature, True, "", False, 0.0, 0.0, 0, graph=manifest.tensors[0].digest
        )
        one, many = self.load_and_answer(shelf, manifest, wrong)
        assert (len(one), len(many)) == (1, 32)

    def test_answers_stay_when_the_environment_changes(
        self, shelf: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Packed for one key and anew for another: each answers as the published form does."""
        manifest = self.push(shelf, graphs.layers(1, 2, 3))
        built = {}
        for is_changed in (False, True):
            if is_changed:
                monkeypatch.setattr(pack, "_read_cpu_info", lambda: "flags : avx1024")
            found = VersionInspector(shelf, 1, 120.0)(manifest, 64 * MIB)
            assert found.mode == "packed", found.mode_reason
            entry = shelf.packed.find(manifest.content_digest)
            assert entry is not None
            # The names are the digests of what this build wrote.
            shelf.verify_objects(entry.objects, thorough=True)
            built[entry.environment] = found
        assert len(built) == 2, "the second environment took what was built for the first"
        plain = replace(found, graph="", resident={})
        expected = self.load_and_answer(shelf, manifest, plain)
        for each in built.values():
            answers = self.load_and_answer(shelf, manifest, each)
            for left, right in zip(expected, answers, strict=True):
                assert np.array_equal(left, right)
