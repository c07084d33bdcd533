"""How a version stands over all workers, by what each of them said last."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from serving.fleet import VersionKey, VersionReport
from serving.workers.standing import standing

KEY = ("m", 1)
GOOD = VersionReport("READY", "", 0.2, 10)
SHORT = VersionReport("FAILED", "no memory", is_out_of_memory=True)
BAD = VersionReport("FAILED", "no such operator")


@dataclass
class Said:
    """A slot whose worker has reported."""

    reports: dict[VersionKey, VersionReport] = field(default_factory=dict)
    speaks_for_itself: bool = True


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ((GOOD, SHORT), ("FAILED", "no memory", True)),
        ((SHORT, BAD), ("FAILED", "no such operator", False)),
        ((GOOD, BAD), ("FAILED", "no such operator", False)),
        ((GOOD, GOOD), ("READY", "", False)),
    ],
)
def test_only_where_every_failure_was_a_lack_of_memory_it_was_one(reports, expected):
    """One worker that finds damage is enough: with more memory it would fail again."""
    found = standing([Said({KEY: report}) for report in reports], [KEY], {})[KEY]

    assert (found.state, found.reason, found.is_out_of_memory) == expected


def test_a_quarantined_version_stands_as_failed_whatever_workers_say():
    """Its reason is that of the quarantine."""
    found = standing([Said({KEY: GOOD})], [KEY], {KEY: "killed three workers"})

    assert found == {KEY: VersionReport("FAILED", "killed three workers")}


def test_what_each_worker_measured_is_kept_beside_the_most():
    """The budget counts the sum; those that failed hold nothing."""
    found = standing(
        [Said({KEY: GOOD}), Said({KEY: VersionReport("READY", "", 0.1, 70)}), Said()], [KEY], {}
    )[KEY]

    assert (found.private_bytes, found.private_by_worker) == (70, (10, 70))
