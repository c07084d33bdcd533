"""Deadlines of a connection: many names, one timer, on a loop whose clock the test drives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from serving.web.deadlines import Deadlines


class Timer:
    def __init__(self, due_s: float, callback: Callable[[], None]) -> None:
        self.due_s = due_s
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class DrivenLoop:
    """As much of an event loop as timers need."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, due_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(due_s, callback)
        self.timers.append(timer)
        return timer

    @property
    def armed(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.is_cancelled]

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        for timer in self.armed:
            if timer.due_s <= self.now_s:
                self.timers.remove(timer)
                timer.callback()


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
