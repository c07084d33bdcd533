"""Reading a metrics page: sums over all workers, living or dead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, Final, TypeAlias

from serving.metrics import layout

Cells: TypeAlias = Sequence[int]
VersionKey: TypeAlias = tuple[str, int]

# Of these the largest over all workers counts, of all others the sum.
_LARGEST: Final = (layout.LAST_INFERENCE_NS, layout.SHADOW_MAX_DIFFERENCE)


@dataclass(slots=True)
class VersionNumbers:
    """The cells of one version, added up over workers; indexed by the layout's names."""

    cells: list[int] = field(default_factory=lambda: [0] * layout.BLOCK_CELLS)

    def add(self, block: Cells, *, has_gauges: bool) -> None:
        """Add one worker's block or its beginning.

        ``has_gauges``: False for a worker that is not alive.
        """
        largest = [(cell, max(self.cells[cell], block[cell])) for cell in _LARGEST]
        first = 0 if has_gauges else layout.GAUGE_CELLS
        self.cells[first : len(block)] = map(add, self.cells[first:], block[first:])
        for cell, value in largest:
            self.cells[cell] = value

    def by_code(self) -> dict[str, int]:
        """Return requests by status code, only those that occurred."""
        return by_code(self.cells, layout.BY_CODE)

    def shadow_results(self) -> dict[str, int]:
        """Return what came of copies, by result; empty where the version got none."""
        start = layout.SHADOW
        counts = self.cells[start : start + len(layout.SHADOW_RESULTS)]
        return dict(zip(layout.SHADOW_RESULTS, counts, strict=True)) if any(counts) else {}

    def histogram(self, histogram: layout.Histogram) -> tuple[list[int], int]:
        """Return the counts of a histogram's buckets, the last above all bounds, and the sum."""
        start = histogram.start
        return self.cells[start : start + len(histogram.bounds) + 1], self.cells[histogram.sum_cell]


def blocks(
    region: memoryview[int], count: int = layout.BLOCK_CELLS
) -> Iterator[tuple[VersionKey, list[int]]]:
    """Yield version and first ``count`` cells of each block in use or dropped.

    A block that changes hands meanwhile is left out.
    """
    for block in range(layout.OVERFLOW_BLOCK):
        entry = layout.entry_at(block)
        sequence = region[entry + layout.ENTRY_SEQUENCE]
        if sequence % 2 or region[entry + layout.ENTRY_STATE] == layout.FREE:
            continue
        key = read_key(region, entry)
        start = layout.block_at(block)
        cells = region[start : start + count].tolist()
        if region[entry + layout.ENTRY_SEQUENCE] == sequence:
            yield key, cells


def find_block(region: memoryview[int], key: VersionKey) -> list[int] | None:
    """Return the cells of one version in one region, or None."""
    for block in range(layout.OVERFLOW_BLOCK):
        entry = layout.entry_at(block)
        sequence = region[entry + layout.ENTRY_SEQUENCE]
        if (
            sequence % 2
            or region[entry + layout.ENTRY_STATE] == layout.FREE
            or region[entry + layout.ENTRY_VERSION] != key[1]
            or read_key(region, entry) != key
        ):
            continue
        start = layout.block_at(block)
        cells = region[start : start + layout.BLOCK_CELLS].tolist()
        if region[entry + layout.ENTRY_SEQUENCE] == sequence:
            return cells
    return None


def overflow_cells(region: memoryview[int]) -> list[int]:
    """Return the cells that all versions without a block of their own share."""
    start = layout.block_at(layout.OVERFLOW_BLOCK)
    return region[start : start + layout.BLOCK_CELLS].tolist()


def suspects(region: memoryview[int]) -> list[VersionKey]:
    """Return the version that a worker was loading when it died, and those whose graph ran."""
    found = [key for key, cells in blocks(region, layout.GAUGE_CELLS) if cells[layout.RUNNING] > 0]
    if version := region[layout.LOADING_VERSION]:
        found.insert(0, (read_name(region, layout.LOADING_NAME), version))
    return list(dict.fromkeys(found))


def statistics(regions: Sequence[memoryview[int]], model: str, version: int) -> dict[str, Any]:
    """Return one entry of the V2 statistics extension; all numbers are unsigned integers."""
    numbers = VersionNumbers()
    for region in regions:
        cells = find_block(region, (model, version))
        if cells is not None:
            numbers.add(cells, has_gauges=False)
    cells = numbers.cells
    success = cells[layout.BY_CODE + layout.CODE_CELL[200]]
    computed = success - cells[layout.CACHE_HITS]
    codes = cells[layout.BY_CODE : layout.BY_CODE + len(layout.CODES) + 1]
    duration_ns = cells[layout.DURATION.sum_cell]
    runs, _ = numbers.histogram(layout.INFERENCE)
    return {
        "name": model,
        "version": str(version),
        "last_inference": cells[layout.LAST_INFERENCE_NS] // 1_000_000,
        "inference_count": max(cells[layout.ROWS] - cells[layout.CACHE_HIT_ROWS], 0),
        "execution_count": sum(runs),
        "inference_stats": {
            "success": _duration(success, duration_ns - cells[layout.FAIL_NS]),
            "fail": _duration(sum(codes) - success, cells[layout.FAIL_NS]),
            "queue": _duration(success, cells[layout.QUEUE.sum_cell]),
            "compute_input": _duration(computed, cells[layout.INPUT_NS]),
            "compute_infer": _duration(computed, cells[layout.INFER_NS]),
            "compute_output": _duration(computed, cells[layout.OUTPUT_NS]),
            "cache_hit": _duration(cells[layout.CACHE_HITS], cells[layout.CACHE_HIT_NS]),
            "cache_miss": _duration(cells[layout.CACHE_MISSES], cells[layout.CACHE_MISS_NS]),
        },
        "batch_stats": list(_batch_stats(cells)),
        "memory_usage": [],
    }


def by_code(cells: Cells, start: int) -> dict[str, int]:
    """Return the counts by status code that start at a cell, only those that occurred."""
    names = [*map(str, layout.CODES), layout.OTHER]
    return {name: cells[start + i] for i, name in enumerate(names) if cells[start + i]}


def read_key(cells: memoryview[int], entry: int) -> VersionKey:
    """Return model and version of a directory entry."""
    return read_name(cells, entry + layout.ENTRY_NAME), cells[entry + layout.ENTRY_VERSION]


def read_name(cells: memoryview[int], start: int) -> str:
    """Return the model name that stands at ``start``."""
    raw = cells[start : start + layout.NAME_CELLS].tobytes()
    return raw.rstrip(b"\0").decode("utf-8", "replace")


def _batch_stats(cells: Cells) -> Iterator[dict[str, Any]]:
    for size in range(1, layout.MAX_BATCH_SIZE + 1):
        start = layout.BATCH_STATS + (size - 1) * layout.BATCH_STATS_CELLS
        runs, input_ns, infer_ns, output_ns = cells[start : start + layout.BATCH_STATS_CELLS]
        if runs:
            yield {
                "batch_size": size,
                "compute_input": _duration(runs, input_ns),
                "compute_infer": _duration(runs, infer_ns),
                "compute_output": _duration(runs, output_ns),
            }


def _duration(count: int, nanoseconds: int) -> dict[str, int]:
    # A reader may catch a sum before its count; perf_analyzer takes unsigned numbers only.
    return {"count": max(count, 0), "ns": max(nanoseconds, 0)}
