"""The metrics page in Prometheus text: what all workers counted, and what the parent knows.

Labels are bounded: only versions that are loaded have series, requests for anything else share the
model label ``_unknown``, and versions beyond the page's capacity share ``_other``.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from serving.fleet import SERVING, WorkerInfo
from serving.metrics import layout, reading
from serving.metrics.page import OVERFLOW_MODEL, MetricsMemory
from serving.metrics.reading import VersionKey, VersionNumbers

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
UNKNOWN_MODEL: Final = "_unknown"
# UNLOADED versions have no series, so their state needs none.
STATES: Final = ("LOADING", "READY", "DRAINING", "FAILED")
_NANO: Final = 10**9
_VERSION: Final = ("model", "version")


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """What the parent knows of one version. ``load_s``: None where it was not loaded."""

    model: str
    version: int
    state: str
    load_s: float | None = None
    resident_bytes: int = 0
    locked_bytes: int = 0
    private_bytes: int = 0


def build_info() -> dict[str, str]:
    """Return the versions of what answers; looked up without importing any of it."""
    found = {"python": platform.python_version()}
    for label, package in (("version", "ramrack"), ("onnxruntime", "onnxruntime")):
        try:
            found[label] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[label] = "unknown"
    return found


@dataclass(frozen=True, slots=True)
class Facts:
    """What the parent adds to the counts of the workers, as it is at the time of a scrape.

    ``versions``: all published ones, or only those not UNLOADED. ``loads``: ended loads by result,
    "succeeded" or "failed". ``worker_restarts``: by a short fixed reason.
    ``memory_unreleased_bytes``: None where it could not be measured.
    """

    versions: Sequence[VersionFacts] = ()
    workers: Sequence[WorkerInfo] = ()
    worker_restarts: Mapping[str, int] = field(default_factory=dict)
    loads: Mapping[str, int] = field(default_factory=dict)
    swaps: int = 0
    memory_budget_bytes: int = 0
    memory_committed_bytes: int = 0
    memory_unreleased_bytes: int | None = 0
    evicted_bytes: int = 0
    store_bytes: int = 0
    build: Mapping[str, str] = field(default_factory=build_info)


def render(memory: MetricsMemory, facts: Facts) -> bytes:
    """Return the body of ``/metrics``, of type ``CONTENT_TYPE``."""
    registry = CollectorRegistry()
    registry.register(_Page(memory, facts))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Page(Collector):
    """All of the server's own metrics at one moment."""

    def __init__(self, memory: MetricsMemory, facts: Facts) -> None:
        self._facts = facts
        self._regions = memory.regions()
        self._versions = [v for v in facts.versions if v.state in STATES]
        self._numbers = self._summed()

    def collect(self) -> Iterator[Metric]:
        yield self._requests()
        yield from self._histograms()
        yield from self._version_counters()
        yield from self._version_gauges()
        yield from self._shadows()
        yield self._rejected()
        yield from self._version_facts()
        yield from self._totals()
        yield from self._workers()

    def _summed(self) -> dict[VersionKey, VersionNumbers]:
        shown = {(v.model, v.version): VersionNumbers() for v in self._versions}
        overflow = VersionNumbers()
        # Only these have taken their region over: before, gauges are those of the one that died.
        serving = {_region_of(w) for w in self._facts.workers if w.state == SERVING}
        for index, region in enumerate(self._regions):
            # The statistics by batch size, nine tenths of a block, are not on this page.
            for key, cells in reading.blocks(region, layout.BATCH_STATS):
                if key in shown:
                    shown[key].add(cells, has_gauges=index in serving)
            overflow.add(reading.overflow_cells(region), has_gauges=index in serving)
        if any(overflow.cells):
            shown[OVERFLOW_MODEL, 0] = overflow
        return shown

    def _requests(self) -> Metric:
        family = CounterMetricFamily(
            "ramrack_requests", "Answered requests.", labels=(*_VERSION, "code")
        )
        for key, numbers in self._numbers.items():
            for code, count in numbers.by_code().items():
                family.add_metric([*_labels(key), code], count)
        unknown: dict[str, int] = {}
        for region in self._regions:
            for code, count in reading.by_code(region, layout.UNKNOWN_BY_CODE).items():
                unknown[code] = unknown.get(code, 0) + count
        for code, count in unknown.items():
            family.add_metric([UNKNOWN_MODEL, "", code], count)
        return family

    def _histograms(self) -> Iterator[Metric]:
        for name, text, histogram, scale in (
            ("request_duration_seconds", "From the request to its answer.", layout.DURATION, _NANO),
            ("queue_duration_seconds", "Waiting for a run.", layout.QUEUE, _NANO),
            ("inference_duration_seconds", "One run of the graph.", layout.INFERENCE, _NANO),
            ("batch_rows", "Rows of one run of the graph.", layout.BATCH_ROWS, 1),
        ):
            family = HistogramMetricFamily(f"ramrack_{name}", text, labels=_VERSION)
            is_time = scale == _NANO
            bounds = layout.DURATION_BOUNDS_S if is_time else layout.ROW_BOUNDS
            names = [*(str(float(bound)) for bound in bounds), "+Inf"]
            for key, numbers in self._numbers.items():
                counts, total = numbers.histogram(histogram)
                buckets = list(zip(names, map(float, accumulate(counts)), strict=True))
                family.add_metric(_labels(key), buckets, total / scale)
            yield family

    def _version_counters(self) -> Iterator[Metric]:
        for name, text, cell in (
            ("rows", "Rows that were answered.", layout.ROWS),
            ("unknown_columns", "Named columns that versions do not know.", layout.UNKNOWN_COLUMNS),
            ("cache_hits", "Requests that the response cache answered.", layout.CACHE_HITS),
            ("cache_misses", "Requests that it could not answer.", layout.CACHE_MISSES),
        ):
            family = CounterMetricFamily(f"ramrack_{name}", text, labels=_VERSION)
            for key, numbers in self._numbers.items():
                family.add_metric(_labels(key), numbers.cells[cell])
            yield family

    def _version_gauges(self) -> Iterator[Metric]:
        for name, text, cell in (
            ("in_flight", "Requests under way in living workers.", layout.IN_FLIGHT),
            ("queue_depth", "Rows that wait for a run.", layout.QUEUE_DEPTH),
        ):
            family = GaugeMetricFamily(f"ramrack_{name}", text, labels=_VERSION)
            for key, numbers in self._numbers.items():
                family.add_metric(_labels(key), numbers.cells[cell])
            yield family

    def _shadows(self) -> Iterator[Metric]:
        results = CounterMetricFamily(
            "ramrack_shadow",
            "Copies of requests that a version got as a shadow.",
            labels=(*_VERSION, "result"),
        )
        largest = GaugeMetricFamily(
            "ramrack_shadow_max_difference",
            "Largest difference of a shadow's number from the answer's.",
            labels=_VERSION,
        )
        for key, numbers in self._numbers.items():
            counts = numbers.shadow_results()
            for result, count in counts.items():
                results.add_metric([*_labels(key), result], count)
            if counts:
                bits = numbers.cells[layout.SHADOW_MAX_DIFFERENCE]
                largest.add_metric(_labels(key), layout.double_of(bits))
        yield from (results, largest)

    def _rejected(self) -> Metric:
        family = CounterMetricFamily(
            "ramrack_rejected", "Requests that were turned away.", labels=("reason",)
        )
        for reason, cell in layout.REASON_CELL.items():
            count = sum(region[layout.REJECTED + cell] for region in self._regions)
            family.add_metric([reason], count)
        return family

    def _version_facts(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "ramrack_version_state", "1 for the state it is in.", labels=(*_VERSION, "state")
        )
        load = GaugeMetricFamily(
            "ramrack_load_duration_seconds", "What the last load took.", labels=_VERSION
        )
        resident = GaugeMetricFamily(
            "ramrack_resident_bytes", "Its bytes in RAM, once a machine.", labels=_VERSION
        )
        locked = GaugeMetricFamily(
            "ramrack_locked_bytes", "Of those, locked there.", labels=_VERSION
        )
        private = GaugeMetricFamily(
            "ramrack_private_bytes", "Memory of its own, over all workers.", labels=_VERSION
        )
        for version in self._versions:
            labels = _labels((version.model, version.version))
            for name in STATES:
                state.add_metric([*labels, name], float(version.state == name))
            if version.load_s is not None:
                load.add_metric(labels, version.load_s)
            resident.add_metric(labels, version.resident_bytes)
            locked.add_metric(labels, version.locked_bytes)
            private.add_metric(labels, version.private_bytes)
        yield from (state, load, resident, locked, private)

    def _totals(self) -> Iterator[Metric]:
        facts = self._facts
        loads = CounterMetricFamily("ramrack_loads", "Loads that ended.", labels=("result",))
        for result, count in ({"succeeded": 0, "failed": 0} | dict(facts.loads)).items():
            loads.add_metric([result], count)
        yield loads
        yield CounterMetricFamily("ramrack_swaps", "Changes of a route.", facts.swaps)
        for name, text, value in (
            ("memory_budget_bytes", "What versions may take.", facts.memory_budget_bytes),
            ("memory_committed_bytes", "What versions take.", facts.memory_committed_bytes),
            ("store_bytes", "Bytes of all objects in the store.", facts.store_bytes),
        ):
            yield GaugeMetricFamily(f"ramrack_{name}", text, value)
        if facts.memory_unreleased_bytes is not None:
            yield GaugeMetricFamily(
                "ramrack_memory_unreleased_bytes", "What the last unload left behind.",
                facts.memory_unreleased_bytes,
            )  # fmt: skip
        yield CounterMetricFamily(
            "ramrack_evicted_bytes", "Weights that had to be read again.", facts.evicted_bytes
        )
        yield InfoMetricFamily("ramrack_build", "What answers.", dict(facts.build))

    def _workers(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("ramrack_worker_up", "1 where it answers.", labels=("slot",))
        lag = GaugeMetricFamily(
            "ramrack_event_loop_lag_seconds", "How late it woke last.", labels=("slot",)
        )
        for worker in self._facts.workers:
            slot = [str(worker.slot)]
            up.add_metric(slot, float(worker.state == SERVING))
            if worker.state == SERVING:
                lag.add_metric(slot, self._regions[_region_of(worker)][layout.LOOP_LAG_NS] / _NANO)
        yield from (up, lag)
        cpu = CounterMetricFamily(
            "ramrack_worker_cpu_seconds", "Processor time of all its workers.", labels=("slot",)
        )
        slots = len(self._facts.workers) or len(self._regions)
        for slot_index in range(slots):
            # The workers of a slot take turns in its regions.
            used_ns = sum(
                region[layout.CPU_NS] + region[layout.CPU_OF_FORMER_NS]
                for region in self._regions[slot_index::slots]
            )
            cpu.add_metric([str(slot_index)], used_ns / _NANO)
        yield cpu
        restarts = CounterMetricFamily(
            "ramrack_worker_restarts", "Workers that were replaced.", labels=("reason",)
        )
        for reason, count in self._facts.worker_restarts.items():
            restarts.add_metric([reason], count)
        yield restarts


def _region_of(worker: WorkerInfo) -> int:
    return worker.slot if worker.region is None else worker.region


def _labels(key: VersionKey) -> list[str]:
    model, version = key
    return [model, str(version) if version else ""]
