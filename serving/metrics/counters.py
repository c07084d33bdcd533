"""Counting: the increments that requests and runs make, straight into the shared page.

One writer for each block, the event-loop thread of its worker; nothing here waits or locks.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from time import time_ns
from typing import Final, NamedTuple

from registry.errors import InvalidInput
from serving.metrics import layout
from serving.metrics.layout import (
    BY_CODE,
    CODE_CELL,
    DURATION_BOUNDS_NS,
    FAIL_NS,
    IN_FLIGHT,
    INFER_NS,
    INPUT_NS,
    OTHER_CODE_CELL,
    OUTPUT_NS,
    ROWS,
)
from serving.metrics.reading import VersionKey

# Names of this module, because every attribute look-up counts in a request of ten increments.
DURATION_START: Final = layout.DURATION.start
DURATION_SUM: Final = layout.DURATION.sum_cell
BY_OK: Final = BY_CODE + CODE_CELL[200]
QUEUE_START: Final = layout.QUEUE.start
QUEUE_SUM: Final = layout.QUEUE.sum_cell
INFERENCE_START: Final = layout.INFERENCE.start
INFERENCE_SUM: Final = layout.INFERENCE.sum_cell
BATCH_ROWS_START: Final = layout.BATCH_ROWS.start
BATCH_ROWS_SUM: Final = layout.BATCH_ROWS.sum_cell
RUNNING: Final = layout.RUNNING
CPU_OF_RUNS_NS: Final = layout.CPU_OF_RUNS_NS
LAST_INFERENCE_NS: Final = layout.LAST_INFERENCE_NS
ROW_BOUNDS: Final = layout.ROW_BOUNDS
BATCH_STATS: Final = layout.BATCH_STATS
BATCH_STATS_CELLS: Final = layout.BATCH_STATS_CELLS
MAX_BATCH_SIZE: Final = layout.MAX_BATCH_SIZE
# By rows: where the run's size is counted, and where its statistics by batch size stand.
BATCHES: Final = tuple(
    (
        BATCH_ROWS_START + bisect_left(ROW_BOUNDS, rows),
        BATCH_STATS + (rows - 1) * BATCH_STATS_CELLS if rows else 0,
    )
    for rows in range(MAX_BATCH_SIZE + 1)
)


class Timing(NamedTuple):
    """Where the time of one request went, in nanoseconds. The parts are of the run it shared."""

    total_ns: int
    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0


class VersionCounters:
    """What one version did in one worker. Each method is a handful of increments.

    Nobody else may write to the block: what every request adds to is kept here as well, for to read
    a cell takes longer than to write it.
    """

    __slots__ = ("_cells", "_cpu_ns", "_duration_ns", "_in_flight", "_infer_ns", "_inference_ns",
                 "_input_ns", "_output_ns", "_queue_ns", "_rows", "_run_rows",
                 "_running")  # fmt: skip

    def __init__(self, block: memoryview[int]) -> None:
        self._count_into(block)

    def _count_into(self, cells: memoryview[int]) -> None:
        self._cells = cells
        self._in_flight = cells[IN_FLIGHT]
        self._running = cells[RUNNING]
        self._rows = cells[ROWS]
        self._duration_ns = cells[DURATION_SUM]
        self._queue_ns = cells[QUEUE_SUM]
        self._input_ns = cells[INPUT_NS]
        self._infer_ns = cells[INFER_NS]
        self._output_ns = cells[OUTPUT_NS]
        self._cpu_ns = cells[CPU_OF_RUNS_NS]
        self._inference_ns = cells[INFERENCE_SUM]
        self._run_rows = cells[BATCH_ROWS_SUM]

    def request_started(self) -> None:
        """Count a request in; each needs exactly one ``request_done``."""
        self._cells[IN_FLIGHT] = self._in_flight = self._in_flight + 1

    def request_done(self, code: int, rows: int, timing: Timing | None) -> None:
        """Count a request out. ``timing``: None where it never came to a run."""
        if code == 200 and timing is not None:
            self.request_answered(rows, *timing)
            return
        cells = self._cells
        cells[IN_FLIGHT] = self._in_flight = self._in_flight - 1
        cells[BY_CODE + CODE_CELL.get(code, OTHER_CODE_CELL)] += 1
        if timing is None:
            return
        total_ns = timing.total_ns
        cells[DURATION_START + bisect_left(DURATION_BOUNDS_NS, total_ns)] += 1
        cells[DURATION_SUM] = self._duration_ns = self._duration_ns + total_ns
        cells[FAIL_NS] += total_ns

    def request_answered(
        self,
        rows: int,
        total_ns: int,
        queue_ns: int,
        input_ns: int,
        infer_ns: int,
        output_ns: int,
    ) -> None:
        """Count a request out that was answered with 200, as ``request_done`` does."""
        cells = self._cells
        cells[IN_FLIGHT] = self._in_flight = self._in_flight - 1
        cells[BY_OK] += 1
        cells[DURATION_START + bisect_left(DURATION_BOUNDS_NS, total_ns)] += 1
        cells[DURATION_SUM] = self._duration_ns = self._duration_ns + total_ns
        cells[ROWS] = self._rows = self._rows + rows
        cells[QUEUE_START + bisect_left(DURATION_BOUNDS_NS, queue_ns)] += 1
        cells[QUEUE_SUM] = self._queue_ns = self._queue_ns + queue_ns
        cells[INPUT_NS] = self._input_ns = self._input_ns + input_ns
        cells[INFER_NS] = self._infer_ns = self._infer_ns + infer_ns
        cells[OUTPUT_NS] = self._output_ns = self._output_ns + output_ns

    def requests_answered(
        self,
        rows: int,
        total_ns: Sequence[int],
        queue_ns: Sequence[int],
        parts_ns: tuple[int, int, int],
    ) -> None:
        """Count out the requests that one run answered, as ``request_answered`` does for each.

        ``rows``: of all. ``parts_ns``: input, infer and output time of the run.
        """
        count = len(total_ns)
        cells = self._cells
        cells[IN_FLIGHT] = self._in_flight = self._in_flight - count
        cells[BY_OK] += count
        cells[ROWS] = self._rows = self._rows + rows
        _add_all(cells, DURATION_START, total_ns)
        cells[DURATION_SUM] = self._duration_ns = self._duration_ns + sum(total_ns)
        _add_all(cells, QUEUE_START, queue_ns)
        cells[QUEUE_SUM] = self._queue_ns = self._queue_ns + sum(queue_ns)
        input_ns, infer_ns, output_ns = parts_ns
        cells[INPUT_NS] = self._input_ns = self._input_ns + input_ns * count
        cells[INFER_NS] = self._infer_ns = self._infer_ns + infer_ns * count
        cells[OUTPUT_NS] = self._output_ns = self._output_ns + output_ns * count

    def cache_asked(self, lookup_ns: int, rows: int, *, is_hit: bool) -> None:
        """Count a look into the response cache; a hit is answered without a run of its rows."""
        cells = self._cells
        if is_hit:
            cells[layout.CACHE_HIT_ROWS] += rows
        cells[(layout.CACHE_HITS if is_hit else layout.CACHE_MISSES)] += 1
        cells[(layout.CACHE_HIT_NS if is_hit else layout.CACHE_MISS_NS)] += lookup_ns

    def request_refused(self, code: int) -> None:
        """Count a request that was turned away before it was counted in."""
        self._cells[BY_CODE + CODE_CELL.get(code, OTHER_CODE_CELL)] += 1

    def run_started(self) -> None:
        """Say that the graph runs now: a process that dies here was killed by this version."""
        self._cells[RUNNING] = self._running = self._running + 1

    def run_ended(self) -> None:
        """Say that a run is over, however it ended."""
        self._cells[RUNNING] = self._running = self._running - 1

    def batch_done(
        self,
        rows: int,
        infer_ns: int,
        input_ns: int = 0,
        output_ns: int = 0,
        cpu_ns: int = 0,
        missing_values: int = 0,
        unseen_categories: int = 0,
    ) -> None:
        """Count one run of the graph over ``rows`` rows, and what its inputs lacked."""
        cells = self._cells
        cells[CPU_OF_RUNS_NS] = self._cpu_ns = self._cpu_ns + cpu_ns
        if missing_values or unseen_categories:
            cells[layout.MISSING_VALUES] += missing_values
            cells[layout.UNSEEN_CATEGORIES] += unseen_categories
        cells[INFERENCE_START + bisect_left(DURATION_BOUNDS_NS, infer_ns)] += 1
        cells[INFERENCE_SUM] = self._inference_ns = self._inference_ns + infer_ns
        cells[BATCH_ROWS_SUM] = self._run_rows = self._run_rows + rows
        cells[LAST_INFERENCE_NS] = time_ns()
        if rows > MAX_BATCH_SIZE:
            cells[BATCH_ROWS_START + bisect_left(ROW_BOUNDS, rows)] += 1
            return
        size, start = BATCHES[rows]
        cells[size] += 1
        if rows:
            cells[start] += 1
            cells[start + 1] += input_ns
            cells[start + 2] += infer_ns
            cells[start + 3] += output_ns

    def unknown_columns(self, count: int) -> None:
        """Count named columns that a request sent and the version does not know."""
        self._cells[layout.UNKNOWN_COLUMNS] += count

    def shadow_done(self, result: str, difference: float = 0.0) -> None:
        """Count what came of a copy, one of ``layout.SHADOW_RESULTS``, and how far it was off."""
        cells = self._cells
        cells[layout.SHADOW + layout.SHADOW_CELL[result]] += 1
        largest = layout.SHADOW_MAX_DIFFERENCE
        cells[largest] = max(cells[largest], layout.bits_of(difference))

    def detach(self) -> None:
        """Count into nothing from now on: the block may soon be another version's."""
        self._count_into(zeros(layout.BLOCK_CELLS))

    @property
    def queue_depth(self) -> int:
        """Rows that wait for a run."""
        return self._cells[layout.QUEUE_DEPTH]

    @queue_depth.setter
    def queue_depth(self, rows: int) -> None:
        self._cells[layout.QUEUE_DEPTH] = rows

    @property
    def in_flight(self) -> int:
        """Requests that were counted in and not yet out."""
        return self._cells[layout.IN_FLIGHT]


class PlaneCounters:
    """What a worker counts that belongs to no version."""

    __slots__ = ("_cells",)

    def __init__(self, cells: memoryview[int]) -> None:
        self._cells = cells

    def rejected(self, reason: str) -> None:
        """Count a request that was turned away; a reason not in ``layout.REASONS`` is "other"."""
        cell = layout.REASON_CELL.get(reason, layout.REASON_CELL[layout.OTHER])
        self._cells[layout.REJECTED + cell] += 1

    def unknown_request(self, code: int) -> None:
        """Count an answer to a request that reached no version, whatever name it asked for."""
        self._cells[layout.UNKNOWN_BY_CODE + CODE_CELL.get(code, OTHER_CODE_CELL)] += 1

    def loop_lag(self, seconds: float) -> None:
        """Note how late the event loop woke last, and the processor time used so far."""
        self._cells[layout.LOOP_LAG_NS] = round(seconds * 1e9)
        self._cells[layout.CPU_NS] = time.process_time_ns()

    def polled(self, has_found: bool, polled_ns: int) -> None:
        """Count what the event loop polled until a request came, or none did."""
        self._cells[layout.POLLED_FOUND_NS if has_found else layout.POLLED_VAIN_NS] += polled_ns

    def loading(self, key: VersionKey | None) -> None:
        """Say which version is being loaded, None once that is over."""
        # The version is written last: a reader that sees it sees the whole name.
        self._cells[layout.LOADING_VERSION] = 0
        if key is not None:
            write_name(self._cells, layout.LOADING_NAME, key[0])
            self._cells[layout.LOADING_VERSION] = key[1]


def _add_all(cells: memoryview[int], start: int, values: Sequence[int]) -> None:
    """Count durations of one histogram; those of one run mostly share a cell."""
    lowest = bisect_left(DURATION_BOUNDS_NS, min(values))
    if lowest == bisect_left(DURATION_BOUNDS_NS, max(values)):
        cells[start + lowest] += len(values)
        return
    for value in values:
        cells[start + bisect_left(DURATION_BOUNDS_NS, value)] += 1


def write_name(cells: memoryview[int], start: int, name: str) -> None:
    """Write a model name at ``start``; raises InvalidInput for one that is too long."""
    raw = name.encode()
    if len(raw) > layout.MAX_NAME_BYTES:
        raise InvalidInput(f"model name: {len(raw)} bytes, at most {layout.MAX_NAME_BYTES}")
    padded = memoryview(raw.ljust(layout.MAX_NAME_BYTES, b"\0")).cast("q")
    cells[start : start + layout.NAME_CELLS] = padded


def zeros(count: int) -> memoryview[int]:
    """Return cells of their own, all zero."""
    return memoryview(bytearray(count * layout.CELL_BYTES)).cast("q")
