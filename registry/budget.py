"""The memory budget: what the loaded versions take, and whether one more fits.

Pure. The sums are made anew from what is loaded each time, so they cannot drift. Objects (graphs,
weights, packed weights) are counted once a machine by digest, however many versions and workers
share them; private memory is counted once a worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from registry.errors import OverBudget
from registry.manifest import Json, JsonObject

DEFAULT_SHARE: Final = 0.75
LEAST_RUN_BYTES: Final = 1 << 30
UNMEASURED: Final = (
    "private memory is measured by the first load and not known before it: needs_bytes is a lower "
    "bound, those weights that no loaded version has"
)
# What the command line says of the same plan (serving.cli.room), so that the two agree.
NO_UNLOAD: Final = (
    "no version that may be unloaded makes room, what is routed, aliased, or what a rollback goes "
    "back to may not: route elsewhere first, or raise memory_budget"
)

Key: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one version takes: ``objects`` maps digests to bytes, shared by all workers.

    Of an object that only a part is read of, the bytes are those from its start to the part's end.
    ``private_bytes_per_worker``: of the worker that takes most; None before anything measured it.
    ``spared_bytes``: by how much all workers take less than that many times this.
    """

    objects: Mapping[str, int]
    private_bytes_per_worker: int | None
    spared_bytes: int = 0

    @property
    def object_bytes(self) -> int:
        """Bytes of all objects, each digest once."""
        return sum(self.objects.values())

    def private_bytes(self, workers: int) -> int:
        """Return what all workers together take for themselves, as far as it is known."""
        return workers * (self.private_bytes_per_worker or 0) - self.spared_bytes


@dataclass(frozen=True, slots=True)
class Eviction:
    """A version that could be unloaded, and what that would free after those before it."""

    key: Key
    frees_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a load would do. ``new_bytes``: what no loaded version holds of its objects.

    Until the private memory of a version was measured ``needs_bytes`` is a lower bound, and
    ``reason`` says so. ``over_bytes``: what is held beyond the budget; nothing is admitted before
    that is freed. ``would_evict``: what to unload so that it fits, the largest first; nothing is
    unloaded by itself, and all of it may still be too little. ``is_bound``: the private memory is
    not measured, only known to be at least this.
    """

    key: Key
    budget_bytes: int
    needs_bytes: int
    free_bytes: int
    object_bytes: int
    new_bytes: int
    private_bytes_per_worker: int | None
    workers: int
    would_evict: tuple[Eviction, ...] = ()
    is_bound: bool = False
    over_bytes: int = 0

    @property
    def short_bytes(self) -> int:
        """What has to be freed first."""
        return max(0, self.needs_bytes + self.over_bytes - self.free_bytes)

    @property
    def fits(self) -> bool:
        """Say whether the budget has room, as far as the need is known."""
        return not self.short_bytes

    @property
    def fits_after_evicting(self) -> bool:
        """Say whether it would fit once ``would_evict`` is unloaded."""
        return self.short_bytes <= sum(eviction.frees_bytes for eviction in self.would_evict)

    @property
    def is_estimated(self) -> bool:
        """Say whether ``needs_bytes`` is only a lower bound."""
        return self.is_bound or self.private_bytes_per_worker is None

    @property
    def reason(self) -> str:
        """Say why the need is not known exactly; empty where it is."""
        if self.is_bound:
            return "its inspection needed more than there is: needs_bytes is a lower bound"
        return UNMEASURED if self.is_estimated else ""

    def to_json(self) -> JsonObject:
        """Return the JSON form that users see."""
        return {
            "model": self.key[0],
            "version": self.key[1],
            "budget_bytes": self.budget_bytes,
            "needs_bytes": self.needs_bytes,
            "free_bytes": self.free_bytes,
            "over_bytes": self.over_bytes,
            "fits": self.fits,
            "object_bytes": self.object_bytes,
            "new_bytes": self.new_bytes,
            "private_bytes_per_worker": self.private_bytes_per_worker,
            "workers": self.workers,
            "is_estimated": self.is_estimated,
            "reason": self.reason,
            "would_evict": evictions_json(self.would_evict),
            "fits_after_evicting": self.fits_after_evicting,
        }


@dataclass(frozen=True, slots=True)
class Excess:
    """What is held beyond the budget, and what to unload so that it fits again."""

    committed_bytes: int
    budget_bytes: int
    would_evict: tuple[Eviction, ...]

    @property
    def over_bytes(self) -> int:
        """Bytes beyond the budget; 0 where all is within it."""
        return max(0, self.committed_bytes - self.budget_bytes)

    @property
    def way_out(self) -> str:
        """Say what to unload, and what each unload gives."""
        freed = sum(eviction.frees_bytes for eviction in self.would_evict)
        return _way_out(self.would_evict, is_enough=self.over_bytes <= freed)

    def to_json(self) -> JsonObject:
        """Return what an event says of it."""
        return {
            "committed_bytes": self.committed_bytes,
            "budget_bytes": self.budget_bytes,
            "over_bytes": self.over_bytes,
            "would_evict": evictions_json(self.would_evict),
        }


def evictions_json(evictions: Iterable[Eviction]) -> list[Json]:
    """Return the JSON form that users see."""
    return [
        {"model": item.key[0], "version": item.key[1], "frees_bytes": item.frees_bytes}
        for item in evictions
    ]


@dataclass(frozen=True, slots=True)
class Shares:
    """How one loaded version's weights divide: ``unique`` are its own alone, ``others`` share."""

    unique_bytes: int
    shared_bytes: int
    others: tuple[Key, ...]


def default_budget_bytes(available_bytes: int) -> int:
    """Return the budget where none is set; ``available_bytes``: what host and cgroup leave."""
    return int(available_bytes * DEFAULT_SHARE)


def default_run_bytes(available_bytes: int, budget_bytes: int, workers: int) -> int:
    """Return what the runs of one worker may take: its share of what the budget leaves."""
    return max(LEAST_RUN_BYTES, (available_bytes - budget_bytes) // max(1, workers))


def committed_bytes(held: Mapping[Key, Footprint], workers: int) -> int:
    """Return the bytes that ``held`` takes on the whole machine."""
    private = sum(item.private_bytes(workers) for item in held.values())
    return sum(_objects(held.values()).values()) + private


def plan(
    budget_bytes: int,
    held: Mapping[Key, Footprint],
    key: Key,
    new: Footprint,
    workers: int,
    evictable: Iterable[Key] = (),
) -> Plan:
    """Return what loading ``key`` beside ``held`` would take; nothing if it is held already.

    ``evictable``: those of ``held`` that nobody would miss.
    """
    others = {name: item for name, item in held.items() if name != key}
    present = committed_bytes(held, workers)
    wanted = committed_bytes({**others, key: new}, workers)
    shared = _objects(others.values())
    needs, free = max(0, wanted - present), max(0, budget_bytes - present)
    # What is held already and takes no more is not to be admitted again.
    is_nothing = key in held and not needs
    over = 0 if is_nothing else max(0, present - budget_bytes)
    return Plan(
        key=key,
        budget_bytes=budget_bytes,
        needs_bytes=needs,
        free_bytes=free,
        object_bytes=new.object_bytes,
        new_bytes=sum(max(0, size - shared.get(digest, 0)) for digest, size in new.objects.items()),
        private_bytes_per_worker=new.private_bytes_per_worker,
        workers=workers,
        would_evict=_evictions(
            needs + over - free,
            {**others, key: new},
            sorted(set(evictable) & others.keys()),
            workers,
        ),
        over_bytes=over,
    )


def excess(
    budget_bytes: int, held: Mapping[Key, Footprint], workers: int, evictable: Iterable[Key] = ()
) -> Excess:
    """Return what ``held`` takes beyond the budget, as measured after it was admitted."""
    present = committed_bytes(held, workers)
    evictions = _evictions(
        present - budget_bytes, held, sorted(set(evictable) & held.keys()), workers
    )
    return Excess(present, budget_bytes, evictions)


def admit(
    budget_bytes: int,
    held: Mapping[Key, Footprint],
    key: Key,
    new: Footprint,
    workers: int,
    evictable: Iterable[Key] = (),
) -> Plan:
    """Return the plan if the version fits, or raise OverBudget with it."""
    result = plan(budget_bytes, held, key, new, workers, evictable)
    if not result.fits:
        and_private = ""
        if not result.is_estimated:
            private = result.private_bytes_per_worker
            and_private = f" and {private} private in each of {workers} workers"
        raise OverBudget(
            f"{key[0]}/{key[1]} needs {'at least ' if result.is_estimated else ''}"
            f"{result.needs_bytes} bytes ({result.new_bytes} of weights{and_private}), "
            f"{room_text(result, budget_bytes)}: {load_way_out(result)}",
            result.to_json(),
        )
    return result


def shares(weights: Mapping[Key, Mapping[str, int]]) -> dict[Key, Shares]:
    """Return how the weights of each version (digest to bytes) divide into own and shared ones."""
    users: dict[str, set[Key]] = {}
    for key, mine in weights.items():
        for digest in mine:
            users.setdefault(digest, set()).add(key)
    result = {}
    for key, mine in weights.items():
        unique = sum(size for digest, size in mine.items() if len(users[digest]) == 1)
        others = set().union(*(users[digest] for digest in mine)) - {key}
        result[key] = Shares(unique, sum(mine.values()) - unique, tuple(sorted(others)))
    return result


def _evictions(
    short_bytes: int, held: Mapping[Key, Footprint], candidates: list[Key], workers: int
) -> tuple[Eviction, ...]:
    """Return what to unload, the most useful first, until ``short_bytes`` are free."""
    chosen: list[Eviction] = []
    remaining, left = dict(held), list(candidates)
    while short_bytes > 0 and left:
        present = committed_bytes(remaining, workers)
        gives = {key: present - committed_bytes(_without(remaining, key), workers) for key in left}
        best = max(left, key=gives.__getitem__)
        if not gives[best]:
            break
        chosen.append(Eviction(best, gives[best]))
        short_bytes -= gives[best]
        left.remove(best)
        del remaining[best]
    return tuple(chosen)


def _objects(items: Iterable[Footprint]) -> dict[str, int]:
    """Return all objects once, each with the most that any of the versions holds of it."""
    objects: dict[str, int] = {}
    for item in items:
        for digest, size_bytes in item.objects.items():
            objects[digest] = max(size_bytes, objects.get(digest, 0))
    return objects


def _without(held: Mapping[Key, Footprint], key: Key) -> dict[Key, Footprint]:
    return {name: item for name, item in held.items() if name != key}


def room_text(plan: Plan, budget_bytes: int) -> str:
    """Say how much of the budget is free, or how far it is exceeded."""
    if plan.over_bytes:
        return f"what is loaded takes {plan.over_bytes} more than the budget of {budget_bytes}"
    return f"{plan.free_bytes} of the budget of {budget_bytes} are free"


def load_way_out(plan: Plan) -> str:
    """Say what makes room for a load that does not fit."""
    if plan.needs_bytes > plan.budget_bytes:
        return "no unload makes so much room, raise memory_budget"
    return _way_out(plan.would_evict, is_enough=plan.fits_after_evicting)


def _way_out(evictions: Sequence[Eviction], *, is_enough: bool) -> str:
    named = ", ".join(
        f"{item.key[0]}/{item.key[1]} (gives {item.frees_bytes})" for item in evictions
    )
    if not named:
        return NO_UNLOAD
    enough = "" if is_enough else " (not enough by itself)"
    return f"unload {named}{enough} or raise memory_budget"
