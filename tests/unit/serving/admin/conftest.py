"""A control plane over a real store and a fake fleet, and the admin app on top of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest

from models.errors import LoadFailed, MemoryExceeded
from models.servable import Inspection
from models.signature import Signature, TensorSpec
from registry.files import Files
from registry.manifest import Manifest, TensorEntry
from registry.store import Store, VersionRecord
from serving.admin.app import create_admin_app
from serving.auth import Actor
from serving.control.control_plane import ControlPlane
from serving.errors import WorkerLost
from serving.fleet import VersionKey, VersionReport, WorkerInfo
from serving.settings import SCOPES, Settings, Token
from serving.target import Target, parse_target
from tests.disk_model import UnsyncedFiles
from tests.store_driver import digest_of
from tests.unit.serving.admin.documented import checker

MIB = 1 << 20
SIGNATURE = Signature(
    inputs=(TensorSpec("x", "FP32", (-1, 2)),), outputs=(TensorSpec("y", "FP32", (-1, 1)),)
)


# Without the look for evicted pages, which goes on for ever, so that a test can await all tasks.
QUIET = Settings(residency_check_s=0)


class FakeFleet:
    """Holds every target at once, unless told to wait or to refuse a version."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.refused: dict[VersionKey, str] = {}
        self.without_memory: set[VersionKey] = set()
        self.private_bytes: dict[VersionKey, int] = {}
        self.private_by_worker: dict[VersionKey, tuple[int, ...]] = {}
        self.left_bytes: dict[VersionKey, Mapping[int, int]] = {}
        self.is_stuck = False
        self.before_time_out: Callable[[], Awaitable[None]] | None = None
        self.stuck_on: VersionKey | None = None
        self.replaced: list[int] = []
        self.refused_slots: set[int] = set()
        self.taken_generation = 0
        self.slots: tuple[WorkerInfo, ...] = (
            WorkerInfo(0, 41, "serving", 1, (0,), 0, memory_bytes=7),
        )
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Event()
        self._callback: Callable[[str, int, str], None] | None = None

    def publish(self, target: Target) -> None:
        if self.targets and target.generation <= self.targets[-1].generation:
            raise AssertionError("generations only rise")
        # What cannot go over the wire must not be published.
        assert parse_target(target.to_json()) == target
        self.targets.append(target)

    async def settled(
        self, generation: int, timeout_s: float
    ) -> Mapping[VersionKey, VersionReport]:
        assert self.targets[-1].generation >= generation
        if self.is_stuck or self.stuck_on in self.held:
            raise TimeoutError
        self.waiting.set()
        async with asyncio.timeout(20):
            await self.gate.wait()
        return {key: self._report(key) for key in self.held}

    async def taken(self, generation: int, timeout_s: float) -> None:
        assert self.targets[-1].generation >= generation
        if self.is_stuck:
            if self.before_time_out is not None:
                await self.before_time_out()
            raise TimeoutError(f"the workers in slots [0] did not get there within {timeout_s:g} s")
        self.taken_generation = generation

    async def replace(self, slot: int) -> None:
        if slot in self.refused_slots:
            raise WorkerLost(f"the new worker of slot {slot} did not take over: no room")
        self.replaced.append(slot)
        self.slots = tuple(
            replace(worker, pid=(worker.pid or 0) + 100) if worker.slot == slot else worker
            for worker in self.slots
        )

    def _report(self, key: VersionKey) -> VersionReport:
        if key in self.without_memory:
            return VersionReport("FAILED", "not enough memory to load it", is_out_of_memory=True)
        if key in self.refused:
            return VersionReport("FAILED", self.refused[key])
        each = self.private_by_worker.get(key, ())
        most = max(each, default=self.private_bytes.get(key, 0))
        return VersionReport("READY", "", 0.1, most, private_by_worker=each)

    @property
    def held(self) -> dict[VersionKey, bool]:
        """Versions of the newest target, and whether they may answer."""
        return {(v.model, v.version): v.is_serving for v in self.targets[-1].versions}

    def workers(self) -> tuple[WorkerInfo, ...]:
        return self.slots

    def unreleased(self, key: VersionKey) -> Mapping[int, int]:
        return self.left_bytes.get(key, {0: 0})

    def on_arrival(self, callback: Callable[[], None]) -> None:
        self.arrived = callback

    def on_quarantine(self, callback: Callable[[str, int, str], None]) -> None:
        self._callback = callback

    def quarantine(self, model: str, version: int, reason: str) -> None:
        assert self._callback is not None
        self._callback(model, version, reason)


class FakeInspector:
    """Finds every version good, but those it is told to refuse; may be held at a gate."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}
        self.drifted: dict[str, str] = {}
        self.outgrown: set[str] = set()
        self.signatures: dict[str, Signature] = {}
        self.private_bytes = 0
        self.resident: dict[str, int] = {}
        self.calls: list[str] = []
        self.limits: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def __call__(self, manifest: Manifest, memory_bytes: int) -> Inspection:
        self.calls.append(manifest.digest)
        self.limits.append(memory_bytes)
        self.entered.set()
        assert self.gate.wait(20)
        if manifest.graph in self.outgrown:
            raise MemoryExceeded("it needs more")
        if manifest.graph in self.refused:
            raise LoadFailed(self.refused[manifest.graph])
        signature = self.signatures.get(manifest.graph, SIGNATURE)
        drift = self.drifted.get(manifest.graph, "")
        return Inspection(signature, True, "rows are independent", False, 0.001, 0.01,
                          self.private_bytes, resident=self.resident, drift=drift)  # fmt: skip


@dataclass
class World:
    """One server without its workers and its sockets; ``restart`` is a crash and a new start."""

    root: Path
    settings: Settings
    budget_bytes: int = 100 * MIB
    available_bytes: int = 1 << 40
    inspector: FakeInspector = field(default_factory=FakeInspector)
    files: Files = field(default_factory=UnsyncedFiles)
    actor: Actor = field(default_factory=lambda: Actor("tester", frozenset(SCOPES), "127.0.0.1"))

    async def start(self, prepare: Callable[[FakeFleet], None] | None = None) -> None:
        self.fleet = FakeFleet()
        if prepare is not None:
            prepare(self.fleet)
        self.store = await asyncio.to_thread(Store.open, self.root, files=self.files)
        self.control = ControlPlane(
            self.store, self.fleet, self.settings, self.inspector,
            budget_bytes=self.budget_bytes, workers=2,
            available_bytes=lambda: self.available_bytes,
        )  # fmt: skip
        await self.control.start()

    async def stop(self) -> None:
        self.inspector.gate.set()
        await self.control.close()
        await asyncio.to_thread(self.store.close)

    async def restart(self, prepare: Callable[[FakeFleet], None] | None = None) -> None:
        await self.stop()
        await self.start(prepare)

    def put(self, data: bytes) -> str:
        digest = digest_of(data)
        with self.store.begin_upload(digest, len(data)) as upload:
            upload.write(data)
            upload.commit()
        return digest

    def manifest(self, model: str, graph: bytes, *tensors: bytes) -> Manifest:
        """A manifest whose objects are in the store."""
        entries = tuple(TensorEntry(self.put(t), len(t)) for t in tensors)
        return Manifest(model, self.put(graph), entries, SIGNATURE.to_json(), {"name": "onnx"})

    async def push(self, model: str, graph: bytes, *tensors: bytes) -> VersionRecord:
        manifest = await asyncio.to_thread(self.manifest, model, graph, *tensors)
        record, _ = await self.control.publish(manifest, self.actor)
        return record

    async def load(self, model: str, version: int) -> None:
        operation = self.control.load(model, version, self.actor)
        assert await operation.wait(20)
        if operation.error is not None:
            raise operation.error

    async def unload(self, model: str, version: int) -> None:
        operation = self.control.unload(model, version, self.actor)
        assert await operation.wait(20)
        if operation.error is not None:
            raise operation.error

    async def push_loaded(self, model: str, count: int) -> None:
        for number in range(count):
            record = await self.push(model, f"{model} graph {number}".encode())
            await self.load(model, record.version)

    def client(
        self, *, tokens: tuple[Token, ...] = (), why_held: Callable[[], str] = str, **more: object
    ) -> httpx.AsyncClient:
        app = create_admin_app(
            self.control, self.settings, tokens=tokens, render_metrics=lambda: b"metrics 1\n",
            why_held=why_held,
        )  # fmt: skip
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8081",
            event_hooks={"response": [checker(app)]}, **more,
        )  # fmt: skip


@pytest.fixture
def make_world(tmp_path: Path) -> Callable[..., World]:
    """Make further worlds, which the test starts and stops itself."""

    def make(root: Path | None = None, files: Files | None = None) -> World:
        return World(root or tmp_path / "store", QUIET, files=files or UnsyncedFiles())

    return make


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A started world with an empty store."""
    made = World(tmp_path / "store", QUIET)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def client(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """The admin plane of ``world``, open as on loopback without tokens."""
    async with world.client() as made:
        yield made
