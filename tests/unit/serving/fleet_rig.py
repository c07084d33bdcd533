"""A supervisor over real processes that speak the wire and serve nothing."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path

from models.servable import Inspection
from models.signature import Signature, TensorSpec
from registry.manifest import Manifest
from serving.fleet import VersionKey
from serving.settings import Settings
from serving.target import Target, TargetVersion
from serving.web.sockets import close_all, open_listeners
from serving.workers.cores import WorkerPlan
from serving.workers.slot import Timings
from serving.workers.supervisor import Supervisor

QUICK = Timings(heartbeat_timeout_s=2.0, start_timeout_s=20.0, backoff_first_s=0.01)
SIGNATURE = Signature((TensorSpec("x", "FP32", (-1,)),), (TensorSpec("y", "FP32", (-1,)),))
NO_RESTARTS = {"hung": 0, "start": 0, "signal": 0, "exit": 0, "rolling": 0}
A1, B1 = ("a", 1), ("b", 1)


class FakeMemory:
    """Metrics memory of which only the descriptor is real."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("test")
        self.running: list[VersionKey] = []

    def suspects(self, slot: int) -> Sequence[VersionKey]:
        return self.running


def target(generation: int, *keys: VersionKey) -> Target:
    return Target(generation, tuple(version(key) for key in keys))


def version(key: VersionKey) -> TargetVersion:
    manifest = Manifest(key[0], "sha256:" + "0" * 64, (), SIGNATURE.to_json(), {"name": "onnx"})
    return TargetVersion(
        *key, manifest, Inspection(SIGNATURE, True, "", False, 0.0, 0.0, 0), is_serving=True
    )


class Fleet:
    """A started supervisor and what it told."""

    def __init__(self, supervisor: Supervisor, memory: FakeMemory) -> None:
        self.supervisor = supervisor
        self.memory = memory
        self.quarantined: list[tuple[str, int, str]] = []
        supervisor.on_quarantine(lambda *said: self.quarantined.append(said))

    def pids(self) -> list[int]:
        return [w.pid for w in self.supervisor.workers() if w.pid is not None]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - processes have no events
                await asyncio.sleep(0.01)

    async def serve(self, first: Target) -> None:
        """Start with a target, and wait until all workers serve."""
        self.supervisor.publish(first)
        self.supervisor.start()
        await self.until_serving()

    async def until_serving(self) -> None:
        await self.until(lambda: all(w.state == "serving" for w in self.supervisor.workers()))


class FakeCheck:
    """Finds ``dubious`` versions doubtful; a check ends once ``gate`` is set, well or badly."""

    def __init__(self, *dubious: VersionKey, error: Exception | None = None) -> None:
        self.dubious = frozenset(dubious)
        self.error = error
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.suspects: list[frozenset[VersionKey]] = []

    async def doubtful(self, suspects: Collection[VersionKey]) -> frozenset[VersionKey]:
        return self.dubious | frozenset(suspects)

    async def before_respawn(self, suspects: Collection[VersionKey]) -> None:
        self.suspects.append(frozenset(suspects))
        self.begun.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error


@contextlib.asynccontextmanager
async def fleet(
    behaviour: str = "good",
    *,
    workers: int = 2,
    timings: Timings = QUICK,
    check: FakeCheck | None = None,
) -> AsyncIterator[Fleet]:
    listeners = open_listeners("127.0.0.1", 0, workers, "data plane")
    memory = FakeMemory()
    supervisor = Supervisor(
        Settings(),
        plan=WorkerPlan(workers, 1, ((),) * workers),
        listeners=listeners,
        memory=memory,
        objects_dir=Path("objects"),
        worker_command=[sys.executable, "-m", "tests.process.scripted_worker", behaviour],
        timings=timings,
    )
    if check is not None:
        supervisor.before_respawn(check)
    try:
        yield Fleet(supervisor, memory)
    finally:
        supervisor.kill()
        await supervisor.stop(0)
        close_all(listeners)
        os.close(memory.fd)
