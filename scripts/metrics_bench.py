"""What metrics cost: a scrape of a full page, and counting one request: scripts/metrics_bench.py.

One process, one thread. Processor time, the best of rounds: other processes disturb it less.
Exits with 1 where a target is missed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from models.signature import Signature, TensorSpec
from serving.data.input_look import InputLook
from serving.fleet import SERVING, WorkerInfo
from serving.metrics.collector import render
from serving.metrics.facts import Facts, VersionFacts
from serving.metrics.page import MetricsMemory, Timing, VersionCounters
from serving.workers.supervisor import regions_for

VERSIONS = 100
WORKERS = 8
ROUNDS = 9
REQUESTS = 20_000
MAX_SCRAPE_MS = 50.0
MAX_REQUEST_US = 2.0
TIMING = (1_200_000, 300_000, 10_000, 700_000, 10_000)
INPUT_NS, INFER_NS, OUTPUT_NS = PARTS_NS = TIMING[2:]


def full_page() -> tuple[MetricsMemory, Facts]:
    """Return a page on which every worker has counted for every version."""
    memory = MetricsMemory.create(regions_for(WORKERS))
    versions = [VersionFacts(f"model-{i // 4}", i % 4 + 1, "READY", 1.0) for i in range(VERSIONS)]
    for slot in range(regions_for(WORKERS)):
        region = memory.writer(slot)
        for version in versions:
            counters = region.version(version.model, version.version)
            for step in range(20):
                counters.request_started()
                counters.request_done(200, 1, Timing(step * 300_000, *TIMING[1:]))
                counters.batch_done(1 + step, step * 100_000)
            counters.request_started()
            counters.request_done(400, 1, None)
    workers = [WorkerInfo(slot, 1, SERVING, 1, (slot,), 0, "") for slot in range(WORKERS)]
    return memory, Facts(versions=versions, workers=workers)


def scrape_ms() -> tuple[float, int]:
    """Return what making the page takes, and its bytes."""
    memory, facts = full_page()
    size_bytes = len(render(memory, facts))
    return best(lambda: render(memory, facts)) * 1e3, size_bytes


def counting_us(merged: int) -> float:
    """Return what a request of one row costs that shares its run with ``merged - 1`` others."""
    counters = MetricsMemory.create(1).writer(0).version("m", 1)
    totals, queues = [TIMING[0]] * merged, [TIMING[1]] * merged
    runs = REQUESTS // merged

    def count() -> None:
        for _ in range(runs):
            one_run(counters, totals, queues)

    return best(count) / (runs * merged) * 1e6


def one_run(counters: VersionCounters, totals: list[int], queues: list[int]) -> None:
    """Count what the data plane counts of one run: who has it alone is counted by itself."""
    for _ in totals:
        counters.request_started()
    counters.run_started()
    counters.run_ended()
    counters.batch_done(len(totals), INFER_NS, INPUT_NS, OUTPUT_NS, 700_000, 0, 0)
    if len(totals) == 1:
        counters.request_answered(1, totals[0], queues[0], INPUT_NS, INFER_NS, OUTPUT_NS)
    else:
        counters.requests_answered(len(totals), totals, queues, PARTS_NS)


def looking_us(rows: int) -> float:
    """Return what looking at the inputs of a run costs: 30 features, and three text columns."""
    texts = [
        TensorSpec(f"t{i}", "BYTES", (-1, 1), categories=("a", "b", "c"), missing="")
        for i in range(3)
    ]
    look = InputLook(Signature((TensorSpec("x", "FP32", (-1, 30)), *texts), ()))
    inputs = {"x": np.ones((rows, 30), np.float32)}
    inputs |= {f"t{i}": np.array([["a"]] * rows, dtype=object) for i in range(3)}
    runs = REQUESTS // 10

    def count() -> None:
        for _ in range(runs):
            look.count(inputs)
            time.thread_time_ns()
            time.thread_time_ns()

    return best(count) / runs * 1e6


def best(work: Callable[[], object]) -> float:
    """Return the least processor time in seconds that ``work`` took."""
    times = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        work()
        times.append(time.thread_time() - start)
    return min(times)


def main() -> int:
    """Print all figures and return the exit code."""
    page_ms, size_bytes = scrape_ms()
    print(
        f"a scrape of {VERSIONS} versions and {WORKERS} workers: {page_ms:.1f} ms, "
        f"{size_bytes / 1e3:.0f} kB (target {MAX_SCRAPE_MS:g} ms)"
    )
    costs = {merged: counting_us(merged) for merged in (1, 8, 64)}
    for merged, cost_us in costs.items():
        print(
            f"counting a request, {merged} to a run: {cost_us:.2f} us (target {MAX_REQUEST_US:g})"
        )
    for rows in (1, 64):
        print(f"looking at the inputs of a run of {rows} rows: {looking_us(rows):.2f} us")
    is_met = page_ms <= MAX_SCRAPE_MS and max(costs.values()) <= MAX_REQUEST_US
    print("targets met" if is_met else "a target was MISSED")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
