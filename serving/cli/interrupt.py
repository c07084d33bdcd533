"""Ctrl-C: remembered as well as raised, because what is raised may be swallowed on its way.

Libraries catch everything in places (a callback from C, a destructor), and a KeyboardInterrupt that
arrives there is lost. The mark stays, and nothing more is sent to a server once it is set.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(Exception):
    """A command was ended by Ctrl-C; the text says what had been done until then."""


class Interrupt:
    """Whether Ctrl-C was pressed since ``watch`` began. One for the process: INTERRUPT."""

    def __init__(self) -> None:
        self.is_pressed = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Remember each Ctrl-C, and raise KeyboardInterrupt for it, until the end of the block."""
        self.is_pressed = False
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._take)
        try:
            yield
        finally:
            # What took the signal meanwhile (an event loop does) is over with the block.
            signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed, also where it was swallowed since."""
        if self.is_pressed:
            raise KeyboardInterrupt

    @contextmanager
    def told(self, what_was_done: Callable[[], str]) -> Iterator[None]:
        """Turn Ctrl-C into Stopped with that text; a failure after Ctrl-C was caused by it."""
        try:
            yield
        except KeyboardInterrupt as error:
            raise Stopped(what_was_done()) from error
        except Exception as error:
            if not self.is_pressed:
                raise
            raise Stopped(what_was_done()) from error

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        self.is_pressed = True
        raise KeyboardInterrupt


INTERRUPT = Interrupt()
