"""The data plane's application: what is answered, to whom, and where."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import threading
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from serving.data.batcher import BatchLimits
from serving.settings import Settings
from tests.fakes import FakeServable
from tests.unit.serving.data.http_calls import INFER, PREDICT, v2
from tests.unit.serving.data.rig import DIGEST, Plane, Served, small, until


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
