"""The shared page that all workers count into, and that outlives each of them.

One memfd for the parent and all workers, one region for each worker slot. A region has one writer,
the worker in that slot, from its event-loop thread; readers take no lock. A replacement worker goes
on counting where the former one stopped, so counters never go back; gauges start at zero again.

A reader may see a number one request older than another. It never takes one version's numbers for
another's: a block that changes hands carries a sequence number that is odd while it changes.
"""

from __future__ import annotations

import mmap
import os
import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

from registry.errors import InvalidInput
from serving.metrics import layout, reading
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

OVERFLOW_MODEL: Final = "_other"

# Names of this module, because every attribute look-up counts in a request of ten increments.
DURATION_START: Final = layout.DURATION.start
DURATION_SUM: Final = layout.DURATION.sum_cell
BY_OK: Final = BY_CODE + CODE_CELL[200]
QUEUE_START: Final = layout.QUEUE.start
QUEUE_SUM: Final = layout.QUEUE.sum_cell


class Timing(NamedTuple):
    """Where the time of one request went, in nanoseconds. The parts are of the run it shared."""

    total_ns: int
    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0


class VersionCounters:
    """What one version did in one worker. Each method is a handful of increments."""

    __slots__ = ("_base", "_cells")

    def __init__(self, cells: memoryview[int], base: int) -> None:
        self._cells = cells
        self._base = base

    def request_started(self) -> None:
        """Count a request in; each needs exactly one ``request_done``."""
        self._cells[self._base + IN_FLIGHT] += 1

    def request_done(self, code: int, rows: int, timing: Timing | None) -> None:
        """Count a request out. ``timing``: None where it never came to a run."""
        if code == 200 and timing is not None:
            self.request_answered(rows, *timing)
            return
        cells, base = self._cells, self._base
        cells[base + IN_FLIGHT] -= 1
        cells[base + BY_CODE + CODE_CELL.get(code, OTHER_CODE_CELL)] += 1
        if timing is None:
            return
        total_ns = timing.total_ns
        cells[base + DURATION_START + bisect_left(DURATION_BOUNDS_NS, total_ns)] += 1
        cells[base + DURATION_SUM] += total_ns
        cells[base + FAIL_NS] += total_ns

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
        cells, base = self._cells, self._base
        cells[base + IN_FLIGHT] -= 1
        cells[base + BY_OK] += 1
        cells[base + DURATION_START + bisect_left(DURATION_BOUNDS_NS, total_ns)] += 1
        cells[base + DURATION_SUM] += total_ns
        cells[base + ROWS] += rows
        cells[base + QUEUE_START + bisect_left(DURATION_BOUNDS_NS, queue_ns)] += 1
        cells[base + QUEUE_SUM] += queue_ns
        cells[base + INPUT_NS] += input_ns
        cells[base + INFER_NS] += infer_ns
        cells[base + OUTPUT_NS] += output_ns

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
        cells, base, count = self._cells, self._base, len(total_ns)
        cells[base + IN_FLIGHT] -= count
        cells[base + BY_OK] += count
        cells[base + ROWS] += rows
        _add_all(cells, base + DURATION_START, total_ns)
        cells[base + DURATION_SUM] += sum(total_ns)
        _add_all(cells, base + QUEUE_START, queue_ns)
        cells[base + QUEUE_SUM] += sum(queue_ns)
        input_ns, infer_ns, output_ns = parts_ns
        cells[base + INPUT_NS] += input_ns * count
        cells[base + INFER_NS] += infer_ns * count
        cells[base + OUTPUT_NS] += output_ns * count

    def cache_asked(self, lookup_ns: int, *, is_hit: bool) -> None:
        """Count a look into the response cache; a hit is answered without a run."""
        cells, base = self._cells, self._base
        cells[base + (layout.CACHE_HITS if is_hit else layout.CACHE_MISSES)] += 1
        cells[base + (layout.CACHE_HIT_NS if is_hit else layout.CACHE_MISS_NS)] += lookup_ns

    def request_refused(self, code: int) -> None:
        """Count a request that was turned away before it was counted in."""
        self._cells[self._base + BY_CODE + CODE_CELL.get(code, OTHER_CODE_CELL)] += 1

    def run_started(self) -> None:
        """Say that the graph runs now: a process that dies here was killed by this version."""
        self._cells[self._base + layout.RUNNING] += 1

    def run_ended(self) -> None:
        """Say that a run is over, however it ended."""
        self._cells[self._base + layout.RUNNING] -= 1

    def batch_done(self, rows: int, infer_ns: int, input_ns: int = 0, output_ns: int = 0) -> None:
        """Count one run of the graph over ``rows`` rows."""
        cells, base = self._cells, self._base
        cells[base + layout.INFERENCE.cell_of(infer_ns)] += 1
        cells[base + layout.INFERENCE.sum_cell] += infer_ns
        cells[base + layout.BATCH_ROWS.cell_of(rows)] += 1
        cells[base + layout.BATCH_ROWS.sum_cell] += rows
        cells[base + layout.LAST_INFERENCE_MS] = time.time_ns() // 1_000_000
        if 1 <= rows <= layout.MAX_BATCH_SIZE:
            start = base + layout.BATCH_STATS + (rows - 1) * layout.BATCH_STATS_CELLS
            cells[start] += 1
            cells[start + 1] += input_ns
            cells[start + 2] += infer_ns
            cells[start + 3] += output_ns

    def unknown_columns(self, count: int) -> None:
        """Count named columns that a request sent and the version does not know."""
        self._cells[self._base + layout.UNKNOWN_COLUMNS] += count

    def shadow_done(self, result: str, difference: float = 0.0) -> None:
        """Count what came of a copy, one of ``layout.SHADOW_RESULTS``, and how far it was off."""
        cells, base = self._cells, self._base
        cells[base + layout.SHADOW + layout.SHADOW_CELL[result]] += 1
        largest = base + layout.SHADOW_MAX_DIFFERENCE
        cells[largest] = max(cells[largest], layout.bits_of(difference))

    def detach(self) -> None:
        """Count into nothing from now on: the block may soon be another version's."""
        self._cells, self._base = _zeros(layout.BLOCK_CELLS), 0

    @property
    def queue_depth(self) -> int:
        """Rows that wait for a run."""
        return self._cells[self._base + layout.QUEUE_DEPTH]

    @queue_depth.setter
    def queue_depth(self, rows: int) -> None:
        self._cells[self._base + layout.QUEUE_DEPTH] = rows

    @property
    def in_flight(self) -> int:
        """Requests that were counted in and not yet out."""
        return self._cells[self._base + layout.IN_FLIGHT]


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

    def loading(self, key: VersionKey | None) -> None:
        """Say which version is being loaded, None once that is over."""
        # The version is written last: a reader that sees it sees the whole name.
        self._cells[layout.LOADING_VERSION] = 0
        if key is not None:
            _write_name(self._cells, layout.LOADING_NAME, key[0])
            self._cells[layout.LOADING_VERSION] = key[1]


class Region:
    """One slot's part of the page, for the worker that counts into it."""

    def __init__(self, cells: memoryview[int]) -> None:
        self._cells = cells
        self.plane = PlaneCounters(cells)
        self._blocks: dict[VersionKey, int] = {}
        self._counters: dict[VersionKey, VersionCounters] = {}
        self._take_over()

    def version(self, model: str, version: int) -> VersionCounters:
        """Return the counters of a version; the same block as long as nobody dropped it.

        A version that comes back goes on where it was, unless its block was needed meanwhile. With
        all blocks taken, versions share one that is shown under the model name ``_other``.
        """
        key = (model, version)
        counters = self._counters.get(key)
        if counters is None:
            if key not in self._blocks:
                self._blocks[key] = self._find(key)
            block = self._blocks[key]
            counters = VersionCounters(self._cells, layout.block_at(block))
            self._counters[key] = counters
        return counters

    def drop_version(self, model: str, version: int) -> None:
        """Give up a version's block; its numbers stay readable until another needs the room.

        Requests that are still under way then, after a drain that took too long, count no more.
        """
        if counters := self._counters.pop((model, version), None):
            counters.detach()
        block = self._blocks.pop((model, version), None)
        if block is None or block == layout.OVERFLOW_BLOCK:
            return
        self._zero_gauges(block)
        entry = layout.entry_at(block)
        self._cells[layout.DROPS] += 1
        self._cells[entry + layout.ENTRY_DROPPED_AT] = self._cells[layout.DROPS]
        self._cells[entry + layout.ENTRY_STATE] = layout.DROPPED

    def versions(self) -> tuple[VersionKey, ...]:
        """Return the versions that hold a block, those of a former worker in this slot included."""
        return tuple(self._blocks)

    def _take_over(self) -> None:
        cells = self._cells
        cells[layout.CPU_OF_FORMER_NS] += cells[layout.CPU_NS]
        cells[layout.CPU_NS] = 0
        cells[layout.LOOP_LAG_NS] = 0
        cells[layout.LOADING_VERSION] = 0
        for block in range(layout.OVERFLOW_BLOCK):
            entry = layout.entry_at(block)
            if cells[entry + layout.ENTRY_SEQUENCE] % 2:
                # The former worker died while the block changed hands: it belongs to nobody.
                cells[entry + layout.ENTRY_STATE] = layout.FREE
                cells[entry + layout.ENTRY_SEQUENCE] += 1
            if cells[entry + layout.ENTRY_STATE] == layout.IN_USE:
                self._blocks[reading.read_key(cells, entry)] = block
                self._zero_gauges(block)
        self._zero_gauges(layout.OVERFLOW_BLOCK)

    def _find(self, key: VersionKey) -> int:
        cells = self._cells
        free = oldest = None
        for block in range(layout.OVERFLOW_BLOCK):
            entry = layout.entry_at(block)
            state = cells[entry + layout.ENTRY_STATE]
            if state == layout.DROPPED:
                if reading.read_key(cells, entry) == key:
                    cells[entry + layout.ENTRY_STATE] = layout.IN_USE
                    return block
                age = cells[entry + layout.ENTRY_DROPPED_AT]
                oldest = min(oldest, (age, block)) if oldest else (age, block)
            elif state == layout.FREE and free is None:
                free = block
        if free is None and oldest is not None:
            free = oldest[1]
        if free is None:
            return layout.OVERFLOW_BLOCK
        self._assign(free, key)
        return free

    def _assign(self, block: int, key: VersionKey) -> None:
        cells, entry, start = self._cells, layout.entry_at(block), layout.block_at(block)
        cells[entry + layout.ENTRY_SEQUENCE] += 1
        cells[start : start + layout.BLOCK_CELLS] = _zeros(layout.BLOCK_CELLS)
        _write_name(cells, entry + layout.ENTRY_NAME, key[0])
        cells[entry + layout.ENTRY_VERSION] = key[1]
        cells[entry + layout.ENTRY_STATE] = layout.IN_USE
        cells[entry + layout.ENTRY_SEQUENCE] += 1

    def _zero_gauges(self, block: int) -> None:
        start = layout.block_at(block)
        self._cells[start : start + layout.GAUGE_CELLS] = _zeros(layout.GAUGE_CELLS)


class MetricsMemory:
    """The whole page, mapped into this process. A context manager; ``fd`` goes to the workers."""

    def __init__(self, fd: int, slots: int) -> None:
        self.fd = fd
        self.slots = slots
        self._cells = memoryview(mmap.mmap(fd, slots * layout.REGION_BYTES)).cast("q")

    @classmethod
    def create(cls, slots: int) -> MetricsMemory:
        """Make a zeroed page for ``slots`` workers. Pages that nobody touched take no memory."""
        fd = os.memfd_create("ramrack-metrics", os.MFD_CLOEXEC)
        os.ftruncate(fd, slots * layout.REGION_BYTES)
        return cls(fd, slots)

    @classmethod
    def attach(cls, fd: int, slots: int) -> MetricsMemory:
        """Map the page that another process made; raises InvalidInput where the sizes differ."""
        size_bytes = os.fstat(fd).st_size
        if size_bytes != slots * layout.REGION_BYTES:
            raise InvalidInput(
                f"metrics page: {size_bytes} bytes are not {slots} regions of "
                f"{layout.REGION_BYTES}: parent and worker are of different releases"
            )
        return cls(fd, slots)

    def writer(self, slot: int) -> Region:
        """Take over a slot's region for counting. One process at a time may hold it."""
        return Region(self.region(slot))

    def statistics(self, model: str, version: int) -> dict[str, Any]:
        """Return what the V2 statistics extension says of a version, summed over all workers."""
        return reading.statistics(self.regions(), model, version)

    def suspects(self, slot: int) -> list[VersionKey]:
        """Return what a worker was loading or computing when it died.

        To be read before a replacement takes the region over.
        """
        return reading.suspects(self.region(slot))

    def regions(self) -> list[memoryview[int]]:
        """Return the cells of all slots."""
        return [self.region(slot) for slot in range(self.slots)]

    def region(self, slot: int) -> memoryview[int]:
        """Return the cells of a slot."""
        if not 0 <= slot < self.slots:
            raise InvalidInput(f"metrics page: slot {slot} is not one of {self.slots}")
        start = slot * layout.REGION_CELLS
        return self._cells[start : start + layout.REGION_CELLS]

    def close(self) -> None:
        """Close the descriptor; the mapping goes when the last region that was given out goes."""
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _add_all(cells: memoryview[int], start: int, values: Sequence[int]) -> None:
    """Count durations of one histogram; those of one run mostly share a cell."""
    lowest = bisect_left(DURATION_BOUNDS_NS, min(values))
    if lowest == bisect_left(DURATION_BOUNDS_NS, max(values)):
        cells[start + lowest] += len(values)
        return
    for value in values:
        cells[start + bisect_left(DURATION_BOUNDS_NS, value)] += 1


def _write_name(cells: memoryview[int], start: int, name: str) -> None:
    raw = name.encode()
    if len(raw) > layout.MAX_NAME_BYTES:
        raise InvalidInput(f"model name: {len(raw)} bytes, at most {layout.MAX_NAME_BYTES}")
    padded = memoryview(raw.ljust(layout.MAX_NAME_BYTES, b"\0")).cast("q")
    cells[start : start + layout.NAME_CELLS] = padded


def _zeros(count: int) -> memoryview[int]:
    return memoryview(bytearray(count * layout.CELL_BYTES)).cast("q")
