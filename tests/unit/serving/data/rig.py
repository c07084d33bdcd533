"""A data plane over fakes, an application on a real socket, and clients that send raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from models.signature import Signature
from registry.lifecycle import State
from registry.serving_map import ModelView, ServingMap, Snapshot, VersionView
from registry.traffic import Traffic
from serving.data.app import create_data_app
from serving.data.batcher import Batcher, BatchLimits
from serving.data.body import BodyReader
from serving.data.data_plane import DataPlane, ServedVersion
from serving.data.lane import InferLane
from serving.data.model_gate import ModelGate
from serving.metrics.page import MetricsMemory, Region
from serving.settings import Settings
from serving.web.exchange import Lane
from serving.web.server import HttpServer
from tests.fakes import IDENTITY, FakeServable

DIGEST = "sha256:" + "ab" * 32


@dataclass
class Plane:
    """A data plane with versions that the test adds."""

    settings: Settings
    executor: ThreadPoolExecutor
    region: Region
    memory: MetricsMemory
    serving_map: ServingMap[ServedVersion] = field(default_factory=ServingMap)
    views: dict[str, dict[int, VersionView[ServedVersion]]] = field(default_factory=dict)
    routes: dict[str, int | Traffic] = field(default_factory=dict)
    aliases: dict[str, dict[str, int]] = field(default_factory=dict)
    is_restored: bool = True

    def __post_init__(self) -> None:
        self.data_plane = DataPlane(
            self.serving_map, self.region.plane, self.settings, self.memory.statistics
        )
        bodies = BodyReader(self.settings)
        self.app = create_data_app(self.data_plane, self.settings, bodies)
        self.lane = InferLane(self.data_plane, self.settings, bodies)
        self.publish()

    def publish(self) -> None:
        """Show everything to requests."""
        models = {
            name: ModelView(name, views, self.aliases.get(name, {}), self._route(name))
            for name, views in self.views.items()
        }
        self.serving_map.replace(Snapshot(models, is_restored=self.is_restored))

    def add(
        self,
        model: str = "fraud",
        version: int = 3,
        *,
        servable: FakeServable | None = None,
        signature: Signature = IDENTITY,
        is_batchable: bool = True,
        limits: BatchLimits | None = None,
    ) -> ServedVersion:
        """Add a version that answers, and route its model to it."""
        servable = servable or FakeServable(signature=signature)
        counters = self.region.version(model, version)
        batcher = Batcher(
            servable,
            name=f"{model}/{version}",
            is_batchable=is_batchable,
            limits=limits or BatchLimits(256, 32, 60.0),
            counters=counters,
            executor=self.executor,
        )
        served = ServedVersion(
            model, version, DIGEST, servable.signature, servable, batcher, counters,
            self.settings.timeout_ms, self.settings.max_output_bytes, gate=ModelGate(model),
        )  # fmt: skip
        self._add_view(model, version, State.READY, "loaded", served)
        self.routes[model] = version
        self.publish()
        return served

    def add_known(self, model: str, version: int, state: State, reason: str) -> None:
        """Add a version that does not answer."""
        self._add_view(model, version, state, reason, None)
        self.publish()

    def release(self) -> None:
        """Let every held run go on, so that a test that failed ends, too."""
        for views in self.views.values():
            for view in views.values():
                if view.target is not None and isinstance(view.target.servable, FakeServable):
                    view.target.servable.release()

    def _route(self, model: str) -> Traffic | None:
        route = self.routes.get(model)
        return Traffic.whole(route) if isinstance(route, int) else route

    def _add_view(
        self, model: str, version: int, state: State, reason: str, target: ServedVersion | None
    ) -> None:
        signature = (target.signature if target else IDENTITY).to_json()
        view = VersionView(model, version, state, reason, DIGEST, signature, target)
        self.views.setdefault(model, {})[version] = view


@dataclass
class Served:
    """An application on a port of loopback."""

    port: int
    server: HttpServer
    connections: list[Connection] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def connect(self) -> Connection:
        """Open a raw connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        connection = Connection(reader, writer)
        self.connections.append(connection)
        return connection


@dataclass
class Response:
    """One answer as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Connection:
    """A client that sends exactly the bytes it is told to."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def response(self) -> Response:
        """Read one whole answer."""
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            lines = head.split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
            return Response(int(lines[0].split(" ")[1]), headers, body)

    async def rest(self) -> bytes:
        """Read until the server closes."""
        async with asyncio.timeout(10):
            return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(self.writer.wait_closed(), 10)


@asynccontextmanager
async def serve(
    app: Any, settings: Settings, server: HttpServer | None = None, lane: Lane | None = None
) -> AsyncIterator[Served]:
    """Serve ``app`` on an ephemeral port, with the protocol of the workers."""
    # asyncio sets TCP_NODELAY only where the socket says it is TCP; else an answer takes 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    server = server or HttpServer(app, settings, lane=lane)
    await server.start(listener)
    served = Served(listener.getsockname()[1], server)
    try:
        yield served
    finally:
        for connection in served.connections:
            await connection.close()
        await server.drain(5)
        listener.close()


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for what no event tells, such as a set inside the server."""
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)


def small(settings: Settings, **changes: Any) -> Settings:
    """Return settings with some replaced."""
    return replace(settings, **changes)
