"""The admin plane over real sockets: uploads that break off, and a client of another project."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

from serving.admin.app import create_admin_app
from serving.web.server import HttpServer

pytestmark = [pytest.mark.timeout(30), pytest.mark.slow]


@pytest.fixture
async def port(world) -> AsyncIterator[int]:
    """The admin plane of ``world`` on a free port."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    server = HttpServer(create_admin_app(world.control, world.settings), world.settings)
    await server.start(listener)
    yield listener.getsockname()[1]
    await server.drain(5)
    listener.close()


def head(digest: str, length: str) -> bytes:
    return f"PUT /admin/v1/blobs/{digest} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode()


async def temporary_files(world, *, are_there: bool) -> None:
    """Wait, by looking, until the server has or has not any half upload."""
    async with asyncio.timeout(10):
        while bool(list((world.store.root / "tmp").iterdir())) != are_there:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("length", ["Content-Length: 3000000", "Transfer-Encoding: chunked"])
async def test_upload_that_breaks_off_leaves_nothing(world, port, length):
    """A client that is gone in the middle leaves no object and no file."""
    data = b"x" * 3_000_000
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    part = data[:2_000_000]
    framed = part if "Length" in length else b"%x\r\n%b\r\n" % (len(part), part)
    writer.write(head(digest, length) + framed)
    await writer.drain()
    await temporary_files(world, are_there=True)
    writer.transport.abort()

    await temporary_files(world, are_there=False)

    assert world.store.usage().objects == 0
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        answer = await client.put(f"/admin/v1/blobs/{digest}", content=data)
    assert answer.status_code == 201


async def test_large_upload_arrives_whole(world, port):
    """An object larger than every buffer on the way is stored as it was sent."""
    data = bytes(range(256)) * 100_000
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        answer = await client.put(f"/admin/v1/blobs/{digest}", content=data)
        again = await client.put(f"/admin/v1/blobs/{digest}", content=data)

    assert (answer.status_code, again.status_code) == (201, 200)
    path = world.store.objects_dir / digest.removeprefix("sha256:")
    assert path.read_bytes() == data


async def test_triton_client_loads_unloads_and_reads_our_errors(world, port):
    """An unmodified tritonclient drives loads, and raises with our message."""
    await world.push("m", b"one")
    await world.push("m", b"two")

    def drive() -> list[object]:
        client = InferenceServerClient(f"127.0.0.1:{port}")
        seen: list[object] = [client.is_server_live(), client.is_server_ready()]
        client.load_model("m")
        seen.append([(e["version"], e["state"]) for e in client.get_model_repository_index()])
        for call in (
            lambda: client.unload_model("m"),
            lambda: client.load_model("none"),
            lambda: client.load_model("m", config="{}"),
        ):
            with pytest.raises(InferenceServerException) as caught:
                call()
            seen.append(str(caught.value))
        client.close()
        return seen

    await world.control.restored()
    live, ready, index, held, unknown, config = await asyncio.to_thread(drive)

    assert (live, ready) == (True, True)
    assert index == [("1", "UNAVAILABLE"), ("2", "READY")]
    assert "the route sends requests to it" in held
    assert "model 'none' is not known: there " in unknown
    assert "parameters.config" in config
    await world.control.traffic.delete_route("m", world.actor)

    def unload() -> None:
        client = InferenceServerClient(f"127.0.0.1:{port}")
        client.unload_model("m")
        client.close()

    await asyncio.to_thread(unload)
    assert world.fleet.held == {}


async def test_client_that_leaves_a_wait_does_not_stop_the_load(world, port):
    """A load goes on to its end, whoever waits for it."""
    await world.push("m", b"graph")
    world.inspector.gate.clear()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/admin/v1/models/m/versions/1:load?wait=60", timeout=0.2)
    operation = world.control.operations.last_of("m", 1)
    world.inspector.gate.set()
    await operation.wait()

    assert operation.state == "succeeded"
