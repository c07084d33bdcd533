"""Ctrl-C: remembered as well as raised, because what is raised may be swallowed on its way.

Libraries catch everything in places (a callback from C, a destructor), and a KeyboardInterrupt that
arrives there is lost. The mark stays, and nothing more is sent to a server once it is set.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType


class Stopped(Exception):
    """A command was ended by Ctrl-C; the text says what had been done until then."""


class Interrupt:
    """Whether Ctrl-C was pressed since ``watch`` began. One for the process: INTERRUPT."""

    def __init__(self) -> None:
        self.is_pressed = False

    @contextmanager
    def watch(self, *, is_last: bool = False) -> Iterator[None]:
        """Remember each Ctrl-C, and raise KeyboardInterrupt for it, until the end of the block.

        ``is_last``: the process ends after it, and Ctrl-C is ignored from there on, because in an
        interpreter that takes itself apart it would only bring a traceback.
        """
        self.is_pressed = False
        is_main = threading.current_thread() is threading.main_thread()
        # A shell starts what runs in the background with Ctrl-C ignored, and means it.
        if not is_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            yield
            return
        hook = sys.unraisablehook
        sys.unraisablehook = partial(_show_unraisable, hook)
        before = signal.signal(signal.SIGINT, self._take)
        try:
            yield
        finally:
            # An event loop may have taken the signal meanwhile, and put back another handler.
            signal.signal(signal.SIGINT, signal.SIG_IGN if is_last else before)
            if not is_last:
                sys.unraisablehook = hook

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed, also where it was swallowed since."""
        if self.is_pressed:
            raise KeyboardInterrupt

    @contextmanager
    def also(self, number: signal.Signals) -> Iterator[None]:
        """Take another signal as Ctrl-C inside the block; for a command that must clean up."""
        before = signal.signal(number, self._take)
        try:
            yield
        finally:
            signal.signal(number, before)

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


def _show_unraisable(
    show: Callable[[sys.UnraisableHookArgs], None], found: sys.UnraisableHookArgs
) -> None:
    """Leave out Ctrl-C that came inside a destructor or callback: it is marked, and not lost."""
    if not isinstance(found.exc_value, KeyboardInterrupt):
        show(found)


INTERRUPT = Interrupt()
