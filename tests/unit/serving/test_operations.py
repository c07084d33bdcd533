"""Operations: their end, their bounds, and what is told of them."""

from __future__ import annotations

import itertools

import pytest

from models.errors import LoadFailed
from registry.errors import NotFound
from serving.control import operations
from serving.control.operations import Operations
from serving.errors import QueueFull
from tests.growth import live_objects


def made(max_running: int = 2) -> Operations:
    ticks = itertools.count(1)
    return Operations(lambda: f"t{next(ticks)}", max_running)


async def test_operation_ends_once():
    """The first end holds; whoever waits is woken by it."""
    all_of_them = made()
    operation = all_of_them.begin("load", "m", 1)
    assert await operation.wait(0) is False

    all_of_them.end(operation, LoadFailed("refused"))
    all_of_them.end(operation)

    assert await operation.wait(1) is True
    assert operation.to_json() == {
        "id": operation.id, "kind": "load", "model": "m", "version": 1, "state": "failed",
        "progress": 0.0, "stage": "waiting", "reason": "refused", "started": "t1", "ended": "t2",
    }  # fmt: skip


async def test_what_ended_is_kept_as_facts_alone():
    """The list remembers a thousand: nothing to wait by, and nothing that a failure looked at."""
    all_of_them = made()

    def failure() -> LoadFailed:
        looked_at = made()  # stands for the manifest and the plan of a load
        try:
            try:
                looked_at.get("nobody")
            except NotFound as error:
                raise LoadFailed("refused") from error
        except LoadFailed as error:
            return error

    before = live_objects()
    ended = [all_of_them.begin("load", "m", 1)]
    all_of_them.end(ended[0], failure())

    assert await ended[0].wait(0) is True
    assert live_objects() - before == {
        "serving.control.operations.Operation": 1, "models.errors.LoadFailed": 1,
    }  # fmt: skip


async def test_success_is_whole_progress():
    """An operation that ended well is all the way through, whatever it said before."""
    all_of_them = made()
    operation = all_of_them.begin("load", "m", 1)
    operation.at("inspecting", 0.5)
    operation.at("inspecting", 0.3)
    assert operation.progress == 0.5

    all_of_them.end(operation)

    assert (operation.progress, operation.stage, operation.reason) == (1.0, "done", "")


async def test_unplanned_error_is_not_told():
    """What nobody planned goes into the log, not to the user."""
    all_of_them = made()
    operation = all_of_them.begin("load", "m", 1)

    all_of_them.end(operation, RuntimeError("/secret/path"))

    assert "secret" not in operation.reason
    assert operation.reason


async def test_operations_under_way_are_bounded():
    """One more than allowed is refused; the end of one makes room."""
    all_of_them = made(max_running=2)
    first = all_of_them.begin("load", "m", 1)
    second = all_of_them.begin("unload", "m", 1)
    with pytest.raises(QueueFull, match="2 of 2"):
        all_of_them.begin("load", "n", 1)
    assert all_of_them.last_of("m", 1) is second

    all_of_them.end(first)

    third = all_of_them.begin("load", "n", 1)
    assert all_of_them.under_way() == (second, third)
    assert all_of_them.last_of("m", 2) is None


async def test_old_operations_are_forgotten(monkeypatch):
    """The last ones that ended are kept, the rest is unknown."""
    monkeypatch.setattr(operations, "MAX_FINISHED", 2)
    all_of_them = made()
    ended = []
    for version in range(3):
        operation = all_of_them.begin("load", "m", version + 1)
        all_of_them.end(operation)
        ended.append(operation)

    assert all_of_them.get(ended[2].id) is ended[2]
    with pytest.raises(NotFound, match="no operation"):
        all_of_them.get(ended[0].id)
