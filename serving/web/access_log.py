"""One line of log for a request, whoever answered it: of all, or of so many a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from serving.settings import Settings

_log = logging.getLogger(__name__)
_LOGGED_PATH_CHARS: Final = 200
_FIRST_ERROR: Final = 400


class AccessLog:
    """Logs requests: no bodies, no headers, no tokens. Event-loop thread only.

    ``lines_per_s``: at most so many lines of good answers each second, and as many of all others,
    so that neither hides the other; None: every request. A line says how many of its kind were
    left out before it.
    """

    def __init__(
        self, lines_per_s: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lines_per_s = lines_per_s
        self._clock = clock
        self._second = -1
        # Of good answers and of all others: lines of this second, and left out since the last.
        self._lines = [0, 0]
        self._skipped = [0, 0]

    @classmethod
    def of(cls, settings: Settings) -> AccessLog | None:
        """Return what the settings ask for, None for no log."""
        if settings.access_log == "off":
            return None
        return cls(settings.access_log_per_s if settings.access_log == "sampled" else None)

    def write(
        self, request_id: str, client: str, method: str, path: str, status: int, duration_s: float
    ) -> None:
        """Log a request, or count it as left out. ``status`` 0: there was no answer."""
        skipped = -1
        if self._lines_per_s is not None:
            kind = int(status >= _FIRST_ERROR or not status)
            # First of all: most requests of a busy server are left out.
            if not self._has_room(kind, self._lines_per_s):
                self._skipped[kind] += 1
                return
            skipped, self._skipped[kind] = self._skipped[kind], 0
        extra = {
            "request_id": request_id,
            "client": client,
            "method": method,
            "path": path[:_LOGGED_PATH_CHARS],
            "status": status,
            "duration_ms": round(duration_s * 1000, 3),
        }
        if skipped >= 0:
            extra["skipped"] = skipped
        _log.info("request", extra=extra)

    def _has_room(self, kind: int, lines_per_s: int) -> bool:
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._lines = [0, 0]
        self._lines[kind] += 1
        return self._lines[kind] <= lines_per_s
