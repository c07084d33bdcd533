"""Errors of requests that are wrong, whatever the server is at."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests import graphs
from tests.contract.errors.calls import ADMIN_ID32, GOOD, ID, INFER, PREDICT, floats
from tests.contract.wire import REQUEST_ID, check_error, connected, head_of, read_answer
from tests.process.server import RunningServer

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]


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
