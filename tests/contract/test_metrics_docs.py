"""docs/METRICS.md says what the page of metrics has: names, labels and their values."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from serving.fleet import SERVING, WorkerInfo
from serving.metrics.collector import LOAD_RESULTS, POLL_RESULTS, STATES, render
from serving.metrics.facts import Facts, VersionFacts
from serving.metrics.layout import REASONS, SHADOW_RESULTS
from serving.metrics.page import MetricsMemory, Timing
from serving.workers.slot import RESTART_LABELS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "METRICS.md"


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
    page = PAGE.read_text()
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


def test_every_value_of_a_label_that_has_few_is_described_and_no_other():
    """Reasons, results and states: the sentence or table of each metric has exactly these."""
    page = PAGE.read_text()
    after = {
        "Results of `ramrack_shadow_total`": SHADOW_RESULTS,
        "Results of `ramrack_worker_poll_seconds_total`": POLL_RESULTS,
        "Reasons of `ramrack_worker_restarts_total`": RESTART_LABELS,
        "States of `ramrack_version_state`": STATES,
        "Results of `ramrack_loads_total`": LOAD_RESULTS,
    }
    for start, values in after.items():
        sentence = page.split(f"{start}: ")[1].split("\n\n")[0].partition(". ")[0]
        assert sorted(re.findall(r"`(\w+)`", sentence)) == sorted(values), start
    rejected = page.split("reasons of `ramrack_rejected_total`")[1]
    assert sorted(re.findall(r"^\| `([a-z_]+)` \| ", rejected, re.MULTILINE)) == sorted(REASONS)


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
