"""What holds for every test."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A run that is ended from outside stops the servers that its fixtures started."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
