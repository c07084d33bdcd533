"""Where each number of a metrics page stands: the one description that writer and reader share.

A page is one region for each worker slot. A region is a head (the plane's own numbers), a
directory (which version counts in which block) and the blocks. All are int64 cells; durations are
nanoseconds.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from struct import Struct
from typing import Final

CELL_BYTES: Final = 8
_INTEGER: Final = Struct("=q")
_DOUBLE: Final = Struct("=d")

# Status codes counted one by one; all others share the last cell.
CODES: Final = (
    200, 400, 401, 403, 404, 405, 408, 409, 413, 415, 429, 431, 499, 500, 503, 504, 507,
)  # fmt: skip
OTHER: Final = "other"
REASONS: Final = (
    "queue_full", "in_flight", "max_concurrency", "deadline", "cancelled", "body_too_large",
    "headers_too_large", "too_slow", "bad_request", "unsupported_media", "stopping", OTHER,
)  # fmt: skip

# What came of the copies of requests that a version got as a shadow.
SHADOW_RESULTS: Final = ("same", "different", "failed", "shed")

DURATION_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05,
    0.1, 0.25, 1.0, 5.0,
)  # fmt: skip
DURATION_BOUNDS_NS: Final = tuple(round(bound * 1e9) for bound in DURATION_BOUNDS_S)
ROW_BOUNDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
# Runs of more rows are in the totals and the histogram, but not in the statistics by batch size.
MAX_BATCH_SIZE: Final = 256

NAME_CELLS: Final = 8
MAX_NAME_BYTES: Final = NAME_CELLS * CELL_BYTES


class _Cells:
    """Hands out cells one after another while a layout is put together."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, count: int = 1) -> int:
        start = self.size
        self.size += count
        return start


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cells of one histogram: a count for each bound and one for above, then the exact sum."""

    start: int
    bounds: tuple[int, ...]

    @property
    def sum_cell(self) -> int:
        """The cell of the sum."""
        return self.start + len(self.bounds) + 1

    @property
    def cells(self) -> int:
        """How many cells it takes."""
        return len(self.bounds) + 2

    def cell_of(self, value: int) -> int:
        """Return the cell that counts ``value``; a value on a bound belongs below it."""
        return self.start + bisect_left(self.bounds, value)


_block = _Cells()
IN_FLIGHT: Final = _block.take()
QUEUE_DEPTH: Final = _block.take()
RUNNING: Final = _block.take()
# Gauges come first, so that a replacement worker zeroes them in one stroke.
GAUGE_CELLS: Final = _block.size
LAST_INFERENCE_NS: Final = _block.take()
ROWS: Final = _block.take()
UNKNOWN_COLUMNS: Final = _block.take()
MISSING_VALUES: Final = _block.take()
UNSEEN_CATEGORIES: Final = _block.take()
CPU_OF_RUNS_NS: Final = _block.take()
FAIL_NS: Final = _block.take()
INPUT_NS: Final = _block.take()
INFER_NS: Final = _block.take()
OUTPUT_NS: Final = _block.take()
SHADOW: Final = _block.take(len(SHADOW_RESULTS))
# A non-negative double by its bits, which order as the doubles do.
SHADOW_MAX_DIFFERENCE: Final = _block.take()
CACHE_HITS: Final = _block.take()
CACHE_HIT_NS: Final = _block.take()
CACHE_HIT_ROWS: Final = _block.take()
CACHE_MISSES: Final = _block.take()
CACHE_MISS_NS: Final = _block.take()
BY_CODE: Final = _block.take(len(CODES) + 1)
DURATION: Final = Histogram(_block.size, DURATION_BOUNDS_NS)
_block.take(DURATION.cells)
QUEUE: Final = Histogram(_block.size, DURATION_BOUNDS_NS)
_block.take(QUEUE.cells)
INFERENCE: Final = Histogram(_block.size, DURATION_BOUNDS_NS)
_block.take(INFERENCE.cells)
BATCH_ROWS: Final = Histogram(_block.size, ROW_BOUNDS)
_block.take(BATCH_ROWS.cells)
# For each batch size from 1: runs, input, infer and output nanoseconds.
BATCH_STATS_CELLS: Final = 4
BATCH_STATS: Final = _block.take(BATCH_STATS_CELLS * MAX_BATCH_SIZE)
BLOCK_CELLS: Final = _block.size

# The last block takes all versions that found no free one.
BLOCKS: Final = 256
OVERFLOW_BLOCK: Final = BLOCKS - 1

_entry = _Cells()
ENTRY_SEQUENCE: Final = _entry.take()
ENTRY_STATE: Final = _entry.take()
ENTRY_VERSION: Final = _entry.take()
ENTRY_DROPPED_AT: Final = _entry.take()
ENTRY_NAME: Final = _entry.take(NAME_CELLS)
ENTRY_CELLS: Final = _entry.size

FREE: Final = 0
IN_USE: Final = 1
DROPPED: Final = 2

_head = _Cells()
LOOP_LAG_NS: Final = _head.take()
CPU_NS: Final = _head.take()
CPU_OF_FORMER_NS: Final = _head.take()
POLLED_FOUND_NS: Final = _head.take()
POLLED_VAIN_NS: Final = _head.take()
DROPS: Final = _head.take()
LOADING_VERSION: Final = _head.take()
LOADING_NAME: Final = _head.take(NAME_CELLS)
REJECTED: Final = _head.take(len(REASONS))
UNKNOWN_BY_CODE: Final = _head.take(len(CODES) + 1)
DIRECTORY: Final = _head.take(ENTRY_CELLS * BLOCKS)
FIRST_BLOCK: Final = _head.take(BLOCK_CELLS * BLOCKS)
REGION_CELLS: Final = _head.size
REGION_BYTES: Final = REGION_CELLS * CELL_BYTES

CODE_CELL: Final = {code: index for index, code in enumerate(CODES)}
OTHER_CODE_CELL: Final = len(CODES)
REASON_CELL: Final = {reason: index for index, reason in enumerate(REASONS)}
SHADOW_CELL: Final = {result: index for index, result in enumerate(SHADOW_RESULTS)}


def bits_of(value: float) -> int:
    """Return the cell that holds a non-negative double; of two, the larger has the larger bits."""
    bits: int = _INTEGER.unpack(_DOUBLE.pack(value))[0]
    return bits


def double_of(bits: int) -> float:
    """Return the double of a cell that ``bits_of`` made."""
    value: float = _DOUBLE.unpack(_INTEGER.pack(bits))[0]
    return value


def entry_at(block: int) -> int:
    """Return the first cell of a block's directory entry, counted from the region's start."""
    return DIRECTORY + block * ENTRY_CELLS


def block_at(block: int) -> int:
    """Return the first cell of a block, counted from the region's start."""
    return FIRST_BLOCK + block * BLOCK_CELLS
