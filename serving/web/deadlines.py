"""All deadlines of one connection on one timer of the event loop.

A timer for each deadline of each request would be made and cancelled tens of thousands of times a
second. Here to set or clear one is an entry of a dict: the timer goes off when the earliest that
it was armed for may have passed, looks what is really due, and is armed again for what is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# Event loops round times to their clock's tick; a timer that is early by it would look in vain.
_TICK_S = 0.001


class Deadlines:
    """Calls ``on_due`` with the name of each deadline that passed."""

    __slots__ = ("_armed_s", "_due_s", "_loop", "_on_due", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[str], None]) -> None:
        self._loop = loop
        self._on_due = on_due
        self._due_s: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_s = 0.0

    def __contains__(self, name: str) -> bool:
        return name in self._due_s

    def set(self, name: str, wait_s: float) -> None:
        """Let ``name`` be due in ``wait_s``, whether it was set or not."""
        due_s = self._loop.time() + wait_s
        self._due_s[name] = due_s
        if self._timer is None or due_s < self._armed_s:
            self._arm(due_s)

    def start(self, name: str, wait_s: float) -> None:
        """Let ``name`` be due in ``wait_s``, unless it is set already."""
        if name not in self._due_s:
            self.set(name, wait_s)

    def clear(self, name: str) -> None:
        """Forget ``name``; its timer finds nothing."""
        if name in self._due_s:
            del self._due_s[name]

    def stop(self) -> None:
        """Forget all of them and give the timer back; none may be set after it."""
        self._due_s.clear()
        # The connection's own method: it would wait for the garbage collector with all that it has.
        self._on_due = _nothing_due
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_s = due_s
        self._timer = self._loop.call_at(due_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now_s = self._loop.time() + _TICK_S
        for name in [name for name, due_s in self._due_s.items() if due_s <= now_s]:
            # One that was due may have cleared or set another.
            if self._due_s.get(name, now_s + 1) <= now_s:
                del self._due_s[name]
                self._on_due(name)
        if self._due_s and self._timer is None:
            self._arm(min(self._due_s.values()))


def _nothing_due(_: str) -> None:
    return None
