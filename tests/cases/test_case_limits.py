"""Cases of limits and of the way out: bodies, bombs, URLs, paths that fool, graceful stops."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests import graphs
from tests.cases.rig import (
    MIB,
    ROW,
    WITNESS,
    Callers,
    anonymous_bytes,
    ballast,
    forget,
    load_refused,
    metric,
    publish_graph,
    ramrack,
    says_too_much,
    together,
)
from tests.contract.wire import connected, head_of, read_answer
from tests.process.server import RunningServer, infer_body, running_server, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
LIMIT: Final = 8 * MIB
INFER: Final = f"/v2/models/{WITNESS}/infer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"max_body_bytes": LIMIT}
    with running_server(tmp_path_factory.mktemp("limits"), settings=settings) as running:
        running.push(WITNESS, graphs.id32())
        yield running


# E08: graceful stop.


async def closed_loop(url: str, count: int, stop: asyncio.Event) -> list[str]:
    """Ask a slow model on ``count`` connections until the server closes; return what went wrong."""
    callers, wrong = Callers(url), list[str]()
    body = infer_body([ROW])

    async def ask(_: int) -> httpx.Response:
        answer = httpx.Response(200)
        with contextlib.suppress(ConnectionRefusedError):
            for _ in range(10_000):
                is_after = stop.is_set()
                try:
                    answer = await callers.post("/v2/models/slow/infer", body)
                except (OSError, EOFError):
                    # Sent to a server that was about to close: there was no promise any more.
                    if not is_after:
                        raise
                    break
                if answer.status_code != 200:
                    break
                if answer.headers.get("connection") == "close" and stop.is_set():
                    break
        return answer

    try:
        for answer in await together(count, ask):
            if answer.status_code not in (200, 503):
                wrong.append(f"{answer.status_code}: {answer.text}")
    except (OSError, EOFError, asyncio.IncompleteReadError) as error:
        wrong.append(repr(error))
    finally:
        callers.close()
    return wrong


async def test_e08_a_stop_answers_all_that_was_sent(tmp_path: Path) -> None:
    """Fifty clients in a closed loop over keep-alive: each gets its 200 or a clean 503, exit 0."""
    stop = asyncio.Event()
    with running_server(tmp_path, workers=2) as server:
        server.push("slow", ballast(graphs.id32(), "x"))
        asking = asyncio.create_task(closed_loop(server.url, 50, stop))
        await asyncio.to_thread(
            wait_until,
            lambda: metric(server, "ramrack_requests_total", model="slow", code="200") > 60,
            60, "all of them are at it",
        )  # fmt: skip
        stop.set()
        server.signal(signal.SIGTERM)
        assert await asking == []
        assert await asyncio.to_thread(server.wait) == 0


def test_e08_a_second_signal_ends_it(tmp_path: Path) -> None:
    """Who cannot wait for an endless run says so again."""
    with running_server(tmp_path) as server:
        server.push("stuck", graphs.endless())
        tensor = {"name": "n", "datatype": "INT64", "shape": [1], "data": [2**62]}
        with ThreadPoolExecutor(1) as caller:
            asked = caller.submit(
                server.data, "POST", "/v2/models/stuck/infer", json={"inputs": [tensor]}
            )
            wait_until(lambda: metric(server, "ramrack_in_flight") == 1, 60, "it runs")
            server.signal(signal.SIGTERM)
            server.wait_for_log("stopping")
            server.signal(signal.SIGTERM)
            server.wait(20)
            assert isinstance(asked.exception(60), httpx.TransportError | None)


# E11: body limit.


@pytest.mark.parametrize("kind", ["announced", "chunked", "lying", "gzip"])
def test_e11_a_body_over_the_limit_is_refused_early(server: RunningServer, kind: str) -> None:
    """413 before it is all there; the worker grows by less than twice the limit."""
    pid = server.worker_pids()[0]
    before = anonymous_bytes(pid)
    head: dict[str, str] = {"host": "h", "connection": "close"}
    body = b" " * (LIMIT + 1)
    if kind == "announced":
        head["content-length"], body = str(100 * LIMIT), b"{"
    elif kind == "chunked":
        head["transfer-encoding"] = "chunked"
        body = b"".join(b"100000\r\n" + b" " * MIB + b"\r\n" for _ in range(9))
    elif kind == "gzip":
        body = gzip.compress(b" " * (8 * LIMIT), mtime=0)
        head |= {"content-length": str(len(body)), "content-encoding": "gzip"}
    else:
        head["content-length"], body = "2", b"{}" + body
    with connected(server.url) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(head_of("POST", INFER, head) + body)
        answer = read_answer(client.stream)
        # A length that is too small ends the body there; what follows it is no request.
        assert answer.status == (400 if kind == "lying" else 413), answer.text
        with contextlib.suppress(ConnectionError):
            assert client.stream.read() == b""
    assert anonymous_bytes(pid) - before < 2 * LIMIT
    assert server.infer(WITNESS, [ROW]).status_code == 200


# F01 and F04: URLs and paths.


def test_f01_nothing_loads_from_a_url(server: RunningServer) -> None:
    """Neither a push nor a load by Triton's call goes out for a model."""
    with socket.create_server(("127.0.0.1", 0)) as canary:
        canary.settimeout(0.2)
        port = canary.getsockname()[1]
        for url in (f"http://127.0.0.1:{port}/m.onnx", f"http://allowed@127.0.0.1:{port}/m.onnx"):
            done = ramrack(server, "push", "hostile", url)
            assert done.returncode == 2
            assert "does not exist" in done.stderr
            parameters = {"parameters": {"config": url, "file:1/model.onnx": url}}
            path = f"/v2/repository/models/{WITNESS}/load"
            answer = server.admin("POST", path, json=parameters)
            assert answer.status_code == 400, answer.text
        with pytest.raises(TimeoutError):
            canary.accept()


@pytest.mark.parametrize(
    "form", ["//proc/self/root{}", "objects#/../..{}", "/proc/self/cwd/../../..{}", "file://{}"]
)
def test_f04_no_spelling_of_a_path_fools_the_check(server: RunningServer, form: str) -> None:
    """The name is compared as a whole with the digests of the manifest; no path is resolved."""
    fields = {"location": form.format("/etc/passwd"), "offset": "0", "length": "64"}
    model = graphs.id32()
    model.graph.initializer.append(graphs.external_tensor("t", (16,), fields))
    version = publish_graph(server, "hostile", model.SerializeToString())
    assert "is no tensor of the manifest" in load_refused(server, "hostile", version)
    forget(server, "hostile", version)


# F10: decompression bombs.


def test_f10_ten_bombs_at_once(server: RunningServer) -> None:
    """Two megabytes each that unfold to two gigabytes: 413, and the worker stays small."""
    piece = gzip.compress(b"\0" * (64 * MIB), mtime=0)
    bomb = piece * 32
    assert len(bomb) > 2 * 10**6
    pid = server.worker_pids()[0]
    before = anonymous_bytes(pid)
    headers = {"content-encoding": "gzip"}

    def send(number: int) -> int:
        pieces = (bomb[start : start + 65536] for start in range(0, len(bomb), 65536))
        content = bomb if number % 2 else pieces
        return server.data("POST", INFER, content=content, headers=headers).status_code

    with ThreadPoolExecutor(10) as callers:
        assert set(callers.map(send, range(10))) == {413}
    assert anonymous_bytes(pid) - before < LIMIT + 64 * MIB


def test_f10_a_client_that_leaves_ends_the_work(server: RunningServer) -> None:
    """Half of a bomb and the end of the connection: nothing of it is left."""
    bomb = gzip.compress(os.urandom(MIB), mtime=0)
    head = {"host": "h", "content-encoding": "gzip", "content-length": str(2 * len(bomb))}
    for _ in range(20):
        with connected(server.url) as client:
            client.sendall(head_of("POST", INFER, head) + bomb)
    wait_until(lambda: metric(server, "ramrack_in_flight") == 0, 60, "nothing is under way")
    answer = server.infer(WITNESS, [ROW])
    assert answer.status_code == 200
    assert not says_too_much(answer.text)
