"""The data plane's application: every path, every documented error, and its documentation."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import threading
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from models.errors import InputRefused, RunFailed
from models.signature import Signature, TensorSpec
from registry.lifecycle import State
from serving.data.batcher import BatchLimits
from serving.settings import Settings
from tests.fakes import FakeServable
from tests.unit.serving.data.rig import DIGEST, Plane, Served, small, until

INFER = "/v2/models/fraud/infer"
PREDICT = "/v1/models/fraud:predict"


def v2(*rows: float, **more: Any) -> dict[str, Any]:
    """Return a V2 request with a row of four equal numbers for each value."""
    data = [value for row in rows for value in [row] * 4]
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(rows), 4], "data": data}
    return {"inputs": [tensor], **more}


def error_of(response: httpx.Response) -> str:
    """Return the message of an error, which is all that its body holds."""
    document = response.json()
    assert list(document) == ["error"]
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    text: str = document["error"]
    return text


# What is answered


async def test_a_v2_request_is_answered_by_the_routed_version(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """The answer has the outputs, the id that was sent, and says which version computed it."""
    plane.add()
    response = await client.post(INFER, json=v2(1, 2, id="a-1"), headers={"x-request-id": "r-1"})
    assert response.status_code == 200
    assert response.json() == {
        "id": "a-1",
        "model_name": "fraud",
        "model_version": "3",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [2, 4], "data": [1.0] * 4 + [2.0] * 4}
        ],
    }
    assert response.headers["x-ramrack-version"] == "3"
    assert response.headers["x-ramrack-digest"] == DIGEST
    assert response.headers["x-request-id"] == "r-1"


@pytest.mark.parametrize("selector", ["3", "stable", "latest"])
async def test_a_version_is_named_by_number_or_alias(
    plane: Plane, client: httpx.AsyncClient, selector: str
) -> None:
    """Number, alias and latest all reach version 3 although 2 is routed."""
    plane.aliases["fraud"] = {"stable": 3}
    plane.add(version=3)
    plane.add(version=2)
    response = await client.post(f"/v2/models/fraud/versions/{selector}/infer", json=v2(1))
    assert response.json()["model_version"] == "3"


@pytest.mark.parametrize(
    ("path", "version"),
    [(PREDICT, "2"), ("/v1/models/fraud/versions/3:predict", "3"),
     ("/v1/models/fraud/labels/stable:predict", "3")],
)  # fmt: skip
async def test_v1_rows_are_answered_on_all_three_paths(
    plane: Plane, client: httpx.AsyncClient, path: str, version: str
) -> None:
    """Rows in, predictions out; the version is in the header."""
    plane.aliases["fraud"] = {"stable": 3}
    plane.add(version=3)
    plane.add(version=2)
    response = await client.post(path, json={"instances": [[1, 2, 3, 4]]})
    assert response.json() == {"predictions": [[1.0, 2.0, 3.0, 4.0]]}
    assert response.headers["x-ramrack-version"] == version


async def test_binary_tensors_go_in_and_out(plane: Plane, client: httpx.AsyncClient) -> None:
    """The length header splits the body both ways, and the bits survive."""
    plane.add()
    array = np.array([[1.5, np.nan, np.inf, -0.0]], dtype="<f4")
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    head = json.dumps(
        {
            "inputs": [tensor | {"parameters": {"binary_data_size": 16}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    response = await client.post(
        INFER,
        content=head + array.tobytes(),
        headers={"Inference-Header-Content-Length": str(len(head))},
    )
    length = int(response.headers["inference-header-content-length"])
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.content[length:] == array.tobytes()
    assert json.loads(response.content[:length])["model_version"] == "3"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_bodies_are_compressed_both_ways(
    plane: Plane, client: httpx.AsyncClient, encoding: str
) -> None:
    """A compressed request is understood, and a large answer is compressed where it is wanted."""
    plane.add(limits=BatchLimits(4096, 4096, 60.0))
    plain = json.dumps(v2(*range(200))).encode()
    body = gzip.compress(plain, mtime=0) if encoding == "gzip" else zlib.compress(plain)
    headers = {"content-encoding": encoding, "accept-encoding": encoding}
    response = await client.post(INFER, content=body, headers=headers)
    assert response.headers["content-encoding"] == encoding
    assert response.headers["vary"] == "accept-encoding"
    assert response.json()["outputs"][0]["shape"] == [200, 4]
    small_answer = await client.post(INFER, json=v2(1), headers={"accept-encoding": encoding})
    assert "content-encoding" not in small_answer.headers


@pytest.mark.parametrize(
    "content_type",
    [None, "application/json", "application/json; charset=utf-8", "application/octet-stream",
     "application/x-www-form-urlencoded", "text/plain;charset=UTF-8", "application/vnd.x+json"],
)  # fmt: skip
async def test_what_clients_call_their_json_is_accepted(
    plane: Plane, client: httpx.AsyncClient, content_type: str | None
) -> None:
    """tritonclient sends no type, curl -d says form, fetch says text."""
    plane.add()
    headers = {} if content_type is None else {"content-type": content_type}
    response = await client.post(INFER, content=json.dumps(v2(1)), headers=headers)
    assert response.status_code == 200


async def test_a_request_id_is_taken_if_sane_and_made_if_not(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """Every answer has one, errors and documentation too."""
    plane.add()
    for path in ("/v2/health/live", "/nowhere", "/v2/models/none", "/docs"):
        for sent in ("abc-1", "x" * 128):
            response = await client.get(path, headers={"x-request-id": sent})
            assert response.headers["x-request-id"] == sent
        for sent in ("x" * 129, "a b", ""):
            response = await client.get(path, headers={"x-request-id": sent})
            assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])


# What is told of server and models


async def test_the_server_names_only_what_works(client: httpx.AsyncClient) -> None:
    """Load generators read the extensions and poll what is there."""
    document = (await client.get("/v2")).json()
    assert document["name"] == "ramrack"
    assert set(document["extensions"]) == {
        "binary_tensor_data", "classification", "model_configuration", "parameters", "statistics",
    }  # fmt: skip


async def test_ready_waits_for_the_restore_and_lists_what_failed(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """E07: 503 with the reason until what was loaded is back; a FAILED version is listed."""
    plane.is_restored = False
    plane.publish()
    assert (await client.get("/v2/health/live")).json() == {"live": True}
    response = await client.get("/v2/health/ready")
    assert response.status_code == 503
    assert "being restored" in response.json()["error"]
    plane.is_restored = True
    plane.add_known("other", 1, State.FAILED, "operator Foo does not exist")
    response = await client.get("/v2/health/ready")
    assert (response.status_code, response.json()) == (
        200,
        {
            "ready": True,
            "failed": [{"model": "other", "version": 1, "reason": "operator Foo does not exist"}],
        },
    )


class TestReadyRequiresAll:
    """With ready_requires = "all"."""

    @pytest.fixture
    def settings(self) -> Settings:
        return small(Settings(), ready_requires="all")

    async def test_a_failed_version_makes_it_unready(
        self, plane: Plane, client: httpx.AsyncClient
    ) -> None:
        """Who wants that can have it."""
        plane.add_known("other", 1, State.FAILED, "broken")
        response = await client.get("/v2/health/ready")
        assert response.status_code == 503
        assert response.json()["error"] == "1 versions FAILED and ready_requires is 'all'"


async def test_metadata_and_config_of_a_version(plane: Plane, client: httpx.AsyncClient) -> None:
    """Shapes are whole in both, so the batch size is 0; what the signature knows more is told."""
    signature = Signature(
        (TensorSpec("x", "FP32", (-1, 4), columns=("a", "b", "c", "d")),),
        (TensorSpec("label", "BYTES", (-1,), labels=("no", "yes")),),
    )
    plane.add_known("fraud", 9, State.UNLOADED, "never loaded")
    plane.add(version=2)
    plane.add(version=10, signature=signature)
    document = (await client.get("/v2/models/fraud")).json()
    assert document == {
        "name": "fraud",
        "versions": ["2", "10"],
        "platform": "onnxruntime_onnx",
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [-1, 4], "columns": ["a", "b", "c", "d"]}
        ],
        "outputs": [{"name": "label", "datatype": "BYTES", "shape": [-1], "labels": ["no", "yes"]}],
    }
    config = (await client.get("/v2/models/fraud/versions/10/config")).json()
    assert config["max_batch_size"] == 0
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 4]}]
    assert config["output"] == [{"name": "label", "data_type": "TYPE_STRING", "dims": [-1]}]


async def test_lists_states_and_readiness(plane: Plane, client: httpx.AsyncClient) -> None:
    """Index, list, model readiness and the V1 status all see the same state."""
    plane.add_known("fraud", 4, State.LOADING, "loading")
    plane.add_known("other", 1, State.FAILED, "broken")
    plane.add(version=3)
    assert (await client.get("/v2/models")).json() == {"models": ["fraud", "other"]}
    index = [
        {"name": "fraud", "version": "3", "state": "READY", "reason": "loaded"},
        {
            "name": "fraud",
            "version": "4",
            "state": "LOADING",
            "reason": "loading",
        },
        {"name": "other", "version": "1", "state": "UNAVAILABLE", "reason": "broken"},
    ]
    assert (await client.post("/v2/repository/index")).json() == index
    assert (await client.post("/v2/repository/index", json={})).json() == index
    ready = await client.post("/v2/repository/index", json={"ready": True})
    assert ready.json() == index[:1]
    assert (await client.get("/v2/models/fraud/ready")).json() == {"name": "fraud", "ready": True}
    assert (await client.get("/v2/models/fraud/versions/4/ready")).status_code == 503
    status = (await client.get("/v1/models/fraud")).json()
    assert (status["name"], status["ready"]) == ("fraud", True)
    assert [(v["version"], v["state"]) for v in status["model_version_status"]] == [
        ("3", "AVAILABLE"), ("4", "LOADING"),
    ]  # fmt: skip
    failed = (await client.get("/v1/models/other")).json()["model_version_status"][0]
    assert failed["status"] == {"error_code": "INTERNAL", "error_message": "broken"}


async def test_statistics_count_rows_and_runs(plane: Plane, client: httpx.AsyncClient) -> None:
    """The three paths of the statistics extension agree, and all fields are unsigned integers."""
    plane.add()
    for _ in range(3):
        await client.post(INFER, json=v2(1, 2))
    await client.post(INFER, json={"inputs": []})
    for path in ("/v2/models/stats", "/v2/models/fraud/stats", "/v2/models/fraud/versions/3/stats"):
        stats = (await client.get(path)).json()["model_stats"]
        assert [(s["name"], s["version"]) for s in stats] == [("fraud", "3")]
        assert (stats[0]["inference_count"], stats[0]["execution_count"]) == (6, 3)
        numbers = stats[0]["inference_stats"]
        assert (numbers["success"]["count"], numbers["fail"]["count"]) == (3, 1)
        assert min(value for part in numbers.values() for value in part.values()) >= 0


async def test_the_top_leads_to_api_and_documentation(client: httpx.AsyncClient) -> None:
    """Who opens the bare address is told where to go on, and both places are there."""
    answer = await client.get("/")
    assert answer.status_code == 200
    assert (answer.json()["api"], answer.json()["docs"]) == ("/v2", "/docs")
    for path in (answer.json()["api"], answer.json()["docs"]):
        assert (await client.get(path)).status_code == 200


# What is refused


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


async def test_a_full_queue_is_a_429_with_retry_after(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """G10: refused at once, with the numbers, while those inside are answered."""
    servable = FakeServable(hold=True)
    version = plane.add(servable=servable, limits=BatchLimits(2, 32, 60.0))
    inside = [asyncio.create_task(client.post(INFER, json=v2(0)))]
    await asyncio.to_thread(servable.entered.wait, 5)
    inside.append(asyncio.create_task(client.post(INFER, json=v2(1, 2))))
    await until(lambda: version.counters.queue_depth == 2)
    response = await client.post(INFER, json=v2(3))
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    assert error_of(response).startswith("queue full: 2 of 2 rows for fraud/3")
    servable.release()
    assert [(await task).status_code for task in inside] == [200, 200]


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


async def test_g07_a_client_who_leaves_has_its_queued_work_dropped(
    plane: Plane, served: Served
) -> None:
    """A wave of clients that leave costs no run, and all gauges are back at zero."""
    servable = FakeServable(hold=True)
    version = plane.add(servable=servable)
    body = json.dumps(v2(1)).encode()
    data = (
        f"POST {INFER} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )
    patient = await served.connect()
    await patient.send(data)
    await asyncio.to_thread(servable.entered.wait, 5)
    wave = [await served.connect() for _ in range(20)]
    for connection in wave:
        await connection.send(data)
    await until(lambda: version.counters.queue_depth == 20)
    for connection in wave:
        await connection.close()
    await until(lambda: version.counters.in_flight == 1)
    assert version.counters.queue_depth == 0
    servable.release()
    assert (await patient.response()).status == 200
    assert len(servable.runs) == 1
    assert plane.data_plane.in_flight == 0
    assert plane.serving_map.handles("fraud", 3) == 0


@pytest.mark.slow
async def test_g04_ids_are_echoed_to_their_own_requests(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """Of a few hundred concurrent requests each gets its id and its rows back."""
    plane.add(limits=BatchLimits(4096, 64, 60.0))
    responses = await asyncio.gather(
        *(client.post(INFER, json=v2(i, id=f"id-{i}")) for i in range(300))
    )
    for i, response in enumerate(responses):
        document = response.json()
        assert document["id"] == f"id-{i}"
        assert document["outputs"][0]["data"] == [float(i)] * 4


@pytest.mark.slow
async def test_e10_large_bodies_are_decoded_and_encoded_off_the_event_loop(
    plane: Plane, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megabytes of JSON take a thread each way, and health is answered meanwhile."""
    plane.add(limits=BatchLimits(1_000_000, 1, 60.0))
    body = json.dumps(v2(*[0.5] * 200_000)).encode()
    threads: dict[str, set[int]] = {"loads": set(), "dumps": set()}

    def spied(name: str) -> Callable[..., Any]:
        real = getattr(orjson, name)

        def call(value: Any, *args: Any, **options: Any) -> Any:
            found = real(value, *args, **options)
            text = found if name == "dumps" else value
            if isinstance(text, bytes | memoryview) and len(text) > 1_000_000:
                threads[name].add(threading.get_ident())
            return found

        return call

    for name in threads:
        monkeypatch.setattr(orjson, name, spied(name))
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        big = asyncio.create_task(client.post(INFER, content=body))
        while not big.done():
            assert (await client.get("/v2/health/live")).status_code == 200
        assert (await big).status_code == 200
    assert all(found and threading.get_ident() not in found for found in threads.values()), threads


class TestAccessLog:
    """With access_log = "all"."""

    @pytest.fixture
    def settings(self) -> Settings:
        return small(Settings(), access_log="all")

    async def test_every_request_is_logged_once(
        self, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Method, path, status, duration and id, and no body."""
        caplog.set_level("INFO", "serving.web.access_log")
        await client.get("/v2/models/none", headers={"x-request-id": "r-9"})
        (record,) = [r for r in caplog.records if r.name == "serving.web.access_log"]
        logged = record.__dict__
        assert (logged["method"], logged["path"], logged["status"], logged["request_id"]) == (
            "GET", "/v2/models/none", 404, "r-9",
        )  # fmt: skip


# Documentation


async def test_the_docs_page_needs_no_other_host(client: httpx.AsyncClient) -> None:
    """Every address in the page is this server's, and what it names is there."""
    page = (await client.get("/docs")).text
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert addresses
    assert all(address.startswith("/") for address in addresses)
    assert "://" not in page
    for address in addresses:
        assert (await client.get(address)).status_code == 200


async def test_the_openapi_document_is_complete(plane: Plane, client: httpx.AsyncClient) -> None:
    """Every route is in it, every reference resolves, and nothing is named that never happens."""
    document = (await client.get("/openapi.json")).json()
    paths = {
        re.sub(r":segment}", "}", route.path)
        for route in plane.app.routes
        if getattr(route, "include_in_schema", False) and hasattr(route, "methods")
    }
    assert set(document["paths"]) == paths
    assert len(paths) == 27
    names = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document)))
    assert names <= set(document["components"]["schemas"])
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"]
            assert {"405", "431", "500"} <= set(operation["responses"])
            named = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
    codes = set(document["paths"]["/v2/models/{model}/infer"]["post"]["responses"])
    assert codes == {
        "200", "400", "404", "405", "408", "413", "415", "429", "431", "500", "503", "504",
    }  # fmt: skip
