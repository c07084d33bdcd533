"""A plain account of several models and of the memory they take, for the state machine."""

from __future__ import annotations

from tests.lifecycle_model import Model

Key = tuple[str, int]
# All, about half, and two or three of what a run loads.
BUDGETS = [900, 260, 170]
WORKERS = 2
PRIVATE_BYTES = 3
ASKED_FOR = 1


def graph_of(mark: int) -> bytes:
    return b"graph %3d" % mark


def weights_of(mark: int) -> tuple[bytes, bytes]:
    """Versions of equal parity share one of their two weights."""
    return b"shared %d".ljust(50) % (mark % 2), (b"own %3d" % mark).ljust(20 + 10 * (mark % 4))


class Account:
    """What was acknowledged. ``stored``: which content each version has."""

    def __init__(self) -> None:
        self.stored: dict[Key, int] = {}
        self.models = {"m": Model(), "n": Model()}
        self.budget_bytes = BUDGETS[0]

    def keys(self, *states: str) -> list[Key]:
        return sorted(
            (name, version)
            for name, model in self.models.items()
            for version, state in model.states.items()
            if state in states
        )

    def taken(self, keys: list[Key]) -> int:
        """Count every byte by itself: objects once, private memory for each worker."""
        objects = {
            data for mark in (self.stored[key] for key in keys)
            for data in (graph_of(mark), *weights_of(mark))
        }  # fmt: skip
        return sum(map(len, objects)) + WORKERS * PRIVATE_BYTES * len(keys)

    def has_room(self, key: Key, beside: list[Key] | None = None) -> bool:
        held = self.keys("READY") if beside is None else beside
        return self.taken([*held, key]) <= self.budget_bytes

    def waiting(self) -> list[Key]:
        """What waits for memory, in the order in which it gets some."""
        ranked = [(self.models[name].rank(v), name, v) for name, v in self.keys("WAITING")]
        return [(name, version) for _, name, version in sorted(ranked)]

    def asked_for(self) -> Key | None:
        """What comes back next by itself: routed or aliased, and with room for it."""
        for name, version in self.waiting():
            is_named = self.models[name].rank(version) <= ASKED_FOR
            if is_named and self.has_room((name, version)):
                return name, version
        return None

    def restart(self, budget_bytes: int, refused: set[Key]) -> None:
        """Bring back what was loaded, what answers most first; what finds no room waits."""
        self.budget_bytes = budget_bytes
        wanted = self.keys("READY", "WAITING")
        ranks = {key: self.models[key[0]].rank(key[1]) for key in wanted}
        for name, version in wanted:
            self.models[name].states[version] = "READY"
        back: list[Key] = []
        for rank in range(4):
            batch = [key for key in wanted if ranks[key] == rank]
            short = []
            for key in batch:
                (back if self.has_room(key, back) else short).append(key)
            for name, version in batch:
                if (name, version) in short:
                    self.models[name].states[version] = "WAITING"
                elif (name, version) in refused:
                    self.models[name].fail(version)
                    back.remove((name, version))
            # What was refused may have left room for one of those before it.
            for name, version in self.waiting():
                if not self.has_room((name, version), back):
                    continue
                if (name, version) in refused:
                    self.models[name].fail(version)
                else:
                    self.models[name].finish(version, is_by_itself=True)
                    back.append((name, version))

    def view(self) -> object:
        models = {
            name: (
                model.states, model.aliases, model.traffic, model.previous, model.is_latest,
                model.settings,
            )
            for name, model in self.models.items()
        }  # fmt: skip
        return self.stored.keys(), models
