"""The reference pages say what the code does, no less and no more."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.cli.app import command
from serving.data.docs import ROUTES
from serving.fleet import SERVING, WorkerInfo
from serving.metrics.collector import Facts, VersionFacts, render
from serving.metrics.layout import REASONS
from serving.metrics.page import MetricsMemory, Timing
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
    sections = re.findall(r"^## ([\w-]+)$", (DOCS / "CLI.md").read_text(), re.MULTILINE)
    assert sections == list(command().commands)
    wanted = "serve push ls ps load unload alias route rollback rm gc verify predict events doctor"
    assert set(wanted.split()) <= set(sections)


def exposed_page() -> str:
    """Return a page on which everything that can be counted was counted."""
    with MetricsMemory.create(1) as memory:
        region = memory.writer(0)
        counters = region.version("m", 1)
        counters.request_started()
        counters.request_done(200, 1, Timing(1, 1, 1, 1, 1))
        counters.batch_done(1, 1)
        counters.shadow_done("same")
        facts = Facts(
            versions=[VersionFacts("m", 1, "READY", 1.0)],
            workers=[WorkerInfo(0, 1, SERVING, 1, (0,), 0, "")],
            worker_restarts={"exit": 1},
        )
        return render(memory, facts).decode()


def test_every_metric_is_described_and_every_described_one_exists():
    """The table of metrics and the page of the server name the same metrics and labels."""
    page = (DOCS / "METRICS.md").read_text()
    described = {
        name: set(re.findall(r"\w+", labels))
        for names, labels in re.findall(
            r"^\| (`(?:ramrack|process)_.*?) \| (.*?)\s*\| ", page, re.MULTILINE
        )
        for name in re.findall(r"`(\w+)`", names)
    }
    assert set(described) == set(re.findall(r"`((?:ramrack|process)_\w+)`", page))
    exposed: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposed_page()):
        for sample in family.samples:
            name = re.sub("_(bucket|count|sum)$", "", sample.name)
            exposed.setdefault(name, set()).update(set(sample.labels) - {"le"})
    assert described == exposed
    reasons = set(re.findall(r"^\| `([a-z_]+)` \| ", page.split("reasons of")[1], re.MULTILINE))
    assert reasons == set(REASONS)


# What users and other programs rely on: it may grow, and nothing of it may go.
PROMISED = {
    "ramrack_requests_total": {"model", "version", "code"},
    "ramrack_request_duration_seconds": {"model", "version"},
    "ramrack_queue_duration_seconds": {"model", "version"},
    "ramrack_inference_duration_seconds": {"model", "version"},
    "ramrack_batch_rows": {"model", "version"},
    "ramrack_rows_total": {"model", "version"},
    "ramrack_rejected_total": {"reason"},
    "ramrack_in_flight": {"model", "version"},
    "ramrack_queue_depth": {"model", "version"},
    "ramrack_shadow_total": {"model", "version", "result"},
    "ramrack_version_state": {"model", "version", "state"},
    "ramrack_load_duration_seconds": {"model", "version"},
    "ramrack_loads_total": {"result"},
    "ramrack_swaps_total": set(),
    "ramrack_resident_bytes": {"model", "version"},
    "ramrack_private_bytes": {"model", "version"},
    "ramrack_memory_budget_bytes": set(),
    "ramrack_memory_committed_bytes": set(),
    "ramrack_worker_up": {"slot"},
    "ramrack_worker_restarts_total": {"reason"},
    "ramrack_worker_cpu_seconds_total": {"slot"},
    "ramrack_event_loop_lag_seconds": {"slot"},
    "ramrack_store_bytes": set(),
    "ramrack_build_info": {"version", "python", "onnxruntime"},
    "process_cpu_seconds_total": set(),
    "process_resident_memory_bytes": set(),
    "process_start_time_seconds": set(),
    "process_open_fds": set(),
}


def test_every_promised_metric_is_there_with_its_labels_and_type():
    """Dashboards and alerts of others read these."""
    found: dict[str, set[str]] = {}
    types: dict[str, str] = {}
    for family in text_string_to_metric_families(exposed_page()):
        for sample in family.samples:
            name = re.sub("_(bucket|count|sum)$", "", sample.name)
            found.setdefault(name, set()).update(set(sample.labels) - {"le"})
            types[name] = family.type
    assert {name: found.get(name) for name in PROMISED} == PROMISED
    for name, kind in types.items():
        is_histogram = name.endswith(("_duration_seconds", "_batch_rows"))
        if name != "ramrack_load_duration_seconds":
            assert (kind == "histogram") is is_histogram, name
        assert (kind == "counter") is name.endswith("_total"), name


def test_every_path_of_the_data_plane_is_described_and_nothing_else():
    """The table of paths names every route of the application, and no other."""
    table = (DOCS / "DATA_PLANE.md").read_text().split("## Paths")[1].split("\n\n")[1]
    first_cells = [row.split(" | ")[0] for row in table.splitlines()[2:]]
    described = [call for cell in first_cells for call in re.findall(r"`([^`]+)`", cell)]
    assert sorted(described) == sorted(f"{doc.method} {plain_path(doc.path)}" for doc in ROUTES)


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
