"""A real worker that looks for the next request before its core sleeps."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from serving.machine import read_machine
from serving.workers.cores import plan_workers
from tests import graphs
from tests.process.server import RunningServer, infer_body, running_server

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(120)]
# So long that requests come within it on any machine.
LONGEST_US = 10_000


def polled_s(server: RunningServer) -> float:
    """Return how long the workers polled, whatever came of it."""
    page = server.admin("GET", "/metrics").text
    values = re.findall(r'ramrack_worker_poll_seconds_total\{slot="0",result="\w+"\} (\S+)', page)
    assert len(values) == 2
    return sum(map(float, values))


def test_a_worker_polls_while_one_caller_asks_without_a_pause(tmp_path: Path) -> None:
    """It does where its core is its own; what it took is on the page of metrics."""
    machine = read_machine()
    plan = plan_workers(machine.cores, machine.usable_cores, workers=1, threads=1)
    settings = {"busy_poll_us": LONGEST_US, "threads_per_worker": 1}
    with running_server(tmp_path, settings=settings) as server:
        server.push("id32", graphs.id32())
        assert polled_s(server) == 0
        url = f"{server.url}/v2/models/id32/infer"
        with httpx.Client(trust_env=False, timeout=30) as client:
            for _ in range(200):
                assert client.post(url, json=infer_body([[1.0] * 4])).status_code == 200
        assert (polled_s(server) > 0) is plan.owns_cores
        assert server.stop() == 0
