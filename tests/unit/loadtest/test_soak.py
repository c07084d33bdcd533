"""The parts of the soak that decide: what grows for sure, who is at rest, what a death explains."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from pathlib import Path

import pytest

from loadtest.faults.crew import Complaint, Crew, Mishap
from loadtest.faults.lab import Lab
from loadtest.faults.outcome import BROKEN, HELD, Outcome
from loadtest.faults.packages import Packages
from loadtest.faults.slopes import slope_of
from loadtest.faults.soak import Growths, Who, judge_complaints, judge_growths
from loadtest.faults.soak_steps import MALFORMED
from loadtest.faults.worker_deaths import Death

SECOND = 10**9


def lab(*, is_timed=True):
    return Lab(Path(), Packages(Path(), 1), is_timed=is_timed)


def grown(values, what="memory MB", every_s=15.0):
    points = [(number * every_s, value) for number, value in enumerate(values)]
    return Growths([Who("worker", 1)], {("worker", what): points})


def judged(growths, *, is_timed=True):
    outcome = Outcome("F22", "a soak", 600)
    judge_growths(lab(is_timed=is_timed), outcome, growths)
    return outcome


def noise(seed, count=40, sigma=0.2):
    dice = random.Random(seed)
    return [100 + dice.gauss(0, sigma) for _ in range(count)]


def test_a_slope_is_the_median_of_all_pairs():
    """One look that is far off changes nothing; a line is found as it is."""
    points = [(float(second), 2.0 * second) for second in range(20)]
    assert slope_of(points).per_hour == 7200
    points[7] = (7.0, 1e6)
    assert slope_of(points).per_hour == 7200


def test_too_few_looks_bound_nothing():
    """Four looks say nothing for sure, however steep."""
    found = slope_of([(0.0, 0.0), (1.0, 1.0), (2.0, 2.0), (3.0, 3.0)])
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert slope_of([(0.0, 1.0)]).low == -math.inf


def test_the_interval_holds_the_true_slope():
    """Of noise around a level, nineteen intervals in twenty hold it: here at least 180 of 200."""
    found = [slope_of([(15.0 * n, v) for n, v in enumerate(noise(seed))]) for seed in range(200)]
    held = sum(each.low <= 0 <= each.high for each in found)
    assert 180 <= held < 200


def test_noise_is_no_leak():
    """Ten minutes around a level are held, and the slope is printed with its bounds."""
    outcome = judged(grown(noise(1)))
    assert outcome.verdict("G") == HELD
    assert "worker memory MB: " in outcome.notes[0]


@pytest.mark.parametrize("leak_mb_an_hour", [5, 60])
def test_a_leak_is_found_below_the_noise(leak_mb_an_hour):
    """Less than a megabyte in ten minutes, with looks that are off by a fifth of one."""
    values = [v + leak_mb_an_hour * 15 * n / 3600 for n, v in enumerate(noise(2))]
    assert judged(grown(values)).verdict("G") == BROKEN


def test_a_file_every_minute_is_found():
    """Files, threads and mappings may not grow at all."""
    counts = [20 + number // 4 for number in range(40)]
    assert judged(grown(counts, "files")).verdict("G") == BROKEN
    assert "G" not in judged(grown(counts, "PSS MB")).verdicts


def test_a_warm_up_is_no_leak():
    """What fills in the first fifth is left out."""
    values = [50 + 50 * min(1, number / 8) + n for number, n in enumerate(noise(3))]
    assert judged(grown(values)).verdict("G") == HELD


def test_a_crew_rests_when_it_is_asked_to():
    """Nobody is in the middle of something at rest, and nobody begins."""
    inside, seen = threading.Event(), threading.Semaphore(0)

    def step(_):
        assert not inside.is_set()
        seen.release()

    with Crew({"a": (step, 0.001), "b": (step, 0.001)}) as crew:
        for _ in range(3):
            assert all(seen.acquire(timeout=30) for _ in range(4))
            with crew.at_rest():
                inside.set()
                asyncio.run(asyncio.sleep(0.01))
                inside.clear()
    assert crew.complaints == []
    assert set(crew.done) == {"a", "b"}


def test_a_crew_takes_down_what_goes_wrong():
    """A mishap may be explained by a death, anything else may not."""
    both, complained = threading.Barrier(3), threading.Event()

    def unlucky(_):
        if not complained.is_set():
            both.wait(30)
            raise Mishap("closed")

    def wrong(_):
        if not complained.is_set():
            both.wait(30)
            raise ValueError("a stranger's answer")

    with Crew({"unlucky": (unlucky, 0.001), "wrong": (wrong, 0.001)}) as crew:
        both.wait(30)
        complained.set()
    found = {each.who: each for each in crew.complaints}
    assert found["unlucky"].is_mishap
    assert not found["wrong"].is_mishap
    assert found["wrong"].text == "ValueError: a stranger's answer"


@pytest.mark.parametrize(
    ("is_mishap", "began", "expected"),
    [(True, 1, {"B": HELD}), (True, 5, {"B": BROKEN, "C": BROKEN}), (False, 1, {"B": BROKEN})],
)
def test_only_a_death_at_that_time_explains_a_mishap(is_mishap, began, expected):
    """A closed connection with nobody dying is a fault, and so is a wrong answer at any time."""
    complaint = Complaint("forms", "closed", is_mishap, began * SECOND, (began + 1) * SECOND)
    outcome = Outcome("F22", "a soak", 600)
    judge_complaints(outcome, [complaint], [Death(1, frozenset(), 2 * SECOND, 3 * SECOND)])
    assert outcome.verdicts == expected


def test_what_is_malformed_ends_its_head():
    """A server must not be waited for whose client never ended its request."""
    assert all(b"\r\n\r\n" in wire for wire, _ in MALFORMED)
