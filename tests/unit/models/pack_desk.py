"""A store and an inspector over a fake child, for the tests of packing."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from models.child import Limits
from models.errors import LoadFailed
from models.pack import VersionInspector
from models.packed_object import PackedObject, Part
from models.servable import Inspection
from models.signature import Signature, TensorSpec
from models.weight_mode import MIB
from registry.ident import digest_hex
from registry.manifest import Json, JsonObject, Manifest, TensorEntry
from registry.packed import PackedTensor, parse_packed_tensor
from registry.store import Store
from tests.disk_model import FullDisk
from tests.store_driver import Clock, digest_of

SIGNATURE = Signature(
    inputs=(TensorSpec("x", "FP32", (-1, 2)),), outputs=(TensorSpec("y", "FP32", (-1, 2)),)
)
WEIGHT_BYTES = 8 * MIB


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


@dataclass
class Desk:
    """A store with one version, and an inspector with a fake child."""

    root: Path
    child: FakeChild
    files: FullDisk = field(default_factory=lambda: FullDisk(writes_left=-1))
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
