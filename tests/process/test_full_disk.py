"""A real server whose disk something else filled to the last byte."""

import os
import signal
from pathlib import Path

import pytest

from tests import graphs
from tests.process.server import RunningServer, infer_body, running_server, wait_until
from tests.tmpfs import fill, small_disk

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
ROW = [1.0, 2.0, 3.0, 4.0]
MODEL = "/admin/v1/models/id32"


def answering_version(server: RunningServer) -> str:
    """Predict without naming a version; return the one that answered."""
    body = infer_body([ROW])
    body["inputs"][0]["name"] = "X"
    answer = server.data("POST", "/v2/models/id32/infer", json=body)
    assert len(server.expect(answer)["outputs"][0]["data"]) == 2
    return answer.headers["x-ramrack-version"]


def test_f05_a_full_disk_stops_neither_predictions_nor_the_way_back(tmp_path: Path) -> None:
    """Route, rollback, alias, unload, rm, gc and a restart go on; an upload gets a 507."""
    with small_disk(tmp_path / "disk", 64 << 20) as disk:
        with running_server(disk, workers=1) as server:
            for seed in (1, 2, 3):
                server.push("id32", graphs.gemm(seed=seed))
            fill(disk)

            def done(method: str, path: str, **options: object) -> dict:
                return server.expect(server.admin(method, MODEL + path, **options))

            assert server.admin("PUT", f"/admin/v1/blobs/sha256:{'0' * 64}").status_code == 507
            split = {"split": [{"version": 2, "weight": 100}]}
            assert done("PUT", "/route", json=split)["split"][0]["version"] == 2
            assert answering_version(server) == "2"
            assert done("POST", "/route:rollback", json={})["split"][0]["version"] == 1
            assert done("PUT", "/aliases/live", json={"version": 1})["version"] == 1
            done("POST", "/versions/3:unload", params={"wait": 30})
            done("DELETE", "/versions/3")
            server.expect(server.admin("POST", "/admin/v1/gc", json={}))
            # A worker that comes back, and a server, need no room.
            (pid,) = server.worker_pids()
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: server.worker_pids() not in ([pid], []), 60, "it is replaced")
            server.wait_until_ready()
            assert answering_version(server) == "1"
            kinds = [
                e["kind"]
                for e in server.admin("GET", "/admin/v1/events", params={"since": 6}).json()[
                    "events"
                ]
            ]
        with running_server(disk, workers=1) as server:
            assert answering_version(server) == "1"
    assert kinds == ["route", "rollback", "alias", "unload", "delete", "gc"]
