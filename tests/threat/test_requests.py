"""Hostile bodies and connections on the data plane of a real server with small limits."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from tests import graphs
from tests.cases.rig import MIB, ROW, anonymous_bytes, says_too_much
from tests.contract.wire import Connection, connected, head_of, read_answer
from tests.process.server import RunningServer, infer_body, running_server

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
LIMIT: Final = MIB
INFER: Final = "/v2/models/witness/infer"
GZIP: Final = {"content-encoding": "gzip"}
LENGTH: Final = "inference-header-content-length"


def amplifier() -> ModelProto:
    """Return a graph that answers with as many numbers as its only input says."""
    return graphs.build(
        [helper.make_node("ConstantOfShape", ["n"], ["y"])],
        [graphs.value("n", TensorProto.INT64, (1,))],
        [graphs.value("y", TensorProto.FLOAT, ("M",))],
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"max_body_bytes": LIMIT, "max_output_bytes": LIMIT, "header_timeout_s": 1,
                "body_timeout_s": 5, "write_timeout_s": 1, "run_memory": "256MiB"}  # fmt: skip
    with running_server(tmp_path_factory.mktemp("requests"), settings=settings) as running:
        running.push("witness", graphs.id32())
        running.push("wide", graphs.idi64())
        running.push("amplifier", amplifier())
        yield running


@pytest.fixture(autouse=True)
def witness(server: RunningServer) -> Iterator[None]:
    """After each attack the same worker answers rightly, and the log has no error."""
    pids = server.worker_pids()
    yield
    assert server.infer("witness", [ROW]).json()["outputs"][0]["data"] == ROW
    assert server.worker_pids() == pids
    assert [record for record in server.logs if record["level"] in ("error", "critical")] == []


def refused(server: RunningServer, body: bytes | object, status: int, **headers: str) -> str:
    """Send a body to the witness and hold that it is refused; return the message."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = server.data("POST", INFER, content=content, headers=named)
    assert answer.status_code == status, answer.text
    assert not says_too_much(answer.text)
    message: str = answer.json()["error"]
    assert len(message) < 500
    return message


def floats(shape: object, data: object) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "data": data}]}


# Bodies


def test_huge_output_of_a_tiny_request_is_refused(server: RunningServer) -> None:
    """A number in the request becomes the size of the answer: 413 with the limit, or a 4xx."""
    for count, reason in ((LIMIT // 4 + 1, str(LIMIT)), (10**9, "memory"), (2**60, "")):
        body = {"inputs": [{"name": "n", "datatype": "INT64", "shape": [1], "data": [count]}]}
        answer = server.data("POST", "/v2/models/amplifier/infer", json=body)
        assert answer.status_code in ((413,) if reason else (400, 413)), answer.text
        assert reason in answer.json()["error"]
    pid = server.worker_pids()[0]
    assert anonymous_bytes(pid) < 512 * MIB


def test_huge_output_again_and_again_leaves_memory_as_it_was(server: RunningServer) -> None:
    """Answers small and large and refused ones in turn: the worker holds no more afterwards."""
    soak(server, 60)
    (pid,) = server.worker_pids()
    before = anonymous_bytes(pid)
    soak(server, 240)
    assert anonymous_bytes(pid) - before < 16 * MIB


def soak(server: RunningServer, runs: int) -> None:
    """Ask so often for little, for all that is allowed, and for far too much; others go on."""
    for number in range(runs):
        count = (3, LIMIT // 4, 10**9)[number % 3]
        body = {"inputs": [{"name": "n", "datatype": "INT64", "shape": [1], "data": [count]}]}
        answer = server.data("POST", "/v2/models/amplifier/infer", json=body)
        assert answer.status_code == (413 if count == 10**9 else 200), answer.text
        if number % 10 == 0:
            row = [float(number), 2.0, 3.0, 4.0]
            assert server.infer("witness", [row]).json()["outputs"][0]["data"] == row


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"inputs":', b'{"inputs":[{"data":['])
def test_json_depth_and_size_are_bounded(server: RunningServer, opening: bytes) -> None:
    """A million brackets would be too much; as many as fit into a body are a 400 at once."""
    body = opening * (LIMIT // len(opening) - 1)
    assert "nested deeper than 1024" in refused(server, body, 400)
    assert str(LIMIT) in refused(server, b"[" * 10**6 + b" " * LIMIT, 413)


def test_json_depth_and_size_of_data(server: RunningServer) -> None:
    """Lists in data nest eight deep at most, whatever the parser would take."""
    whole = json.dumps(floats([1, 4], "here"))
    for depth in (9, 1000):
        data = "[" * depth + "1.0" + "]" * depth
        assert "x" in refused(server, whole.replace('"here"', data).encode(), 400)
        # Here the nesting is the shape, which nothing else bounds.
        body = f'{{"inputs": {data}}}'.encode()
        answer = server.data("POST", "/v1/models/witness:predict", content=body)
        assert answer.status_code == 400
        assert "nested deeper than 8" in answer.json()["error"]


@pytest.mark.parametrize(
    "shape",
    [[2**40, 2**40], [-1, 4], [0, 5], [1, 5], [], [4], [1.5, 4], [True, 4], ["1", 4], [1] * 9,
     [2**63, 4], [2**64, 2**64, 2**64], [-(2**63), -(2**63)], None, {}, [[1, 4]], [1e400, 4]],
)  # fmt: skip
def test_shape_tricks_are_refused(server: RunningServer, shape: object) -> None:
    """Overflow, signs, other types and other sizes: a 400 that names the tensor."""
    body = json.dumps(floats(shape, [1, 2, 3, 4])).replace("Infinity", "1e400").encode()
    assert "x" in refused(server, body, 400) or b"1e400" in body


def test_shape_tricks_small_types_do_not_grow(server: RunningServer) -> None:
    """What is announced as another datatype is refused before it is converted."""
    head = {"inputs": [{"name": "x", "datatype": "INT8", "shape": [LIMIT // 8, 4],
                        "parameters": {"binary_data_size": LIMIT // 2}}]}  # fmt: skip
    prefix = json.dumps(head).encode()
    length = {"inference_header_content_length": str(len(prefix))}
    assert "FP32" in refused(server, prefix + bytes(LIMIT // 2), 400, **length)


def bombs() -> dict[str, tuple[bytes, int]]:
    """Return compressed bodies by name, and the status that each gets."""
    large = gzip.compress(b" " * (64 * MIB), mtime=0)
    plain = gzip.compress(json.dumps(infer_body([ROW])).encode(), mtime=0)
    return {
        "a thousandfold": (large, 413),
        "gzip in gzip": (gzip.compress(large, mtime=0), 400),
        "many members": (gzip.compress(b" " * 1000, mtime=0) * 2000, 413),
        # What they unfold to is a good request: only their number can be held against it.
        "empty members": (gzip.compress(b"", mtime=0) * 10_000 + plain, 400),
        "truncated": (plain[:-1], 400),
        "truncated bomb": (large[: len(large) // 2], 413),
        "no end": (plain[:-8], 400),
        "wrong sum": (plain[:-8] + b"\0" * 8, 400),
        "rubbish behind": (plain + b"rubbish", 400),
        "one byte": (b"\x1f", 400),
    }


@pytest.mark.parametrize("name", bombs())
def test_decompression_bomb_ends_at_the_limit(server: RunningServer, name: str) -> None:
    """Whatever its form, announced or in chunks; the worker grows by no more than the limit."""
    body, status = bombs()[name]
    pid = server.worker_pids()[0]
    before = anonymous_bytes(pid)
    refused(server, body, status, content_encoding="gzip")
    pieces = (body[start : start + 1000] for start in range(0, len(body), 1000))
    answer = server.data("POST", INFER, content=pieces, headers=GZIP)
    assert answer.status_code == status, answer.text
    assert anonymous_bytes(pid) - before < 32 * MIB


def test_decompression_bomb_of_bodies_that_never_end(server: RunningServer) -> None:
    """What was decoded counts at once: sixty clients who wait hold what eight bodies may."""
    body = zlib.compress(b" " * (LIMIT - 64))[:-4]
    pid = server.worker_pids()[0]
    before = anonymous_bytes(pid)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(server.url)) for _ in range(60)]
        headers = {"host": "h", "content-encoding": "deflate", "content-length": str(len(body) + 4)}
        for client in clients:
            client.sendall(head_of("POST", INFER, headers) + body)
        statuses = [read_answer(client.stream).status for client in clients]
        grown = anonymous_bytes(pid) - before
    # Those with a place waited for the rest until the deadline; nobody else had one.
    assert set(statuses) == {408, 429}
    assert grown < 40 * MIB


def split(head: dict[str, Any], data: bytes, length: object) -> tuple[bytes, dict[str, str]]:
    return json.dumps(head).encode() + data, {"inference_header_content_length": str(length)}


def test_binary_split_must_add_up(server: RunningServer) -> None:
    """Negative, past the end, overlapping, trailing, none at all: a 400, no read beyond."""
    data = np.arange(4, dtype="<f4").tobytes()

    def tensor(size: object, **more: object) -> dict[str, Any]:
        parameters = {"binary_data_size": size}
        fields = {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": parameters}
        return {"inputs": [{**fields, **more}]}

    good = tensor(16)
    size = len(json.dumps(good))
    body, headers = split(good, data, size)
    named = {LENGTH: headers["inference_header_content_length"]}
    assert server.data("POST", INFER, content=body, headers=named).status_code == 200
    for length in (-1, size + 17, 10**18, size - 1, size + 1, "0x10", "-", "1e2", "1" * 400):
        body, headers = split(good, data, length)
        refused(server, body, 400, **headers)
    # Here all that there is would be JSON.
    body, headers = split(floats([1, 4], [1, 2, 3, 4]), b"", 10**3)
    assert len(body) < 10**3
    refused(server, body, 400, **headers)
    cases = [(tensor(wrong), data) for wrong in
             (-16, 0, 15, 17, 2**31, 2**63, 10**30, 16.0, "16", None, True, [16])]  # fmt: skip
    cases += [(good, tail) for tail in (data[:-1], data + b"\0", b"", data * 2)]
    cases += [({"inputs": good["inputs"] * 2}, data), (tensor(16, data=[1, 2, 3, 4]), data)]
    for head, tail in cases:
        body, headers = split(head, tail, len(json.dumps(head)))
        refused(server, body, 400, **headers)


def test_nan_in_one_row_leaves_the_others_bit_equal(server: RunningServer) -> None:
    """Neighbours in one request and in one run get their own bits back."""
    rows = np.array([[1.1, -0.0, 3e-39, 4], [np.nan, np.inf, -np.inf, 0], [5, 6, 7, 8]], "<f4")
    head = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 4],
                    "parameters": {"binary_data_size": rows.nbytes}}],
        "parameters": {"binary_data_output": True},
    }  # fmt: skip
    prefix = json.dumps(head).encode()
    answer = server.data(
        "POST", INFER, content=prefix + rows.tobytes(), headers={LENGTH: str(len(prefix))}
    )
    assert answer.status_code == 200
    assert answer.content[int(answer.headers[LENGTH]) :] == rows.tobytes()


# Metrics


def test_label_cardinality_is_bounded(server: RunningServer) -> None:
    """Strange names, versions, paths, verbs, hosts and ids make no series, nor break the page."""

    def series() -> set[str]:
        page = server.admin("GET", "/metrics").text
        assert all(line.startswith(("#", "ramrack_", "process_", "python_"))
                   for line in page.splitlines())  # fmt: skip
        return {line.rpartition(" ")[0] for line in page.splitlines() if line[:1] != "#"}

    def scan(start: int) -> None:
        with connected(server.url) as client:
            for number in range(start, start + 200):
                target = (
                    f"/v2/models/m{number}/infer",
                    f"/v2/models/witness/versions/{number}9",
                    f"/x{number}%22%0a%5c",
                    f"/v1/models/%22{number}:predict",
                )[number % 4]
                verb = ("POST", "GET", "PATCH", f"X{number}")[number // 4 % 4]
                headers = {
                    "host": f"h{number}",
                    "content-length": "2",
                    "x-request-id": f"r{number}",
                    "user-agent": f"u{number}",
                }
                client.sendall(head_of(verb if verb[0] != "X" else "PUT", target, headers) + b"{}")
                assert 400 <= read_answer(client.stream).status < 500

    scan(0)
    before = series()
    scan(1000)
    assert series() == before


# Connections

# The short way of predictions, the application behind it, and the admin plane's.
PLANES: Final = ("lane", "app", "admin")


def where(server: RunningServer, plane: str) -> tuple[str, str]:
    """Return the address of a plane and a path that takes a body there."""
    return {
        "lane": (server.url, INFER),
        "app": (server.url, "/v2/repository/index"),
        "admin": (server.admin_url, "/v2/repository/index"),
    }[plane]


_BODY: Final = json.dumps(infer_body([ROW])).encode()
_N: Final = b"%d" % len(_BODY)
_CHUNKS: Final = b"%x\r\n%b\r\n0\r\n\r\n" % (len(_BODY), _BODY)
_TE: Final = b"Transfer-Encoding: chunked\r\n"
_CL: Final = b"Content-Length: " + _N + b"\r\n"
# What stands between "Host: h" and the end of the head, and what follows.
SMUGGLED: Final[dict[str, tuple[bytes, bytes]]] = {
    "length and coding": (_CL + _TE, _CHUNKS),
    "coding and length": (_TE + _CL, _CHUNKS),
    "two lengths": (_CL + b"Content-Length: 3\r\n", _BODY),
    "equal lengths": (_CL + _CL, _BODY),
    "length list": (b"Content-Length: " + _N + b", " + _N + b"\r\n", _BODY),
    "signed length": (b"Content-Length: +" + _N + b"\r\n", _BODY),
    "huge length": (b"Content-Length: " + b"9" * 40 + b"\r\n", _BODY),
    "bare line feed": (b"X: a\n" + _CL, _BODY),
    "bare return": (b"X: a\rY: b\r\n" + _CL, _BODY),
    "folded line": (b"X: a\r\n b\r\n" + _CL, _BODY),
    "space before colon": (b"Content-Length : " + _N + b"\r\n", _BODY),
    "hidden coding": (b"Transfer-Encoding: xchunked\r\n", _CHUNKS),
    "coding with a tab": (b"Transfer-Encoding: \x0bchunked\r\n", _CHUNKS),
    "chunked twice": (b"Transfer-Encoding: chunked, chunked\r\n", _CHUNKS),
    "chunked first": (b"Transfer-Encoding: chunked, identity\r\n", _CHUNKS),
    "coding nobody decodes": (b"Transfer-Encoding: gzip, chunked\r\n", _CHUNKS),
    "two codings": (_TE + _TE, _CHUNKS),
    "two hosts": (b"Host: other\r\n" + _CL, _BODY),
    "nul": (b"X: \0\r\n" + _CL, _BODY),
    "negative chunk": (_TE, b"-1\r\n\r\n"),
    "hex prefix": (_TE, b"0x5\r\nhello\r\n0\r\n\r\n"),
    "chunk past 64 bits": (_TE, b"fffffffffffffffff\r\n"),
    "chunk end by line feed": (_TE, _CHUNKS.replace(b"\r\n", b"\n")),
    "long extension": (_TE, b"1;" + b"a" * 20_000),
    "100 MB header": (b"X: " + b"a" * 100_000, b""),
    "endless trailer": (_TE, _CHUNKS[:-2] + b"X: " + b"a" * 20_000),
}


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("name", SMUGGLED)
def test_smuggling_is_refused_and_the_connection_closed(
    server: RunningServer, name: str, plane: str
) -> None:
    """One answer, an error, and the end: what was hidden behind is never taken for a request."""
    lines, body = SMUGGLED[name]
    url, path = where(server, plane)
    hidden = b"GET /v2/smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + lines + b"\r\n"
    with connected(url) as client, contextlib.suppress(ConnectionError):
        client.sendall(head + body + hidden)
        said = client.stream.read()
        status = int(said.split()[1])
        assert said.count(b"HTTP/1.1 ") == 1, said
        assert status in (400, 413, 431), said
        assert b'"error"' in said
        assert b"smuggled" not in said


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("extension", [b"", b";" + b"e" * 40])
def test_smuggling_a_storm_of_chunks_is_one_body(
    server: RunningServer, plane: str, extension: bytes
) -> None:
    """Twenty thousand chunks of one byte: one answer, and the next request's after it."""
    url, path = where(server, plane)
    body = _BODY if plane == "lane" else b"{}"
    chunks = b"".join(
        b"1%b\r\n%c\r\n" % (extension, byte) for byte in body + b" " * (20_000 - len(body))
    )
    request = head_of("POST", path, {"host": "localhost", "transfer-encoding": "chunked"})
    with connected(url) as client:
        client.sendall(
            request
            + chunks
            + b"0\r\n\r\n"
            + head_of("GET", "/v2/health/live", {"host": "localhost"})
        )
        first = read_answer(client.stream)
        assert first.status == 200, first.text
        assert json.loads(read_answer(client.stream).text) == {"live": True}


# What stands in the head, and what may come of it.
ODD_HEADS: Final[dict[str, tuple[bytes, set[int]]]] = {
    "a thousand lines": (b"".join(b"x-%d: 1\r\n" % number for number in range(1000)), {431, 200}),
    "ten thousand lines": (b"a: b\r\n" * 10_000, {431}),
    "no name": (b": value\r\n", {400}),
    "no colon": (b"nothing\r\n", {400}),
    "a name with a space": (b"a b: c\r\n", {400}),
    "a name of other letters": ("\u00e4: b\r\n".encode(), {400}),
    "a value of other letters": ("a: \u00e4\r\n".encode(), {200}),
    "an empty value": (b"a:\r\n", {200}),
    "a control character": (b"a: b\x01c\r\n", {400}),
    "an upgrade to another protocol": (b"Connection: Upgrade\r\nUpgrade: websocket\r\n", {200}),
    "an expectation of something else": (b"Expect: 200-maybe\r\n", {200, 417}),
}


@pytest.mark.parametrize("plane", ["app", "admin"])
@pytest.mark.parametrize("name", ODD_HEADS)
def test_smuggling_odd_heads_are_answered_or_refused(
    server: RunningServer, name: str, plane: str
) -> None:
    """One answer, as documented; after a refusal the connection is closed."""
    lines, statuses = ODD_HEADS[name]
    url, _ = where(server, plane)
    head = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n"
    with connected(url) as client, contextlib.suppress(ConnectionError):
        client.sendall(head)
        answer = read_answer(client.stream)
        assert answer.status in statuses, answer.text
        if answer.status != 200:
            assert "error" in json.loads(answer.text)
            assert client.stream.read() == b""


def slowly(client: Connection, data: bytes, seconds: float) -> bytes:
    """Send a byte ten times a second until the server hangs up; return what it said."""
    client.socket.settimeout(0.1)
    deadline = time.monotonic() + seconds
    said = b""
    for byte in data:
        assert time.monotonic() < deadline, "it never hung up"
        with contextlib.suppress(OSError):
            client.sendall(bytes([byte]))
        try:
            got = client.socket.recv(65536)
        except TimeoutError:
            continue
        except ConnectionError:
            break
        if not got:
            break
        said += got
    return said


@pytest.mark.parametrize(
    ("first", "data", "said"),
    [(b"", b"GET /v2 HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 2000, b"header_timeout_s 1"),
     (head_of("GET", "/v2", {"host": "h"}), b"GET /v2 HTTP/1.1\r\nX: " + b"a" * 2000,
      b"header_timeout_s 1"),
     (b"", b"\r\n" * 1000, b""),
     (head_of("POST", INFER, {"host": "h", "content-length": "2000"}), b" " * 2000,
      b"body_timeout_s 5")],
    ids=["head", "later head", "line ends", "body"],
)  # fmt: skip
def test_slow_clients_meet_an_absolute_deadline(
    server: RunningServer, first: bytes, data: bytes, said: bytes
) -> None:
    """Each byte comes in time, the whole does not: 408 or nothing, and the end."""
    with connected(server.url) as client:
        client.sendall(first)
        assert said in slowly(client, data, 60)


def test_slow_clients_that_do_not_read_are_cut(server: RunningServer) -> None:
    """Who takes nothing of its answers for write_timeout_s loses the connection."""
    rows = infer_body([ROW] * 8000)
    body = json.dumps(rows).encode()
    request = head_of("POST", INFER, {"host": "h", "content-length": str(len(body))}) + body
    host, port = server.url.removeprefix("http://").split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # A reset tells of the cut at once.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.connect((host, int(port)))
        client.settimeout(60)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            client.sendall(request * 5000)
