"""Packed weights under a running server: shared by its workers, damaged, and built again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import graphs
from tests.cases.rig import anonymous_bytes
from tests.process.server import RunningServer, running_server, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
MIB = 1 << 20
ROW = [float(index % 7) / 7 for index in range(1024)]
WEIGHT_BYTES = 16 * MIB


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path, workers=2) as running:
        yield running


def version_of(server: RunningServer) -> dict[str, object]:
    return server.expect(server.admin("GET", "/admin/v1/models/deep/versions/1"))


def mode_of(server: RunningServer) -> str:
    weights = version_of(server)["weights"]
    assert isinstance(weights, dict)
    return str(weights["mode"])


def answers(server: RunningServer) -> list[float]:
    found: list[float] = server.expect(server.infer("deep", [ROW]))["outputs"][0]["data"]
    return found


def test_workers_share_packed_weights_and_survive_their_damage(own_server: RunningServer) -> None:
    """No worker copies them; a truncated object costs its mappers, not the version."""
    server = own_server
    before = [anonymous_bytes(pid) for pid in server.worker_pids()]
    server.push("deep", graphs.layers(1, 2, 3, 4))
    assert mode_of(server) == "packed", version_of(server)["weights"]
    expected = answers(server)
    grown = [
        anonymous_bytes(pid) - old for pid, old in zip(server.worker_pids(), before, strict=True)
    ]
    assert max(grown) < 0.5 * WEIGHT_BYTES, grown

    packed = max(
        (path for path in (server.store / "objects").iterdir() if path.stat().st_size > 5 * MIB),
        key=lambda path: path.name,
    )
    packed.chmod(0o644)
    os.truncate(packed, packed.stat().st_size // 4)
    os.kill(server.worker_pids()[0], signal.SIGKILL)
    wait_until(lambda: mode_of(server) == "mapped", 60, "the damage is noticed")
    server.wait_until_ready()
    assert answers(server) == pytest.approx(expected, rel=1e-4, abs=1e-5)

    server.expect(server.admin("DELETE", "/admin/v1/models/deep/route"))
    server.expect(
        server.admin("POST", "/admin/v1/models/deep/versions/1:unload", params={"wait": 60})
    )
    server.expect(server.load("deep", 1))
    assert mode_of(server) == "packed"
    assert answers(server) == expected
