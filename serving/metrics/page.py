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
from typing import Any, Final, Self

from registry.errors import InvalidInput
from serving.metrics import layout, reading
from serving.metrics.counters import PlaneCounters, Timing, VersionCounters, write_name, zeros
from serving.metrics.reading import VersionKey

__all__ = [
    "OVERFLOW_MODEL",
    "MetricsMemory",
    "PlaneCounters",
    "Region",
    "Timing",
    "VersionCounters",
]

OVERFLOW_MODEL: Final = "_other"


class Region:
    """One slot's part of the page, for the worker that counts into it."""

    def __init__(self, cells: memoryview[int]) -> None:
        self._cells = cells
        self.plane = PlaneCounters(cells)
        self._blocks: dict[VersionKey, int] = {}
        self._counters: dict[VersionKey, VersionCounters] = {}
        self._take_over()
        # One object for all who share the block, for nobody else may write to it.
        self._overflow = self._writer(layout.OVERFLOW_BLOCK)

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
            counters = self._overflow if block == layout.OVERFLOW_BLOCK else self._writer(block)
            self._counters[key] = counters
        return counters

    def drop_version(self, model: str, version: int) -> None:
        """Give up a version's block; its numbers stay readable until another needs the room.

        Requests that are still under way then, after a drain that took too long, count no more.
        """
        counters = self._counters.pop((model, version), None)
        block = self._blocks.pop((model, version), None)
        if block is None or block == layout.OVERFLOW_BLOCK:
            return
        if counters is not None:
            counters.detach()
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

    def _writer(self, block: int) -> VersionCounters:
        start = layout.block_at(block)
        return VersionCounters(self._cells[start : start + layout.BLOCK_CELLS])

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
        cells[start : start + layout.BLOCK_CELLS] = zeros(layout.BLOCK_CELLS)
        write_name(cells, entry + layout.ENTRY_NAME, key[0])
        cells[entry + layout.ENTRY_VERSION] = key[1]
        cells[entry + layout.ENTRY_STATE] = layout.IN_USE
        cells[entry + layout.ENTRY_SEQUENCE] += 1

    def _zero_gauges(self, block: int) -> None:
        start = layout.block_at(block)
        self._cells[start : start + layout.GAUGE_CELLS] = zeros(layout.GAUGE_CELLS)


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
