"""Tests of the reconciler: how a worker makes a target true."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from models.errors import LoadFailed, OutOfMemory
from models.servable import Array, Inspection, LoadSpec, Servable
from models.signature import Signature, TensorSpec
from registry.errors import NotReady
from registry.lifecycle import State
from registry.manifest import Manifest
from registry.model_settings import ModelSettings
from registry.serving_map import ServingMap
from registry.traffic import Traffic
from serving.fleet import VersionKey
from serving.target import CatalogEntry, Target, TargetVersion
from serving.workers.messages import Report
from serving.workers.reconciler import Plan, Reconciler, diff, snapshot_of

SIGNATURE = Signature(
    (TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "FP32", (-1, 4)),)
)  # fmt: skip
INSPECTION = Inspection(SIGNATURE, True, "", False, 0.0, 0.0, 0)
A1, A2, B1 = ("a", 1), ("a", 2), ("b", 1)


def version(key: VersionKey, *, is_serving: bool = True, graph: str = "0") -> TargetVersion:
    manifest = Manifest(
        model=key[0],
        graph=f"sha256:{graph * 64}",
        tensors=(),
        signature=SIGNATURE.to_json(),
        runtime={"name": "onnx", "number": key[1]},
    )
    return TargetVersion(key[0], key[1], manifest, INSPECTION, is_serving)


def target(generation: int, *versions: TargetVersion, **fields: object) -> Target:
    return Target(generation, versions, **fields)  # type: ignore[arg-type]


class FakeServable:
    """Computes nothing and remembers what was done with it."""

    signature = SIGNATURE

    def __init__(self) -> None:
        self.is_closed = False
        self.is_terminated = False

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> list[Array]:
        return []

    def terminate(self) -> None:
        self.is_terminated = True

    def close(self) -> None:
        self.is_closed = True


class FakeLoader:
    """Gives FakeServables; ``gates`` hold a load until they are set, ``errors`` end one."""

    def __init__(self) -> None:
        self.loaded: list[VersionKey] = []
        self.errors: dict[VersionKey, Exception] = {}
        self.gates: dict[VersionKey, threading.Event] = {}
        self.begun: dict[VersionKey, threading.Event] = {}

    def load(self, spec: LoadSpec) -> FakeServable:
        key = (spec.model, spec.version)
        if begun := self.begun.get(key):
            begun.set()
        if gate := self.gates.get(key):
            assert gate.wait(10)
        self.loaded.append(key)
        if error := self.errors.get(key):
            raise error
        return FakeServable()


class FakeBatcher:
    """Remembers that it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    async def close(self, timeout_s: float) -> None:
        self.is_closed = True


@dataclass(frozen=True)
class FakeServed:
    digest: str
    servable: FakeServable
    batcher: FakeBatcher = field(default_factory=FakeBatcher)
    signature: Signature = SIGNATURE


def build(wanted: TargetVersion, servable: Servable) -> FakeServed:
    assert isinstance(servable, FakeServable)
    return FakeServed(wanted.manifest.digest, servable)


class Worker:
    """A reconciler that runs, with all that it says kept in lists."""

    def __init__(self, drain_timeout_s: float, make: Callable[..., FakeServed] = build) -> None:
        self.map: ServingMap[FakeServed] = ServingMap()
        self.loader = FakeLoader()
        self.marks: list[VersionKey | None] = []
        self.forgotten: list[VersionKey] = []
        self.settings: list[tuple[str, ModelSettings]] = []
        self.reports: asyncio.Queue[Report] = asyncio.Queue()
        self.reconciler: Reconciler[FakeServed] = Reconciler(
            self.map,
            self.loader,
            loads=ThreadPoolExecutor(1),
            objects_dir=Path("objects"),
            threads=1,
            drain_timeout_s=drain_timeout_s,
            build=make,
            mark_loading=self.marks.append,
            forget=self.forgotten.append,
            report=self.reports.put_nowait,
            configure=lambda served, settings: self.settings.append((served.digest, settings)),
        )

    async def holds(self, wanted: Target) -> Report:
        """Give a target and return the report that says it holds."""
        self.reconciler.set_target(wanted)
        return await self.report()

    async def report(self) -> Report:
        async with asyncio.timeout(10):
            return await self.reports.get()


@contextlib.asynccontextmanager
async def worker(
    drain_timeout_s: float = 10.0, make: Callable[..., FakeServed] = build
) -> AsyncIterator[Worker]:
    made = Worker(drain_timeout_s, make)
    task = asyncio.create_task(made.reconciler.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def begun(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 10)


# The pure parts.


def test_diff_loads_what_lacks_and_unloads_what_is_not_named() -> None:
    """What is right already is left alone; the order is the target's."""
    wanted = target(1, version(B1), version(A2), version(A1))
    loaded = {A1: version(A1).manifest.digest, ("c", 1): "sha256:c"}
    assert diff(loaded, (), wanted) == Plan((version(B1), version(A2)), (("c", 1),))


def test_diff_does_not_try_a_failed_version_again() -> None:
    """The same target twice gives the same nothing."""
    assert diff({}, {A1}, target(1, version(A1))) == Plan((), ())


def test_diff_replaces_a_version_of_other_content() -> None:
    """Equal numbers with different digests are different versions."""
    new = version(A1, graph="1")
    assert diff({A1: version(A1).manifest.digest}, (), target(2, new)) == Plan((new,), (A1,))


def test_a_loaded_version_answers_only_when_the_target_lets_it() -> None:
    """Loading first and answering later are two targets."""
    served = FakeServed(version(A1).manifest.digest, FakeServable())
    catalog = {"a": {1: CatalogEntry("LOADING", "warming up", served.digest, {})}}
    silent = snapshot_of(
        target(1, version(A1, is_serving=False), catalog=catalog), {A1: served}, {}
    )
    speaking = snapshot_of(target(2, version(A1), catalog=catalog), {A1: served}, {})
    assert silent.models["a"].versions[1].target is None
    assert silent.models["a"].versions[1].state is State.LOADING
    assert speaking.models["a"].versions[1].target is served
    assert speaking.models["a"].versions[1].state is State.READY


def test_versions_that_are_not_loaded_are_listed_with_their_reason() -> None:
    """The catalog gives state and reason; aliases, route and restore state come along."""
    catalog = {"a": {9: CatalogEntry("FAILED", "no such operator", "sha256:9", {"inputs": []})}}
    wanted = target(
        4,
        catalog=catalog,
        routes={"a": Traffic.whole(9)},
        aliases={"a": {"prod": 9}},
        is_restored=False,
    )
    snapshot = snapshot_of(wanted, {}, {})
    view = snapshot.models["a"].versions[9]
    assert (view.state, view.reason, view.target) == (State.FAILED, "no such operator", None)
    assert (snapshot.models["a"].route, snapshot.models["a"].aliases) == (
        Traffic.whole(9),
        {"prod": 9},
    )
    assert (snapshot.generation, snapshot.is_restored) == (4, False)


# The running reconciler.


async def test_a_target_is_loaded_in_order_and_reported() -> None:
    """The report names every version of the target, and each load was marked beforehand."""
    async with worker() as it:
        report = await it.holds(target(1, version(B1), version(A1)))
        assert it.loader.loaded == [B1, A1]
        assert it.marks == [B1, None, A1, None]
        assert report.generation == 1
        assert {key: r.state for key, r in report.versions.items()} == {B1: "READY", A1: "READY"}
        assert it.map.acquire("a", 1).target.digest == version(A1).manifest.digest


async def test_the_same_target_twice_changes_nothing() -> None:
    """It is reported again, and nothing is loaded or unloaded."""
    async with worker() as it:
        it.loader.errors[B1] = LoadFailed("no such operator")
        first = await it.holds(target(1, version(A1), version(B1)))
        served = it.map.acquire("a", 1).target
        assert await it.holds(target(1, version(A1), version(B1))) == first
        assert it.loader.loaded == [A1, B1]
        assert it.map.acquire("a", 1).target is served


async def test_a_failed_load_leaves_the_others_serving() -> None:
    """The report and the listing give the reason; what can serve serves."""
    async with worker() as it:
        it.loader.errors[A1] = LoadFailed("no such operator: Foo")
        report = await it.holds(target(1, version(A1), version(B1)))
        assert (report.versions[A1].state, report.versions[A1].reason) == (
            "FAILED",
            "no such operator: Foo",
        )
        it.map.acquire("b", 1).release()
        with pytest.raises(NotReady, match="FAILED: no such operator: Foo"):
            it.map.acquire("a", 1)


@pytest.mark.parametrize("error", [OutOfMemory("not enough memory to load it"), MemoryError()])
async def test_a_lack_of_memory_is_told_from_damage(error: Exception) -> None:
    """The report says so apart, so that the version may wait instead of being given up."""
    async with worker() as it:
        it.loader.errors[A1] = error
        it.loader.errors[B1] = LoadFailed("no such operator: Foo")
        report = await it.holds(target(1, version(A1), version(B1)))
        assert report.versions[A1].reason == "not enough memory to load it"
        assert report.versions[A1].is_out_of_memory
        assert not report.versions[B1].is_out_of_memory


async def test_an_unplanned_error_of_a_loader_fails_the_version_only() -> None:
    """The reason names the kind of error and nothing of its text, which may hold a path."""
    async with worker() as it:
        it.loader.errors[A1] = RuntimeError("/secret/path")
        report = await it.holds(target(1, version(A1)))
        assert report.versions[A1].reason == "loading ended with an internal error: RuntimeError"


async def test_a_failed_version_is_tried_again_after_it_was_away() -> None:
    """A target without it forgets the failure."""
    async with worker() as it:
        it.loader.errors[A1] = LoadFailed("not now")
        await it.holds(target(1, version(A1)))
        del it.loader.errors[A1]
        await it.holds(target(2))
        report = await it.holds(target(3, version(A1)))
        assert report.versions[A1].state == "READY"


async def test_an_older_target_is_ignored() -> None:
    """Generations only rise."""
    async with worker() as it:
        await it.holds(target(5, version(A1)))
        it.reconciler.set_target(target(4))
        assert it.map.snapshot.generation == 5
        assert (await it.holds(target(6, version(A1)))).generation == 6
        assert it.forgotten == []


async def test_an_unload_waits_for_the_last_handle() -> None:
    """New requests stop at once; the version is closed and reported only after the last one."""
    async with worker() as it:
        await it.holds(target(1, version(A1)))
        handle = it.map.acquire("a", 1)
        gone = {"a": {1: CatalogEntry("DRAINING", "unload", "sha256:0", {})}}
        it.reconciler.set_target(target(2, catalog=gone))
        with pytest.raises(NotReady, match="DRAINING"):
            it.map.acquire("a", 1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not handle.target.servable.is_closed
        assert it.reports.empty()
        handle.release()
        assert (await it.report()).generation == 2
        assert handle.target.servable.is_closed
        assert handle.target.batcher.is_closed
        assert not handle.target.servable.is_terminated
        assert it.forgotten == [A1]


async def test_a_drain_that_takes_too_long_ends_the_runs() -> None:
    """A handle that is never given back delays an unload, it does not stop it."""
    async with worker(drain_timeout_s=0.01) as it:
        await it.holds(target(1, version(A1)))
        handle = it.map.acquire("a", 1)
        await it.holds(target(2))
        assert handle.target.servable.is_terminated
        assert handle.target.servable.is_closed


async def test_a_version_wanted_again_during_its_drain_is_kept() -> None:
    """No second load happens, and the report gives the figures of the first."""
    async with worker() as it:
        first = await it.holds(target(1, version(A1)))
        handle = it.map.acquire("a", 1)
        it.reconciler.set_target(target(2))
        report = await it.holds(target(3, version(A1)))
        handle.release()
        assert report.versions == first.versions
        assert it.loader.loaded == [A1]
        again = it.map.acquire("a", 1)
        assert again.target is handle.target
        assert not again.target.servable.is_closed
        assert it.forgotten == []


async def test_a_newer_target_routes_at_once_while_a_load_is_under_way() -> None:
    """A rollback does not wait for somebody's two-minute load."""
    async with worker() as it:
        await it.holds(target(1, version(A1), routes={"a": Traffic.whole(1)}))
        it.loader.gates[A2], it.loader.begun[A2] = threading.Event(), threading.Event()
        it.reconciler.set_target(
            target(2, version(A1), version(A2), routes={"a": Traffic.whole(1)})
        )
        await begun(it.loader.begun[A2])
        it.reconciler.set_target(
            target(3, version(A1), version(A2), routes={"a": Traffic.whole(2)})
        )
        assert it.map.snapshot.models["a"].route == Traffic.whole(2)
        assert it.reports.empty()
        it.loader.gates[A2].set()
        assert (await it.report()).generation == 3
        assert it.loader.loaded == [A1, A2]


async def test_a_version_that_left_the_target_while_it_loaded_is_closed() -> None:
    """The superseded target is never reported, and nothing of it stays in memory."""
    async with worker() as it:
        it.loader.gates[A1], it.loader.begun[A1] = threading.Event(), threading.Event()
        it.reconciler.set_target(target(1, version(A1), version(B1)))
        await begun(it.loader.begun[A1])
        assert it.reconciler.is_loading
        it.reconciler.set_target(target(2))
        it.loader.gates[A1].set()
        report = await it.report()
        assert (report.generation, dict(report.versions)) == (2, {})
        assert it.loader.loaded == [A1]
        assert it.forgotten == [A1]
        assert it.reconciler.held() == ()


async def test_a_version_named_again_after_its_close_began_is_loaded_anew() -> None:
    """The load waits until the former one has given its memory back."""
    closing, may_close = asyncio.Event(), asyncio.Event()

    class SlowBatcher(FakeBatcher):
        async def close(self, timeout_s: float) -> None:
            closing.set()
            await may_close.wait()

    def make(wanted: TargetVersion, servable: FakeServable) -> FakeServed:
        return FakeServed(wanted.manifest.digest, servable, SlowBatcher())

    async with worker(make=make) as it:
        await it.holds(target(1, version(A1)))
        old = it.map.acquire("a", 1)
        old.release()
        it.reconciler.set_target(target(2))
        async with asyncio.timeout(10):
            await closing.wait()
        it.reconciler.set_target(target(3, version(A1)))
        assert it.loader.loaded == [A1]
        may_close.set()
        assert (await it.report()).generation == 3
        assert it.loader.loaded == [A1, A1]
        assert it.map.acquire("a", 1).target is not old.target
        assert old.target.servable.is_closed


async def test_a_version_that_cannot_close_does_not_block_the_next_target() -> None:
    """The failure is logged; the generation is reported."""

    class BadBatcher(FakeBatcher):
        async def close(self, timeout_s: float) -> None:
            raise RuntimeError("stuck")

    def make(wanted: TargetVersion, servable: FakeServable) -> FakeServed:
        return FakeServed(wanted.manifest.digest, servable, BadBatcher())

    async with worker(make=make) as it:
        await it.holds(target(1, version(A1)))
        assert (await it.holds(target(2))).generation == 2


async def test_a_version_in_another_form_is_loaded_anew() -> None:
    """The content is the same, but what the worker mapped of it is not wanted any more."""
    packed = replace(INSPECTION, graph="sha256:" + "e" * 64)
    async with worker() as it:
        await it.holds(target(1, replace(version(A1), inspection=packed)))
        first = it.map.acquire("a", 1)
        first.release()
        await it.holds(target(2, version(A1)))
        assert it.loader.loaded == [A1, A1]
        assert first.target.servable.is_closed
        await it.holds(target(3, replace(version(A1), inspection=replace(INSPECTION, mode="x"))))
        assert it.loader.loaded == [A1, A1]


async def test_settings_hold_before_a_version_answers_and_change_without_a_reload() -> None:
    """Each target says what is set for a model; what it no longer says is the default again."""
    small = ModelSettings(queue_rows=1)
    digest = {key: version(key).manifest.digest for key in (A1, B1)}
    async with worker() as made:
        await made.holds(target(1, version(A1), version(B1), settings={"a": small}))
        assert made.settings == [(digest[A1], small), (digest[B1], ModelSettings())]
        made.settings.clear()
        await made.holds(target(2, version(A1), version(B1), settings={"b": small}))
        assert made.settings == [(digest[A1], ModelSettings()), (digest[B1], small)]
        assert made.loader.loaded == [A1, B1]
