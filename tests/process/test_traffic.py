"""Splits, keys and shadows in real workers, which know nothing of each other."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models.servable import Inspection
from models.signature import Signature, TensorSpec
from registry.manifest import Manifest
from registry.slots import Slots, first_slots, moved_slots
from registry.traffic import Share, Traffic
from serving.metrics.page import MetricsMemory
from serving.metrics.reading import VersionNumbers, find_block
from serving.settings import Settings
from serving.target import Target, TargetVersion
from serving.web.sockets import close_all, open_listeners
from serving.workers.cores import WorkerPlan
from serving.workers.supervisor import Supervisor, regions_for
from tests import graphs

pytestmark = [pytest.mark.process, pytest.mark.slow]

SIGNATURE = Signature((TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "FP32", (-1, 4)),))
BODY = b'{"instances":[[1,2,3,4]]}'
HEAD = b"POST /v1/models/m:predict HTTP/1.1\r\nhost: t\r\ncontent-length: %d\r\n%s\r\n"
CALLERS = 12
KEYS = [b"user-%d" % number for number in range(240)]


def plus(number: float) -> onnx.ModelProto:
    return graphs.build(
        [helper.make_node("Add", ["x", "number"], ["y"])],
        [graphs.value("x", TensorProto.FLOAT, ("N", 4))],
        [graphs.value("y", TensorProto.FLOAT, ("N", 4))],
        [graphs.weights("number", np.array(number, np.float32))],
    )


def version(number: int, objects: Path) -> TargetVersion:
    """Store a graph that adds its number; return it as a version that answers."""
    data = plus(number).SerializeToString()
    hexed = hashlib.sha256(data).hexdigest()
    (objects / hexed).write_bytes(data)
    manifest = Manifest("m", f"sha256:{hexed}", (), SIGNATURE.to_json(), {"name": "onnx"})
    found = Inspection(SIGNATURE, True, "", False, 0.0001, 0.01, 0)
    return TargetVersion("m", number, manifest, found, is_serving=True)


class Fleet:
    """Two workers that hold three versions."""

    def __init__(
        self, supervisor: Supervisor, memory: MetricsMemory, port: int, objects: Path
    ) -> None:
        self.supervisor = supervisor
        self._memory = memory
        self._port = port
        self._versions = tuple(version(number, objects) for number in (1, 2, 3))
        self._generation = 0
        self._slots: Slots = ()

    async def route(self, *weights: int, shadow: Sequence[int] = ()) -> None:
        """Split over versions 1, 2 and so on; return when every worker has taken it."""
        self._generation += 1
        shares = tuple(Share(i + 1, weight) for i, weight in enumerate(weights))
        routes = {"m": Traffic(shares, tuple(shadow))}
        self._slots = moved_slots(self._slots, shares) if self._slots else first_slots(shares)
        self.supervisor.publish(
            Target(self._generation, self._versions, routes, slots={"m": self._slots})
        )
        standing = await self.supervisor.settled(self._generation, 60)
        assert {report.state for report in standing.values()} == {"READY"}

    async def ask(self, keys: Sequence[bytes | None]) -> list[int]:
        """Send a request for each key over many connections; return who answered, in order."""
        found: list[int] = [0] * len(keys)

        async def call(caller: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            for index in range(caller, len(keys), CALLERS):
                key = keys[index]
                extra = b"" if key is None else b"x-routing-key: %s\r\n" % key
                writer.write(HEAD % (len(BODY), extra) + BODY)
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
                headers = dict(line.split(": ", 1) for line in head[1:] if line)
                body = await reader.readexactly(int(headers["content-length"]))
                found[index] = int(headers["x-ramrack-version"])
                first = 1.0 + found[index]
                assert body == b'{"predictions":[[%.1f,%.1f,%.1f,%.1f]]}' % (
                    first, first + 1, first + 2, first + 3,
                )  # fmt: skip
            writer.close()
            await writer.wait_closed()

        async with asyncio.timeout(60):
            await asyncio.gather(*map(call, range(CALLERS)))
        return found

    def numbers(self, number: int) -> VersionNumbers:
        found = VersionNumbers()
        for region in self._memory.regions():
            if cells := find_block(region, ("m", number)):
                found.add(cells, has_gauges=True)
        return found

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110 - processes have no events
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def fleet(objects: Path, settings: Settings | None = None) -> AsyncIterator[Fleet]:
    listeners = open_listeners("127.0.0.1", 0, 2, "data plane")
    with MetricsMemory.create(regions_for(2)) as memory:
        supervisor = Supervisor(
            settings or Settings(),
            plan=WorkerPlan(2, 1, ((), ())),
            listeners=listeners,
            memory=memory,
            objects_dir=objects,
        )
        it = Fleet(supervisor, memory, listeners[0].getsockname()[1], objects)
        try:
            supervisor.start()
            await it.route(90, 10)
            yield it
        finally:
            supervisor.kill()
            await supervisor.stop(0)
            close_all(listeners)


async def test_two_workers_keep_a_split_and_the_keys_of_it(tmp_path: Path) -> None:
    """90/10 to a point over both; keys outlast a worker and move only as the weights do."""
    async with fleet(tmp_path) as it:
        count = Counter(await it.ask([None] * 1000))
        assert count.keys() == {1, 2}
        assert abs(count[2] - 100) <= 10
        before = await it.ask(KEYS)
        assert before == list(reversed(await it.ask(KEYS[::-1])))
        first = it.supervisor.workers()[0]
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        await it.until(
            lambda: (now := it.supervisor.workers()[0]).pid != first.pid and now.state == "serving"
        )
        assert await it.ask(KEYS) == before
        await it.route(70, 30)
        after = await it.ask(KEYS)
        moved = Counter((a, b) for a, b in zip(before, after, strict=True) if a != b)
        # A fifth of 240 keys must move; the keys are fixed, and so is how they fall.
        assert moved.keys() == {(1, 2)}
        assert abs(moved[1, 2] - 48) <= 12
        await it.route(60, 30, 10)
        third = await it.ask(KEYS)
        moved = Counter((a, b) for a, b in zip(after, third, strict=True) if a != b)
        assert moved.keys() == {(1, 3)}
        assert abs(moved[1, 3] - 24) <= 12
        await it.route(70, 30)
        assert await it.ask(KEYS) == after


async def test_a_shadow_is_compared_and_never_answers(tmp_path: Path) -> None:
    """Every copy is accounted for, the difference is seen, and requests of the shadow stay none."""
    settings = replace(Settings(), shadow_overlap_percent=100)
    async with fleet(tmp_path, settings) as it:
        await it.route(100, shadow=(3,))
        assert set(await it.ask([None] * 200)) == {1}
        await it.until(lambda: sum(it.numbers(3).shadow_results().values()) == 200)
        found = it.numbers(3).shadow_results()
        assert found["different"] > 0
        assert found["same"] == found["failed"] == 0
        assert it.numbers(3).by_code() == {}
        assert it.numbers(1).by_code() == {"200": 200}
