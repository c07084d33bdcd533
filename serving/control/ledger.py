"""The memory ledger: what each loaded version takes, and whether one more may come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from models.computed import is_onnx
from models.servable import Inspection
from registry import budget
from registry.budget import Excess, Footprint, Plan
from registry.desired import Key
from registry.errors import OverBudget
from registry.reasons import holders
from registry.store import VersionRecord
from serving.control.footprints import IndexedInspections, least_objects, objects_of
from serving.control.state_writer import StateWriter

# What workers open: the digest of a graph, and whether the runtime may copy weights.
Form: TypeAlias = tuple[str, bool]


_UNMEASURED: Final[tuple[int, tuple[int, ...]]] = (0, ())


@dataclass(frozen=True, slots=True)
class VersionMemory:
    """Bytes of one version.

    ``weight_bytes``: the tensors of its manifest. ``object_bytes``: all that is kept in RAM for it,
    the graph and packed weights included; ``unique`` and ``shared`` are those without the graph.
    ``shared_with``: the loaded versions that hold some of the same weights.
    ``private_bytes_per_worker``: of the worker that takes most; None before the first load measured
    it. ``private_bytes``: of all workers together, as the budget counts them now.
    ``mode``: how workers hold the weights, with the reason; empty for what is not loaded.
    """

    disk_bytes: int
    weight_bytes: int
    object_bytes: int
    unique_bytes: int
    shared_bytes: int
    shared_with: tuple[Key, ...]
    private_bytes_per_worker: int | None
    private_bytes: int = 0
    mode: str = ""
    mode_reason: str = ""


@dataclass(frozen=True, slots=True)
class Unload:
    """What an unload left behind. ``unreleased_bytes``: None where it cannot be told, see reason.

    ``reason`` may also say what the number stands on.
    """

    key: Key
    unreleased_bytes: int | None
    reason: str = ""


class Ledger:
    """Sums made anew from the state each time they are asked for.

    Private memory is what the inspection found of a version, or what a worker measured the last
    time in the form that workers hold it in, whichever is more: for each worker that measured it
    its own figure, for each other the largest one. A load under way is counted from its admission
    on, a draining version until every worker gave it back, one that waits for memory not at all.
    """

    def __init__(self, writer: StateWriter, budget_bytes: int, workers: int) -> None:
        self.budget_bytes = budget_bytes
        self.workers = workers
        self.last_unload: Unload | None = None
        # How often room was made: something that was counted is counted no more.
        self.given_back = 0
        self._writer = writer
        # The most in one worker, and what each of them measured.
        self._measured: dict[tuple[Key, Form], tuple[int, tuple[int, ...]]] = {}
        self._known: dict[Key, Inspection] = {}
        self._indexed = IndexedInspections()
        self._reserved: dict[Key, Footprint] = {}
        self._leaving: dict[Key, Footprint] = {}

    def measure(self, key: Key, private_bytes: int, by_worker: tuple[int, ...] = ()) -> int:
        """Note what workers hold now of a version in the form that the state says, and the most.

        Returns by how much that is more than what was known, in one worker. Less than before counts
        too: it is what is left where all workers have loaded the version anew.
        """
        inspection = self._loaded(key)
        if inspection is None:
            return 0
        form = (key, _form(inspection))
        known = max(self._measured.get(form, _UNMEASURED)[0], inspection.private_bytes)
        self._measured[form] = private_bytes, by_worker[: self.workers]
        return max(0, private_bytes - known)

    def reserve(self, key: Key, found: Inspection | None = None) -> Plan:
        """Count a version from now on until ``unreserve``, or raise OverBudget and do not.

        Called again with what its inspection ``found``; before that, what may turn out to take less
        is not refused. Loads at the same time see each other's reservations.
        """
        held = self.held()
        if key in self._reserved:
            del held[key]
        record = self._writer.record(*key)
        if found is not None:
            self._known[key] = found
        new = self._footprint(record, found) if found else self._to_admit(record, held)
        plan = budget.admit(self.budget_bytes, held, key, new, self.workers, self._evictable(held))
        self._reserved[key] = new
        return plan

    def without_room(self, key: Key, private_bytes: int) -> OverBudget:
        """Return the refusal of a version that took more than ``private_bytes`` in one process."""
        held = self.held()
        held.pop(key, None)
        known = self._least(self._writer.record(*key), held)
        least = Footprint(known.objects, private_bytes + 1)
        evictable = self._evictable(held)
        found = replace(
            budget.plan(self.budget_bytes, held, key, least, self.workers, evictable),
            is_bound=True,
        )
        ways = " and ".join(f"{e.key[0]}/{e.key[1]}" for e in found.would_evict)
        way_out = f"unload {ways} or more, or raise memory_budget" if ways else budget.NO_UNLOAD
        return OverBudget(
            f"{key[0]}/{key[1]} needs more than {private_bytes} bytes of private memory in each of "
            f"{self.workers} workers, and {found.new_bytes} of weights; "
            f"{budget.room_text(found, self.budget_bytes)}: {way_out}",
            found.to_json(),
        )

    def unreserve(self, key: Key) -> None:
        """Stop counting a load that ended: what it loaded is in the state by now."""
        if self._reserved.pop(key, None) is not None and key not in self._writer.state.loaded:
            self.given_back += 1

    def leave(self, key: Key) -> None:
        """Go on counting a version that is about to leave the state, until ``forget``."""
        found = self.held().get(key)
        if found is not None:
            self._leaving[key] = found
        if (inspection := self._loaded(key)) is not None:
            # What the state knew of it goes with it; a later plan shall still know.
            self._known[key] = inspection

    def forget(self, key: Key) -> None:
        """Stop counting a version that every worker gave back."""
        if self._leaving.pop(key, None) is not None:
            self.given_back += 1

    def deleted(self, key: Key) -> None:
        """Forget what was found out about a version: its number never comes back."""
        self._known.pop(key, None)
        self._indexed.forget(key)
        for measured in [each for each in self._measured if each[0] == key]:
            del self._measured[measured]

    def held(self) -> dict[Key, Footprint]:
        """Return what is reserved now: what is wanted, being loaded, or still leaving."""
        writer = self._writer
        held = {**self._leaving, **self._reserved}
        for key, entry in writer.state.loaded.items():
            if writer.is_waiting(key):
                continue
            inspection = writer.inspection(key, entry.inspection)
            held[key] = self._footprint(writer.records[key[0]][key[1]], inspection)
        return held

    def plan(self, record: VersionRecord) -> Plan:
        """Return what loading the version would take, by what is known of it; changes nothing.

        What a start is still to bring back was not admitted yet, and is planned as it will be then.
        """
        is_restoring = (record.model, record.version) in self._writer.restoring
        return self._plan(record, self._brought() if is_restoring else self.held())

    def has_room_again(self, record: VersionRecord) -> bool:
        """Say whether there is room now, whatever a start is still to bring back after it."""
        return self._plan(record, self._brought()).fits

    def _plan(self, record: VersionRecord, held: Mapping[Key, Footprint]) -> Plan:
        key = (record.model, record.version)
        new = held.get(key) or self._least(record, held)
        return budget.plan(self.budget_bytes, held, key, new, self.workers, self._evictable(held))

    def admit_again(self, key: Key) -> None:
        """Raise OverBudget unless a version of the state fits beside those already brought back."""
        others = self._brought()
        new = others.pop(key, None) or self.held()[key]
        budget.admit(self.budget_bytes, others, key, new, self.workers, self._evictable(others))

    def excess(self) -> Excess:
        """Return how far what is in memory is over the budget, and what would bring it back."""
        held = self._brought()
        return budget.excess(self.budget_bytes, held, self.workers, self._evictable(held))

    def _brought(self) -> dict[Key, Footprint]:
        """Return what is held, without what a start is still to bring back."""
        restoring = self._writer.restoring
        return {key: item for key, item in self.held().items() if key not in restoring}

    def committed_bytes(self) -> int:
        """Return the sum of all reservations."""
        return budget.committed_bytes(self.held(), self.workers)

    def leaving_bytes(self) -> int:
        """Return what versions that are being unloaded still hold."""
        held = self.held()
        staying = {key: item for key, item in held.items() if key not in self._leaving}
        return budget.committed_bytes(held, self.workers) - budget.committed_bytes(
            staying, self.workers
        )

    def unreleased_bytes(self) -> int | None:
        """Return what unloads under way still hold and the last one left; None: not measurable."""
        leaving = self.leaving_bytes()
        if leaving or self.last_unload is None:
            return leaving
        return self.last_unload.unreleased_bytes

    def own_objects(self, key: Key) -> frozenset[str]:
        """Return the digests of a version that no other held version needs."""
        held = self.held()
        mine = held.pop(key, None)
        others: set[str] = set()
        for item in held.values():
            others |= item.objects.keys()
        return frozenset(mine.objects.keys() - others) if mine is not None else frozenset()

    def at_rest(self, record: VersionRecord) -> VersionMemory:
        """Return the memory of a version that holds none now; a load would bring it back."""
        known = self._known_of(record)
        private = self._footprint(record, known).private_bytes_per_worker
        return VersionMemory(record.disk_bytes, record.manifest.weight_bytes, 0, 0, 0, (), private)

    def versions(self) -> dict[Key, VersionMemory]:
        """Return the memory of every version that holds some."""
        held = {
            key: item for key, item in sorted(self.held().items())
            if key[1] in self._writer.records.get(key[0], {})
        }  # fmt: skip
        shares = budget.shares({key: self._weights(key, item) for key, item in held.items()})
        return {key: self._memory(key, item, shares[key]) for key, item in held.items()}

    def _memory(self, key: Key, item: Footprint, shares: budget.Shares) -> VersionMemory:
        record = self._writer.records[key[0]][key[1]]
        inspection = self._loaded(key)
        return VersionMemory(
            disk_bytes=record.disk_bytes,
            weight_bytes=record.manifest.weight_bytes,
            object_bytes=item.object_bytes,
            unique_bytes=shares.unique_bytes,
            shared_bytes=shares.shared_bytes,
            shared_with=shares.others,
            private_bytes_per_worker=item.private_bytes_per_worker,
            private_bytes=item.private_bytes(self.workers),
            mode=inspection.mode if inspection else "",
            mode_reason=inspection.mode_reason if inspection else "",
        )

    def _weights(self, key: Key, item: Footprint) -> dict[str, int]:
        """Return what a version holds beside its graph, digest to bytes."""
        known = self._loaded(key) or self._known.get(key)
        graphs = {self._writer.record(*key).manifest.graph, known.graph if known else ""}
        return {digest: size for digest, size in item.objects.items() if digest not in graphs}

    def _loaded(self, key: Key) -> Inspection | None:
        entry = self._writer.state.loaded.get(key)
        return None if entry is None else self._writer.inspection(key, entry.inspection)

    def _footprint(self, record: VersionRecord, known: Inspection | None) -> Footprint:
        if known is None:
            return Footprint(objects_of(record), None)
        form = ((record.model, record.version), _form(known))
        measured, by_worker = self._measured.get(form, _UNMEASURED)
        most = max(known.private_bytes, measured)
        spared = sum(most - max(known.private_bytes, each) for each in by_worker)
        return Footprint(known.resident or objects_of(record), most, spared)

    def _known_of(self, record: VersionRecord) -> Inspection | None:
        """Return what a load of the version will go by, None where only an inspection can tell.

        What is kept for the content comes first: the state may say how damage had it opened, which
        the next load mends.
        """
        key = (record.model, record.version)
        return (
            self._indexed.of(self._writer.store.packed, record)
            or self._known.get(key)
            or self._loaded(key)
        )

    def _least(self, record: VersionRecord, held: Mapping[Key, Footprint]) -> Footprint:
        """Return what a version that is not loaded takes: what is known of it, or a bound."""
        known = self._known_of(record)
        if known is not None:
            return self._footprint(record, known)
        return self._bound(record, held)

    def _to_admit(self, record: VersionRecord, held: Mapping[Key, Footprint]) -> Footprint:
        """Return what a load has to find room for before its inspection.

        An inspection answers at once what the index keeps. All else it finds out anew, and may find
        a form that takes less; a library of its own has one form only.
        """
        indexed = self._indexed.of(self._writer.store.packed, record)
        if indexed is not None:
            return self._footprint(record, indexed)
        if not is_onnx(record.manifest):
            return self._least(record, held)
        return self._bound(record, held)

    def _bound(self, record: VersionRecord, held: Mapping[Key, Footprint]) -> Footprint:
        """Return a lower bound of what a version takes that nobody inspected."""
        key = (record.model, record.version)
        others = [
            found for other in held
            if other != key and (found := self._writer.records.get(other[0], {}).get(other[1]))
        ]  # fmt: skip
        return Footprint(least_objects(record, others), None)

    def _evictable(self, held: Iterable[Key]) -> list[Key]:
        """Return the versions that answer nobody: no route, alias or rollback names them."""
        state = self._writer.state
        return [
            key for key in held
            if (entry := state.loaded.get(key)) is not None and entry.is_serving
            and not holders(state.model(key[0]), *key)
        ]  # fmt: skip


def _form(inspection: Inspection) -> Form:
    return (inspection.graph, inspection.has_prepacking)
