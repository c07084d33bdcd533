"""Keeps the weights of loaded versions in RAM: touched before the workers map them, then watched.

Each object is mapped once by the parent, however many versions share it, locked where the system
allows, and let go with the last version that needs it. What the kernel evicted all the same comes
back at a bounded rate.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from models import priority
from models.errors import LoadFailed
from registry.desired import Key
from registry.errors import RegistryError
from serving.control.mapping import MappedObject

# Counting pages takes a third of a millisecond for each gigabyte; nobody needs it more often.
COUNT_EVERY_S: Final = 1.0
# So many pieces are being read while one is touched.
_AHEAD: Final = 3
# At a low rate it is better to pause often than long.
_MAX_PAUSE_S: Final = 0.5
_log = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class InRam:
    """Bytes of mapped objects: how many there are, how many are in RAM, how many locked there."""

    size_bytes: int
    resident_bytes: int
    locked_bytes: int


@dataclass(slots=True)
class _Held:
    mapped: MappedObject
    resident_bytes: int = 0
    users: set[Key] = field(default_factory=set)


class Residency:
    """Objects that stay in RAM while a version needs them. Event-loop thread only.

    ``path_of``: where the object of a digest lies. ``bytes_per_s``: how fast pages are read from
    the disk, 0 for no bound; what is cached already is not slowed down. ``threads``: how many loads
    there may be at once. ``returned_bytes``: what had been evicted and was brought back.
    """

    def __init__(
        self,
        path_of: Callable[[str], Path],
        *,
        bytes_per_s: int,
        is_locking: bool,
        threads: int = 1,
    ) -> None:
        self._path_of = path_of
        self._bytes_per_s = bytes_per_s
        self._is_locking = is_locking
        self._held: dict[str, _Held] = {}
        self._counted_s = -COUNT_EVERY_S
        self._unlocked_reason = ""
        self._is_closed = False
        self.returned_bytes = 0
        # Behind everything else, and one more than the loads, so that none waits for a check.
        self._threads = ThreadPoolExecutor(
            threads + 1, thread_name_prefix="quiet", initializer=priority.step_back_thread
        )

    async def quietly(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run blocking work in a thread that steps back behind everything that serves."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))

    async def hold(
        self, key: Key, objects: Mapping[str, int], progress: Callable[[int], None] | None = None
    ) -> None:
        """Return when ``objects`` are in RAM; hold them, and nothing else, there for key.

        ``objects``: digest to the bytes that are read, from the object's start.
        ``progress`` gets the bytes done so far, in another thread. Raises Corrupt, LoadFailed or
        StoreFailed, and then holds nothing that it did not hold before.
        """
        try:
            missing = {}
            for digest, size_bytes in objects.items():
                held = self._held.get(digest)
                if held is None or held.mapped.size_bytes < size_bytes:
                    missing[digest] = size_bytes
                else:
                    held.users.add(key)
            for item in await self.quietly(self._map, missing):
                self._keep(item, key)
            # One that was released meanwhile needs nothing any more.
            wanted = [self._held[digest] for digest in objects if digest in self._held]
            await self.quietly(self._bring, wanted, progress or _ignore)
        except BaseException:
            await self.release(key)
            raise
        await self.release(key, keep=objects)

    async def release(self, key: Key, keep: Container[str] = ()) -> None:
        """Let go of what ``key`` alone needed; nothing of it is mapped when this returns."""
        unused = []
        for digest, held in list(self._held.items()):
            if digest not in keep:
                held.users.discard(key)
            if not held.users:
                del self._held[digest]
                unused.append(held.mapped)
        if unused:
            await self.quietly(_close_all, unused)

    def _keep(self, item: MappedObject, key: Key) -> None:
        held = self._held.setdefault(item.digest, _Held(item))
        held.users.add(key)
        if held.mapped is not item:
            # Another load has mapped it meanwhile, or another version reads less of it.
            is_more = item.size_bytes > held.mapped.size_bytes
            unused, held.mapped = (held.mapped, item) if is_more else (item, held.mapped)
            unused.close()

    async def count(self) -> None:
        """Count anew what is in RAM, unless that was done just now."""
        now_s = time.monotonic()
        if now_s - self._counted_s >= COUNT_EVERY_S:
            self._counted_s = now_s
            await self.quietly(_count, list(self._held.values()))

    async def check(self) -> frozenset[Key]:
        """Bring back what was evicted; return the versions whose objects can no longer be read.

        Locks also what there was no room to lock before: an unload may have made some.
        """
        held = list(self._held.values())
        await self.quietly(_count, held)
        self._counted_s = time.monotonic()
        damaged: set[Key] = set()
        for item in held:
            if item.resident_bytes >= item.mapped.size_bytes or not self._is_held(item):
                continue
            try:
                returned = await self.quietly(self._bring, [item], _ignore)
            except (RegistryError, LoadFailed) as error:
                _log.error("%s", error)
                damaged |= item.users
                continue
            self.returned_bytes += returned
            _log.warning(
                "evicted weights were brought back",
                extra={"object": item.mapped.digest, "bytes": returned},
            )
        if self._is_locking:
            await self.quietly(self._lock_rest, held)
        return frozenset(damaged)

    def _is_held(self, item: _Held) -> bool:
        """Tell whether nobody let go of an object meanwhile."""
        return self._held.get(item.mapped.digest) is item

    def of(self, key: Key) -> InRam | None:
        """Return what is in RAM for one version, by the last count; None where nothing is held."""
        mine = [held for held in self._held.values() if key in held.users]
        return _sum(mine) if mine else None

    def total(self) -> InRam:
        """Return what is in RAM for all versions, each object once, by the last count."""
        return _sum(self._held.values())

    def close(self) -> None:
        """Let go of everything. Work under way ends at the next piece."""
        self._is_closed = True
        _close_all(held.mapped for held in self._held.values())
        self._held.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _map(self, objects: Mapping[str, int]) -> list[MappedObject]:
        mapped: list[MappedObject] = []
        try:
            for digest, size_bytes in objects.items():
                mapped.append(MappedObject(self._path_of(digest), digest, size_bytes))
        except (RegistryError, LoadFailed):
            _close_all(mapped)
            raise
        return mapped

    def _bring(self, items: Iterable[_Held], progress: Callable[[int], None]) -> int:
        """Touch and lock every piece, at the bounded rate; return the bytes that were missing."""
        began_s = time.monotonic()
        read_bytes = rest_bytes = done_bytes = 0
        for item in items:
            mapped = item.mapped
            is_locking = self._is_locking
            asked, missing_bytes = iter(mapped.chunks()), 0
            for ahead in itertools.islice(asked, _AHEAD):
                missing_bytes += mapped.want(ahead)
            for start in mapped.chunks():
                self._pause(began_s, read_bytes + missing_bytes)
                for ahead in itertools.islice(asked, 1):
                    missing_bytes += mapped.want(ahead)
                mapped.touch(start)
                if is_locking and (reason := mapped.lock(start)):
                    is_locking = False
                    self._note_unlocked(reason)
                progress(done_bytes + start)
            done_bytes += mapped.size_bytes
            read_bytes += missing_bytes
            rest_bytes += self._want_rest(mapped, began_s, read_bytes + rest_bytes, missing_bytes)
            item.resident_bytes = mapped.count()
        return read_bytes

    def _lock_rest(self, items: Iterable[_Held]) -> None:
        for item in items:
            for start in item.mapped.chunks():
                if reason := item.mapped.lock(start):
                    self._note_unlocked(reason)
                    break

    def _want_rest(
        self, mapped: MappedObject, began_s: float, read_bytes: int, missing_bytes: int
    ) -> int:
        """Read on where the start was not in RAM, for then the rest is not either.

        A worker's faults would ask for it in small pieces, and each worker for the same ones.
        """
        rest_bytes = 0
        for count in mapped.want_rest() if missing_bytes else ():
            rest_bytes += count
            self._pause(began_s, read_bytes + rest_bytes)
        return rest_bytes

    def _pause(self, began_s: float, read_bytes: int) -> None:
        while self._bytes_per_s and not self._is_closed:
            ahead_s = read_bytes / self._bytes_per_s - (time.monotonic() - began_s)
            if ahead_s <= 0:
                return
            time.sleep(min(ahead_s, _MAX_PAUSE_S))

    def _note_unlocked(self, reason: str) -> None:
        if reason and not self._unlocked_reason:
            self._unlocked_reason = reason
            _log.warning(
                "weights are in RAM but not locked there: raise RLIMIT_MEMLOCK (ramrack doctor)",
                extra={"reason": reason},
            )


def _close_all(objects: Iterable[MappedObject]) -> None:
    for item in objects:
        item.close()


def _count(items: Iterable[_Held]) -> None:
    for item in items:
        item.resident_bytes = item.mapped.count()


def _sum(items: Iterable[_Held]) -> InRam:
    found = list(items)
    return InRam(
        size_bytes=sum(item.mapped.size_bytes for item in found),
        resident_bytes=sum(item.resident_bytes for item in found),
        locked_bytes=sum(item.mapped.locked_bytes for item in found),
    )


def _ignore(_: int) -> None:
    return None
