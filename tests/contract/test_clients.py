"""Clients of all kinds get their answers: offers of HTTP/2, chunks, pipelines, HTTP/1.0."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from models.convert.onnx_file import package_onnx
from tests import graphs
from tests.contract.wire import Answer, connected, head_of, read_answer
from tests.process.server import RunningServer, infer_body, running_server

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

JAVA = shutil.which("java")
JAVA_SOURCE = Path(__file__).parent / "Client.java"
ROW = [1.0, 2.0, 3.0, 4.0]
# What Java's HttpClient sends before each request on a new connection, unless told otherwise.
OFFER = {
    "Connection": "Upgrade, HTTP2-Settings",
    "HTTP2-Settings": "AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA",
    "Upgrade": "h2c",
    "User-Agent": "Java-http-client/17.0.15",
}
INFER_BODY = json.dumps(infer_body([ROW])).encode()
PREDICT_BODY = json.dumps({"instances": [ROW]}).encode()
_serial = itertools.count()


@dataclass(frozen=True)
class Call:
    """One request, and what makes its answer the right one."""

    plane: str
    method: str
    path: str
    body: bytes
    status: int
    is_right: Callable[[Any], bool]


def digest_of(body: bytes) -> str:
    return "sha256:" + hashlib.sha256(body).hexdigest()


def calls() -> dict[str, Call]:
    """Return the requests that every kind of client has to get through; the object is a new one."""
    new_object = b"%08d" % next(_serial) * 40_000
    manifest = json.dumps(package_onnx("id32", graphs.id32()).manifest.to_json()).encode()
    model = "/admin/v1/models/id32"
    return {
        "infer": Call("data", "POST", "/v2/models/id32/infer", INFER_BODY, 200,
                      lambda found: found["outputs"][0]["data"] == ROW),
        "predict": Call("data", "POST", "/v1/models/id32:predict", PREDICT_BODY, 200,
                        lambda found: found == {"predictions": [ROW]}),
        "metadata": Call("data", "GET", "/v2/models/id32", b"", 200,
                         lambda found: found["name"] == "id32"),
        "index": Call("data", "POST", "/v2/repository/index", b"", 200,
                      lambda found: found[0]["name"] == "id32"),
        "error": Call("data", "POST", "/v2/models/nobody/infer", INFER_BODY, 404,
                      lambda found: "'nobody'" in found["error"]),
        "docs": Call("data", "GET", "/openapi.json", b"", 200,
                     lambda found: "/v2/models/{model}/infer" in found["paths"]),
        "models": Call("admin", "GET", model, b"", 200, lambda found: found["name"] == "id32"),
        "publish": Call("admin", "POST", model + "/versions", manifest, 200,
                        lambda found: found["version"] == 1 and not found["created"]),
        "load": Call("admin", "POST", model + "/versions/1:load?wait=30", b"", 200,
                     lambda found: found["state"] == "succeeded"),
        "alias": Call("admin", "PUT", model + "/aliases/best", b'{"version":1}', 200,
                      lambda found: found["version"] == 1),
        "blob": Call("admin", "PUT", "/admin/v1/blobs/" + digest_of(new_object), new_object, 201,
                     lambda found: found["bytes"] == len(new_object)),
    }  # fmt: skip


CALLS = calls()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("clients"), workers=2) as running:
        running.push("id32", graphs.id32())
        yield running


def url_of(server: RunningServer, plane: str) -> str:
    return server.url if plane == "data" else server.admin_url


def headers_of(call: Call, more: Mapping[str, str]) -> dict[str, str]:
    headers = {"Host": "localhost", "x-request-id": "mine", **more}
    if call.method == "POST" and call.body:
        headers["Content-Type"] = "application/json"
    return headers


def whole(call: Call, more: Mapping[str, str], *, http: str = "1.1") -> bytes:
    """Return a request with a length."""
    headers = headers_of(call, more)
    if call.method != "GET":
        headers["Content-Length"] = str(len(call.body))
    return head_of(call.method, call.path, headers, http=http) + call.body


def in_chunks(call: Call, more: Mapping[str, str], size: int) -> bytes:
    """Return a request without a length, in pieces."""
    pieces = [call.body[i : i + size] for i in range(0, len(call.body), size)]
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    headers = headers_of(call, {**more, "Transfer-Encoding": "chunked"})
    return head_of(call.method, call.path, headers) + body


def check(call: Call, answer: Answer) -> None:
    assert answer.status == call.status, answer.text
    assert call.is_right(answer.json()), answer.text
    assert answer.headers["x-request-id"] == "mine"
    assert "upgrade" not in answer.headers


@pytest.mark.parametrize("name", CALLS)
def test_an_offer_of_http2_is_ignored(server: RunningServer, name: str) -> None:
    """The request that carries the offer is answered, and so is the next one on its connection."""
    call = calls()[name]
    with connected(url_of(server, call.plane)) as client:
        stream = client.stream
        client.sendall(whole(call, OFFER))
        check(call, read_answer(stream))
        again = CALLS["models" if call.plane == "admin" else "infer"]
        for more in ({}, OFFER):
            client.sendall(whole(again, more))
            check(again, read_answer(stream))


@pytest.mark.parametrize("name", ["infer", "predict", "publish", "blob"])
def test_an_offer_whose_body_comes_later(server: RunningServer, name: str) -> None:
    """Head and body in packets of their own, as a client sends them that streams its body."""
    call = calls()[name]
    request = whole(call, OFFER)
    middle = len(request) - len(call.body)
    with connected(url_of(server, call.plane)) as client:
        for piece in (request[: middle - 1], request[middle - 1 : middle + 7]):
            client.sendall(piece)
        client.sendall(request[middle + 7 :])
        check(call, read_answer(client.stream))


@pytest.mark.parametrize("offer", [OFFER, {}], ids=["offer", "plain"])
@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("name", ["infer", "predict", "index", "publish", "alias", "blob"])
def test_a_body_in_chunks(
    server: RunningServer, name: str, size: int, offer: Mapping[str, str]
) -> None:
    """Bodies without a length, in tiny pieces and in large ones."""
    call = calls()[name]
    if name == "blob":
        size = max(size, 1000)
    with connected(url_of(server, call.plane)) as client:
        stream = client.stream
        client.sendall(in_chunks(call, offer, size))
        check(call, read_answer(stream))
        client.sendall(whole(call, {}))
        status = 200 if name == "blob" else call.status
        assert read_answer(stream).status == status


def test_keep_alive(server: RunningServer) -> None:
    """Hundreds of requests of all kinds on one connection, good ones and bad ones."""
    names = ["infer", "error", "predict", "metadata", "index", "error"]
    with connected(server.url) as client:
        stream = client.stream
        for _ in range(50):
            for name in names:
                client.sendall(whole(CALLS[name], {}))
                check(CALLS[name], read_answer(stream))


def test_a_close_is_a_close(server: RunningServer) -> None:
    """Who says that this is the last request gets its answer, and then the end."""
    for call in (CALLS["infer"], CALLS["error"], CALLS["models"]):
        for more in ({"Connection": "close"}, {**OFFER, "Connection": "close, Upgrade"}):
            with connected(url_of(server, call.plane)) as client:
                stream = client.stream
                client.sendall(whole(call, more))
                check(call, read_answer(stream))
                assert stream.read() == b""


@pytest.mark.parametrize("offer", [OFFER, {}], ids=["offer", "plain"])
def test_pipelined_requests_are_answered_in_order(
    server: RunningServer, offer: Mapping[str, str]
) -> None:
    """Many requests in one packet, of different cost: each answer is its own, in turn."""
    sent = b""
    for number in range(100):
        body = json.dumps(infer_body([[float(number)] * 4])).encode()
        call = Call("data", "POST", "/v2/models/id32/infer", body, 200, bool)
        headers = {"x-request-id": f"n{number}", **(offer if number % 3 == 0 else {})}
        sent += in_chunks(call, headers, 50) if number % 2 else whole(call, headers)
        sent += whole(CALLS["error"], {})
    with connected(server.url) as client:
        stream = client.stream
        client.sendall(sent)
        for number in range(100):
            answer = read_answer(stream)
            assert answer.headers["x-request-id"] == f"n{number}"
            assert answer.json()["outputs"][0]["data"] == [float(number)] * 4
            check(CALLS["error"], read_answer(stream))


def test_http_1_0(server: RunningServer) -> None:
    """An old client gets a whole answer with a length, and then the end."""
    for call in calls().values():
        with connected(url_of(server, call.plane)) as client:
            stream = client.stream
            client.sendall(whole(call, {}, http="1.0"))
            check(call, read_answer(stream))
            assert stream.read() == b""


def test_a_client_that_waits_for_continue(server: RunningServer) -> None:
    """A 100 comes before the body is sent, where it was asked for; curl does so for large ones."""
    for name in ("infer", "blob"):
        call = calls()[name]
        with connected(url_of(server, call.plane)) as client:
            stream = client.stream
            headers = headers_of(call, {"Expect": "100-continue"})
            headers["Content-Length"] = str(len(call.body))
            client.sendall(head_of(call.method, call.path, headers))
            assert stream.readline().startswith(b"HTTP/1.1 100")
            assert stream.readline() == b"\r\n"
            client.sendall(call.body)
            check(call, read_answer(stream))


@pytest.mark.skipif(JAVA is None, reason="no java on this machine")
def test_java_s_own_client(server: RunningServer, tmp_path: Path) -> None:
    """The real HttpClient with its defaults: every call, twice a connection, over HTTP/1.1."""
    wanted = calls()
    arguments: list[str] = []
    for name, call in wanted.items():
        body = tmp_path / name
        body.write_bytes(call.body)
        url = url_of(server, call.plane) + call.path
        arguments += [call.method, url, str(body) if call.body else "-"]
    lines = run_java(arguments)
    assert len(lines) == 2 * len(wanted)
    for number, (name, call) in enumerate(wanted.items()):
        for line in lines[2 * number : 2 * number + 2]:
            status, protocol, request_id, body_text = line.split("\t", 3)
            is_second_blob = name == "blob" and line is not lines[2 * number]
            assert int(status) == (200 if is_second_blob else call.status), line
            assert protocol == "HTTP_1_1"
            assert request_id == f"java-{number}"
            assert call.is_right(json.loads(body_text)), line


def run_java(arguments: Sequence[str]) -> list[str]:
    """Compile and run the client in one step; return what it printed."""
    assert JAVA is not None
    done = subprocess.run(
        [JAVA, "-Xint", "-Djava.net.useSystemProxies=false", str(JAVA_SOURCE), *arguments],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
