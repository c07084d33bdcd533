"""The memory ledger: what each loaded version takes, and whether one more may come."""

from __future__ import annotations

from dataclasses import dataclass

from registry import budget
from registry.budget import Footprint, Plan
from registry.desired import Key
from registry.manifest import Manifest
from registry.store import VersionRecord
from serving.control.state_writer import StateWriter


@dataclass(frozen=True, slots=True)
class VersionMemory:
    """Bytes of one version; ``unique`` and ``shared`` divide the weights of a loaded one.

    ``private_bytes_per_worker``: None before the first load measured it.
    """

    disk_bytes: int
    weight_bytes: int
    unique_bytes: int
    shared_bytes: int
    private_bytes_per_worker: int | None


class Ledger:
    """Sums made anew from the state each time they are asked for.

    Private memory is the most that the inspection or a worker ever measured for a version, for a
    version never changes. A draining version is counted until every worker gave it back.
    """

    def __init__(self, writer: StateWriter, budget_bytes: int, workers: int) -> None:
        self.budget_bytes = budget_bytes
        self.workers = workers
        self._writer = writer
        self._measured: dict[Key, int] = {}
        self._leaving: dict[Key, Footprint] = {}

    def measure(self, key: Key, private_bytes: int) -> None:
        """Note what the inspection or a worker measured for a version."""
        self._measured[key] = max(self._measured.get(key, 0), private_bytes)

    def leave(self, key: Key) -> None:
        """Go on counting a version that is about to leave the state, until ``forget``."""
        found = self.held().get(key)
        if found is not None:
            self._leaving[key] = found
            # What the state knew of it goes with it; a later plan shall still know.
            self.measure(key, found.private_bytes_per_worker or 0)

    def forget(self, key: Key) -> None:
        """Stop counting a version that every worker gave back."""
        self._leaving.pop(key, None)

    def held(self) -> dict[Key, Footprint]:
        """Return what is reserved now: all that is wanted and all that is still leaving."""
        writer = self._writer
        held = dict(self._leaving)
        for key, entry in writer.state.loaded.items():
            manifest = writer.records[key[0]][key[1]].manifest
            found = writer.inspection(key, entry.inspection).private_bytes
            private = max(found, self._measured.get(key, 0))
            held[key] = budget.footprint(manifest, private)
        return held

    def plan(self, record: VersionRecord) -> Plan:
        """Return what loading the version would take, by what is known of it; changes nothing."""
        key = (record.model, record.version)
        held = self.held()
        new = held.get(key) or budget.footprint(record.manifest, self._measured.get(key))
        graph_bytes = record.disk_bytes - record.manifest.weight_bytes
        return budget.plan(self.budget_bytes, held, key, new, self.workers, graph_bytes)

    def admit(self, key: Key, manifest: Manifest) -> None:
        """Raise OverBudget unless the version fits beside what is held."""
        new = budget.footprint(manifest, self._measured.get(key))
        budget.admit(self.budget_bytes, self.held(), key, new, self.workers)

    def admit_again(self, key: Key, waiting: set[Key]) -> None:
        """Raise OverBudget unless a version of the state fits beside those already brought back."""
        held = self.held()
        new = held.pop(key)
        others = {name: item for name, item in held.items() if name not in waiting}
        budget.admit(self.budget_bytes, others, key, new, self.workers)

    def committed_bytes(self) -> int:
        """Return the sum of all reservations."""
        return budget.committed_bytes(self.held(), self.workers)

    def unreleased_bytes(self) -> int:
        """Return what versions that were unloaded still hold."""
        held = self.held()
        staying = {key: item for key, item in held.items() if key not in self._leaving}
        return budget.committed_bytes(held, self.workers) - budget.committed_bytes(
            staying, self.workers
        )

    def at_rest(self, record: VersionRecord) -> VersionMemory:
        """Return the memory of a version that holds none now; a load would bring it back."""
        private = self._measured.get((record.model, record.version))
        return VersionMemory(record.disk_bytes, record.manifest.weight_bytes, 0, 0, private)

    def versions(self) -> dict[Key, VersionMemory]:
        """Return the memory of every version that holds some."""
        held = self.held()
        shares = budget.shares(held)
        return {
            key: VersionMemory(
                disk_bytes=self._writer.records[key[0]][key[1]].disk_bytes,
                weight_bytes=item.weight_bytes,
                unique_bytes=shares[key].unique_bytes,
                shared_bytes=shares[key].shared_bytes,
                private_bytes_per_worker=item.private_bytes_per_worker,
            )
            for key, item in sorted(held.items())
            if key[1] in self._writer.records.get(key[0], {})
        }
