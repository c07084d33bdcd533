"""What waits for one version: requests in order of arrival, grouped by what may share a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from models.errors import ModelsError
from models.servable import Array
from registry.errors import RegistryError
from serving.data.batch_run import GroupKey
from serving.errors import ServingError

Outcome: TypeAlias = "Result | ModelsError | RegistryError | ServingError"
Done: TypeAlias = Callable[[Outcome], None]


class Result:
    """One request's own outputs, in the order it asked for, and where its time went.

    ``run_rows``: rows of the run that it shared; input, infer and output times are that run's.
    """

    __slots__ = ("arrays", "infer_ns", "input_ns", "output_ns", "queue_ns", "run_rows")

    def __init__(
        self,
        arrays: list[Array],
        queue_ns: int,
        input_ns: int,
        infer_ns: int,
        output_ns: int,
        run_rows: int,
    ) -> None:
        self.arrays = arrays
        self.queue_ns = queue_ns
        self.input_ns = input_ns
        self.infer_ns = infer_ns
        self.output_ns = output_ns
        self.run_rows = run_rows


class Member:
    """One submit on its way. ``done`` is called exactly once, unless it was dropped first.

    ``is_over``: it ended or was dropped, and is skipped everywhere.
    """

    __slots__ = (
        "deadline_ns", "done", "inputs", "is_over", "key", "positions", "rows", "serial",
        "submitted_ns",
    )  # fmt: skip

    def __init__(
        self,
        inputs: Mapping[str, Array],
        rows: int,
        key: GroupKey,
        positions: Sequence[int] | None,
        done: Done,
        submitted_ns: int,
        deadline_ns: int,
    ) -> None:
        self.inputs = inputs
        self.rows = rows
        self.key = key
        self.positions = positions
        self.done = done
        self.submitted_ns = submitted_ns
        self.deadline_ns = deadline_ns
        self.serial = 0
        self.is_over = False


class BatchQueue:
    """Members by group and age. A caller who leaves is taken out at once."""

    __slots__ = ("_groups", "_serial", "requests", "rows")

    def __init__(self) -> None:
        # Dicts as ordered sets: order is age.
        self._groups: dict[GroupKey, dict[Member, None]] = {}
        self._serial = 0
        self.requests = 0
        self.rows = 0

    def __bool__(self) -> bool:
        return self.requests > 0

    def __iter__(self) -> Iterator[Member]:
        for group in self._groups.values():
            yield from group

    def add(self, member: Member) -> None:
        """Take a member in as the youngest."""
        self._serial += 1
        member.serial = self._serial
        group = self._groups.get(member.key)
        if group is None:
            self._groups[member.key] = group = {}
        group[member] = None
        self.requests += 1
        # A request of no rows takes a place all the same, or the queue had no bound.
        self.rows += member.rows or 1

    def remove(self, member: Member) -> None:
        """Take a member out, if it is here."""
        group = self._groups.get(member.key)
        if group is None or member not in group:
            return
        del group[member]
        if not group:
            del self._groups[member.key]
        self.requests -= 1
        self.rows -= member.rows or 1

    def oldest(self) -> Member:
        """Return the member that has waited longest; there must be one."""
        heads = [next(iter(group)) for group in self._groups.values()]
        return heads[0] if len(heads) == 1 else min(heads, key=lambda member: member.serial)

    def group(self, key: GroupKey) -> Collection[Member]:
        """Return what may share a run with a member of ``key``, oldest first."""
        return self._groups[key].keys()

    def take(self, key: GroupKey, max_rows: int, max_members: int) -> list[Member]:
        """Take out the oldest of a group, and those after it that fit beside it, in order."""
        group = self._groups[key]
        taken: list[Member] = []
        rows = 0
        for member in group:
            rows += member.rows
            if taken and (rows > max_rows or len(taken) >= max_members):
                break
            taken.append(member)
        if len(taken) == len(group):
            del self._groups[key]
        else:
            for member in taken:
                del group[member]
        self.requests -= len(taken)
        self.rows -= sum([member.rows or 1 for member in taken])
        return taken
