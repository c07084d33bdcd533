"""The reference pages say what the code does, no less and no more."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from serving.cli.app import command
from serving.metrics.collector import Facts, VersionFacts, render
from serving.metrics.layout import REASONS
from serving.metrics.page import MetricsMemory
from serving.settings import Settings

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


def test_every_command_is_described():
    """The page has a section for each command and for nothing else."""
    sections = re.findall(r"^## (\w+)$", (DOCS / "CLI.md").read_text(), re.MULTILINE)
    assert sections == list(command().commands)
    wanted = "serve push ls ps load unload alias route rollback rm gc verify predict events doctor"
    assert set(wanted.split()) <= set(sections)


def test_every_metric_is_described_and_every_described_one_exists():
    """The first column of the metrics table and the page of the server name the same metrics."""
    page = (DOCS / "METRICS.md").read_text()
    described = set(re.findall(r"`((?:ramrack|process)_\w+)`", page))
    with MetricsMemory.create(1) as memory:
        facts = Facts(versions=[VersionFacts("m", 1, "READY", 1.0)])
        text = render(memory, facts).decode()
    exposed = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    assert described == exposed
    reasons = set(re.findall(r"^\| `([a-z_]+)` \| ", page.split("reasons of")[1], re.MULTILINE))
    assert reasons == set(REASONS)


def test_links_between_pages_lead_somewhere():
    """No relative link of README, CHANGELOG or docs is dead."""
    dead = []
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                dead.append(f"{page.relative_to(ROOT)}: {target}")
    assert dead == []
