"""Every status of the error table comes through HTTP as promised, on both planes where it can.

The name of a test of a status begins with it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.errors import STATUS
from tests.contract.errors.calls import ADMIN_ID32, GOOD, ID, INFER, PREDICT
from tests.contract.wire import REQUEST_ID, Answer, connected, head_of, read_answer
from tests.process.server import RunningServer

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
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


def test_the_table_is_covered() -> None:
    """Each status that an error can have is tested beside this; 499 has nobody to read it."""
    files = Path(__file__).parent.glob("test_*.py")
    names = re.findall(r"^def test_(\d{3})", "".join(map(Path.read_text, files)), re.MULTILINE)
    tested = set(map(int, names))
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
