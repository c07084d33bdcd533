"""Changes of traffic in real processes: a worker that hangs, a file applied, a parent killed."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.cli import main
from tests import graphs
from tests.process.server import ROOT, RunningServer, process_exists, running_server

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(120)]
ROUTE = "/admin/v1/models/id32/route"
FILE = """
[models.id32]
route = { 1 = 40, 2 = 60 }
shadow = [3]
aliases = { prod = 1 }
settings = { queue_rows = 77 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traffic")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with running_server(folder, workers=2) as running:
        for number in range(3):
            graph = graphs.id32()
            graph.graph.doc_string = str(number)
            graph.graph.name = f"version{number}"
            assert running.push("id32", graph) == number + 1
        yield running


def whole(version: int) -> dict[str, object]:
    return {"split": [{"version": version, "weight": 100}], "shadow": []}


def test_the_documented_commands_do_what_they_are_said_to_do(
    server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Every command of the page, one after the other, prints what stands below it."""
    page = (ROOT / "docs" / "ADMIN_API.md").read_text().partition("## The same by command")[2]
    session, models_file = re.findall(r"```(?:console|toml)\n(.*?)```", page, re.DOTALL)[:2]
    monkeypatch.setenv("RAMRACK_URL", server.url)
    monkeypatch.setenv("RAMRACK_ADMIN_URL", server.admin_url)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.json").write_text("[[1, 2, 3, 4]]")
    (tmp_path / "models.toml").write_text(models_file.replace("fraud", "id32"))
    steps = session.replace("fraud", "id32").split("$ ramrack ")[1:]
    assert len(steps) == 8
    for step in steps:
        command, _, wanted = step.partition("\n")
        code = main(shlex.split(command))
        captured = capsys.readouterr()
        said = captured.err if wanted.startswith("ramrack: ") else captured.out
        assert code == (1 if wanted.startswith("ramrack: ") else 0), captured.err
        pattern = re.escape(wanted.strip()).replace("…", "[\\s\\S]*?")
        assert re.fullmatch(pattern, said.strip()), f"{command}:\n{said}"


def test_change_of_route_with_a_hanging_worker_holds_everywhere(server: RunningServer) -> None:
    """It is answered when the worker was replaced, and then nobody routes by the old state."""
    server.expect(server.admin("PUT", ROUTE, json=whole(1)))
    stopped = server.worker_pids()[1]
    os.kill(stopped, signal.SIGSTOP)

    answer = server.admin("PUT", ROUTE, json=whole(2))

    assert server.expect(answer)["split"] == whole(2)["split"]
    assert not process_exists(stopped)
    server.wait_until_ready()
    versions = {server.infer("id32", [[1.0] * 4]).headers["x-ramrack-version"] for _ in range(40)}
    assert versions == {"2"}
    events = server.expect(server.admin("GET", "/admin/v1/events?limit=1000"))["events"]
    assert "taken_back" not in [event["kind"] for event in events]


def test_applied_file_survives_the_death_of_the_parent(
    server: RunningServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything is as the file says after it, nothing is left to do, also after a crash."""
    path = folder / "models.toml"
    path.write_text(FILE)
    arguments = ["apply", "-f", str(path), "--json", "--admin-url"]

    assert main([*arguments, server.admin_url]) == 0
    assert len(json.loads(capsys.readouterr().out)["changes"]) == 3
    assert main([*arguments, server.admin_url]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == []

    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    with running_server(folder, workers=1) as again:
        assert main([*arguments, again.admin_url]) == 0
        assert json.loads(capsys.readouterr().out)["changes"] == []
        back = again.expect(again.admin("POST", ROUTE + ":rollback"))
        assert {key: back[key] for key in ("split", "shadow")} == whole(2)
