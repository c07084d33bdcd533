"""How many workers run, with how many threads each, and on which cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_DEFAULT_WORKERS: Final = 8


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """``cpus``: for each slot the cores it is pinned to; empty where it may roam."""

    workers: int
    threads: int
    cpus: tuple[tuple[int, ...], ...]


def plan_workers(
    affinity: Sequence[int], usable_cores: int, workers: int = 0, threads: int = 0
) -> WorkerPlan:
    """Return the plan for ``usable_cores`` of the cores in ``affinity``.

    ``workers`` and ``threads`` of 0 are chosen so that together they never exceed the cores.
    Slots are pinned only where each can have cores of its own *and* no CPU quota is below the
    affinity: under a quota the scheduler must stay free to use whichever core is idle.
    """
    workers = workers or min(usable_cores, MAX_DEFAULT_WORKERS)
    threads = threads or max(1, usable_cores // workers)
    cores = sorted(affinity)
    is_pinned = workers > 1 and workers * threads <= len(cores) and usable_cores >= len(cores)
    cpus = tuple(
        tuple(cores[slot * threads : (slot + 1) * threads]) if is_pinned else ()
        for slot in range(workers)
    )
    return WorkerPlan(workers, threads, cpus)
