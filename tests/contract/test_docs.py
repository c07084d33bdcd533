"""The reference pages say what the code does, no less and no more."""

from __future__ import annotations

import dataclasses
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.routing import Route

from registry.model_settings import RANGES
from serving.cli.app import command
from serving.data.docs import ROUTES
from serving.settings import ENV_OTHER, Settings
from serving.web.access_log import AccessLog
from serving.web.common import install_docs
from serving.web.inherit import HANDOVER

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.mark.slow
@pytest.mark.parametrize(("page", "file"), [("settings", "SETTINGS.md"), ("cli", "CLI.md")])
def test_generated_pages_are_current(page: str, file: str):
    """A page made from code is what scripts/docs would write now."""
    made = subprocess.run(
        [sys.executable, ROOT / "scripts/reference.py", page],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert (DOCS / file).read_text() == made.stdout, f"run scripts/docs to write {file} anew"


def test_every_setting_has_its_row_and_no_row_is_of_another():
    """The table of settings and the fields of Settings are the same set."""
    rows = set(re.findall(r"^\| `(\w+)` \|", (DOCS / "SETTINGS.md").read_text(), re.MULTILINE))
    assert {name for name in rows if name.islower()} == {
        field.name for field in dataclasses.fields(Settings)
    }


def test_every_variable_that_is_no_setting_is_described():
    """What the server and its clients read of the environment beside their settings."""
    table = (DOCS / "SETTINGS.md").read_text().split("## Variables that are not settings")[1]
    described = re.findall(r"`RAMRACK_(\w+)`", table)
    # What a server hands to the next in its place is nobody else's.
    assert sorted(described) == sorted(ENV_OTHER - {HANDOVER.removeprefix("RAMRACK_")})


def test_every_setting_of_a_model_has_its_row_with_its_range():
    """The table on the admin page and what a change of settings takes are the same."""
    page = (DOCS / "ADMIN_API.md").read_text()
    table = page.split("## Settings of a model")[1].split("## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE))
    assert rows == {name: f"{low} to {high}" for name, (low, high) in RANGES.items()} | {
        "batching": "`true`, `false`"
    }


def test_every_field_of_the_access_log_is_described(caplog: pytest.LogCaptureFixture):
    """What a sampled line has beside what every line of the log has."""
    with caplog.at_level(logging.INFO, "serving.web.access_log"):
        AccessLog(1).write("id", "127.0.0.1", "GET", "/", 200, 0.1)
    (line,) = caplog.records
    usual = set(vars(logging.makeLogRecord({}))) | {"message"}
    page = (DOCS / "OPERATING.md").read_text().split("A line of the access log")[1].split("## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(vars(line)) - usual


def test_every_command_is_described():
    """The page has a section for each command and for nothing else."""
    sections = re.findall(r"^## ([\w-]+)$", (DOCS / "CLI.md").read_text(), re.MULTILINE)
    assert sections == list(command().commands)
    wanted = "serve push ls ps load unload alias route rollback rm gc verify predict events doctor"
    assert set(wanted.split()) <= set(sections)


def test_every_path_of_the_data_plane_is_described_and_nothing_else():
    """The table of paths names every route of the application, and no other."""
    table = (DOCS / "DATA_PLANE.md").read_text().split("## Paths")[1].split("\n\n")[1]
    first_cells = [row.split(" | ")[0] for row in table.splitlines()[2:]]
    described = [call for cell in first_cells for call in re.findall(r"`([^`]+)`", cell)]
    served = [f"{doc.method} {plain_path(doc.path)}" for doc in ROUTES]
    assert sorted(described) == sorted([*served, *documentation_paths()])


def documentation_paths() -> list[str]:
    """Return the calls that every plane has beside its own."""
    app = FastAPI(docs_url=None, redoc_url=None)
    install_docs(app)
    return [f"GET {route.path}" for route in app.routes if isinstance(route, Route)]


def plain_path(path: str) -> str:
    """Return a route's path with the letters that the page has for its parameters."""
    letters = {"model": "M", "version": "V", "number": "N", "alias": "A"}
    return re.sub(r"{(\w+):\w+}", lambda match: letters[match[1]], path)


def test_links_between_pages_lead_somewhere():
    """No relative link of README, CHANGELOG or docs is dead."""
    dead = []
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                dead.append(f"{page.relative_to(ROOT)}: {target}")
    assert dead == []
