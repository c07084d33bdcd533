"""The console's stream on a real server: what workers counted is in it, and a stop ends it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from tests import graphs
from tests.process.server import running_server

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(180)]


def looks_of(lines: Iterator[str]) -> Iterator[dict]:
    """The documents of a stream's looks, as they come."""
    kind = ""
    for line in lines:
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: ") and kind == "look":
            yield json.loads(line.removeprefix("data: "))


def test_stream_shows_requests_of_workers_and_ends_with_the_server(tmp_path):
    """Rates come from the workers' counters; a stop ends the stream as an answer ends, not cut."""
    with running_server(tmp_path) as server:
        server.push("m", graphs.id32())
        with (
            httpx.Client(base_url=server.admin_url, trust_env=False, timeout=90) as client,
            client.stream("GET", "/admin/v1/console/stream") as answer,
        ):
            looks = looks_of(answer.iter_lines())
            first = next(looks)
            for _ in range(20):
                server.expect(server.infer("m", [[1.0, 2.0, 3.0, 4.0]]))
            for look in looks:
                rates = look.get("rates", {}).get("models", {}).get("m")
                if rates and rates["requests_per_s"] > 0:
                    break
            server.signal(15)
            for _ in looks:
                pass
        assert server.wait() == 0

    (model,) = first["models"]["models"]
    assert model["versions"][0]["state"] == "READY"
    assert rates["versions"]["1"]["requests_per_s"] > 0
    assert rates["p99_s"] > 0
