"""The fault bench at a tenth of its counts or less: all rules but those of time, real servers.

The controls at the end break one promise each: the same looks must find it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.bench.faults import FAULTS
from loadtest.faults.echo import burst
from loadtest.faults.footprint import footprint
from loadtest.faults.lab import Lab
from loadtest.faults.outcome import BROKEN, HELD, Outcome
from loadtest.faults.packages import Packages
from loadtest.faults.pressure import TABLES, fill
from loadtest.faults.soak import Growths, Who, judge_growths
from loadtest.faults.stops import stop_once
from loadtest.faults.swaps import unload_under_requests
from tests.process.server import ROOT

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
SERVE = (sys.executable, "-m", "serving")
# What each one judges, so that a look that was lost is noticed.
SHARED = {
    "F13": (100, "ABDEFG"),
    "F14": (205, "ABDEFG"),
    "F16": (1, "ABCDEFG"),
    "F20": (50, "ABDEFG"),
    "F21": (1000, "BDEFG"),
    "F1": (10, "ACDEFGH"),
    "F19": (1, "ACDEFGH"),
    "F22": (1, "ABCDEFGH"),
    "rolling": (1, "ABDEFG"),
}
# F3 and F4 are tests themselves. F9 is left to the bench: it takes half a minute even once.
OWN = {
    "F2": (5, "ACDH"),
    "F5": (1, "ABDEFG"),
    "F6": (3, "ABCDEFGH"),
    "F8": (1, "ABCDEFGH"),
    "F10": (1, "ACH"),
    "F11": (15, "ABDEFG"),
    "connects": (60, "ABCDEFG"),
    "F15": (1, "ABDFG"),
    "F17": (5, "ABD"),
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    return Packages.make(tmp_path_factory.mktemp("packages"), spares=16)


@pytest.fixture(scope="module")
def lab(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab whose server outlives the tests that share it."""
    lab = lab_of(tmp_path_factory.mktemp("lab"), packages)
    with lab.own_server() as lab.shared:
        yield lab


def lab_of(work: Path, packages: Packages, command: tuple[str, ...] = SERVE) -> Lab:
    return Lab(work, packages, rate=50.0, is_timed=False, command=command)


def judged(outcome: Outcome) -> str:
    return "".join(sorted(outcome.verdicts))


@pytest.mark.parametrize("name", SHARED)
def test_a_server_outlives(lab: Lab, name: str) -> None:
    """It serves on, every answer right, and nothing is left behind."""
    count, letters = SHARED[name]
    outcome = FAULTS[name].run(lab, count)
    assert outcome.reasons == []
    assert judged(outcome) == letters


@pytest.mark.parametrize("name", OWN)
def test_a_server_comes_back_after(packages: Packages, tmp_path: Path, name: str) -> None:
    """What was accepted is answered, what was acknowledged is there again."""
    count, letters = OWN[name]
    outcome = FAULTS[name].run(lab_of(tmp_path, packages), count)
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert outcome.reasons == []
    assert judged(outcome) == letters


def test_objects_cut_in_place_cost_their_own_version_only(
    packages: Packages, tmp_path: Path
) -> None:
    """All workers die of it, once for an object as published and once for one as packed."""
    # Nothing but the check at their respawn may find it.
    command = ("env", "RAMRACK_RESIDENCY_CHECK_S=0", *SERVE)
    outcome = FAULTS["F6-cut"].run(lab_of(tmp_path, packages, command), 2)
    assert outcome.reasons == []
    assert outcome.notes == []
    assert judged(outcome) == "ACDEFGH"


# F23: controls.


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that says which promise the workers of ``broken_lab`` break now."""
    return tmp_path_factory.mktemp("broken") / "promise"


@pytest.fixture(scope="module")
def broken_lab(
    packages: Packages, broken: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    lab = lab_of(
        tmp_path_factory.mktemp("lab"), packages,
        (sys.executable, "-m", "tests.process.broken_server"),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_BROKEN_PROMISE", str(broken))
        patch.chdir(ROOT)
        with lab.own_server() as lab.shared:
            yield lab


@pytest.mark.parametrize(("promise", "letter"), [("swap", "D"), ("leak", "G"), ("damage", "A")])
def test_f23_a_broken_promise_is_found(
    broken_lab: Lab, broken: Path, promise: str, letter: str
) -> None:
    """Answers of others, memory that is kept and a damaged object turn their rule red, no other."""
    broken.write_text(promise)
    assert broken_lab.shared is not None
    victim = max((broken_lab.shared.store / "objects").iterdir())
    whole = victim.read_bytes()
    if promise == "damage":
        victim.chmod(0o600)
        victim.write_bytes(whole[::-1])
    outcome = FAULTS["F13"].run(broken_lab, 2)
    if promise == "damage":
        # The next start would refuse it, and others use this server after us.
        victim.write_bytes(whole)
    assert {key for key, verdict in outcome.verdicts.items() if verdict == BROKEN} == {letter}


def test_f23_a_stop_that_drops_connections_is_found(broken_lab: Lab, broken: Path) -> None:
    """Requests that were under way at the stop are missed."""
    broken.write_text("forget")
    outcome = Outcome("F17", "one stop", 1)
    with broken_lab.serving() as server:
        asyncio.run(stop_once(server, outcome))
        broken.unlink()
        server.start()
    assert (outcome.verdict("B"), outcome.verdict("D")) == (BROKEN, HELD)


def test_f23_an_unload_without_a_drain_is_found(broken_lab: Lab, broken: Path) -> None:
    """Who was being answered is missed; a server that waits for its handles misses nobody."""
    found = []
    with broken_lab.serving() as server:
        storm = [server.serve(broken_lab.packages.read(f"storm-{number}")) for number in (1, 2)]
        for promise in ("slow", "slow undrained"):
            broken.write_text(promise)
            outcome = Outcome("drain", "unloads", 1)
            unload_under_requests(server, outcome, "storm", storm[1])
            found.append((outcome.verdict("B"), outcome.verdict("D")))
            server.load("storm", storm[1])
    broken.unlink()
    assert found == [(HELD, HELD), (BROKEN, HELD)]


def test_f23_a_leak_shows_in_the_slopes_of_the_soak(broken_lab: Lab, broken: Path) -> None:
    """A worker that keeps what it ran with grows faster than any noise, at every look."""
    broken.write_text("leak")
    outcome = Outcome("F22", "looks", 1)
    with broken_lab.serving() as server:
        growths = Growths([Who("worker", server.worker_pids()[0])])
        for _ in range(8):
            # One after the other, or they would share a run.
            for _ in range(20):
                asyncio.run(burst(server.port, ["/v2/models/echo/infer"], 1))
            growths.look()
    broken.unlink()
    judge_growths(broken_lab, outcome, growths)
    assert outcome.verdict("G") == BROKEN


def test_what_a_run_freed_goes_back_once_its_worker_is_quiet(broken_lab: Lab, broken: Path) -> None:
    """The allocator keeps it for the next run; seconds later it is the system's again."""
    with broken_lab.serving() as server:
        pids = server.worker_pids()
        before = footprint(pids).memory_bytes
        broken.write_text("litter")
        asyncio.run(burst(server.port, ["/v2/models/echo/infer"], 1))
        broken.unlink()
        full = footprint(pids).memory_bytes
        assert full - before > 16 << 20
        server.wait_until(
            lambda: footprint(pids).memory_bytes < full - (16 << 20), 60, "it was given back"
        )


def test_f23_a_limit_that_is_ignored_is_found(broken_lab: Lab, tmp_path: Path) -> None:
    """A server that takes one table after the other refuses none."""
    tables = Packages.make(tmp_path, 0, tables=TABLES)
    outcome = Outcome("F9", "loads", 1)
    with broken_lab.serving() as server:
        assert len(fill(server, outcome, tables)) == TABLES
    assert outcome.verdict("A") == BROKEN


def test_f23_a_queue_without_a_bound_is_found(packages: Packages, tmp_path: Path) -> None:
    """Where nothing is shed more waits than may; on a slow machine until its deadline."""
    command = ("env", "RAMRACK_QUEUE_ROWS=100000", *SERVE)
    outcome = FAULTS["F15"].run(lab_of(tmp_path, packages, command), 1)
    assert outcome.verdict("F") == BROKEN
