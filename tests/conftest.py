"""What holds for every test."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """A run that is ended from outside stops the servers that its fixtures started.

    A shell that starts a job in the background has it ignore interrupts; what tests start would
    inherit that.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files come first: the last one to start is what the other cores wait for.

    How long a file may take is what its marks say: a time limit above the usual one, then whether
    any of its tests starts servers.
    """
    usual_s = float(config.getini("timeout"))
    rank: dict[Path, tuple[float, int]] = {}
    for item in items:
        limits = [float(mark.args[0]) for mark in item.iter_markers("timeout")]
        kind = next((i for i, m in enumerate(("process", "slow")) if item.get_closest_marker(m)), 2)
        own = (-max([usual_s, *limits]), kind)
        rank[item.path] = min(rank.get(item.path, own), own)
    items.sort(key=lambda item: rank[item.path])
