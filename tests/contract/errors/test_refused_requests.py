"""Errors of requests that are well formed: too large, too slow, not allowed, not to be had now."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models.convert.onnx_file import package_onnx
from tests import graphs
from tests.contract.errors.calls import ADMIN_ID32, GOOD, ID, INFER, MIB, PREDICT, bearer, floats
from tests.contract.wire import REQUEST_ID, check_error, connected, head_of, read_answer
from tests.process.server import RunningServer, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
FOREVER = {"inputs": [{"name": "n", "datatype": "INT64", "shape": [1], "data": [2**62]}]}


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
