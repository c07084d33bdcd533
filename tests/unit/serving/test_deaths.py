"""Tests of who is blamed for a worker's death."""

import signal
from pathlib import Path

import pytest

from serving.workers.deaths import (
    DeathLedger,
    MemoryKills,
    is_from_outside,
    oom_kills,
    suspects,
)

A, B = ("a", 1), ("b", 1)


def test_a_version_being_loaded_is_the_only_suspect() -> None:
    """What runs beside a load is not blamed, even when somebody sent the signal."""
    assert suspects(A, [A, B], is_from_outside=False) == {A}
    assert suspects(A, [A, B], is_from_outside=True) == {A}


def test_running_versions_are_blamed_for_a_crash() -> None:
    """Without a load every version with a run under way is a suspect."""
    assert suspects(None, [A, B], is_from_outside=False) == {A, B}


def test_running_versions_are_not_blamed_for_a_kill_from_outside() -> None:
    """A person who kills workers does not get a popular version quarantined."""
    assert suspects(None, [A, B], is_from_outside=True) == frozenset()


@pytest.mark.parametrize(
    ("code", "is_ours", "is_out_of_memory", "expected"),
    [
        (-signal.SIGKILL, False, False, True),
        (-signal.SIGTERM, False, False, True),
        (-signal.SIGKILL, True, False, False),
        (-signal.SIGKILL, False, True, False),
        (-signal.SIGSEGV, False, False, False),
        (-signal.SIGBUS, False, False, False),
        (1, False, False, False),
    ],
)
def test_only_a_plain_kill_comes_from_outside(
    code: int, is_ours: bool, is_out_of_memory: bool, expected: bool
) -> None:
    """Crashes, our own kills of hung workers, and the kernel's for memory are the model's."""
    assert is_from_outside(code, is_ours=is_ours, is_out_of_memory=is_out_of_memory) == expected


def test_the_third_death_is_one_too_many() -> None:
    """The ledger names a version once, at its third death."""
    ledger = DeathLedger()
    assert [ledger.record({A}) for _ in range(4)] == [(), (), (A,), ()]


def test_a_version_that_left_the_target_starts_anew() -> None:
    """Deaths are forgotten with the version; those of others are kept."""
    ledger = DeathLedger()
    ledger.record({A, B})
    ledger.record({A, B})
    ledger.keep({B})
    assert ledger.record({A}) == ()
    assert ledger.record({B}) == (B,)


def test_memory_kills_are_read_from_the_kernel(tmp_path: Path) -> None:
    """The counter is found by name; a kernel without it counts none."""
    file = tmp_path / "vmstat"
    file.write_text("pgfault 7\noom_kill 3\n")
    assert oom_kills(file) == 3
    file.write_text("pgfault 7\n")
    assert oom_kills(file) == 0
    assert oom_kills(tmp_path / "none") == 0


def test_a_memory_kill_is_noticed_once(tmp_path: Path) -> None:
    """Only what came since the last look counts, not what the machine had before."""
    file = tmp_path / "vmstat"
    file.write_text("oom_kill 3\n")
    kills = MemoryKills(file)
    assert not kills.happened()
    file.write_text("oom_kill 5\n")
    assert kills.happened()
    assert not kills.happened()
