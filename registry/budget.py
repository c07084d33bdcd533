"""The memory budget: what the loaded versions take, and whether one more fits.

Pure. The sums are made anew from what is loaded each time, so they cannot drift. Weights are
counted once a machine by digest, however many versions and workers share them; private memory is
counted once a worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from registry.errors import OverBudget
from registry.manifest import JsonObject, Manifest

DEFAULT_SHARE: Final = 0.75
UNMEASURED: Final = (
    "private memory is measured by the first load and not known before it: needs_bytes is a lower "
    "bound, the weights and the graph"
)

Key: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one version takes: ``weights`` maps digests to bytes, shared by all workers.

    ``private_bytes_per_worker``: None before anything measured it.
    """

    weights: Mapping[str, int]
    private_bytes_per_worker: int | None

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, each digest once."""
        return sum(self.weights.values())


@dataclass(frozen=True, slots=True)
class Plan:
    """What a load would do. ``new_bytes``: weights that no loaded version shares.

    Until the private memory of a version was measured ``needs_bytes`` is a lower bound, and
    ``reason`` says so.
    """

    needs_bytes: int
    free_bytes: int
    weight_bytes: int
    new_bytes: int
    private_bytes_per_worker: int | None
    workers: int

    @property
    def fits(self) -> bool:
        """Say whether the budget has room, as far as the need is known."""
        return self.needs_bytes <= self.free_bytes

    @property
    def is_estimated(self) -> bool:
        """Say whether ``needs_bytes`` is only a lower bound."""
        return self.private_bytes_per_worker is None

    @property
    def reason(self) -> str:
        """Say why the need is not known exactly; empty where it is."""
        return UNMEASURED if self.is_estimated else ""

    def to_json(self) -> JsonObject:
        """Return the JSON form that users see."""
        return {
            "needs_bytes": self.needs_bytes,
            "free_bytes": self.free_bytes,
            "fits": self.fits,
            "weight_bytes": self.weight_bytes,
            "new_bytes": self.new_bytes,
            "private_bytes_per_worker": self.private_bytes_per_worker,
            "workers": self.workers,
            "is_estimated": self.is_estimated,
            "reason": self.reason,
            "would_evict": [],
        }


@dataclass(frozen=True, slots=True)
class Shares:
    """How one loaded version's weights divide: ``unique`` are its own alone."""

    unique_bytes: int
    shared_bytes: int


def default_budget_bytes(available_bytes: int) -> int:
    """Return the budget where none is set; ``available_bytes``: what host and cgroup leave."""
    return int(available_bytes * DEFAULT_SHARE)


def footprint(manifest: Manifest, private_bytes_per_worker: int | None) -> Footprint:
    """Return what a version takes, with the private memory that was measured for it, if any."""
    weights = {entry.digest: entry.size_bytes for entry in manifest.tensors}
    return Footprint(weights, private_bytes_per_worker)


def committed_bytes(held: Mapping[Key, Footprint], workers: int) -> int:
    """Return the bytes that ``held`` takes on the whole machine."""
    weights: dict[str, int] = {}
    for item in held.values():
        weights |= item.weights
    return sum(weights.values()) + workers * sum(
        item.private_bytes_per_worker or 0 for item in held.values()
    )


def plan(
    budget_bytes: int,
    held: Mapping[Key, Footprint],
    key: Key,
    new: Footprint,
    workers: int,
    graph_bytes: int = 0,
) -> Plan:
    """Return what loading ``key`` beside ``held`` would take; nothing if it is held already.

    ``graph_bytes``: the least that the graph takes, counted where nothing was measured.
    """
    others = {name: item for name, item in held.items() if name != key}
    present = committed_bytes(held, workers)
    wanted = committed_bytes({**others, key: new}, workers)
    if new.private_bytes_per_worker is None:
        wanted += graph_bytes
    shared: set[str] = set()
    for item in others.values():
        shared |= item.weights.keys()
    return Plan(
        needs_bytes=max(0, wanted - present),
        free_bytes=max(0, budget_bytes - present),
        weight_bytes=new.weight_bytes,
        new_bytes=sum(size for digest, size in new.weights.items() if digest not in shared),
        private_bytes_per_worker=new.private_bytes_per_worker,
        workers=workers,
    )


def admit(
    budget_bytes: int, held: Mapping[Key, Footprint], key: Key, new: Footprint, workers: int
) -> Plan:
    """Return the plan if the version fits, or raise OverBudget with it."""
    result = plan(budget_bytes, held, key, new, workers)
    if not result.fits:
        and_private = ""
        if not result.is_estimated:
            private = result.private_bytes_per_worker
            and_private = f" and {private} private in each of {workers} workers"
        raise OverBudget(
            f"{key[0]}/{key[1]} needs {'at least ' if result.is_estimated else ''}"
            f"{result.needs_bytes} bytes ({result.new_bytes} of weights{and_private}), "
            f"{result.free_bytes} of the budget of {budget_bytes} are free: unload a version or "
            "raise memory_budget",
            result.to_json(),
        )
    return result


def shares(held: Mapping[Key, Footprint]) -> dict[Key, Shares]:
    """Return how the weights of each held version divide into its own and shared ones."""
    users = Counter(digest for item in held.values() for digest in item.weights)
    result = {}
    for key, item in held.items():
        unique = sum(size for digest, size in item.weights.items() if users[digest] == 1)
        result[key] = Shares(unique, item.weight_bytes - unique)
    return result
