"""The metrics page in Prometheus text: what all workers counted, and what the parent knows.

Labels are bounded: only versions that are loaded have series, requests for anything else share the
model label ``_unknown``, and versions beyond the page's capacity share ``_other``.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from serving.fleet import SERVING, WorkerInfo
from serving.metrics import layout, reading
from serving.metrics.facts import Facts
from serving.metrics.page import OVERFLOW_MODEL, MetricsMemory
from serving.metrics.reading import VersionKey, VersionNumbers
from serving.metrics.text import COUNTER, GAUGE, HISTOGRAM, PageText, labels

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
UNKNOWN_MODEL: Final = "_unknown"
# UNLOADED versions have no series, so their state needs none.
STATES: Final = ("LOADING", "READY", "DRAINING", "FAILED")
LOAD_RESULTS: Final = ("succeeded", "failed")
POLL_RESULTS: Final = {"found": layout.POLLED_FOUND_NS, "vain": layout.POLLED_VAIN_NS}
_NANO: Final = 10**9


def render(memory: MetricsMemory, facts: Facts) -> bytes:
    """Return the body of ``/metrics``, of type ``CONTENT_TYPE``."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return _Page(memory, facts).write() + generate_latest(registry)


class _Page:
    """All of the server's own metrics at one moment."""

    def __init__(self, memory: MetricsMemory, facts: Facts) -> None:
        self._facts = facts
        self._regions = memory.regions()
        self._serving = [w for w in facts.workers if w.state == SERVING]
        self._versions = [v for v in facts.versions if v.state in STATES]
        self._numbers = self._summed()
        self._labels = {key: _labels(key) for key in self._numbers}
        self._text = PageText()

    def write(self) -> bytes:
        """Return the page."""
        self._requests()
        self._histograms()
        self._version_counters()
        self._version_gauges()
        self._shadows()
        self._rejected()
        self._version_facts()
        self._totals()
        self._workers()
        return self._text.encoded()

    def _summed(self) -> dict[VersionKey, VersionNumbers]:
        shown = {(v.model, v.version): VersionNumbers() for v in self._versions}
        overflow = VersionNumbers()
        # Only these have taken their region over: before, gauges are those of the one that died.
        serving = {_region_of(w) for w in self._serving}
        for index, region in enumerate(self._regions):
            # The statistics by batch size, nine tenths of a block, are not on this page.
            for key, cells in reading.blocks(region, layout.BATCH_STATS):
                if key in shown:
                    shown[key].add(cells, has_gauges=index in serving)
            overflow.add(reading.overflow_cells(region), has_gauges=index in serving)
        if any(overflow.cells):
            shown[OVERFLOW_MODEL, 0] = overflow
        return shown

    def _requests(self) -> None:
        text = self._text
        text.family("ramrack_requests_total", COUNTER, "Answered requests.")
        for key, numbers in self._numbers.items():
            for code, count in numbers.by_code().items():
                text.sample(count, f'code="{code}",{self._labels[key]}')
        unknown: dict[str, int] = {}
        for region in self._regions:
            for code, count in reading.by_code(region, layout.UNKNOWN_BY_CODE).items():
                unknown[code] = unknown.get(code, 0) + count
        for code, count in unknown.items():
            text.sample(count, labels(code=code, model=UNKNOWN_MODEL, version=""))

    def _histograms(self) -> None:
        for name, about, histogram, scale in (
            ("request_duration_seconds", "From the request to its answer.", layout.DURATION, _NANO),
            ("queue_duration_seconds", "Waiting for a run.", layout.QUEUE, _NANO),
            ("inference_duration_seconds", "One run of the graph.", layout.INFERENCE, _NANO),
            ("batch_rows", "Rows of one run of the graph.", layout.BATCH_ROWS, 1),
        ):
            self._text.family(f"ramrack_{name}", HISTOGRAM, about)
            is_time = scale == _NANO
            bounds = layout.DURATION_BOUNDS_S if is_time else layout.ROW_BOUNDS
            begins = self._text.bucket_begins(bounds)
            for key, numbers in self._numbers.items():
                counts, total = numbers.histogram(histogram)
                self._text.buckets(
                    begins, list(accumulate(counts)), total / scale, self._labels[key]
                )

    def _version_counters(self) -> None:
        for name, about, cell, scale in (
            ("rows", "Rows that were answered.", layout.ROWS, 1),
            ("unknown_columns", "Named columns that versions do not know.",
             layout.UNKNOWN_COLUMNS, 1),
            ("missing_values", "Values that inputs of runs lacked.", layout.MISSING_VALUES, 1),
            ("unseen_categories", "Values of no category that training knew.",
             layout.UNSEEN_CATEGORIES, 1),
            ("run_cpu_seconds", "Processor time of the threads that run the graph.",
             layout.CPU_OF_RUNS_NS, _NANO),
            ("cache_hits", "Requests that the response cache answered.", layout.CACHE_HITS, 1),
            ("cache_misses", "Requests that it could not answer.", layout.CACHE_MISSES, 1),
        ):  # fmt: skip
            self._text.family(f"ramrack_{name}_total", COUNTER, about)
            for key, numbers in self._numbers.items():
                value = numbers.cells[cell]
                self._text.sample(value if scale == 1 else value / scale, self._labels[key])

    def _version_gauges(self) -> None:
        for name, about, cell in (
            ("in_flight", "Requests under way in living workers.", layout.IN_FLIGHT),
            ("queue_depth", "Rows that wait for a run.", layout.QUEUE_DEPTH),
        ):
            self._text.family(f"ramrack_{name}", GAUGE, about)
            for key, numbers in self._numbers.items():
                self._text.sample(numbers.cells[cell], self._labels[key])

    def _shadows(self) -> None:
        text = self._text
        shadows = {k: counts for k, n in self._numbers.items() if (counts := n.shadow_results())}
        text.family(
            "ramrack_shadow_total", COUNTER, "Copies of requests that a version got as a shadow."
        )
        for key, counts in shadows.items():
            for result, count in counts.items():
                text.sample(count, f'{self._labels[key]},result="{result}"')
        text.family(
            "ramrack_shadow_max_difference", GAUGE,
            "Largest difference of a shadow's number from the answer's.",
        )  # fmt: skip
        for key in shadows:
            bits = self._numbers[key].cells[layout.SHADOW_MAX_DIFFERENCE]
            text.sample(layout.double_of(bits), self._labels[key])

    def _rejected(self) -> None:
        self._text.family("ramrack_rejected_total", COUNTER, "Requests that were turned away.")
        for reason, cell in layout.REASON_CELL.items():
            count = sum(region[layout.REJECTED + cell] for region in self._regions)
            self._text.sample(count, labels(reason=reason))

    def _version_facts(self) -> None:
        text, workers = self._text, len(self._serving)
        shown = [(self._labels[v.model, v.version], v) for v in self._versions]
        text.family("ramrack_version_state", GAUGE, "1 for the state it is in.")
        for where, version in shown:
            for state in STATES:
                text.sample(int(version.state == state), f'{where},state="{state}"')
        text.family("ramrack_load_duration_seconds", GAUGE, "What the last load took.")
        for where, version in shown:
            if version.load_s is not None:
                text.sample(version.load_s, where)
        for name, about, values in (
            ("queue_limit", "Rows that may wait for a run in all living workers.",
             [v.queue_rows * workers for _, v in shown]),
            ("resident_bytes", "Its bytes in RAM, once a machine.",
             [v.resident_bytes for _, v in shown]),
            ("locked_bytes", "Of those, locked there.", [v.locked_bytes for _, v in shown]),
            ("private_bytes", "Memory of its own, over all workers.",
             [v.private_bytes for _, v in shown]),
        ):  # fmt: skip
            text.family(f"ramrack_{name}", GAUGE, about)
            for (where, _), value in zip(shown, values, strict=True):
                text.sample(value, where)

    def _totals(self) -> None:
        facts, text = self._facts, self._text
        text.family("ramrack_loads_total", COUNTER, "Loads that ended.")
        for result, count in (dict.fromkeys(LOAD_RESULTS, 0) | dict(facts.loads)).items():
            text.sample(count, labels(result=result))
        for name, kind, about, value in (
            ("swaps_total", COUNTER, "Changes of a route.", facts.swaps),
            ("memory_budget_bytes", GAUGE, "What versions may take.", facts.memory_budget_bytes),
            ("memory_committed_bytes", GAUGE, "What versions take.", facts.memory_committed_bytes),
            ("memory_unreleased_bytes", GAUGE, "What the last unload left behind.",
             facts.memory_unreleased_bytes),
            ("evicted_bytes_total", COUNTER, "Weights that had to be read again.",
             facts.evicted_bytes),
            ("store_bytes", GAUGE, "Bytes of all objects in the store.", facts.store_bytes),
            ("disk_bytes", GAUGE, "Size of the disk that the store is on.", facts.disk_bytes),
            ("disk_free_bytes", GAUGE, "What is free of it.", facts.disk_free_bytes),
            ("digest_failures_total", COUNTER, "Objects that were not what their digest says.",
             facts.digest_failures),
        ):  # fmt: skip
            if value is not None:
                text.family(f"ramrack_{name}", kind, about)
                text.sample(value)
        text.family("ramrack_build_info", GAUGE, "What answers.")
        text.sample(1, labels(**facts.build))

    def _workers(self) -> None:
        facts, text = self._facts, self._text
        text.family("ramrack_worker_up", GAUGE, "1 where it answers.")
        for worker in facts.workers:
            is_up = worker.state == SERVING or worker.slot in facts.former_slots
            text.sample(int(is_up), labels(slot=str(worker.slot)))
        text.family("ramrack_event_loop_lag_seconds", GAUGE, "How late it woke last.")
        for worker in self._serving:
            lag_ns = self._regions[_region_of(worker)][layout.LOOP_LAG_NS]
            text.sample(lag_ns / _NANO, labels(slot=str(worker.slot)))
        text.family(
            "ramrack_worker_cpu_seconds_total", COUNTER, "Processor time of all its workers."
        )
        slots = len(facts.workers) or len(self._regions)
        for slot in range(slots):
            # The workers of a slot take turns in its regions.
            used_ns = sum(
                region[layout.CPU_NS] + region[layout.CPU_OF_FORMER_NS]
                for region in self._regions[slot::slots]
            )
            text.sample(used_ns / _NANO, labels(slot=str(slot)))
        text.family("ramrack_worker_poll_seconds_total", COUNTER, "Awake, waiting for a request.")
        for slot in range(slots):
            for result, cell in POLL_RESULTS.items():
                polled_ns = sum(region[cell] for region in self._regions[slot::slots])
                text.sample(polled_ns / _NANO, labels(slot=str(slot), result=result))
        text.family("ramrack_worker_restarts_total", COUNTER, "Workers that were replaced.")
        for reason, count in facts.worker_restarts.items():
            text.sample(count, labels(reason=reason))


def _region_of(worker: WorkerInfo) -> int:
    return worker.slot if worker.region is None else worker.region


def _labels(key: VersionKey) -> str:
    model, version = key
    return labels(model=model, version=str(version) if version else "")
