"""Deadlines of a connection: many names, one timer, on a loop whose clock the test drives."""

from __future__ import annotations

from typing import Any

import pytest

from serving.web.deadlines import Deadlines
from tests.driven_loop import DrivenLoop


@pytest.fixture
def loop() -> DrivenLoop:
    return DrivenLoop()


def deadlines_on(loop: Any, due: list[str]) -> Deadlines:
    return Deadlines(loop, due.append)


def test_each_is_due_once_in_the_order_of_time(loop: DrivenLoop) -> None:
    """A later one set first does not hide an earlier one."""
    due: list[str] = []
    deadlines = deadlines_on(loop, due)
    deadlines.set("idle", 75)
    deadlines.set("head", 5)
    loop.advance(5)
    assert due == ["head"]
    loop.advance(70)
    assert due == ["head", "idle"]
    loop.advance(1000)
    assert (due, loop.armed) == (["head", "idle"], [])


def test_start_keeps_what_set_moves(loop: DrivenLoop) -> None:
    """An absolute deadline is started once; one that is set again counts from then."""
    due: list[str] = []
    deadlines = deadlines_on(loop, due)
    deadlines.set("stall", 10)
    deadlines.start("body", 10)
    loop.advance(6)
    deadlines.set("stall", 10)
    deadlines.start("body", 10)
    loop.advance(4)
    assert due == ["body"]
    loop.advance(6)
    assert due == ["body", "stall"]


def test_a_cleared_one_is_not_due_and_costs_no_timer(loop: DrivenLoop) -> None:
    """Setting and clearing thousands of times arms one timer."""
    due: list[str] = []
    deadlines = deadlines_on(loop, due)
    for _ in range(1000):
        deadlines.set("idle", 75)
        deadlines.clear("idle")
    assert ("idle" in deadlines, len(loop.timers)) == (False, 1)
    loop.advance(80)
    assert (due, loop.armed) == ([], [])


def test_one_that_is_due_may_set_and_clear_others(loop: DrivenLoop) -> None:
    """What the first one clears is not called in the same look, and what it sets is armed."""
    due: list[str] = []

    def on_due(name: str) -> None:
        due.append(name)
        if name == "first":
            deadlines.clear("second")
            deadlines.set("third", 1)

    deadlines = Deadlines(loop, on_due)  # type: ignore[arg-type]
    deadlines.set("first", 1)
    deadlines.set("second", 1)
    loop.advance(1)
    loop.advance(1)
    assert due == ["first", "third"]


def test_stop_forgets_everything(loop: DrivenLoop) -> None:
    """A connection that is gone leaves no timer behind."""
    due: list[str] = []
    deadlines = deadlines_on(loop, due)
    deadlines.set("head", 1)
    deadlines.stop()
    loop.advance(10)
    assert (due, loop.armed) == ([], [])
