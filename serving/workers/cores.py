"""How many workers run, with how many threads each, and on which cores.

One budget of cores for everything: workers, the threads of a run, and the pools of the libraries
beside it, which are held to one thread each (``worker_process.ENVIRONMENT``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

MAX_DEFAULT_WORKERS: Final = 8


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """``cpus``: for each slot the processors it is pinned to; empty where it may roam.

    ``owns_cores``: a worker may keep its cores awake, for no other one and no quota pays for it.
    """

    workers: int
    threads: int
    cpus: tuple[tuple[int, ...], ...]
    owns_cores: bool = False

    def busy_poll_us(self, most_us: int) -> int:
        """Return for how long a worker may poll, of what the settings allow."""
        return most_us if self.owns_cores else 0

    def excess(self, usable_cores: int) -> str:
        """Say that the settings ask for more threads than there are cores; empty: they do not."""
        wanted = self.workers * self.threads
        if wanted <= usable_cores:
            return ""
        return (
            f"{self.workers} worker{'s' * (self.workers > 1)} with {self.threads} "
            f"thread{'s' * (self.threads > 1)} each want {wanted} cores and "
            f"{usable_cores} are usable, so runs wait for one another: leave workers or "
            "threads_per_worker at 0, or ask for fewer"
        )


def plan_workers(
    cores: Sequence[Sequence[int]], usable_cores: int, workers: int = 0, threads: int = 0
) -> WorkerPlan:
    """Return the plan for ``usable_cores`` of ``cores``, each given as its processors.

    ``workers`` and ``threads`` of 0 are chosen so that together they never exceed the cores, as far
    as what the other one is set to allows it.
    Slots are pinned only where each can have cores of its own *and* no CPU quota is below the
    affinity: under a quota the scheduler must stay free to use whichever core is idle. A slot gets
    all hardware threads of its cores: what does not compute runs on the second one.
    """
    workers = workers or max(1, min(usable_cores // (threads or 1), MAX_DEFAULT_WORKERS))
    threads = threads or max(1, usable_cores // workers)
    own = sorted(tuple(core) for core in cores)
    owns_cores = workers * threads <= len(own) <= usable_cores
    is_pinned = workers > 1 and owns_cores
    cpus = tuple(
        tuple(sorted(chain(*own[slot * threads : (slot + 1) * threads]))) if is_pinned else ()
        for slot in range(workers)
    )
    return WorkerPlan(workers, threads, cpus, owns_cores)
