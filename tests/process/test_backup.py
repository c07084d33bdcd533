"""A backup of a store that a server holds and changes, and a server on what was restored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import graphs
from tests.cases.rig import ROW, ramrack, steady_traffic
from tests.process.server import running_server

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_restored_store_serves_what_the_other_one_served(tmp_path: Path) -> None:
    """Route, alias and what was loaded come back; the server that was copied noticed nothing."""
    with running_server(tmp_path / "a") as server:
        server.push("witness", graphs.id32())
        server.push("table", graphs.gath())
        server.push("table", graphs.gath(rows=20))
        assert ramrack(server, "alias", "table", "candidate", "2").returncode == 0
        with steady_traffic(server):
            done = ramrack(server, "backup", tmp_path / "copy", "--store", server.store)
        assert done.returncode == 0, done.stderr
        assert "snapshot 1 of " in done.stdout
        refused = ramrack(server, "restore", tmp_path / "copy", "--store", server.store)
        assert refused.returncode == 1
        assert f"the folder {server.store} is not empty" in refused.stderr
        done = ramrack(server, "restore", tmp_path / "copy", "--store", tmp_path / "b" / "store")
        assert done.returncode == 0, done.stderr
    with running_server(tmp_path / "b") as server:
        assert server.infer("witness", [ROW]).json()["outputs"][0]["data"] == ROW
        versions = server.expect(server.admin("GET", "/admin/v1/models/table"))["versions"]
        assert [(v["version"], v["state"], v["aliases"]) for v in versions] == [
            (1, "READY", []), (2, "READY", ["candidate"]),
        ]  # fmt: skip
