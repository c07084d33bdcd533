"""A worker process: accepts, parses, batches and runs requests of the data plane.

Started as ``python -m serving.workers.worker LISTENER WIRE METRICS SENDER RECEIVER`` with five
inherited descriptors, the last two those of the slot's connection queue; everything else comes in
the first frame of the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import uvloop

from models.memory import trim
from models.servable import Loader, Servable
from registry.serving_map import ServingMap
from serving.data.app import create_data_app
from serving.data.batcher import Batcher, BatchLimits
from serving.data.body import BodyReader
from serving.data.busy_poll import BusyPoll
from serving.data.data_plane import DataPlane, RequestHead, ServedVersion
from serving.data.lane import InferLane
from serving.data.model_gate import ModelGate
from serving.data.response_cache import ResponseCache
from serving.data.run_policy import RunPolicy, has_one_shape, may_inline
from serving.data.run_pool import RunPool, UnderWay, background_executor
from serving.data.served import platform_of
from serving.fleet import VersionKey
from serving.logs import configure_logs
from serving.metrics.page import MetricsMemory
from serving.settings import Settings
from serving.target import Target, TargetVersion, parse_target
from serving.web.handover import ConnectionQueue
from serving.web.server import HttpServer
from serving.workers import messages
from serving.workers.collecting import collect_rarely
from serving.workers.load_thread import started_load_thread
from serving.workers.messages import Hello, Report
from serving.workers.process_memory import proportional_bytes
from serving.workers.quiet_heap import QuietHeap, trim_when_quiet
from serving.workers.reconciler import Reconciler
from serving.workers.wire import Frame, Wire, WireError

_log = logging.getLogger(__name__)
HEARTBEAT_S: Final = 1.0
# Reading the proportional size walks all pages: milliseconds for each gigabyte mapped.
MEMORY_EVERY_BEATS: Final = 10
# A worker that comes back holds its versions before it accepts, so that callers wait a moment
# instead of getting a 503; past this the honest 503 is better.
ACCEPT_AFTER_S: Final = 3.0
# Runs of different versions at once; a version of its own has one slot, so a slow one blocks none.
MAX_RUNS: Final = 32
# After max_run_s a run is told to end and has some seconds for it; one that goes on past this
# holds a thread and a version for good, and only a new process helps.
STUCK_AFTER_S: Final = 10.0
# Threads that decode and encode what is large; the interpreter lets one at a time go on anyway.
CODEC_THREADS: Final = 4
# A thread that decodes a large body gives the interpreter to the event loop after this time, not
# after Python's 5 ms.
SWITCH_S: Final = 0.0005


class Worker:
    """One worker's life after the first frame; ``run`` returns when it has drained."""

    def __init__(
        self,
        hello: Hello,
        wire: Wire,
        listener: socket.socket,
        queue: ConnectionQueue,
        memory: MetricsMemory,
        loader: Loader,
        loads: ThreadPoolExecutor,
        threads_at_work: UnderWay,
    ) -> None:
        self._hello = hello
        self._wire = wire
        self._listener = listener
        self._queue = queue
        self._region = memory.writer(hello.region)
        self._may_accept = asyncio.Event()
        self._is_restored = False
        self._has_no_successor = asyncio.Event()
        self._threads_at_work = threads_at_work
        self._runs = RunPool(MAX_RUNS, threads_at_work)
        cache_bytes = hello.settings.response_cache_bytes
        self._cache = ResponseCache(cache_bytes) if cache_bytes else None
        self._gates: dict[str, ModelGate] = {}
        serving_map: ServingMap[ServedVersion] = ServingMap()
        self._reconciler = Reconciler(
            serving_map,
            loader,
            loads=loads,
            objects_dir=hello.objects_dir,
            threads=hello.threads,
            drain_timeout_s=hello.settings.drain_timeout_s,
            build=self._serve,
            configure=lambda served, settings: served.apply(settings, hello.settings),
            mark_loading=self._mark_loading,
            forget=self._forget,
            report=self._report,
            run_memory_bytes=hello.settings.run_memory,
        )
        self._plane = DataPlane(serving_map, self._region.plane, hello.settings, memory.statistics)
        if hello.settings.busy_poll_us:
            self._plane.on_idle = BusyPoll(
                hello.settings.busy_poll_us * 1000,
                is_busy=self._has_work,
                polled=self._region.plane.polled,
                call_soon=asyncio.get_running_loop().call_soon,
            ).idle
        bodies = BodyReader(hello.settings)
        self._server = HttpServer(
            create_data_app(self._plane, hello.settings, bodies),
            hello.settings,
            on_refused=self._count_refused,
            lane=InferLane(self._plane, hello.settings, bodies),
        )

    @property
    def is_busy(self) -> bool:
        """Whether a thread is inside a load or a run, which cannot be called off."""
        runs = (served.batcher.statistics().runs for served in self._reconciler.held())
        return self._reconciler.is_loading or any(runs)

    def _has_work(self) -> bool:
        return bool(self._plane.in_flight or self._threads_at_work or self._reconciler.is_loading)

    async def run(self) -> None:
        """Serve until the parent says stop or is gone, then answer what was accepted.

        Where another worker of the slot takes over, leave it what can be left.
        """
        self._wire.post(messages.READY, {"pid": os.getpid()})
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._reconciler.run(), name="reconciler"),
                group.create_task(self._beat(), name="heartbeat"),
                group.create_task(self._accept(), name="accept"),
                group.create_task(
                    trim_when_quiet(lambda: self._plane.activity, QuietHeap()),
                    name="trim when quiet",
                ),
            ]
            order = await self._obey(self._reconciler.set_target)
            tasks[0].cancel()
            if self._hello.is_patient and not self._may_accept.is_set():
                # It was to take over, and the one that serves answers what is there.
                for task in tasks:
                    task.cancel()
                return
            # Also a worker that did not accept yet has connections waiting: it answers them.
            self._may_accept.set()
            await self._plane.shadows.close()
            await tasks[2]
            if order is not None and order.type == messages.HAND_OVER:
                tasks.append(group.create_task(self._follow(), name="last targets"))
                end = self._server.hand_over(_drain_s(order), self._has_no_successor)
            elif order is not None:
                end = self._server.drain(
                    _drain_s(order), is_lasting=bool(order.body.get("is_lasting"))
                )
            else:
                _log.warning("the parent is gone: draining")
                end = self._server.drain(self._hello.settings.stop_timeout_s)
            if not await end:
                _log.warning("stopped with requests under way")
            for task in tasks:
                task.cancel()

    async def _obey(self, take: Callable[[Target], None]) -> Frame | None:
        """Take targets until told to stop; return that frame, or None where the parent is gone."""
        while (frame := await self._wire.receive()) is not None:
            if frame.type == messages.TARGET:
                target = parse_target(frame.body)
                take(target)
                self._wire.post(messages.TAKEN, {"generation": target.generation})
                self._is_restored |= target.is_restored
                if not (target.is_restored or self._hello.is_patient):
                    self._may_accept.set()
            elif frame.type in (messages.STOP, messages.HAND_OVER):
                return frame
            else:
                raise WireError(f"frame of unknown type {frame.type!r}")
        return None

    async def _follow(self) -> None:
        """Route what is still under way as all others do, until the parent wants an end."""
        await self._obey(self._reconciler.follow)
        self._has_no_successor.set()

    async def _accept(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if self._hello.is_patient else ACCEPT_AFTER_S):
                await self._may_accept.wait()
        await self._server.start(self._listener, self._queue)
        self._wire.post(messages.LISTENING, {})

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        beats, lag_s, memory_bytes = 0, 0.0, 0
        while True:
            if beats % MEMORY_EVERY_BEATS == 0:
                memory_bytes = await asyncio.to_thread(proportional_bytes)
            self._region.plane.loop_lag(lag_s)
            self._wire.post(
                messages.HEARTBEAT,
                {"loop_lag_s": lag_s, "memory_bytes": memory_bytes, "stuck": self._stuck()},
            )
            beats += 1
            due = loop.time() + HEARTBEAT_S
            await asyncio.sleep(HEARTBEAT_S)
            lag_s = max(0.0, loop.time() - due)

    def _report(self, report: Report) -> None:
        self._wire.post(messages.REPORT, report.to_json())
        if self._is_restored or not self._hello.is_patient:
            self._may_accept.set()

    def _mark_loading(self, key: VersionKey | None) -> None:
        self._region.plane.loading(key)
        body = {} if key is None else {"model": key[0], "version": key[1]}
        self._wire.post(messages.LOADING, body)

    def _forget(self, key: VersionKey) -> None:
        self._region.drop_version(*key)
        if self._cache is not None:
            self._cache.forget(key)

    def _serve(self, version: TargetVersion, servable: Servable) -> ServedVersion:
        settings = self._hello.settings
        counters = self._region.version(version.model, version.version)
        return ServedVersion(
            model=version.model,
            version=version.version,
            digest=version.manifest.digest,
            signature=servable.signature,
            servable=servable,
            platform=platform_of(version.manifest.runtime),
            batcher=Batcher(
                servable,
                name=f"{version.model}/{version.version}",
                is_batchable=version.inspection.is_batchable,
                limits=BatchLimits(
                    queue_rows=settings.queue_rows,
                    queue_ms=settings.queue_ms,
                    max_batch_rows=settings.max_batch_rows,
                    max_run_s=settings.max_run_s,
                ),
                counters=counters,
                executor=self._runs.executor(),
                policy=_policy(version, settings),
            ),
            counters=counters,
            timeout_ms=settings.timeout_ms,
            max_output_bytes=settings.max_output_bytes,
            cache=self._cache,
            gate=self._gates.setdefault(version.model, ModelGate(version.model)),
        )

    def _count_refused(self, error: Exception) -> None:
        """Count what the protocol refused, and answers itself, where all refusals are counted."""
        self._plane.refused(error, RequestHead(request_id=""))

    def _stuck(self) -> str:
        """Return the version that has a run which does not end although it was told to."""
        for served in self._reconciler.held():
            limit_s = served.batcher.limits.max_run_s + STUCK_AFTER_S
            if served.batcher.statistics().oldest_run_s > limit_s:
                return f"{served.model}/{served.version}"
        return ""


def _policy(version: TargetVersion, settings: Settings) -> RunPolicy:
    """Return how a version starts out; a run with control flow may go on for ever."""
    inspection = version.inspection
    return RunPolicy(
        max_batch_rows=settings.max_batch_rows,
        run_s=inspection.run_s,
        may_inline=may_inline(inspection, version.manifest),
        has_one_shape=has_one_shape(inspection.signature),
        inline_ns=settings.inline_ms * 1e6,
    )


async def _live(
    listener_fd: int,
    wire_fd: int,
    metrics_fd: int,
    queue: ConnectionQueue,
    loader_factory: Callable[[int], Loader],
) -> bool:
    """Run a worker's whole life; return whether a thread is still inside a load or a run."""
    wire = await Wire.open(socket.socket(fileno=wire_fd))
    listener = socket.socket(fileno=listener_fd)
    frame = await wire.receive()
    if frame is None:
        return False  # the parent was gone before it said anything
    hello = messages.parse_hello(frame.body)
    configure_logs(hello.settings)
    try:
        if hello.cpus:
            os.sched_setaffinity(0, hello.cpus)
        sys.setswitchinterval(SWITCH_S)
        loads = started_load_thread(hello.threads)
        loop = asyncio.get_running_loop()
        threads_at_work: UnderWay = set()
        loop.set_default_executor(background_executor(CODEC_THREADS, threads_at_work))
        memory = MetricsMemory.attach(metrics_fd, hello.regions)
        loader = loader_factory(hello.threads)
        worker = Worker(hello, wire, listener, queue, memory, loader, loads, threads_at_work)
        collect_rarely()
        trim()
        await worker.run()
    except Exception as error:
        _log.exception("worker failed")
        with contextlib.suppress(WireError, ConnectionError):
            wire.post(messages.FATAL, {"reason": _reason(error)})
            await wire.flush()
        raise SystemExit(1) from error
    finally:
        wire.close()
    return worker.is_busy


def _drain_s(order: Frame) -> float:
    return float(order.body["drain_s"])


def _reason(error: BaseException) -> str:
    """Return what a task group's error is about: the first error inside it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def runtime_loader(threads: int) -> Loader:
    """Return the loader of all runtimes; each is imported in the worker, and nowhere earlier."""
    from models.runtime.loader import RuntimeLoader
    from models.runtime.onnx import prime

    # What the first session of a process takes for good is no version's private memory.
    prime(threads)
    return RuntimeLoader(threads)


def main(
    argv: Sequence[str] | None = None, loader_factory: Callable[[int], Loader] = runtime_loader
) -> int:
    """Be a worker until the parent says stop or is gone.

    SIGINT and SIGTERM are ignored: a service manager's stop reaches every process of the service,
    and the parent drains its workers in order. A terminal's signals do not get here, for a worker
    has a session of its own. SIGKILL ends a worker; the parent's end does, too.
    """
    fds = map(int, sys.argv[1:] if argv is None else argv)
    listener_fd, wire_fd, metrics_fd, sender_fd, receiver_fd = fds
    queue = ConnectionQueue.of_fds(sender_fd, receiver_fd)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    is_busy = uvloop.run(_live(listener_fd, wire_fd, metrics_fd, queue, loader_factory))
    if is_busy:
        # A thread inside native code ends when it likes, or never; a normal exit waits for it.
        logging.shutdown()
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
