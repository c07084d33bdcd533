"""Counters outlive the workers that count: killed at random, they say what clients saw."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest

from loadtest.bench.counters import counts
from loadtest.faults.packages import Packages
from loadtest.faults.server import fault_server
from loadtest.faults.tally import MODEL, Tally, asks, count_through_deaths, requests

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]


def test_every_counter_is_what_its_clients_counted(tmp_path: Path) -> None:
    """E01: exact but for what was in flight at a death, and never lower than at a scrape before."""
    packages = Packages.make(tmp_path / "packages", spares=1)
    with fault_server(tmp_path, (sys.executable, "-m", "serving")) as server:
        server.serve(packages.read(f"{MODEL}-1"))
        tally = asyncio.run(count_through_deaths(server, 6.0))
        counted = counts(server, tally)
    assert tally.deaths >= 1
    assert tally.scrapes >= 2
    assert {200, 400, 404, 415} <= set(tally.statuses)
    assert len(counted) >= 13
    assert tally.problems(counted) == []


def test_a_counter_that_is_wrong_is_found() -> None:
    """One too few, one too many and one that fell are each said; what a death explains is not."""
    ok = requests(200)
    tally = Tally()
    ask = next(a for a in map(asks, map(random.Random, range(9))) if a.status == 200)
    for _ in range(3):
        tally.count(ask, 200)
    assert tally.problems({ok: 3}) == []
    for wrong in (2, 4):
        assert len(tally.problems({ok: wrong})) == 1
    tally.lose(ask, ask)
    for explained in (2, 3, 4):
        assert tally.problems({ok: explained}) == []
    for wrong in (1, 5):
        assert len(tally.problems({ok: wrong})) == 1
    tally.fallen.append("ramrack_rows_total")
    assert len(tally.problems({ok: 3})) == 1
