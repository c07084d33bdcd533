"""Every status of the error table comes through HTTP as promised, on both planes where it can.

A test's name begins with the status it is about; the last test holds the table to be complete.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from models.convert.onnx_file import package_onnx
from serving.errors import STATUS
from tests import graphs
from tests.contract.wire import REQUEST_ID, Answer, check_error, connected, head_of, read_answer
from tests.process.server import RunningServer, running_server, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 1024**2
ID: dict[str, str] = {"x-request-id": REQUEST_ID}
INFER = "/v2/models/id32/infer"
PREDICT = "/v1/models/id32:predict"
ADMIN_ID32 = "/admin/v1/models/id32"
LIMITS = {
    "max_body_bytes": MIB,
    "max_output_bytes": MIB,
    "body_timeout_s": 1,
    "header_timeout_s": 1,
    "max_run_s": 4,
    "queue_rows": 1,
    "max_in_flight": 4,
    "memory_budget": 64 * MIB,
    "inspect_memory": 1024 * MIB,
    "ready_requires": "all",
}
FOREVER = {"inputs": [{"name": "n", "datatype": "INT64", "shape": [1], "data": [2**62]}]}


def fails_by_itself() -> ModelProto:
    """Give ``x`` back, but scale it by -1, which no runtime can, where a value is over 100."""
    return graphs.build(
        [
            helper.make_node("ReduceMax", ["x"], ["peak"], keepdims=1),
            helper.make_node("Greater", ["peak", "limit"], ["is_high"]),
            helper.make_node("Where", ["is_high", "minus_one", "one"], ["scale"]),
            helper.make_node("Resize", ["x", "", "scale"], ["y"], mode="nearest"),
        ],
        [graphs.value("x", TensorProto.FLOAT, ("N",))],
        [graphs.value("y", TensorProto.FLOAT, ("M",))],
        [
            graphs.weights("limit", np.array([100], np.float32)),
            graphs.weights("one", np.array([1], np.float32)),
            graphs.weights("minus_one", np.array([-1], np.float32)),
        ],
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with limits that a test can reach; one worker, so that they are the server's."""
    with running_server(tmp_path_factory.mktemp("errors"), settings=LIMITS) as running:
        running.push("id32", graphs.id32())
        running.push("id32", graphs.identity(TensorProto.FLOAT, ("rows", 4)), is_loading=False)
        running.push("gather", graphs.gath())
        running.push("fails", fails_by_itself())
        running.push("endless", graphs.endless())
        running.push("endless-too", graphs.endless())
        running.push("never-loaded", graphs.id64(), is_loading=False)
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose admin plane wants tokens: one for all scopes, and one that may only read."""
    folder = tmp_path_factory.mktemp("guarded")
    sha256 = hashlib.sha256(b"reader-secret").hexdigest()
    config = folder / "ramrack.toml"
    config.write_text(
        f'[[tokens]]\nname = "reader"\nsha256 = "{sha256}"\nscopes = ["read"]\n', encoding="utf-8"
    )
    settings = {"admin_token": "owner-secret", "config": config}
    with running_server(folder, settings=settings, is_waiting=False) as running:
        wait_until(
            lambda: running.admin("GET", "/v2/health/ready").status_code == 200, 60, "it is ready"
        )
        yield running


def bearer(secret: str) -> dict[str, str]:
    return {**ID, "authorization": f"Bearer {secret}"}


def floats(data: Any, shape: tuple[int, ...] = (1, 4), **fields: Any) -> dict[str, Any]:
    """Return a V2 request for ``x``, with some of its fields changed."""
    tensor = {"name": "x", "datatype": "FP32", "shape": list(shape), "data": data, **fields}
    return {"inputs": [tensor]}


GOOD = floats([1, 2, 3, 4])


# 400


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", ["JSON"]),
        (b"", ["body"]),
        (b"[1]", ["body", "object"]),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,NaN]}]}', ["null"]),
        ({"inputs": {}}, ["inputs", "list"]),
        ({"inputs": []}, ["'x' is missing"]),
        (floats([1, 2, 3, 4], name="z"), ["'z'", "'x'"]),
        (floats([1, 2, 3, 4], datatype="FP64"), ["'x'", "FP64", "FP32"]),
        (floats([1, 2, 3, 4, 5], (1, 5)), ["'x'", "5", "4"]),
        (floats([1, 2, 3]), ["'x'", "3 elements", "4"]),
        (floats([1, 2, 3, "4"]), ["'x'", "element 3", "4"]),
        (floats([1, 2, 3, 1e39]), ["'x'", "element 3", "1e+39"]),
        (floats([1, 2, 3, 4], (-1, 4)), ["'x'", "-1"]),
        (floats([1] * 4, (1,) * 9), ["'x'", "9 dimensions", "8"]),
        (floats([[[1, 2, 3, 4]]]), ["'x'", "depth 1", "[1, 4]"]),
        ({**GOOD, "outputs": [{"name": "z"}]}, ["'z'", "'y'"]),
        ({**GOOD, "id": 7}, ["id", "number"]),
        ({**GOOD, "parameters": {"timeout": -1}}, ["timeout", "-1"]),
        ({**GOOD, "parameters": {"binary_data_output": 1}}, ["binary_data_output", "1"]),
    ],
)
def test_400_wrong_infer_bodies(server: RunningServer, body: Any, words: list[str]) -> None:
    """The message names the field, the value and what is allowed; the version is named too."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = server.data("POST", INFER, content=content, headers=ID)
    check_error(answer, 400, *words, server=server, version=1)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, ["instances", "inputs"]),
        ({"instances": [], "inputs": []}, ["instances", "inputs"]),
        ({"instances": 3}, ["instances", "number"]),
        ({"instances": [[1, 2, 3]]}, ["instances", "[1, 3]", "[-1, 4]"]),
        ({"instances": [[1, 2, 3, 4], {"a": 1}]}, ["instances[1]"]),
        ({"instances": [[1, 2, 3, "4"]]}, ["4"]),
        ({"inputs": {"z": [[1, 2, 3, 4]]}}, ["x"]),
    ],
)
def test_400_wrong_predict_bodies(server: RunningServer, body: Any, words: list[str]) -> None:
    """V1 says which row it was."""
    answer = server.data("POST", PREDICT, json=body, headers=ID)
    check_error(answer, 400, *words, server=server, version=1)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"inference-header-content-length": "x"}, ["Inference-Header-Content-Length", "'x'"]),
        ({"inference-header-content-length": "99999"}, ["Inference-Header", "99999"]),
        ({"x-request-timeout-ms": "0"}, ["x-request-timeout-ms", "'0'", "1 to 3600000"]),
        ({"x-request-timeout-ms": "soon"}, ["x-request-timeout-ms", "'soon'"]),
    ],
)
def test_400_wrong_headers(
    server: RunningServer, headers: dict[str, str], words: list[str]
) -> None:
    """Headers with numbers are held to their range."""
    answer = server.data("POST", INFER, json=GOOD, headers={**ID, **headers})
    check_error(answer, 400, *words, server=server, version=1)


def test_400_broken_compression(server: RunningServer) -> None:
    """A body that is not what it says, and one that ends early; no version was asked yet."""
    packed = gzip.compress(json.dumps(GOOD).encode())
    for content in (b"not gzip at all", packed[:-9]):
        answer = server.data(
            "POST", INFER, content=content, headers={**ID, "content-encoding": "gzip"}
        )
        check_error(answer, 400, "gzip", server=server)


def test_400_what_the_graph_refuses(server: RunningServer) -> None:
    """An index out of range is the caller's fault, over V1 as over V2."""
    body = {"inputs": [{"name": "idx", "datatype": "INT64", "shape": [1], "data": [999]}]}
    answer = server.data("POST", "/v2/models/gather/infer", json=body, headers=ID)
    check_error(answer, 400, "999", server=server, version=1)
    body = {"instances": [3, 999]}
    answer = server.data("POST", "/v1/models/gather:predict", json=body, headers=ID)
    check_error(answer, 400, "999", server=server, version=1)


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/-x/infer", "/v2/models/stats/infer", "/v2/models/id32/versions/01/infer",
        "/v2/models/id32/versions/0/infer", "/v2/models/id32/versions/UP/infer",
        "/v1/models/id32/versions/x:predict", "/v1/models/id32/labels/7:predict",
        "/v2/models/%2e%2e%2fx/infer", "/v2/models/" + "a" * 65 + "/infer",
    ],
)  # fmt: skip
def test_400_wrong_names_in_the_path(server: RunningServer, path: str) -> None:
    """Names that no model or version can have are said to be wrong, not unknown."""
    answer = server.data("POST", path, json=GOOD, headers=ID)
    status = 404 if "%2f" in path else 400
    check_error(answer, status, server=server)


@pytest.mark.parametrize(
    "request_bytes",
    [b"\x16\x03\x01\x02\x00 this is TLS\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"x\r\n\r\n",
     b"GET /v2 HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n"],
)  # fmt: skip
def test_400_what_is_not_http(server: RunningServer, request_bytes: bytes) -> None:
    """Even what is no request gets the one form, on both planes."""
    for url in (server.url, server.admin_url):
        with connected(url) as client:
            client.sendall(request_bytes)
            answer = read_answer(client.stream)
            check_error(answer, 400, "request", server=server, request_id=None)
            assert client.stream.read() == b""


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("PUT", "/admin/v1/blobs/sha256:abc", b"x", ["sha256:abc"]),
        ("PUT", "/admin/v1/blobs/sha256:" + "0" * 64, b"x", ["sha256:" + "0" * 64]),
        ("POST", ADMIN_ID32 + "/versions", b"{", ["JSON"]),
        ("POST", ADMIN_ID32 + "/versions", b"{}", ["manifest"]),
        ("POST", ADMIN_ID32 + "/versions/01:load", b"", ["01"]),
        ("POST", ADMIN_ID32 + "/versions/1:load?wait=forever", b"", ["wait", "forever"]),
        ("POST", ADMIN_ID32 + "/versions/1:load?wiat=3", b"", ["wiat", "'wait'"]),
        ("POST", ADMIN_ID32 + "/versions/1:plan", b'{"a":1}', ["'a'"]),
        ("PUT", ADMIN_ID32 + "/aliases/BIG", b'{"version":1}', ["BIG"]),
        ("PUT", ADMIN_ID32 + "/aliases/latest", b'{"version":1}', ["latest"]),
        ("PUT", ADMIN_ID32 + "/aliases/ok", b'{"version":"1"}', ["version", "'1'"]),
        ("PUT", ADMIN_ID32 + "/aliases/ok", b"{}", ["version is missing"]),
        ("PUT", ADMIN_ID32 + "/route", b"{}", ["split", "latest"]),
        ("PUT", ADMIN_ID32 + "/route", b'{"split":[{"version":1,"weight":50}]}', ["50"]),
        ("GET", "/admin/v1/events?limit=0", b"", ["limit", "'0'", "1 to 1000"]),
        ("POST", "/v2/repository/models/id32/load", b'{"parameters":{"config":"{}"}}', ["config"]),
        ("GET", "/admin/v1/models/-x", b"", ["-x"]),
    ],
)  # fmt: skip
def test_400_wrong_admin_calls(
    server: RunningServer, method: str, path: str, body: bytes, words: list[str]
) -> None:
    """Each part of an admin call is checked and named."""
    answer = server.admin(method, path, content=body, headers=ID)
    check_error(answer, 400, *words, server=server)


def test_400_a_graph_that_cannot_be_loaded(server: RunningServer) -> None:
    """The load ends with the reason, the operation beside it, and nothing else was touched."""
    server.push("refused", graphs.unknown_operator(), is_loading=False)
    path = "/admin/v1/models/refused/versions/1:load"
    answer = server.admin("POST", path, params={"wait": 60}, headers=ID)
    document = check_error(answer, 400, "Nonsense", server=server)
    assert document["operation"]["state"] == "failed"
    assert server.data("POST", INFER, json=GOOD).status_code == 200
    # 503 while a version is FAILED and the setting says that this matters.
    for call in (server.data, server.admin):
        answer = call("GET", "/v2/health/ready", headers=ID)
        document = check_error(answer, 503, "ready_requires", server=server)
        assert document["failed"][0]["model"] == "refused"
    server.expect(server.admin("DELETE", "/admin/v1/models/refused/versions/1"))
    assert server.data("GET", "/v2/health/ready").status_code == 200


# 401 and 403


def test_401_without_a_token(guarded: RunningServer) -> None:
    """No token, a wrong one, another scheme: 401 with a challenge, and no hint at the right one."""
    wrong: list[dict[str, str]] = [
        ID, bearer("wrong"), {**ID, "authorization": "Basic b3duZXItc2VjcmV0"},
        {**ID, "authorization": "Bearer"},
    ]  # fmt: skip
    for headers in wrong:
        for path in ("/admin/v1/models", "/metrics", "/docs"):
            answer = guarded.admin("GET", path, headers=headers)
            check_error(answer, 401, server=guarded)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "secret" not in answer.text
    answer = guarded.admin("POST", "/v2/repository/models/x/load", headers=ID)
    check_error(answer, 401, "Bearer", server=guarded)
    answer = guarded.admin("GET", "/admin/v1/models", headers=bearer("owner-secret"))
    assert answer.status_code == 200
    assert "secret" not in guarded.stderr()


def test_403_a_token_without_the_scope(guarded: RunningServer) -> None:
    """The message names the token and the scope it lacks."""
    headers = bearer("reader-secret")
    assert guarded.admin("GET", "/admin/v1/models", headers=headers).status_code == 200
    for method, path, scope in (
        ("POST", "/admin/v1/gc", "admin"),
        ("PUT", "/admin/v1/blobs/sha256:" + "0" * 64, "push"),
        ("POST", "/admin/v1/models/x/versions/1:load", "promote"),
    ):
        answer = guarded.admin(method, path, headers=headers)
        check_error(answer, 403, "'reader'", repr(scope), server=guarded)


def test_403_a_foreign_host_or_page(server: RunningServer) -> None:
    """Neither rebound names nor pages of other sites reach the admin plane."""
    answer = server.admin("GET", "/admin/v1/models", headers={**ID, "host": "evil.example"})
    check_error(answer, 403, "Host", "evil.example", server=server)
    headers = {**ID, "origin": "http://evil.example"}
    answer = server.admin("POST", "/admin/v1/gc", headers=headers)
    check_error(answer, 403, "Origin", "evil.example", server=server)


# 404 and 405


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", "/v2/models/nobody/infer", ["'nobody'"]),
        ("POST", "/v2/models/id32/versions/9/infer", ["id32", "9"]),
        ("POST", "/v2/models/id32/versions/nickname/infer", ["id32", "nickname"]),
        ("POST", "/v1/models/nobody:predict", ["'nobody'"]),
        ("POST", "/v1/models/id32/versions/9:predict", ["id32", "9"]),
        ("POST", "/v1/models/id32/labels/nickname:predict", ["id32", "nickname"]),
        ("GET", "/v2/models/nobody", ["'nobody'"]),
        ("GET", "/v2/models/nobody/ready", ["'nobody'"]),
        ("GET", "/v2/models/id32/versions/9/config", ["id32", "9"]),
        ("GET", "/v2/models/nobody/stats", ["'nobody'"]),
        ("GET", "/v1/models/nobody", ["'nobody'"]),
        ("GET", "/v2/nothing", ["'/v2/nothing'"]),
        ("POST", "/v2/repository/models/id32/load", ["/v2/repository/models/id32/load"]),
        ("GET", "/admin/v1/models", ["'/admin/v1/models'"]),
        ("GET", "/metrics", ["'/metrics'"]),
    ],
)
def test_404_on_the_data_plane(
    server: RunningServer, method: str, path: str, words: list[str]
) -> None:
    """Unknown models, versions, aliases and paths; nothing of the admin plane is here."""
    answer = server.data(method, path, json=GOOD if method == "POST" else None, headers=ID)
    check_error(answer, 404, *words, server=server)


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("GET", "/admin/v1/models/nobody", ["'nobody'"]),
        ("GET", ADMIN_ID32 + "/versions/9", ["id32", "9"]),
        ("POST", ADMIN_ID32 + "/versions/9:load", ["id32", "9"]),
        ("POST", ADMIN_ID32 + "/versions/9:unload", ["id32", "9"]),
        ("POST", ADMIN_ID32 + "/versions/9:plan", ["id32", "9"]),
        ("DELETE", ADMIN_ID32 + "/versions/9", ["id32", "9"]),
        ("DELETE", ADMIN_ID32 + "/aliases/nickname", ["nickname"]),
        ("GET", "/admin/v1/models/nobody/route", ["'nobody'"]),
        ("GET", "/admin/v1/operations/none", ["none"]),
        ("POST", "/v2/repository/models/nobody/load", ["'nobody'"]),
        ("GET", "/admin/v1/nothing", ["'/admin/v1/nothing'"]),
        ("POST", INFER, [INFER]),
    ],
)
def test_404_on_the_admin_plane(
    server: RunningServer, method: str, path: str, words: list[str]
) -> None:
    """Unknown models, versions, aliases, operations and paths."""
    check_error(server.admin(method, path, headers=ID), 404, *words, server=server)


def test_404_of_a_head_request_has_no_body(server: RunningServer) -> None:
    """An object that is not here."""
    path = "/admin/v1/blobs/sha256:" + "0" * 64
    with connected(server.admin_url) as client:
        client.sendall(head_of("HEAD", path, {"host": "localhost", **ID}))
        stream = client.stream
        answer = read_answer(stream, has_body=False)
        assert answer.status == 404
        assert answer.headers["x-request-id"] == REQUEST_ID
        # What would follow is the next answer, not the body of this one.
        client.sendall(head_of("GET", "/v2/health/live", {"host": "localhost"}))
        assert read_answer(stream).status == 200


@pytest.mark.parametrize(
    ("plane", "method", "path", "allowed"),
    [
        ("data", "GET", INFER, "POST"),
        ("data", "DELETE", PREDICT, "POST"),
        ("data", "POST", "/v2/models/id32", "GET"),
        ("data", "PUT", "/v2/health/live", "GET"),
        ("data", "GET", "/v2/repository/index", "POST"),
        ("admin", "POST", "/admin/v1/models", "GET"),
        ("admin", "GET", ADMIN_ID32 + "/versions/1:load", "POST"),
        ("admin", "DELETE", "/admin/v1/blobs/sha256:" + "0" * 64, "HEAD, PUT"),
        ("admin", "POST", "/metrics", "GET"),
    ],
)
def test_405(server: RunningServer, plane: str, method: str, path: str, allowed: str) -> None:
    """The message and the Allow header say what would work."""
    call = server.data if plane == "data" else server.admin
    answer = call(method, path, headers=ID)
    check_error(answer, 405, method, repr(path), *allowed.split(", "), server=server)
    assert answer.headers["allow"] == allowed


def test_405_connect(server: RunningServer) -> None:
    """This is no proxy, on either plane."""
    for url in (server.url, server.admin_url):
        with connected(url) as client:
            client.sendall(head_of("CONNECT", "example.org:443", {"host": "x", **ID}))
            answer = read_answer(client.stream)
            check_error(answer, 405, "CONNECT", server=server)


# 408


@pytest.mark.parametrize(
    ("plane", "method", "path", "words"),
    [
        ("data", "POST", INFER, ["body", "body_timeout_s 1"]),
        ("data", "POST", PREDICT, ["body", "body_timeout_s 1"]),
        ("data", "POST", "/v2/repository/index", ["body", "body_timeout_s 1"]),
        ("admin", "POST", ADMIN_ID32 + "/versions", ["body", "1 s"]),
        ("admin", "PUT", "/admin/v1/blobs/sha256:" + "0" * 64, ["body", "1 s"]),
    ],
)
def test_408_a_body_that_does_not_come(
    server: RunningServer, plane: str, method: str, path: str, words: list[str]
) -> None:
    """A client that stops in the middle is told so, and the connection ends."""
    with connected(server.url if plane == "data" else server.admin_url) as client:
        headers = {"host": "localhost", "content-length": "10", **ID}
        client.sendall(head_of(method, path, headers) + b"{")
        stream = client.stream
        answer = read_answer(stream)
        check_error(answer, 408, *words, server=server)
        assert answer.headers["connection"] == "close"
        assert stream.read() == b""


def test_408_a_head_that_does_not_come(server: RunningServer) -> None:
    """The same for half a head, on both planes."""
    for url in (server.url, server.admin_url):
        with connected(url) as client:
            client.sendall(head_of("GET", "/v2", {"host": "localhost", **ID, "x-more": "y"})[:-5])
            answer = read_answer(client.stream)
            check_error(answer, 408, "header_timeout_s 1", server=server)


# 409


def test_409_on_the_admin_plane(server: RunningServer) -> None:
    """What is in use stays, aliases name READY versions, and an old etag changes nothing."""
    version = ADMIN_ID32 + "/versions/1"
    for method, path, headers, body, words in (
        ("POST", version + ":unload", ID, None, ["id32", "route"]),
        ("DELETE", version, ID, None, ["id32"]),
        ("PUT", ADMIN_ID32 + "/aliases/a", ID, {"version": 2}, ["id32/2", "not loaded"]),
        ("PUT", ADMIN_ID32 + "/route", ID, {"split": [{"version": 2, "weight": 100}]}, ["2"]),
        ("PUT", ADMIN_ID32 + "/route", {**ID, "if-match": '"0"'},
         {"split": [{"version": 1, "weight": 100}]}, ['"0"']),
        ("POST", ADMIN_ID32 + "/route:rollback", ID, {}, ["id32 cannot be rolled back"]),
        ("POST", "/v2/repository/models/id32/unload", ID, {}, ["id32", "route"]),
    ):  # fmt: skip
        answer = server.admin(method, path, headers=headers, json=body)
        check_error(answer, 409, *words, server=server)
    assert server.data("POST", INFER, json=GOOD).json()["model_version"] == "1"


def test_409_a_manifest_with_missing_objects(server: RunningServer) -> None:
    """The answer lists what has to be uploaded first."""
    package = package_onnx("absent", graphs.gemm(seed=5))
    manifest = package.manifest.to_json()
    answer = server.admin("POST", "/admin/v1/models/absent/versions", json=manifest, headers=ID)
    document = check_error(answer, 409, str(manifest["graph"]), server=server)
    assert document["missing"] == [manifest["graph"]]
    check_error(server.admin("GET", "/admin/v1/models/absent", headers=ID), 404, server=server)


# 413


def test_413_before_a_byte_of_it_was_sent(server: RunningServer) -> None:
    """An announced body over the limit is refused at its head."""
    for path in (INFER, PREDICT, "/v2/repository/index"):
        with connected(server.url) as client:
            headers = {"host": "x", "content-length": str(MIB + 1), **ID}
            client.sendall(head_of("POST", path, headers))
            answer = read_answer(client.stream)
            check_error(answer, 413, str(MIB + 1), str(MIB), server=server)


def test_413_a_body_of_unknown_length(server: RunningServer) -> None:
    """Chunks are counted as they come."""

    def chunks() -> Iterator[bytes]:
        for _ in range(17):
            yield b" " * (MIB // 16)

    answer = server.data("POST", INFER, content=chunks(), headers=ID)
    check_error(answer, 413, "body", str(MIB), server=server)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_413_after_decompression(server: RunningServer, encoding: str) -> None:
    """A small body that unfolds to a large one."""
    large = b" " * (16 * MIB)
    packed = gzip.compress(large) if encoding == "gzip" else zlib.compress(large)
    assert len(packed) < MIB
    answer = server.data(
        "POST", INFER, content=packed, headers={**ID, "content-encoding": encoding}
    )
    check_error(answer, 413, "body", str(MIB), server=server)


def test_413_an_answer_that_would_be_too_large(server: RunningServer) -> None:
    """A request within its limit may not ask for more than max_output_bytes."""
    rows = 100_000
    body = {"inputs": [{"name": "idx", "datatype": "INT64", "shape": [rows], "data": [1] * rows}]}
    answer = server.data("POST", "/v2/models/gather/infer", json=body, headers=ID)
    check_error(answer, 413, str(rows * 16), str(MIB), server=server, version=1)


def test_413_on_the_admin_plane(server: RunningServer) -> None:
    """JSON of an admin call has a limit of its own."""
    body = b" " * (8 * MIB + 1)
    answer = server.admin("POST", ADMIN_ID32 + "/versions", content=body, headers=ID)
    check_error(answer, 413, str(8 * MIB), server=server)


# 415


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"content-type": "application/xml"}, ["application/xml", "application/json"]),
        ({"content-type": "application/json; charset=utf-16"}, ["utf-16", "utf-8"]),
        ({"content-type": "application/x-pickle"}, ["application/x-pickle"]),
        ({"content-encoding": "br"}, ["'br'", "gzip"]),
        ({"content-encoding": "gzip, gzip"}, ["gzip"]),
    ],
)
def test_415_on_the_data_plane(
    server: RunningServer, headers: dict[str, str], words: list[str]
) -> None:
    """Types and encodings that are not spoken here; the message says which are."""
    content = json.dumps(GOOD).encode()
    for path in (INFER, PREDICT):
        answer = server.data("POST", path, content=content, headers={**ID, **headers})
        check_error(answer, 415, *words, server=server)


def test_415_on_the_admin_plane(server: RunningServer) -> None:
    """It takes JSON only: no form of a web page is one."""
    path = ADMIN_ID32 + "/versions"
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = server.admin("POST", path, content=b"{}", headers={**ID, "content-type": kind})
        check_error(answer, 415, kind, "application/json", server=server)
    headers = {**ID, "content-encoding": "gzip"}
    answer = server.admin("POST", path, content=gzip.compress(b"{}"), headers=headers)
    check_error(answer, 415, "gzip", server=server)


# 429


def gauge(server: RunningServer, name: str, model: str = "") -> float:
    """Return the sum of a gauge over the versions of a model, or of all."""
    page = server.admin("GET", "/metrics").text
    label = model or '[^"]*'
    pattern = rf'^ramrack_{name}{{model="{label}"[^}}]*}} (\S+)$'
    return sum(float(number) for number in re.findall(pattern, page, re.MULTILINE))


@contextlib.contextmanager
def stuck(server: RunningServer, *models: str) -> Iterator[None]:
    """For each model let one request run, for max_run_s, and a second one wait behind it."""
    body = json.dumps(FOREVER).encode()
    headers = {"host": "x", "content-length": str(len(body))}
    with contextlib.ExitStack() as stack:
        for model in models:
            wait_until(lambda m=model: gauge(server, "in_flight", m) == 0, 30, "none is in flight")
            for waiting in range(2):
                client = stack.enter_context(connected(server.url))
                client.sendall(head_of("POST", f"/v2/models/{model}/infer", headers) + body)
                # The run of an earlier test, whose caller is gone, may be in the way of the first.
                wait_until(
                    lambda m=model, n=waiting: (
                        gauge(server, "in_flight", m) == n + 1
                        and gauge(server, "queue_depth", m) == n
                    ),
                    30,
                    f"{waiting} of them wait",
                )
        yield


def test_429_a_full_queue(server: RunningServer) -> None:
    """One runs and one waits: the next is told at once when to come back; others are served."""
    with stuck(server, "endless"):
        answer = server.data("POST", "/v2/models/endless/infer", json=FOREVER, headers=ID)
        check_error(answer, 429, "1 of 1 rows", "endless/1", server=server, version=1)
        assert int(answer.headers["retry-after"]) >= 1
        answer = server.data(
            "POST", "/v1/models/endless:predict", json={"inputs": [2**62]}, headers=ID
        )
        check_error(answer, 429, "1 of 1 rows", "endless/1", server=server, version=1)
        assert server.data("POST", INFER, json=GOOD).status_code == 200


def test_429_a_full_worker(server: RunningServer) -> None:
    """A worker holds so many requests and no more, whatever model they are for."""
    with stuck(server, "endless", "endless-too"):
        answer = server.data("POST", INFER, json=GOOD, headers=ID)
        check_error(answer, 429, "in flight", "4 of 4", server=server)
        assert int(answer.headers["retry-after"]) >= 1
        # Health and metadata hold no place.
        assert server.data("GET", "/v2/health/live").status_code == 200
        assert server.data("GET", "/v2/models/id32").status_code == 200
    wait_until(lambda: gauge(server, "in_flight") == 0, 30, "none is in flight")
    assert server.data("POST", INFER, json=GOOD).status_code == 200


# 431


def test_431_a_head_that_is_too_large(server: RunningServer) -> None:
    """One long header, many short ones or a long path, on both planes."""
    for url in (server.url, server.admin_url):
        for path, headers in (
            ("/v2", {"x-long": "a" * 17_000}),
            ("/v2", {f"x-{i}": "a" * 100 for i in range(200)}),
            ("/v2/" + "a" * 17_000, {}),
        ):
            with connected(url) as client:
                client.sendall(head_of("GET", path, {"host": "localhost", **ID, **headers}))
                answer = read_answer(client.stream)
                check_error(answer, 431, "max_header_bytes 16384", server=server,
                            request_id=None)  # fmt: skip


# 500


def test_500_the_graph_itself_failed(server: RunningServer) -> None:
    """What the graph broke on is said, and the next request is fine."""
    for path, body in (
        ("/v2/models/fails/infer", floats([200.0], (1,))),
        ("/v1/models/fails:predict", {"inputs": [200.0]}),
    ):
        answer = server.data("POST", path, json=body, headers=ID)
        check_error(answer, 500, "Resize", "greater than 0", server=server, version=1)
        good = json.loads(json.dumps(body).replace("200", "2"))
        assert server.data("POST", path, json=good).status_code == 200
    assert any(record.get("request_id") == REQUEST_ID for record in server.logs)


def test_500_damage_on_the_disk(server: RunningServer) -> None:
    """A flipped byte is found by the load, which names the object; the version ends FAILED."""
    server.push("damaged", graphs.gemm(seed=9), is_loading=False)
    version = server.expect(server.admin("GET", "/admin/v1/models/damaged/versions/1"))
    digest = package_onnx("damaged", graphs.gemm(seed=9)).manifest.graph
    path = server.store / "objects" / digest.removeprefix("sha256:")
    flip(path)
    answer = server.load("damaged", 1)
    check_error(answer, 500, digest, server=server, request_id=None)
    version = server.expect(server.admin("GET", "/admin/v1/models/damaged/versions/1"))
    assert version["state"] == "FAILED"
    assert digest in version["reason"]
    server.expect(server.admin("DELETE", "/admin/v1/models/damaged/versions/1"))
    server.expect(server.admin("POST", "/admin/v1/gc"))


def flip(path: Path) -> None:
    """Turn one bit of a file over."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)


# 503


@pytest.mark.parametrize(
    ("method", "path", "words", "version"),
    [
        ("POST", "/v2/models/id32/versions/2/infer", ["id32", "2", "UNLOADED"], 2),
        ("POST", "/v1/models/id32/versions/2:predict", ["id32", "2", "UNLOADED"], 2),
        ("POST", "/v2/models/never-loaded/infer", ["never-loaded"], None),
        ("POST", "/v1/models/never-loaded:predict", ["never-loaded"], None),
        ("GET", "/v2/models/id32/versions/2", ["id32", "2", "UNLOADED"], 2),
        ("GET", "/v2/models/id32/versions/2/config", ["id32", "2", "UNLOADED"], 2),
        ("GET", "/v2/models/id32/versions/2/ready", ["id32", "2", "UNLOADED"], 2),
        ("GET", "/v2/models/never-loaded/ready", ["never-loaded"], None),
    ],
)
def test_503_known_but_not_ready(
    server: RunningServer, method: str, path: str, words: list[str], version: int | None
) -> None:
    """The state and the reason are said."""
    answer = server.data(method, path, json=GOOD if method == "POST" else None, headers=ID)
    check_error(answer, 503, *words, server=server, version=version)


# 504


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/v2/models/endless/infer", FOREVER, {"x-request-timeout-ms": "30"}),
        ("/v2/models/endless/infer", {**FOREVER, "parameters": {"timeout": 30_000}}, {}),
        ("/v1/models/endless:predict", {"inputs": [2**62]}, {"x-request-timeout-ms": "30"}),
    ],
)
def test_504_a_deadline_that_passed(
    server: RunningServer, path: str, body: Any, headers: dict[str, str]
) -> None:
    """The caller is freed at its own deadline, long before max_run_s."""
    wait_until(lambda: gauge(server, "in_flight") == 0, 30, "none is in flight")
    answer = server.data("POST", path, json=body, headers={**ID, **headers})
    check_error(answer, 504, "endless/1", "ms", server=server, version=1)
    assert answer.elapsed.total_seconds() < 3
    assert server.data("POST", INFER, json=GOOD).status_code == 200


def test_504_a_run_without_end(server: RunningServer) -> None:
    """A loop that never ends is ended at max_run_s, in the same worker, which serves on."""
    pids = server.worker_pids()
    answer = server.data("POST", "/v2/models/endless/infer", json=FOREVER, headers=ID)
    check_error(answer, 504, "endless/1", "max_run_s 4", server=server, version=1)
    short = json.loads(json.dumps(FOREVER).replace(str(2**62), "3"))
    answer = server.data("POST", "/v2/models/endless/infer", json=short)
    assert answer.json()["outputs"][0]["data"] == [3.0]
    assert server.worker_pids() == pids


# 507


def test_507_over_the_memory_budget(server: RunningServer) -> None:
    """The load is refused with the plan, before it costs anything; what serves goes on."""
    server.push("large", graphs.big(80), is_loading=False)
    answer = server.admin(
        "POST", "/admin/v1/models/large/versions/1:load", params={"wait": 60}, headers=ID
    )
    document = check_error(answer, 507, "large/1", "budget", server=server)
    assert document["plan"]["fits"] is False
    assert document["plan"]["needs_bytes"] >= 80 * MIB
    assert document["plan"]["free_bytes"] < 64 * MIB
    answer = server.admin("POST", "/v2/repository/models/large/load", headers=ID)
    check_error(answer, 507, "large/1", "budget", server=server)
    assert server.data("POST", INFER, json=GOOD).status_code == 200
    server.expect(server.admin("DELETE", "/admin/v1/models/large/versions/1"))


# Whatever is sent


STRANGE_PATHS = (
    "*", "//v2", "http://x/v2", "/v2/models/%ff/infer", "/v2/models/%00", "/v2/models/id32/",
    "/v2/models/é", "/v2/models/%F0%9F%98%80", "/v2/models/id32?x=%ff", "/v2/models/id32/versions/",
    "/v2/models/id32/versions/99999999999999999999", "/v1/models/id32:explain",
    "/v1/models/:predict", "/v1/models/id32/versions/99999999999999999999:predict",
    "/docs/static/nothing", "/docs/static/../../x", "/docs/static/%2e%2e/%2e%2e/etc/passwd",
    "/admin/v1/models/%ff", "/admin/v1/models/id32/versions/%00:load", "/admin/v1/blobs/%ff",
    "/admin/v1/models/id32/versions/99999999999999999999:load", "/admin/v1/operations/%ff",
    "/admin/v1/models/id32/versions/1:load?reason=%ff%00", "/admin/v1/events?model=%ff",
    "/admin/v1/models/id32/versions/1:load?wait=nan", "/admin/v1/models/id32/aliases/%ff",
)  # fmt: skip
STRANGE_HEADERS: tuple[dict[str, str], ...] = (
    {"content-length": "abc"}, {"content-length": "-1"}, {"content-length": "2, 2"},
    {"content-length": "9" * 30}, {"transfer-encoding": "x"},
    {"transfer-encoding": "gzip, chunked"}, {"if-match": "é"}, {"expect": "nothing"},
    {"transfer-encoding": "chunked", "content-length": "2"}, {"content-type": "application/json;"},
    {"content-encoding": "gzip", "inference-header-content-length": "0"}, {"host": ""},
    {"accept-encoding": "gzip;q=abc, *;q=-1"}, {"x-request-id": "a b"}, {"x-request-id": "é"},
    {"authorization": "é"},
)  # fmt: skip


def test_no_path_and_no_verb_breaks_the_server(server: RunningServer) -> None:
    """Whatever is asked for, the answer is no 5xx; each error is JSON and has a request id."""
    before = len([record for record in server.logs if record["level"] == "error"])
    headers = {"host": "localhost", "content-length": "2"}
    for url in (server.url, server.admin_url):
        for path in STRANGE_PATHS:
            for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE", "PATCH"):
                with connected(url) as client:
                    client.sendall(head_of(method, path, headers) + b"{}")
                    answer = read_answer(client.stream, has_body=method != "HEAD")
                check_no_break(answer, f"{method} {path}", has_body=method != "HEAD")
    assert len([record for record in server.logs if record["level"] == "error"]) == before


def test_no_header_breaks_the_server(server: RunningServer) -> None:
    """The same for headers that make no sense."""
    before = len([record for record in server.logs if record["level"] == "error"])
    for url, method, path in (
        (server.url, "POST", INFER),
        (server.admin_url, "POST", ADMIN_ID32 + "/versions/1:load"),
        (server.admin_url, "PUT", ADMIN_ID32 + "/route"),
        (server.admin_url, "PUT", "/admin/v1/blobs/sha256:" + "0" * 64),
    ):
        for more in STRANGE_HEADERS:
            length = {} if {"content-length", "transfer-encoding"} & set(more) else {
                "content-length": "2"}  # fmt: skip
            with connected(url) as client:
                headers = {"host": "localhost", **length, **more}
                client.sendall(head_of(method, path, headers) + b"{}")
                check_no_break(read_answer(client.stream), f"{method} {path} {more}")
    assert len([record for record in server.logs if record["level"] == "error"]) == before


def check_no_break(answer: Answer, what: str, *, has_body: bool = True) -> None:
    assert answer.status < 500, f"{what}: {answer.text}"
    assert answer.headers["x-request-id"], what
    if answer.status >= 400 and has_body:
        assert isinstance(answer.json()["error"], str), what


# The table


def test_the_table_is_covered() -> None:
    """Each status that an error can have is tested here; 499 has nobody to read it."""
    tested = {int(name[5:8]) for name in globals() if re.match(r"test_\d{3}", name)}
    assert tested == set(STATUS.values()) - {499}


def test_what_ends_well_has_the_headers_too(server: RunningServer) -> None:
    """Request id and version on a good answer, also where the client sent no id."""
    asked: list[tuple[str, str, Any]] = [
        ("POST", INFER, GOOD),
        ("POST", PREDICT, {"instances": [[1, 2, 3, 4]]}),
        ("GET", "/v2/models/id32", None),
        ("GET", "/v2/models/id32/config", None),
        ("GET", "/v2/models/id32/ready", None),
    ]
    for method, path, body in asked:
        answer: httpx.Response = server.data(method, path, json=body, headers=ID)
        assert answer.status_code == 200
        assert answer.headers["x-request-id"] == REQUEST_ID
        assert answer.headers["x-ramrack-version"] == "1"
        assert answer.headers["x-ramrack-digest"].startswith("sha256:")
        first, second = (server.data(method, path, json=body) for _ in range(2))
        assert first.headers["x-request-id"] != second.headers["x-request-id"]
    for call in (server.data, server.admin):
        assert call("GET", "/v2/health/live", headers=ID).headers["x-request-id"] == REQUEST_ID
