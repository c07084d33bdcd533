"""An event loop's clock and timers, driven by the test."""

from __future__ import annotations

from collections.abc import Callable


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
