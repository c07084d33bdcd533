"""The page cache as the benches see it, and what they need before they start."""

from __future__ import annotations

import os
from pathlib import Path

from loadtest.bench._weights_rig import Sizes
from loadtest.bench._weights_room import NEEDS, Needs, available_bytes, lacking
from loadtest.bench.weights import SCENARIOS
from loadtest.lab.page_cache import cached_bytes, drop

MIB = 1 << 20


def test_what_was_dropped_is_not_cached_until_it_is_read(tmp_path: Path) -> None:
    """To the page; an empty file has nothing to cache."""
    path, empty = tmp_path / "file", tmp_path / "empty"
    path.write_bytes(os.urandom(MIB + 5))
    empty.write_bytes(b"")
    assert cached_bytes(path) == MIB + 5
    drop([path, empty])
    assert cached_bytes(path) < MIB + 5
    assert len(path.read_bytes()) == cached_bytes(path)
    assert cached_bytes(empty) == 0


def test_every_scenario_says_what_it_needs(tmp_path: Path) -> None:
    """Smaller models need less; what is lacking is named with both figures."""
    assert NEEDS.keys() == SCENARIOS.keys()
    full, small = (NEEDS["shared-table"].at(Sizes(scale)) for scale in (1.0, 0.05))
    assert small.memory_gb < full.memory_gb
    assert small.disk_gb < full.disk_gb
    assert lacking(Needs(0.0, 0.0, 1), tmp_path) == ""
    assert "GB of memory" in lacking(Needs(1e6, 0.0, 1), tmp_path)
    assert "needs 1000000.0 GB of disk" in lacking(Needs(0.0, 1e6, 1), tmp_path)


def test_memory_that_is_free_is_read_from_the_kernel() -> None:
    """What the kernel could give, and not only what lies idle; 0 where it does not say."""
    assert available_bytes("MemFree: 1 kB\nMemAvailable:  20 kB\n") == 20 * 1024
    assert available_bytes("MemFree: 1 kB\n") == 0
