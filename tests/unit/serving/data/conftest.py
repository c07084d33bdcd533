"""A data plane over fakes, its application, and clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import uvloop

from serving.metrics.page import MetricsMemory
from serving.settings import Settings
from tests.unit.serving.data.echo import EchoApp
from tests.unit.serving.data.rig import Plane, Served, serve


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the connection's tests on both loops: workers use uvloop, whose transports differ."""
    factories = {"asyncio": asyncio.new_event_loop}
    if item.path.name.startswith(("test_http_protocol", "test_lane.py")):
        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture
def settings() -> Settings:
    """Defaults; a module replaces what it needs smaller."""
    return Settings()


@pytest.fixture
def plane(settings: Settings) -> Iterator[Plane]:
    """A plane without versions."""
    memory = MetricsMemory.create(1)
    with ThreadPoolExecutor(2) as executor:
        plane = Plane(settings, executor, memory.writer(0), memory)
        yield plane
        plane.release()


@pytest.fixture(params=["lane", "application"])
async def served(plane: Plane, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    """The plane on a port: predictions by the fast lane as in a worker, or by the application."""
    lane = plane.lane if request.param == "lane" else None
    async with serve(plane.app, plane.settings, lane=lane) as served:
        yield served


@pytest.fixture
async def client(plane: Plane) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application without a socket."""
    transport = httpx.ASGITransport(plane.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.fixture
def app() -> EchoApp:
    """One application for each test."""
    return EchoApp()


@pytest.fixture
async def echo(app: EchoApp) -> AsyncIterator[Served]:
    """The application on a port, with the default bounds."""
    async with serve(app, Settings()) as served:
        yield served
