"""What the control plane needs of the workers, without knowing how they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from serving.target import Target

VersionKey: TypeAlias = tuple[str, int]
# The state of a worker that answers requests.
SERVING: Final = "serving"


@dataclass(frozen=True, slots=True)
class VersionReport:
    """How one version stands, over all workers: FAILED if any failed it.

    ``private_bytes``: the largest anonymous growth that a worker measured while loading it;
    ``private_by_worker``: that of each worker that holds it, where this is about all of them.
    ``is_out_of_memory``: it FAILED because the machine had no memory left for it.
    """

    state: str
    reason: str
    load_s: float = 0.0
    private_bytes: int = 0
    is_out_of_memory: bool = False
    private_by_worker: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker slot as people see it. ``cpus``: the cores it is pinned to.

    ``region``: the part of the metrics page that it counts into; None: that of its slot.
    """

    slot: int
    pid: int | None
    state: str
    generation: int
    cpus: tuple[int, ...]
    restarts: int
    reason: str = ""
    memory_bytes: int = 0
    region: int | None = None


class Fleet(Protocol):
    """All workers as one."""

    def publish(self, target: Target) -> None:
        """Make ``target`` the wanted state of every worker, now and after each respawn."""
        ...

    async def settled(
        self, generation: int, timeout_s: float
    ) -> Mapping[VersionKey, VersionReport]:
        """Wait until every listening worker reports ``generation`` or a later one.

        Returns the versions of that target as they stand. Raises TimeoutError.
        """
        ...

    async def taken(self, generation: int, timeout_s: float) -> None:
        """Wait until every listening worker routes by ``generation`` or a later one.

        Much sooner than ``settled``: loads and drains under way are not waited for. Returns at
        once where no worker listens. Raises TimeoutError.
        """
        ...

    async def replace(self, slot: int) -> None:
        """Let a new worker take over a slot, with nothing lost; returns when the old one is gone.

        Raises WorkerLost where the new one could not take over; the old one then serves on.
        """
        ...

    def workers(self) -> tuple[WorkerInfo, ...]:
        """Return every slot in order."""
        ...

    def unreleased(self, key: VersionKey) -> Mapping[int, int]:
        """Return by slot what the last unload of a version left there, in bytes.

        Measured by each worker itself; a listening worker that did not measure it is left out.
        """
        ...

    def on_arrival(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` when a worker begins to serve in a slot where none did."""
        ...

    def on_quarantine(self, callback: Callable[[str, int, str], None]) -> None:
        """Call ``callback(model, version, reason)`` when a version killed too many workers."""
        ...
