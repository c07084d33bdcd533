"""F8: the wall clock jumps; what waits, expires and is supervised goes by the monotonic one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import graphs
from tests.process.server import ROOT, running_server

ROW = [1.0, 2.0, 3.0, 4.0]
# Where the hour of the day is written down for people, and decides nothing.
WRITES_THE_HOUR = {"registry/events.py", "serving/logs.py", "serving/metrics/counters.py"}


@pytest.mark.process
@pytest.mark.slow
def test_f8_a_clock_that_jumps_harms_nothing(tmp_path: Path) -> None:
    """Loads, answers, deadlines and supervision are as ever; no worker is taken for dead."""
    module = "tests.process.jumping_server"
    with running_server(tmp_path, workers=2, module=module) as server:
        server.push("witness", graphs.id32())
        server.push("stuck", graphs.endless())
        pids = server.worker_pids()
        tensor = {"name": "n", "datatype": "INT64", "shape": [1], "data": [2**62]}
        for _ in range(3):
            assert server.infer("witness", [ROW]).json()["outputs"][0]["data"] == ROW
            answer = server.data(
                "POST", "/v2/models/stuck/infer", json={"inputs": [tensor]},
                headers={"x-request-timeout-ms": "100"},
            )  # fmt: skip
            assert answer.status_code == 504, answer.text
        assert server.expect(server.admin("GET", "/admin/v1/events"))["events"]
        assert server.worker_pids() == pids


def looks(path: Path) -> list[str]:
    """Return the calls of a file that read the wall clock."""
    names = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today"}
    return [
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names
    ]


def test_f8_nothing_is_decided_by_the_wall_clock() -> None:
    """Deadlines, leases and time-outs never look at it."""
    found = {
        str(path.relative_to(ROOT))
        for folder in ("registry", "serving")
        for path in (ROOT / folder).rglob("*.py")
        if looks(path)
    }
    assert found <= WRITES_THE_HOUR


def test_f8_a_look_at_the_wall_clock_is_seen(tmp_path: Path) -> None:
    """The search finds what it is for."""
    (tmp_path / "x.py").write_text("import time\ndeadline = time.time() + 5\n")
    assert looks(tmp_path / "x.py") == ["time.time"]
