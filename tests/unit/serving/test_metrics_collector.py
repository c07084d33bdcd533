"""The page of metrics as Prometheus reads it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from registry.lifecycle import State
from serving.fleet import WorkerInfo
from serving.metrics import layout
from serving.metrics.collector import STATES, render
from serving.metrics.facts import Facts, VersionFacts
from serving.metrics.page import MetricsMemory, Timing, VersionCounters

M = VersionFacts("m", 1, "READY", load_s=0.5, resident_bytes=100, private_bytes=20)


@pytest.fixture
def memory() -> Iterator[MetricsMemory]:
    with MetricsMemory.create(2) as made:
        yield made


def worker(slot: int, state: str = "serving", restarts: int = 0) -> WorkerInfo:
    return WorkerInfo(slot, 100 + slot, state, 1, (slot,), restarts, "exit code -9")


BOTH = (worker(0), worker(1))


def samples(memory: MetricsMemory, facts: Facts) -> dict[tuple[str, tuple[Any, ...]], float]:
    """Render, parse as Prometheus does, and key each sample by name and sorted labels."""
    text = render(memory, facts).decode()
    found: dict[tuple[str, tuple[Any, ...]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def value(found: dict[Any, float], name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


def served(counters: VersionCounters, times: int, code: int = 200, total_ns: int = 10**6) -> None:
    for _ in range(times):
        counters.request_started()
        counters.request_done(code, 3, Timing(total_ns, queue_ns=5000))


def test_counts_are_summed_over_workers(memory: MetricsMemory) -> None:
    """One page has the requests, rows, runs and durations of all workers."""
    for slot in (0, 1):
        counters = memory.writer(slot).version("m", 1)
        served(counters, 2)
        served(counters, 1, code=400)
        counters.batch_done(6, 11_000)
        counters.batch_done(1, 1, 0, 0, 250_000_000, 3, 2)
        counters.unknown_columns(4)
    found = samples(memory, Facts(versions=[M], workers=BOTH))
    m = {"model": "m", "version": "1"}
    assert value(found, "ramrack_requests_total", **m, code="200") == 4
    assert value(found, "ramrack_requests_total", **m, code="400") == 2
    assert value(found, "ramrack_rows_total", **m) == 12
    assert value(found, "ramrack_unknown_columns_total", **m) == 8
    assert value(found, "ramrack_request_duration_seconds_count", **m) == 6
    assert value(found, "ramrack_request_duration_seconds_sum", **m) == 0.006
    assert value(found, "ramrack_queue_duration_seconds_count", **m) == 4
    assert value(found, "ramrack_run_cpu_seconds_total", **m) == 0.5
    assert value(found, "ramrack_missing_values_total", **m) == 6
    assert value(found, "ramrack_unseen_categories_total", **m) == 4
    assert value(found, "ramrack_inference_duration_seconds_sum", **m) == 2.2002e-05
    assert value(found, "ramrack_batch_rows_sum", **m) == 14
    assert value(found, "ramrack_batch_rows_bucket", **m, le="4.0") == 2
    assert value(found, "ramrack_batch_rows_bucket", **m, le="8.0") == 4


def test_a_version_has_series_as_a_shadow_once_it_got_a_copy(memory: MetricsMemory) -> None:
    """All four results are there from the first copy on; without copies there is nothing."""
    m = {"model": "m", "version": "1"}
    counters = [memory.writer(slot).version("m", 1) for slot in (0, 1)]
    names = {name for name, _ in samples(memory, Facts(versions=[M], workers=BOTH))}
    assert not any(name.startswith("ramrack_shadow") for name in names)
    counters[0].shadow_done("different", float("inf"))
    counters[1].shadow_done("same", 1e-6)
    found = samples(memory, Facts(versions=[M], workers=BOTH))
    for result, count in (("same", 1), ("different", 1), ("failed", 0), ("shed", 0)):
        assert value(found, "ramrack_shadow_total", **m, result=result) == count
    assert value(found, "ramrack_shadow_max_difference", **m) == float("inf")
    assert value(found, "ramrack_rows_total", **m) == 0


def test_buckets_are_cumulative_and_hold_their_bounds(memory: MetricsMemory) -> None:
    """A duration on a bound is in its bucket; beyond the last bound it is in +Inf only."""
    counters = memory.writer(0).version("m", 1)
    for total_ns in (0, 100_000, 100_001, 5_000_000_000, 5_000_000_001):
        served(counters, 1, total_ns=total_ns)
    found = samples(memory, Facts(versions=[M], workers=BOTH))
    bounds = [*map(str, layout.DURATION_BOUNDS_S), "+Inf"]
    counts = [
        value(found, "ramrack_request_duration_seconds_bucket", model="m", version="1", le=bound)
        for bound in bounds
    ]
    assert counts == [2, *[3] * (len(bounds) - 3), 4, 5]
    assert counts[-1] == value(
        found, "ramrack_request_duration_seconds_count", model="m", version="1"
    )


def test_rows_on_a_bound_are_in_its_bucket(memory: MetricsMemory) -> None:
    """A run of eight rows is one of at most eight."""
    counters = memory.writer(0).version("m", 1)
    counters.batch_done(8, 100_000)
    counters.batch_done(9, 100_001)
    found = samples(memory, Facts(versions=[M], workers=BOTH))
    m = {"model": "m", "version": "1"}
    assert value(found, "ramrack_batch_rows_bucket", **m, le="8.0") == 1
    assert value(found, "ramrack_batch_rows_bucket", **m, le="16.0") == 2
    assert value(found, "ramrack_inference_duration_seconds_bucket", **m, le="0.0001") == 1


def test_a_block_that_changes_hands_is_not_shown(memory: MetricsMemory) -> None:
    """Numbers that may be of two versions are left out until they are of one."""
    served(memory.writer(0).version("m", 1), 3)
    served(memory.writer(1).version("m", 1), 1)
    sequence = layout.entry_at(0) + layout.ENTRY_SEQUENCE
    memory.region(0)[sequence] += 1
    found = samples(memory, Facts(versions=[M], workers=BOTH))
    assert value(found, "ramrack_requests_total", model="m", version="1", code="200") == 1
    memory.region(0)[sequence] += 1
    found = samples(memory, Facts(versions=[M], workers=BOTH))
    assert value(found, "ramrack_requests_total", model="m", version="1", code="200") == 4


def test_the_buckets_are_those_of_the_specification() -> None:
    """Dashboards and alerts rely on these bounds."""
    assert layout.DURATION_BOUNDS_S == (
        0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03,
        0.05, 0.1, 0.25, 1, 5,
    )  # fmt: skip


def test_e01_gauges_are_of_living_workers_only(memory: MetricsMemory) -> None:
    """E01: a dead worker's requests under way are gone, what it counted is not."""
    for slot in (0, 1):
        counters = memory.writer(slot).version("m", 1)
        served(counters, 5)
        counters.request_started()
        counters.queue_depth = 7
    m = {"model": "m", "version": "1"}
    for state in ("restarting", "starting", "stopped"):
        found = samples(memory, Facts(versions=[M], workers=(worker(0), worker(1, state))))
        assert value(found, "ramrack_requests_total", **m, code="200") == 10
        assert value(found, "ramrack_in_flight", **m) == 1
        assert value(found, "ramrack_queue_depth", **m) == 7
        assert value(found, "ramrack_worker_up", slot="0") == 1
        assert value(found, "ramrack_worker_up", slot="1") == 0


def test_a_slot_is_up_while_a_worker_of_the_release_before_answers(memory: MetricsMemory) -> None:
    """Nobody is to be woken because an upgrade takes as long as its versions take to load."""
    workers = (worker(0, "starting"), worker(1, "starting"))
    found = samples(memory, Facts(versions=[M], workers=workers, former_slots={1, 5}))
    assert value(found, "ramrack_worker_up", slot="0") == 0
    assert value(found, "ramrack_worker_up", slot="1") == 1


def test_series_of_an_unloaded_version_are_gone(memory: MetricsMemory) -> None:
    """A version has series while it is loaded, loading, draining or failed."""
    served(memory.writer(0).version("m", 1), 1)
    for state in State:
        facts = Facts(versions=[VersionFacts("m", 1, state)], workers=BOTH)
        has_series = b'model="m"' in render(memory, facts)
        assert has_series is (state is not State.UNLOADED)
    assert b'model="m"' not in render(memory, Facts(workers=BOTH))


def test_a_ready_version_without_requests_has_zeros(memory: MetricsMemory) -> None:
    """Rates can be taken from the first request on."""
    found = samples(memory, Facts(versions=[M], workers=BOTH))
    assert value(found, "ramrack_rows_total", model="m", version="1") == 0
    assert value(found, "ramrack_request_duration_seconds_count", model="m", version="1") == 0


def test_e05_unknown_names_make_no_series(memory: MetricsMemory) -> None:
    """E05: whatever was asked for, requests that reached no version share one label."""
    plane = memory.writer(0).plane
    before = len(samples(memory, Facts(workers=BOTH)))
    for number in range(10_000):
        plane.unknown_request(404)
        plane.rejected(f"reason-{number}")
    found = samples(memory, Facts(workers=BOTH))
    assert len(found) == before + 1
    assert (
        value(found, "ramrack_requests_total", model="_unknown", version="", code="404") == 10_000
    )
    assert value(found, "ramrack_rejected_total", reason="other") == 10_000


def test_e05_labels_are_escaped(memory: MetricsMemory) -> None:
    """E05: quotes, backslashes and line breaks in a label do not break the page."""
    odd = 'a"b\\c\nd'
    found = samples(memory, Facts(versions=[VersionFacts(odd, 1, "READY")], workers=BOTH))
    assert value(found, "ramrack_rows_total", model=odd, version="1") == 0


def test_versions_beyond_the_capacity_are_shown_together(memory: MetricsMemory) -> None:
    """What found no block of its own is counted under one label, and only then shown."""
    assert b"_other" not in render(memory, Facts(workers=BOTH))
    region = memory.writer(0)
    for number in range(layout.BLOCKS + 5):
        served(region.version("m", number + 1), 1)
    found = samples(memory, Facts(workers=BOTH))
    assert value(found, "ramrack_requests_total", model="_other", version="", code="200") == 6


def test_what_the_parent_knows(memory: MetricsMemory) -> None:
    """States, loads, memory, store, workers and build come from the facts."""
    facts = Facts(
        versions=[M, VersionFacts("m", 2, "FAILED")],
        workers=(worker(0, restarts=1), worker(1, restarts=2)),
        worker_restarts={"crashed": 2, "killed": 1},
        loads={"succeeded": 4},
        swaps=3,
        memory_budget_bytes=1000,
        memory_committed_bytes=500,
        store_bytes=2**53,
        disk_bytes=900,
        disk_free_bytes=90,
        digest_failures=2,
        build={"version": "9.9"},
    )
    plane = memory.writer(1).plane
    plane.loop_lag(0.25)
    plane.polled(True, 500_000_000)
    plane.polled(False, 250_000_000)
    found = samples(memory, facts)
    states = {
        state: value(found, "ramrack_version_state", model="m", version="2", state=state)
        for state in STATES
    }
    assert states == {"LOADING": 0, "READY": 0, "DRAINING": 0, "FAILED": 1}
    m = {"model": "m", "version": "1"}
    assert value(found, "ramrack_load_duration_seconds", **m) == 0.5
    assert ("ramrack_load_duration_seconds", (("model", "m"), ("version", "2"))) not in found
    assert value(found, "ramrack_resident_bytes", **m) == 100
    assert value(found, "ramrack_private_bytes", **m) == 20
    assert value(found, "ramrack_loads_total", result="succeeded") == 4
    assert value(found, "ramrack_loads_total", result="failed") == 0
    assert value(found, "ramrack_swaps_total") == 3
    assert value(found, "ramrack_memory_budget_bytes") == 1000
    assert value(found, "ramrack_memory_committed_bytes") == 500
    assert value(found, "ramrack_store_bytes") == 2**53
    assert value(found, "ramrack_disk_bytes") == 900
    assert value(found, "ramrack_disk_free_bytes") == 90
    assert value(found, "ramrack_digest_failures_total") == 2
    assert value(found, "ramrack_build_info", version="9.9") == 1
    assert value(found, "ramrack_event_loop_lag_seconds", slot="1") == 0.25
    assert value(found, "ramrack_worker_cpu_seconds_total", slot="1") > 0
    polled = [
        value(found, "ramrack_worker_poll_seconds_total", slot="1", result=result)
        for result in ("found", "vain")
    ]
    assert polled == [0.5, 0.25]
    assert value(found, "ramrack_worker_restarts_total", reason="killed") == 1
    assert value(found, "process_cpu_seconds_total") > 0


def test_the_room_in_queues_is_that_of_living_workers(memory: MetricsMemory) -> None:
    """A dead worker's queue is no room for anybody."""
    version = VersionFacts("m", 1, "READY", queue_rows=100)
    for workers, rows in ((BOTH, 200), ((worker(0), worker(1, "restarting")), 100)):
        found = samples(memory, Facts(versions=[version], workers=workers))
        assert value(found, "ramrack_queue_limit", model="m", version="1") == rows


def test_processor_time_outlives_a_worker(memory: MetricsMemory) -> None:
    """A replacement's processor time is added to that of those before it."""
    memory.writer(0).plane.loop_lag(0)
    first = value(
        samples(memory, Facts(workers=BOTH)), "ramrack_worker_cpu_seconds_total", slot="0"
    )
    assert first > 0
    region = memory.writer(0)
    after = samples(memory, Facts(workers=BOTH))
    assert value(after, "ramrack_worker_cpu_seconds_total", slot="0") == first
    region.plane.loop_lag(0)
    later = samples(memory, Facts(workers=BOTH))
    assert value(later, "ramrack_worker_cpu_seconds_total", slot="0") >= 2 * first


def test_every_metric_has_a_help_text_and_a_base_unit(memory: MetricsMemory) -> None:
    """Names follow Prometheus: one prefix, base units, help on each."""
    text = render(memory, Facts(versions=[M], workers=BOTH)).decode()
    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert all(name.startswith(("ramrack_", "process_")) for name in names)
    assert not [name for name in names if re.search(r"_(ms|us|ns|mb|kb|percent)(_|$)", name)]
    assert len(re.findall(r"^# HELP \S+ \S", text, re.MULTILINE)) == len(names)


@pytest.mark.slow
def test_e02_a_scrape_of_a_full_page_is_quick() -> None:
    """E02: many versions in many workers are still one page for well under a second of work."""

    versions = [VersionFacts("m", number + 1, "READY") for number in range(100)]
    with MetricsMemory.create(8) as memory:
        for slot in range(8):
            region = memory.writer(slot)
            for version in versions:
                served(region.version(version.model, version.version), 1)
        start = time.thread_time()
        body = render(memory, Facts(versions=versions, workers=[worker(i) for i in range(8)]))
        took_s = time.thread_time() - start
    assert b'ramrack_requests_total{code="200",model="m",version="100"} 8\n' in body
    assert took_s < 0.5
