"""Makes the newest target true inside a worker: loads, swaps what answers, drains, unloads."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from models.errors import LoadFailed, OutOfMemory
from models.servable import Loader, LoadSpec, Servable
from models.signature import Signature
from registry.lifecycle import State
from registry.model_settings import ModelSettings
from registry.serving_map import ModelView, ServingMap, Snapshot, VersionView
from serving.fleet import VersionKey, VersionReport
from serving.target import Target, TargetVersion
from serving.workers.messages import Report
from serving.workers.private_memory import DataLimit, PrivateMemory

_log = logging.getLogger(__name__)
# A batcher gets this long to end the runs that outlasted the drain; they are terminated first.
CLOSE_TIMEOUT_S = 5.0


class Closing(Protocol):
    """What queues and runs requests of a version, and can stop doing so."""

    async def close(self, timeout_s: float) -> None:
        """Take no more, end or fail what is queued, wait for the runs under way."""
        ...


class Served(Protocol):
    """A loaded version with all that serves it."""

    @property
    def digest(self) -> str:
        """Digest of the manifest."""
        ...

    @property
    def signature(self) -> Signature:
        """What it takes and gives."""
        ...

    @property
    def servable(self) -> Servable:
        """What computes."""
        ...

    @property
    def batcher(self) -> Closing:
        """What queues."""
        ...


S = TypeVar("S", bound=Served)
A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in the target's order; what is right already is in neither list."""

    loads: tuple[TargetVersion, ...]
    unloads: tuple[VersionKey, ...]


def diff(loaded: Mapping[VersionKey, str], failed: Collection[VersionKey], target: Target) -> Plan:
    """Return the steps from what is loaded (key to form) to the target.

    A version that failed is not tried again while targets go on naming it: the same target given
    twice changes nothing. To try again, name it no more in one target and again in a later one.
    """
    wanted = {(v.model, v.version): v for v in target.versions}
    stale = {
        key for key, form in loaded.items()
        if key not in wanted or wanted[key].form != form
    }  # fmt: skip
    return Plan(
        loads=tuple(
            v for key, v in wanted.items()
            if (key not in loaded or key in stale) and key not in failed
        ),
        unloads=tuple(sorted(stale)),
    )  # fmt: skip


def snapshot_of(
    target: Target, loaded: Mapping[VersionKey, S], failed: Mapping[VersionKey, str]
) -> Snapshot[S]:
    """Return what requests see: a version answers if it is loaded *and* the target lets it."""
    wanted = {(v.model, v.version): v for v in target.versions}
    names = {*target.catalog, *(model for model, _ in wanted)}
    models: dict[str, ModelView[S]] = {}
    for name in sorted(names):
        numbers = {
            *target.catalog.get(name, {}),
            *(version for model, version in wanted if model == name),
        }
        models[name] = ModelView(
            name=name,
            versions={n: _view(target, wanted, loaded, failed, (name, n)) for n in sorted(numbers)},
            aliases=dict(target.aliases.get(name, {})),
            route=target.routes.get(name),
            slots=target.slots.get(name, ()),
        )
    return Snapshot(models=models, generation=target.generation, is_restored=target.is_restored)


def _view(
    target: Target,
    wanted: Mapping[VersionKey, TargetVersion],
    loaded: Mapping[VersionKey, S],
    failed: Mapping[VersionKey, str],
    key: VersionKey,
) -> VersionView[S]:
    model, version = key
    entry = target.catalog.get(model, {}).get(version)
    served = loaded.get(key)
    want = wanted.get(key)
    state = State(entry.state) if entry else State.LOADING
    reason = entry.reason if entry else ""
    target_now: S | None = None
    if want is not None and key in failed:
        state, reason = State.FAILED, failed[key]
    elif want is not None and served is None:
        state, reason = State.LOADING, "this worker is loading it"
    elif want is not None and want.is_serving:
        reason = reason if state is State.READY else "loaded"
        state, target_now = State.READY, served
    if served is not None:
        digest, signature = served.digest, served.signature.to_json()
    elif entry is not None:
        digest, signature = entry.digest, entry.signature
    else:
        manifest = wanted[key].manifest
        digest, signature = manifest.digest, manifest.signature
    return VersionView(model, version, state, reason, digest, signature, target_now)


@dataclass(slots=True)
class _Removal(Generic[S]):
    served: S
    form: str
    report: VersionReport
    task: asyncio.Task[None] | None = None
    is_closing: bool = False


class Reconciler(Generic[S]):
    """Keeps one worker at the newest target. All methods belong to the event loop's thread.

    1. ``report(g)`` is called only when g holds; g twice changes nothing.
    2. A newer target takes effect on requests at once, also while a load is under way.
    3. Loads run one at a time in ``loads``, and so do unloads: creating a session
       frees the interpreter lock, dropping a large one holds it, either would stall the loop.
       ``loads`` is shut down when ``run`` ends.
    4. A version is closed only after its last handle, or after its drain timed out.
    """

    def __init__(
        self,
        serving_map: ServingMap[S],
        loader: Loader,
        *,
        loads: ThreadPoolExecutor,
        objects_dir: Path,
        threads: int,
        drain_timeout_s: float,
        build: Callable[[TargetVersion, Servable], S],
        mark_loading: Callable[[VersionKey | None], None],
        forget: Callable[[VersionKey], None],
        report: Callable[[Report], None],
        configure: Callable[[S, ModelSettings], None] = lambda _served, _settings: None,
        run_memory_bytes: int = 0,
    ) -> None:
        self._serving_map = serving_map
        self._loader = loader
        self._objects_dir = objects_dir
        self._threads = threads
        self._drain_timeout_s = drain_timeout_s
        self._build = build
        self._mark_loading = mark_loading
        self._forget = forget
        self._report = report
        self._configure = configure
        self._wanted: Target | None = None
        self._changed = asyncio.Event()
        self._loaded: dict[VersionKey, S] = {}
        self._forms: dict[VersionKey, str] = {}
        self._reports: dict[VersionKey, VersionReport] = {}
        self._removals: dict[VersionKey, _Removal[S]] = {}
        self._memory = PrivateMemory(bound=DataLimit(run_memory_bytes))
        self._unreleased: dict[VersionKey, int] = {}
        self._thread = loads
        self.is_loading = False

    def set_target(self, target: Target) -> None:
        """Take a target; an older one than the newest taken is ignored."""
        if self._wanted is not None and target.generation < self._wanted.generation:
            return
        self._wanted = target
        self._revive(target)
        wanted = {(v.model, v.version) for v in target.versions}
        leaving = {key: self._loaded.pop(key) for key in diff(self._forms, (), target).unloads}
        for key, served in self._loaded.items():
            self._set_up(key, served)
        self._refresh()  # before the drains begin, so that no new handle can appear
        for key, served in leaving.items():
            self._start_removal(key, served)
        for key in [key for key in self._reports if key not in wanted]:
            del self._reports[key]
        self._changed.set()

    def follow(self, target: Target) -> None:
        """Route by a target without loading or unloading, in a worker that is about to end."""
        self._wanted = target
        self._refresh()

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                target = self._wanted
                if target is not None and await self._make_true(target):
                    unreleased, self._unreleased = self._unreleased, {}
                    reports = self._reports_of(target)
                    self._report(Report(target.generation, reports, unreleased))
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def held(self) -> tuple[S, ...]:
        """Return every version in memory, those that are being unloaded included."""
        return (*self._loaded.values(), *(r.served for r in self._removals.values()))

    def _set_up(self, key: VersionKey, served: S) -> None:
        settings = self._wanted.settings if self._wanted is not None else {}
        self._configure(served, settings.get(key[0], ModelSettings()))

    def _failed(self) -> dict[VersionKey, str]:
        return {k: r.reason for k, r in self._reports.items() if r.state == State.FAILED}

    def _reports_of(self, target: Target) -> dict[VersionKey, VersionReport]:
        return {(v.model, v.version): self._reports[v.model, v.version] for v in target.versions}

    def _refresh(self) -> None:
        if self._wanted is not None:
            self._serving_map.replace(snapshot_of(self._wanted, self._loaded, self._failed()))

    async def _make_true(self, target: Target) -> bool:
        """Return whether ``target`` holds; False when a newer one came in between."""
        for version in diff(self._forms, self._failed(), target).loads:
            if self._wanted is not target:
                return False
            await self._load(version)
        while self._removals:
            if self._wanted is not target:
                return False
            await self._any_removal_or_change()
        return self._wanted is target

    async def _any_removal_or_change(self) -> None:
        change = asyncio.create_task(self._changed.wait(), name="newer target")
        tasks = [r.task for r in self._removals.values() if r.task is not None]
        try:
            await asyncio.wait([*tasks, change], return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()

    async def _load(self, version: TargetVersion) -> None:
        key = (version.model, version.version)
        if (removal := self._removals.get(key)) is not None and removal.task is not None:
            await asyncio.wait([removal.task])
        self._mark_loading(key)
        self.is_loading = True
        started = time.monotonic()
        try:
            servable, private_bytes = await self._in_thread(self._open, version)
            served = self._build(version, servable)
        except LoadFailed as error:
            self._fail(key, str(error), is_out_of_memory=isinstance(error, OutOfMemory))
        except MemoryError:
            self._fail(key, "not enough memory to load it", is_out_of_memory=True)
        except Exception as error:  # noqa: BLE001 - a version's failure must not end the worker
            _log.exception("load failed", extra={"model": key[0], "version": key[1]})
            self._fail(key, f"loading ended with an internal error: {type(error).__name__}")
        else:
            self._reports[key] = VersionReport(
                State.READY, "", time.monotonic() - started, private_bytes
            )
            self._settle_load(version, served)
        finally:
            self._mark_loading(None)
            self.is_loading = False
        self._refresh()

    def _open(self, version: TargetVersion) -> tuple[Servable, int]:
        """Load in the loads' thread; return the private memory that it took, too."""
        spec = LoadSpec(
            version.model, version.version, version.manifest,
            self._objects_dir, self._threads, version.inspection,
        )  # fmt: skip
        self._memory.begin()
        try:
            servable = self._loader.load(spec)
        except BaseException:
            self._memory.failed()
            raise
        return servable, self._memory.loaded((version.model, version.version))

    def _fail(self, key: VersionKey, reason: str, *, is_out_of_memory: bool = False) -> None:
        self._reports[key] = VersionReport(State.FAILED, reason, is_out_of_memory=is_out_of_memory)

    def _settle_load(self, version: TargetVersion, served: S) -> None:
        """Keep a version that was loaded, unless a newer target no longer names it."""
        key = (version.model, version.version)
        wanted = self._wanted.versions if self._wanted is not None else ()
        self._forms[key] = version.form
        if any((v.model, v.version) == key and v.form == version.form for v in wanted):
            self._set_up(key, served)
            self._loaded[key] = served
        else:
            self._start_removal(key, served)

    def _revive(self, target: Target) -> None:
        """Take back versions that a newer target wants again before their drain was over."""
        for version in target.versions:
            key = (version.model, version.version)
            removal = self._removals.get(key)
            if removal is None or removal.is_closing:
                continue
            if removal.form == version.form and removal.task is not None:
                removal.task.cancel()
                del self._removals[key]
                self._loaded[key] = removal.served
                self._forms[key] = removal.form
                self._reports[key] = removal.report

    def _start_removal(self, key: VersionKey, served: S) -> None:
        removal = _Removal(served, self._forms.pop(key), self._reports.pop(key))
        self._removals[key] = removal
        removal.task = asyncio.create_task(self._remove(key, removal), name=f"unload {key}")

    async def _remove(self, key: VersionKey, removal: _Removal[S]) -> None:
        model, version = key
        is_drained = True
        try:
            async with asyncio.timeout(self._drain_timeout_s):
                await self._serving_map.drained(model, version)
        except TimeoutError:
            is_drained = False
        removal.is_closing = True
        try:
            await self._close(key, removal.served, is_drained=is_drained)
        except Exception:  # noqa: BLE001 - a version that cannot close must not block its successors
            _log.exception("unload failed", extra={"model": model, "version": version})
        finally:
            del self._removals[key]
            self._forget(key)

    async def _close(self, key: VersionKey, served: S, *, is_drained: bool) -> None:
        if not is_drained:
            served.servable.terminate()
        await served.batcher.close(CLOSE_TIMEOUT_S)
        self._unreleased[key] = await self._in_thread(self._shut, (key, served.servable))

    def _shut(self, what: tuple[VersionKey, Servable]) -> int:
        """Close in the loads' thread; return what the version did not give back."""
        key, servable = what
        self._memory.begin()
        servable.close()
        return self._memory.unloaded(key)

    async def _in_thread(self, function: Callable[[A], R], argument: A) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, argument)
