"""One line of log for a request, the same whoever answered it."""

from __future__ import annotations

import logging
from typing import Final

_log = logging.getLogger(__name__)
_LOGGED_PATH_CHARS: Final = 200


def log_request(
    request_id: str, client: str, method: str, path: str, status: int, duration_s: float
) -> None:
    """Log a request. ``status`` 0: there was no answer."""
    _log.info(
        "request",
        extra={
            "request_id": request_id,
            "client": client,
            "method": method,
            "path": path[:_LOGGED_PATH_CHARS],
            "status": status,
            "duration_ms": round(duration_s * 1000, 3),
        },
    )
