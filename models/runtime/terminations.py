"""Ending runs that compute outside of a library, between its calls."""

from __future__ import annotations

import threading
from collections.abc import Callable

from models.errors import RunTerminated


class Terminations:
    """Has the runs under way end at their next look. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def begin(self) -> Callable[[], None]:
        """Return what a run that begins now calls now and then; it raises RunTerminated."""
        began = self._count

        def check() -> None:
            if self._count != began:
                raise RunTerminated("the run was ended because it took too long")

        return check

    def end_all(self) -> None:
        """End all runs under way. Later runs are not affected."""
        with self._lock:
            self._count += 1
