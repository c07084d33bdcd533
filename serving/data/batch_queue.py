"""What waits for one version: requests in order of arrival, grouped by what may share a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

from models.errors import ModelsError
from models.servable import Array
from registry.errors import RegistryError
from serving.codec.packed_rows import Inputs
from serving.codec.row_texts import RowTexts
from serving.data.batch_run import GroupKey
from serving.errors import ServingError

Failure: TypeAlias = ModelsError | RegistryError | ServingError


class RunResult:
    """What a run gave to all who shared it, whole; each takes its rows from ``start`` to ``end``.

    ``rows``: of the run. ``is_shared``: of several members, and only then there are ``total_ns``,
    ``queue_ns`` and ``answered_rows``, which take what is counted of them together while
    ``is_open``, and ``texts``: what the codec keeps of the outputs for all of them, if
    ``has_texts`` says that it was asked.
    """

    __slots__ = ("answered_rows", "arrays", "has_texts", "infer_ns", "input_ns", "is_open",
                 "is_shared", "output_ns", "queue_ns", "rows", "started_ns", "texts",
                 "total_ns")  # fmt: skip

    def __init__(
        self,
        arrays: list[Array],
        rows: int,
        started_ns: int,
        input_ns: int = 0,
        infer_ns: int = 0,
        output_ns: int = 0,
        is_shared: bool = False,
    ) -> None:
        self.arrays = arrays
        self.rows = rows
        self.started_ns = started_ns
        self.input_ns = input_ns
        self.infer_ns = infer_ns
        self.output_ns = output_ns
        self.is_shared = self.is_open = is_shared
        if is_shared:
            self.has_texts = False
            self.total_ns: list[int] = []
            self.queue_ns: list[int] = []
            self.answered_rows = 0
            self.texts: RowTexts | None = None

    def share(self, start: int, end: int, positions: Sequence[int] | None) -> list[Array]:
        """Return a member's rows of the outputs at ``positions``, None for all."""
        arrays = self.arrays
        if positions is not None:
            arrays = [arrays[i] for i in positions]
        return [array[start:end] for array in arrays] if self.is_shared else arrays


class Member:
    """One submit on its way. It is told how it ended exactly once, unless it was dropped first.

    ``is_over``: it ended or was dropped, and is skipped everywhere. ``positions``: of the outputs
    that it asked for, None for all.
    """

    __slots__ = (
        "deadline_ns", "inputs", "is_over", "key", "positions", "rows", "serial", "submitted_ns",
    )  # fmt: skip

    inputs: Inputs
    rows: int
    key: GroupKey
    positions: Sequence[int] | None
    deadline_ns: int
    submitted_ns: int
    serial: int
    is_over: bool

    def computed(self, run: RunResult, start: int, end: int) -> None:
        """Take the rows from ``start`` to ``end`` of a run."""
        raise NotImplementedError

    def failed(self, error: Failure) -> None:
        """Take what went wrong."""
        raise NotImplementedError


class BatchQueue:
    """Members by group and age. A caller who leaves is taken out at once."""

    __slots__ = ("_groups", "_latest", "_latest_key", "_serial", "requests", "rows")

    def __init__(self) -> None:
        # Dicts as ordered sets: order is age.
        self._groups: dict[GroupKey, dict[Member, None]] = {}
        # The group that was added to last, by the identity of its key: to hash one takes longer
        # than all else here.
        self._latest_key: GroupKey | None = None
        self._latest: dict[Member, None] = {}
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
        key = member.key
        if key is not self._latest_key:
            group = self._groups.get(key)
            if group is None:
                self._groups[key] = group = {}
            self._latest_key, self._latest = key, group
        self._latest[member] = None
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
            self._drop_group(member.key)
        self.requests -= 1
        self.rows -= member.rows or 1

    def oldest(self) -> Member:
        """Return the member that has waited longest; there must be one."""
        if len(self._groups) == 1 and self._latest:
            return next(iter(self._latest))
        heads = [next(iter(group)) for group in self._groups.values()]
        return min(heads, key=lambda member: member.serial)

    def group(self, key: GroupKey) -> Collection[Member]:
        """Return what may share a run with a member of ``key``, oldest first."""
        return self._latest if key is self._latest_key else self._groups[key]

    def take(self, key: GroupKey, max_rows: int, max_members: int) -> list[Member]:
        """Take out the oldest of a group, and those after it that fit beside it, in order."""
        group = self._latest if key is self._latest_key else self._groups[key]
        if self.rows <= max_rows and len(group) == self.requests <= max_members:
            self._groups.clear()
            self._latest_key, self._latest = None, {}
            self.requests = self.rows = 0
            return list(group)
        taken: list[Member] = []
        rows = 0
        for member in group:
            rows += member.rows
            if taken and (rows > max_rows or len(taken) >= max_members):
                break
            taken.append(member)
        if len(taken) == len(group):
            self._drop_group(key)
        else:
            for member in taken:
                del group[member]
        self.requests -= len(taken)
        self.rows -= sum([member.rows or 1 for member in taken])
        return taken

    def _drop_group(self, key: GroupKey) -> None:
        # Keys may be equal and not the same.
        if self._groups.pop(key) is self._latest:
            self._latest_key, self._latest = None, {}
