"""What the data plane refuses, and the words and the status of each refusal."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from models.errors import InputRefused, RunFailed
from registry.lifecycle import State
from serving.data.batcher import BatchLimits
from serving.settings import Settings
from tests.fakes import FakeServable
from tests.unit.serving.data.http_calls import INFER, PREDICT, error_of, v2
from tests.unit.serving.data.rig import Plane, Served, small, until


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/", 404),
        ("GET", "/v3", 404),
        ("POST", "/v2/repository/models/fraud/load", 404),
        ("GET", "/v2/models/nope", 404),
        ("POST", "/v2/models/nope/infer", 404),
        ("POST", "/v2/models/fraud/versions/4/infer", 404),
        ("POST", "/v2/models/fraud/versions/blue/infer", 404),
        ("POST", "/v1/models/fraud/labels/blue:predict", 404),
        ("GET", "/v1/models/nope", 404),
        ("GET", INFER, 405),
        ("GET", PREDICT, 405),
        ("POST", "/v2/models/fraud", 405),
        ("DELETE", "/v2/health/live", 405),
        ("OPTIONS", INFER, 405),
        ("POST", "/v2/models/stats", 405),
        ("POST", "/docs", 405),
        ("POST", "/openapi.json", 405),
        ("POST", "/v2/models/fraud/versions/010/infer", 400),
        ("POST", "/v2/models/fraud/versions/0/infer", 400),
        ("POST", "/v2/models/fraud/versions/Blue/infer", 400),
        ("POST", "/v2/models/fraud/versions/99999999999999999999/infer", 400),
        ("POST", "/v1/models/fraud/versions/blue:predict", 400),
        ("POST", "/v1/models/fraud/labels/3:predict", 400),
        ("GET", "/v2/models/%2e%2e", 400),
        ("GET", "/v2/models/" + "a" * 300, 400),
        ("GET", "/v2/models/fr%C3%A4ud", 400),
        ("GET", "/v2/models/fraud%00", 400),
        ("POST", "/v2/models/%2e%2e/infer", 400),
    ],
)
async def test_paths_and_verbs_that_do_not_exist(
    plane: Plane, client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    """Each is a JSON error of its own code; a wrong verb says which one is right."""
    plane.add()
    body = v2(1) if "infer" in path else {"instances": [[1, 2, 3, 4]]}
    response = await client.request(method, path, json=body)
    assert (response.status_code, bool(error_of(response))) == (status, True)
    assert ("allow" in response.headers) == (status == 405)


async def test_head_is_a_405_without_a_body(client: httpx.AsyncClient) -> None:
    """The verb is not offered, and its answer has no body by definition."""
    response = await client.head("/v2/health/live")
    assert (response.status_code, response.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (b"", {}, "JSON"),
        (b"{", {}, "JSON"),
        (b'{"inputs":[]}', {}, "input 'x' is missing"),
        (json.dumps(v2(1)).encode(), {"Inference-Header-Content-Length": "-1"}, "'-1'"),
        (json.dumps(v2(1)).encode(), {"Inference-Header-Content-Length": "9999"}, "9999"),
        (json.dumps(v2(1)).encode(), {"x-request-timeout-ms": "0"}, "use 1 to 3600000"),
        (json.dumps(v2(1)).encode(), {"x-request-timeout-ms": "1.5"}, "'1.5'"),
        (b"not gzip", {"content-encoding": "gzip"}, "gzip"),
        (
            gzip.compress(json.dumps(v2(1)).encode(), mtime=0)[:-6],
            {"content-encoding": "gzip"},
            "cut off",
        ),
    ],
)
async def test_bad_input_is_a_400_that_names_it(
    plane: Plane, client: httpx.AsyncClient, body: bytes, headers: dict[str, str], message: str
) -> None:
    """The message names field and value, and the headers say which version would have answered."""
    plane.add()
    response = await client.post(INFER, content=body, headers=headers)
    assert response.status_code == 400
    assert message in error_of(response)
    if "content-encoding" not in headers:
        assert response.headers["x-ramrack-version"] == "3"


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "text/xml"},
        {"content-type": "application/x-protobuf"},
        {"content-type": "application/python-pickle"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-encoding": "br"},
        {"content-encoding": "gzip, gzip"},
    ],
)
async def test_other_types_and_encodings_are_a_415(
    plane: Plane, client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    """F08 too: what is not JSON or tensors is not even read."""
    plane.add()
    response = await client.post(INFER, content=b"x", headers=headers)
    assert response.status_code == 415
    assert error_of(response)


async def test_a_version_that_does_not_answer_is_a_503_with_its_state(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """Known but not ready, with state, reason, and which version was meant."""
    plane.add_known("fraud", 5, State.FAILED, "operator Foo does not exist")
    for method, path in (
        ("POST", "/v2/models/fraud/versions/5/infer"),
        ("POST", "/v1/models/fraud/versions/5:predict"),
        ("GET", "/v2/models/fraud/versions/5"),
        ("GET", "/v2/models/fraud/versions/5/config"),
        ("GET", "/v2/models/fraud/versions/5/ready"),
    ):
        response = await client.request(method, path, json=v2(1))
        assert response.status_code == 503
        assert error_of(response).endswith("version 5 is FAILED: operator Foo does not exist")
        if method == "POST":
            assert response.headers["x-ramrack-version"] == "5"
    response = await client.post(INFER, json=v2(1))
    assert (response.status_code, "has no route" in error_of(response)) == (503, True)


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (InputRefused("index 999 is out of range"), 400, "index 999 is out of range"),
        (RunFailed("the graph divides by zero"), 500, "the graph divides by zero"),
        (ValueError("secret"), 500, "the run of fraud/3 failed"),
    ],
)
async def test_what_the_model_says_reaches_the_caller(
    plane: Plane, client: httpx.AsyncClient, error: Exception, status: int, message: str
) -> None:
    """The graph's refusal is the caller's 400, its failure a 500, a bug a 500 without its text."""

    def fail(_: object) -> list[Any]:
        raise error

    plane.add(servable=FakeServable(fail))
    response = await client.post(INFER, json=v2(1))
    assert (response.status_code, error_of(response)) == (status, message)
    assert response.headers["x-ramrack-version"] == "3"


async def test_an_unplanned_error_is_a_500_with_an_id_and_no_details(
    plane: Plane, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets the id under which the log has the rest."""

    def broken(_model: str, _version: int) -> dict[str, Any]:
        raise ZeroDivisionError("/secret/path")

    plane.data_plane.statistics = broken
    plane.add()
    response = await client.get("/v2/models/stats", headers={"x-request-id": "find-me"})
    assert response.status_code == 500
    assert error_of(response).startswith("internal error: the log has the details")
    assert response.headers["x-request-id"] == "find-me"
    assert "/secret/path" in caplog.text
    assert [record.__dict__.get("request_id") for record in caplog.records] == ["find-me"]


@asynccontextmanager
async def full_queue(plane: Plane, client: httpx.AsyncClient) -> AsyncIterator[None]:
    """Let one request run and two rows wait, which is all that may; at the end all are answered."""
    servable = FakeServable(hold=True)
    version = plane.add(servable=servable, limits=BatchLimits(2, 32, 60.0))
    inside = [asyncio.create_task(client.post(INFER, json=v2(0)))]
    await asyncio.to_thread(servable.entered.wait, 5)
    inside.append(asyncio.create_task(client.post(INFER, json=v2(1, 2))))
    await until(lambda: version.counters.queue_depth == 2)
    yield
    servable.release()
    assert [(await task).status_code for task in inside] == [200, 200]


def is_full(response: httpx.Response) -> bool:
    """Whether it is the 429 with the numbers, and says when to come back."""
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    return error_of(response).startswith("queue full: 2 of 2 rows for fraud/3")


async def test_a_full_queue_is_a_429_with_retry_after(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """G10: refused at once, with the numbers, while those inside are answered."""
    async with full_queue(plane, client):
        assert is_full(await client.post(INFER, json=v2(3)))


async def test_a_full_queue_refuses_before_the_body_is_looked_at(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """What is refused in an overload must cost as little as can be; then all is as before."""
    async with full_queue(plane, client):
        assert (await client.post(INFER, content=b"{")).status_code == 400
        assert is_full(await client.post(INFER, json=v2(3)))
        assert is_full(await client.post(INFER, content=b"{"))
    assert (await client.post(INFER, content=b"{")).status_code == 400
    assert (await client.post(INFER, json=v2(3))).status_code == 200


@pytest.mark.parametrize("where", ["header", "parameter", "both"])
async def test_a_deadline_that_passes_is_a_504(
    plane: Plane, client: httpx.AsyncClient, where: str
) -> None:
    """Header in milliseconds, parameter in microseconds; the shorter one counts."""
    servable = FakeServable(hold=True)
    plane.add(servable=servable)
    headers = {
        "header": {"x-request-timeout-ms": "20"},
        "parameter": {},
        "both": {"x-request-timeout-ms": "3000000"},
    }[where]
    body = v2(1) if where == "header" else v2(1, parameters={"timeout": 20_000})
    response = await client.post(INFER, json=body, headers=headers)
    assert response.status_code == 504
    assert error_of(response).startswith("no answer of fraud/3 after ")
    source = "header x-request-timeout-ms" if where == "header" else "parameter timeout"
    assert error_of(response).endswith(f": the deadline was 20 ms ({source})")
    servable.release()


async def test_the_deadline_of_a_request_that_names_none_is_told_with_its_setting(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """The limit is what the setting says, not how long it took until somebody looked."""
    servable = FakeServable(hold=True)
    plane.add(servable=servable).timeout_ns = 15_500_000
    response = await client.post(INFER, json=v2(1))
    assert response.status_code == 504
    assert error_of(response).endswith(
        "the deadline was 15.5 ms (setting timeout_ms of the model or the server)"
    )
    servable.release()


class TestSmallLimits:
    """With bounds that a test can reach."""

    @pytest.fixture
    def settings(self) -> Settings:
        return small(
            Settings(), max_body_bytes=1000, max_in_flight=1, body_timeout_s=0.1,
            max_output_bytes=64, max_run_s=0.05,
        )  # fmt: skip

    async def test_e11_a_body_that_is_announced_too_large_is_never_read(
        self, plane: Plane, client: httpx.AsyncClient
    ) -> None:
        """413 by the Content-Length alone."""
        plane.add()
        pulled = 0

        async def body() -> AsyncIterator[bytes]:
            nonlocal pulled
            pulled += 1
            yield b"x"

        response = await client.post(INFER, content=body(), headers={"content-length": "1001"})
        assert response.status_code == 413
        assert error_of(response) == "body: 1001 bytes, at most 1000 are allowed"

    async def test_e11_a_body_without_a_length_is_cut_at_the_limit(
        self, plane: Plane, client: httpx.AsyncClient
    ) -> None:
        """413 as soon as it is too much."""
        plane.add()

        async def body() -> AsyncIterator[bytes]:
            for _ in range(11):
                yield b" " * 100

        response = await client.post(INFER, content=body())
        assert (response.status_code, "1000" in error_of(response)) == (413, True)

    @pytest.mark.parametrize("encoding", ["gzip", "deflate"])
    async def test_f10_a_body_that_unfolds_too_far_is_a_413(
        self, plane: Plane, client: httpx.AsyncClient, encoding: str
    ) -> None:
        """The limit counts decoded bytes too."""
        plane.add()
        plain = b" " * 50_000
        body = gzip.compress(plain, mtime=0) if encoding == "gzip" else zlib.compress(plain)
        response = await client.post(INFER, content=body, headers={"content-encoding": encoding})
        assert (response.status_code, "1000" in error_of(response)) == (413, True)

    async def test_a_body_that_does_not_come_is_a_408(self, plane: Plane, served: Served) -> None:
        """The connection ends with it, for the rest of the body would be taken for a request."""
        plane.add()
        connection = await served.connect()
        head = f"POST {INFER} HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n"
        await connection.send(head.encode() + b"{")
        response = await connection.response()
        assert (response.status, response.headers["connection"]) == (408, "close")
        assert json.loads(response.body)["error"] == "body: not complete within body_timeout_s 0.1"

    async def test_too_many_requests_in_flight_is_a_429(
        self, plane: Plane, client: httpx.AsyncClient
    ) -> None:
        """Refused before its body is parsed; the one inside is answered."""
        servable = FakeServable(hold=True)
        plane.add(servable=servable)
        inside = asyncio.create_task(client.post(INFER, json=v2(0)))
        await asyncio.to_thread(servable.entered.wait, 5)
        response = await client.post(INFER, content=b"{")
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
        assert error_of(response) == "requests in flight: 1 of 1 in this worker"
        servable.release()
        assert (await inside).status_code == 200
        assert plane.data_plane.in_flight == 0

    async def test_an_answer_over_the_limit_is_a_413(
        self, plane: Plane, client: httpx.AsyncClient
    ) -> None:
        """A small request cannot demand a huge answer."""
        plane.add()
        assert (await client.post(INFER, json=v2(1, 2, 3, 4))).status_code == 200
        response = await client.post(INFER, json=v2(1, 2, 3, 4, 5))
        assert response.status_code == 413
        assert error_of(response).startswith("answer: the outputs take 80 bytes, at most 64")

    async def test_f16_a_stuck_run_is_a_504_and_the_version_goes_on(
        self, plane: Plane, client: httpx.AsyncClient
    ) -> None:
        """It is ended at the version's own max_run_s."""
        servable = FakeServable(hold=True)
        plane.add(servable=servable, limits=BatchLimits(8, 8, 0.05))
        response = await client.post(INFER, json=v2(1))
        assert response.status_code == 504
        assert error_of(response) == (
            "the run of fraud/3 was ended: it took longer than max_run_s 0.05"
        )
        assert (await client.post(INFER, json=v2(2))).status_code == 200
