"""A worker process: accepts, parses, batches and runs requests of the data plane.

Started as ``python -m serving.workers.worker LISTENER WIRE METRICS`` with three inherited
descriptors; everything else comes in the first frame of the wire.
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
from serving.data.data_plane import DataPlane, RequestHead, ServedVersion
from serving.fleet import VersionKey
from serving.logs import configure_logs
from serving.metrics.page import MetricsMemory
from serving.target import TargetVersion, parse_target
from serving.web.server import HttpServer
from serving.workers import messages
from serving.workers.messages import Hello, Report
from serving.workers.process_memory import proportional_bytes
from serving.workers.reconciler import Reconciler
from serving.workers.wire import Wire, WireError

_log = logging.getLogger(__name__)
HEARTBEAT_S: Final = 1.0
# Reading the proportional size walks all pages: milliseconds for each gigabyte mapped.
MEMORY_EVERY_BEATS: Final = 10
# A worker that comes back holds its versions before it accepts, so that callers wait a moment
# instead of getting a 503; past this the honest 503 is better.
ACCEPT_AFTER_S: Final = 5.0
# Runs of different versions at once; a version of its own has one slot, so a slow one blocks none.
MAX_RUNS: Final = 32
# After max_run_s a run is told to end and has some seconds for it; one that goes on past this
# holds a thread and a version for good, and only a new process helps.
STUCK_AFTER_S: Final = 10.0


class Worker:
    """One worker's life after the first frame; ``run`` returns when it has drained."""

    def __init__(
        self,
        hello: Hello,
        wire: Wire,
        listener: socket.socket,
        memory: MetricsMemory,
        loader: Loader,
    ) -> None:
        self._hello = hello
        self._wire = wire
        self._listener = listener
        self._region = memory.writer(hello.slot)
        self._holds_target = asyncio.Event()
        self._runs = ThreadPoolExecutor(MAX_RUNS, thread_name_prefix="run")
        serving_map: ServingMap[ServedVersion] = ServingMap()
        self._reconciler = Reconciler(
            serving_map,
            loader,
            objects_dir=hello.objects_dir,
            threads=hello.threads,
            drain_timeout_s=hello.settings.drain_timeout_s,
            build=self._serve,
            mark_loading=self._mark_loading,
            forget=lambda key: self._region.drop_version(*key),
            report=self._report,
        )
        self._plane = DataPlane(serving_map, self._region.plane, hello.settings, memory.statistics)
        self._server = HttpServer(
            create_data_app(self._plane, hello.settings),
            hello.settings,
            on_refused=self._count_refused,
        )

    @property
    def is_busy(self) -> bool:
        """Whether a thread is inside a load or a run, which cannot be called off."""
        runs = (served.batcher.statistics().runs for served in self._reconciler.held())
        return self._reconciler.is_loading or any(runs)

    async def run(self) -> None:
        """Serve until the parent says stop or is gone, then answer what was accepted."""
        self._wire.post(messages.READY, {"pid": os.getpid()})
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._reconciler.run(), name="reconciler"),
                group.create_task(self._beat(), name="heartbeat"),
                group.create_task(self._accept(), name="accept"),
            ]
            drain_s = await self._obey()
            tasks[0].cancel()
            # Also a worker that did not accept yet has connections waiting: it answers them.
            self._holds_target.set()
            await tasks[2]
            if not await self._server.drain(drain_s):
                _log.warning("stopped with requests under way", extra={"waited_s": drain_s})
            tasks[1].cancel()

    async def _obey(self) -> float:
        """Take targets until told to stop; return the seconds that the drain may take."""
        while (frame := await self._wire.receive()) is not None:
            if frame.type == messages.TARGET:
                target = parse_target(frame.body)
                self._reconciler.set_target(target)
                self._wire.post(messages.TAKEN, {"generation": target.generation})
                if not target.is_restored:
                    self._holds_target.set()
            elif frame.type == messages.STOP:
                return float(frame.body["drain_s"])
            else:
                raise WireError(f"frame of unknown type {frame.type!r}")
        _log.warning("the parent is gone: draining")
        return self._hello.settings.stop_timeout_s

    async def _accept(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ACCEPT_AFTER_S):
                await self._holds_target.wait()
        await self._server.start(self._listener)
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
        self._holds_target.set()

    def _mark_loading(self, key: VersionKey | None) -> None:
        self._region.plane.loading(key)
        body = {} if key is None else {"model": key[0], "version": key[1]}
        self._wire.post(messages.LOADING, body)

    def _serve(self, version: TargetVersion, servable: Servable) -> ServedVersion:
        settings = self._hello.settings
        counters = self._region.version(version.model, version.version)
        return ServedVersion(
            model=version.model,
            version=version.version,
            digest=version.manifest.digest,
            signature=servable.signature,
            servable=servable,
            batcher=Batcher(
                servable,
                name=f"{version.model}/{version.version}",
                is_batchable=version.inspection.is_batchable,
                limits=BatchLimits(
                    queue_rows=settings.queue_rows,
                    max_batch_rows=settings.max_batch_rows,
                    max_run_s=settings.max_run_s,
                ),
                counters=counters,
                executor=self._runs,
            ),
            counters=counters,
            timeout_ms=settings.timeout_ms,
        )

    def _count_refused(self, error: Exception) -> None:
        """Count what the protocol refused, and answers itself, where all refusals are counted."""
        self._plane.refused(error, RequestHead(request_id=""))

    def _stuck(self) -> str:
        """Return the version that has a run which does not end although it was told to."""
        limit_s = self._hello.settings.max_run_s + STUCK_AFTER_S
        for served in self._reconciler.held():
            if served.batcher.statistics().oldest_run_s > limit_s:
                return f"{served.model}/{served.version}"
        return ""


async def _live(
    listener_fd: int, wire_fd: int, metrics_fd: int, loader_factory: Callable[[int], Loader]
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
        memory = MetricsMemory.attach(metrics_fd, hello.slots)
        worker = Worker(hello, wire, listener, memory, loader_factory(hello.threads))
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


def _reason(error: BaseException) -> str:
    """Return what a task group's error is about: the first error inside it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def runtime_loader(threads: int) -> Loader:
    """Return the loader of all runtimes; each is imported in the worker, and nowhere earlier."""
    from models.runtime.loader import RuntimeLoader

    return RuntimeLoader(threads)


def main(
    argv: Sequence[str] | None = None, loader_factory: Callable[[int], Loader] = runtime_loader
) -> int:
    """Be a worker until the parent says stop or is gone.

    SIGINT and SIGTERM are ignored: a service manager's stop reaches every process of the service,
    and the parent drains its workers in order. A terminal's signals do not get here, for a worker
    has a session of its own. SIGKILL ends a worker; the parent's end does, too.
    """
    listener_fd, wire_fd, metrics_fd = map(int, sys.argv[1:] if argv is None else argv)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    is_busy = uvloop.run(_live(listener_fd, wire_fd, metrics_fd, loader_factory))
    if is_busy:
        # A thread inside native code ends when it likes, or never; a normal exit waits for it.
        logging.shutdown()
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
