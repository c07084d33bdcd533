"""The shared page of counters: exact, bounded, and never going back."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from registry.errors import InvalidInput
from serving.metrics import layout, reading
from serving.metrics.page import MetricsMemory, Region, Timing, VersionCounters
from serving.metrics.reading import VersionNumbers, blocks


@pytest.fixture
def memory() -> Iterator[MetricsMemory]:
    with MetricsMemory.create(3) as made:
        yield made


def served(counters: VersionCounters, times: int = 1, code: int = 200, rows: int = 2) -> None:
    for _ in range(times):
        counters.request_started()
        counters.request_done(code, rows, Timing(1000, 100, 10, 500, 20))


def success(memory: MetricsMemory, model: str = "m", version: int = 1) -> Any:
    return memory.statistics(model, version)["inference_stats"]["success"]


def test_statistics_of_a_version_that_did_nothing(memory: MetricsMemory) -> None:
    """Every field that clients read is there, and zero."""
    zero = {"count": 0, "ns": 0}
    names = (
        "success", "fail", "queue", "compute_input", "compute_infer", "compute_output",
        "cache_hit", "cache_miss",
    )  # fmt: skip
    assert memory.statistics("m", 7) == {
        "name": "m",
        "version": "7",
        "last_inference": 0,
        "inference_count": 0,
        "execution_count": 0,
        "inference_stats": dict.fromkeys(names, zero),
        "batch_stats": [],
        "memory_usage": [],
    }


def test_statistics_are_summed_over_workers(memory: MetricsMemory) -> None:
    """Requests, rows, runs and every duration add up over all slots."""
    for slot in (0, 2):
        counters = memory.writer(slot).version("m", 1)
        served(counters, 3)
        served(counters, 1, code=400)
        counters.batch_done(2, 500, 10, 20)
        counters.batch_done(4, 700, 30, 40)
    found = memory.statistics("m", 1)
    assert found["inference_count"] == 12
    assert found["execution_count"] == 4
    assert abs(found["last_inference"] / 1000 - time.time()) < 60
    stats = found["inference_stats"]
    assert stats["success"] == {"count": 6, "ns": 6000}
    assert stats["fail"] == {"count": 2, "ns": 2000}
    assert stats["queue"] == {"count": 6, "ns": 600}
    assert stats["compute_input"] == {"count": 6, "ns": 60}
    assert stats["compute_infer"] == {"count": 6, "ns": 3000}
    assert stats["compute_output"] == {"count": 6, "ns": 120}
    assert found["batch_stats"] == [
        {
            "batch_size": size,
            "compute_input": {"count": 2, "ns": 2 * given},
            "compute_infer": {"count": 2, "ns": 2 * infer},
            "compute_output": {"count": 2, "ns": 2 * out},
        }
        for size, given, infer, out in ((2, 10, 500, 20), (4, 30, 700, 40))
    ]


def test_runs_beyond_the_sizes_that_are_told_apart(memory: MetricsMemory) -> None:
    """Very large and empty runs are counted, but not by batch size."""
    counters = memory.writer(0).version("m", 1)
    for rows in (0, layout.MAX_BATCH_SIZE, layout.MAX_BATCH_SIZE + 1, 10**6):
        counters.batch_done(rows, 1)
    found = memory.statistics("m", 1)
    assert found["execution_count"] == 4
    assert [entry["batch_size"] for entry in found["batch_stats"]] == [layout.MAX_BATCH_SIZE]


def test_a_request_without_a_run_has_no_times(memory: MetricsMemory) -> None:
    """A refused request is a failure, of no duration that could spoil an average."""
    counters = memory.writer(0).version("m", 1)
    counters.request_started()
    assert counters.in_flight == 1
    counters.request_done(429, 5, None)
    assert counters.in_flight == 0
    assert memory.statistics("m", 1)["inference_stats"]["fail"] == {"count": 1, "ns": 0}
    assert memory.statistics("m", 1)["inference_count"] == 0


def test_codes_that_are_not_listed_share_a_cell(memory: MetricsMemory) -> None:
    """A code nobody thought of is counted, as other."""
    served(memory.writer(0).version("m", 1), code=418)
    assert memory.statistics("m", 1)["inference_stats"]["fail"]["count"] == 1


def test_e01_a_replacement_goes_on_counting(memory: MetricsMemory) -> None:
    """E01: counters stay when a worker dies, its gauges do not."""
    first = memory.writer(1).version("m", 1)
    served(first, 5)
    first.request_started()
    first.queue_depth = 9
    first.run_started()
    second = memory.writer(1)
    assert second.versions() == (("m", 1),)
    again = second.version("m", 1)
    assert (again.in_flight, again.queue_depth) == (0, 0)
    assert memory.suspects(1) == []
    served(again, 2)
    assert success(memory)["count"] == 7


def test_suspects_of_a_death(memory: MetricsMemory) -> None:
    """What was loading and what ran at the moment of a death can be read after it."""
    region = memory.writer(0)
    idle, busy = region.version("idle", 1), region.version("busy", 12)
    idle.request_started()
    assert memory.suspects(0) == []
    busy.run_started()
    busy.run_started()
    busy.run_ended()
    assert memory.suspects(0) == [("busy", 12)]
    region.plane.loading(("new", 3))
    assert memory.suspects(0) == [("new", 3), ("busy", 12)]
    region.plane.loading(("a" * 64, 4))
    busy.run_ended()
    assert memory.suspects(0) == [("a" * 64, 4)]
    region.plane.loading(None)
    assert memory.suspects(0) == []
    assert memory.suspects(1) == []


def test_a_version_that_comes_back_goes_on(memory: MetricsMemory) -> None:
    """Dropping and loading again loses no count while the room was not needed."""
    region = memory.writer(0)
    served(region.version("m", 1), 3)
    region.drop_version("m", 1)
    assert region.versions() == ()
    assert success(memory)["count"] == 3
    served(region.version("m", 1), 1)
    assert success(memory)["count"] == 4


def test_a_late_request_of_a_dropped_version_harms_nobody(memory: MetricsMemory) -> None:
    """Counters that were dropped count into nothing, also once the block is another's."""
    region = memory.writer(0)
    late = region.version("m", 1)
    late.request_started()
    region.drop_version("m", 1)
    fill(region, layout.OVERFLOW_BLOCK)
    late.request_done(200, 1, Timing(10**9))
    late.queue_depth = 5
    assert success(memory)["count"] == 0
    for number in range(layout.OVERFLOW_BLOCK):
        assert success(memory, "fill", number + 1) == {"count": 0, "ns": 0}


def fill(region: Region, count: int) -> None:
    for number in range(count):
        region.version("fill", number + 1)


def test_the_oldest_dropped_block_is_used_again(memory: MetricsMemory) -> None:
    """With no free block left, the version that left first gives its room up, zeroed."""
    region = memory.writer(0)
    fill(region, layout.OVERFLOW_BLOCK)
    for version in (7, 3, 5):
        served(region.version("fill", version))
        region.drop_version("fill", version)
    region.version("new", 1)
    assert success(memory, "new", 1)["count"] == 0
    assert [success(memory, "fill", v)["count"] for v in (7, 3, 5)] == [0, 1, 1]


def test_versions_beyond_the_capacity_share_a_block(memory: MetricsMemory) -> None:
    """A full page loses no count and harms no other version."""
    region = memory.writer(0)
    fill(region, layout.OVERFLOW_BLOCK)
    for version in (1, 2):
        served(region.version("more", version))
    assert success(memory, "more", 1)["count"] == 0
    assert success(memory, "fill", 1)["count"] == 0
    region.drop_version("more", 1)
    served(region.version("more", 2))


def test_versions_that_share_a_block_lose_no_count_to_one_another(memory: MetricsMemory) -> None:
    """Requests of two of them at the same time are all counted, and none stays in flight."""
    region = memory.writer(0)
    fill(region, layout.OVERFLOW_BLOCK)
    one, other = region.version("more", 1), region.version("more", 2)
    for counters in (one, other, one):
        counters.request_started()
    other.request_done(200, 1, Timing(1000))
    one.request_done(200, 2, Timing(500))
    region.drop_version("more", 2)
    one.request_done(200, 4, Timing(70))
    cells = reading.overflow_cells(memory.region(0))
    shown = (cells[layout.IN_FLIGHT], cells[layout.ROWS], cells[layout.DURATION.sum_cell])
    assert shown == (0, 7, 1570)


@pytest.mark.slow
def test_e02_restarts_and_versions_take_no_more_room(memory: MetricsMemory) -> None:
    """E02: hundreds of loads, unloads and restarts in a slot need no block more."""
    for number in range(1, 600):
        region = memory.writer(0)
        served(region.version("m", number))
        region.drop_version("m", number)
    assert success(memory, "m", 599)["count"] == 1
    served(memory.writer(0).version("last", 1))
    assert success(memory, "last", 1)["count"] == 1


def test_a_death_while_a_block_changed_hands(memory: MetricsMemory) -> None:
    """A block whose owner died while naming it belongs to nobody and is used again."""
    region = memory.writer(0)
    served(region.version("m", 1))
    cells = memory.region(0)
    cells[layout.entry_at(0) + layout.ENTRY_SEQUENCE] += 1
    assert success(memory)["count"] == 0
    successor = memory.writer(0)
    assert successor.versions() == ()
    served(successor.version("n", 2))
    assert success(memory, "n", 2)["count"] == 1


def test_names_of_versions_are_told_apart(memory: MetricsMemory) -> None:
    """Names of full length and of equal beginning are different versions."""
    region = memory.writer(0)
    long = "a" * 64
    served(region.version(long, 1), 1)
    served(region.version(long[:-1], 1), 2)
    served(region.version(long, 10), 3)
    assert success(memory, long, 1)["count"] == 1
    assert success(memory, long[:-1], 1)["count"] == 2
    assert success(memory, long, 10)["count"] == 3
    with pytest.raises(InvalidInput, match="65 bytes, at most 64"):
        region.version("a" * 65, 1)


def test_counts_past_32_bits(memory: MetricsMemory) -> None:
    """Nanoseconds of a year fit."""
    counters = memory.writer(0).version("m", 1)
    year_ns = 366 * 86400 * 10**9
    for _ in range(2):
        counters.request_started()
        counters.request_done(200, 1, Timing(year_ns))
    assert success(memory) == {"count": 2, "ns": 2 * year_ns}


def test_slots_and_sizes_are_checked(memory: MetricsMemory) -> None:
    """A slot that is not there and a page of another layout are refused."""
    for slot in (-1, 3):
        with pytest.raises(InvalidInput, match="is not one of 3"):
            memory.writer(slot)
    with pytest.raises(InvalidInput, match="different releases"):
        MetricsMemory.attach(memory.fd, 2)


@pytest.mark.slow
def test_another_process_counts_into_the_same_page(memory: MetricsMemory) -> None:
    """What a killed process counted is there, and the next one in its slot goes on."""
    code = (
        "import os, signal, sys\n"
        "from serving.metrics.page import MetricsMemory, Timing\n"
        "region = MetricsMemory.attach(int(sys.argv[1]), 3).writer(1)\n"
        "counters = region.version('m', 1)\n"
        "for _ in range(10):\n"
        "    counters.request_started()\n"
        "    counters.request_done(200, 1, Timing(5))\n"
        "counters.run_started()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for round_number in (1, 2):
        ended = subprocess.run(
            [sys.executable, "-c", code, str(memory.fd)],
            pass_fds=[memory.fd],
            timeout=60,
            check=False,
        )
        assert ended.returncode == -9
        assert success(memory) == {"count": 10 * round_number, "ns": 50 * round_number}
        assert memory.suspects(1) == [("m", 1)]


def test_a_closed_page_leaves_no_descriptor() -> None:
    """Opening and closing pages leaks nothing."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with MetricsMemory.create(1) as made:
            served(made.writer(0).version("m", 1))
        del made
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_shadows_are_summed_and_the_largest_difference_is_kept(memory: MetricsMemory) -> None:
    """Results add up over workers, differences do not, and a replacement forgets neither."""
    first, second = (memory.writer(slot).version("m", 1) for slot in (0, 1))
    first.shadow_done("same", 1e-7)
    first.shadow_done("different", 0.25)
    second.shadow_done("different", 0.125)
    second.shadow_done("failed")
    memory.writer(1).version("m", 1).shadow_done("shed")
    numbers = VersionNumbers()
    for region in memory.regions():
        for _, cells in blocks(region):
            numbers.add(cells, has_gauges=False)
    assert numbers.shadow_results() == {"same": 1, "different": 2, "failed": 1, "shed": 1}
    assert layout.double_of(numbers.cells[layout.SHADOW_MAX_DIFFERENCE]) == 0.25
    assert memory.statistics("m", 1)["inference_count"] == 0


@pytest.mark.parametrize("value", [0.0, 5e-324, 1e-5, 1.0, 1.7e308, float("inf")])
def test_a_double_survives_its_cell(value: float) -> None:
    """Bits come back as they were, and order as the numbers do."""
    assert layout.double_of(layout.bits_of(value)) == value
    assert layout.bits_of(value) >= layout.bits_of(value / 2)


def test_answers_of_a_run_count_as_each_by_itself(memory: MetricsMemory) -> None:
    """Whether they share cells of the histograms or not, nothing tells them from single ones."""
    together, alone = memory.writer(0).version("m", 1), memory.writer(1).version("m", 1)
    for totals, queues in (([1000, 100_000], [1, 2]), ([99_000, 101_000, 9**12], [0, 10**9, 5])):
        for counters in (together, alone):
            for _ in totals:
                counters.request_started()
        together.requests_answered(2 * len(totals), totals, queues, (10, 500, 20))
        for total_ns, queue_ns in zip(totals, queues, strict=True):
            alone.request_answered(2, total_ns, queue_ns, 10, 500, 20)
    first, second = (list(blocks(memory.region(slot))) for slot in (0, 1))
    assert first == second
    assert together.in_flight == 0
