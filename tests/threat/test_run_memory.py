"""The bound on what runs may take: set after loads, lifted for them."""

from __future__ import annotations

import resource

import pytest

from registry.budget import LEAST_RUN_BYTES, default_run_bytes
from serving.workers.private_memory import DataLimit, PrivateMemory

GIB = 1 << 30


def test_huge_output_bound_is_lifted_for_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a load there is none, after it what is held then and so much more."""
    set_to: list[int] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _what, limits: set_to.append(limits[0]))
    memory = PrivateMemory(lambda: 0, DataLimit(GIB))
    memory.begin()
    memory.loaded(("m", 1))
    memory.begin()
    memory.failed()
    memory.begin()
    memory.unloaded(("m", 1))
    lifted, bounds = set_to[::2], set_to[1::2]
    assert set(lifted) == {resource.getrlimit(resource.RLIMIT_DATA)[1]}
    assert all(bound > GIB for bound in bounds)
    assert len(bounds) == 3


def test_huge_output_bound_is_what_the_budget_leaves() -> None:
    """Shared by the workers, and never less than a run of a usual model takes."""
    assert default_run_bytes(24 * GIB, 18 * GIB, workers=2) == 3 * GIB
    assert default_run_bytes(4 * GIB, 3 * GIB, workers=8) == LEAST_RUN_BYTES
    assert default_run_bytes(4 * GIB, 9 * GIB, workers=1) == LEAST_RUN_BYTES
