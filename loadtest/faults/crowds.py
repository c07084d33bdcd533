"""F11 and connects: thousands of clients at once that are there for nothing, beside good ones."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

from loadtest.faults.lab import Fault, Lab, judge_latency, judge_store, settled, watched
from loadtest.faults.outcome import Outcome
from loadtest.faults.scarcity import server_of
from loadtest.lab.processes import LabFailed

_HUNG_UP_S: Final = 60.0
# Of a head, a body and a connection without a request: shorter than the defaults, and long enough
# that all of a crowd are there at once.
_DEADLINES_S: Final = (4, 5, 6)
_QUICK_DEADLINES_S: Final = (1, 2, 3)
# The longest deadline, and a second in which the server gets around to it.
_GONE_S: Final = _DEADLINES_S[-1] + 1.0
# One crowd is over in seconds: too few good requests meet it to say anything of their slowest.
_CROWDS: Final = 3
_CONNECTS_PER_S: Final = 5000
# Fewer than that are no storm: the machine was too busy for it.
_LEAST_SHARE: Final = 0.95


def slow_clients(lab: Lab, outcome: Outcome) -> None:
    """Let ``count`` clients at once begin and not go on: each is hung up on at its deadline."""
    head_s, body_s, idle_s = _DEADLINES_S if lab.is_timed else _QUICK_DEADLINES_S
    deadlines = ("env", f"RAMRACK_HEADER_TIMEOUT_S={head_s}", f"RAMRACK_BODY_TIMEOUT_S={body_s}",
                 f"RAMRACK_KEEP_ALIVE_S={idle_s}")  # fmt: skip
    with server_of(lab, (*deadlines, *lab.command)) as server:

        def crowd(count: int) -> dict[str, float]:
            return _crowd("slow", server.port, count, _HUNG_UP_S)

        longest, at_once = 0.0, 0.0
        with watched(lab, server, outcome, first=lambda: crowd(outcome.count)) as watch:
            for _ in range(_CROWDS if lab.is_timed else 1):
                found = crowd(outcome.count)
                outcome.requests += outcome.count
                longest = max(longest, found["oldest_s"])
                at_once = max(at_once, found["at_once"])
                left = found["left"]
                outcome.judge("F", not left, f"{left:g} slow clients still have their connection")
        if lab.is_timed:
            outcome.figures |= {"at once": at_once, "oldest s": longest}
            outcome.judge(
                "H", longest <= _GONE_S,
                f"the last slow client was hung up on after {longest:.1f} s, limit {_GONE_S:g}",
            )  # fmt: skip
        during = [each for each in watch.load.samples if each.intended_ns >= watch.began_ns]
        judge_latency(lab, outcome, watch.before, during, 1.5)
        quiet = settled(server, lambda: server.metric("ramrack_in_flight") == 0)
        outcome.judge("F", quiet, "requests of slow clients are still in flight")
        judge_store(server, outcome)


def many_connects(lab: Lab, outcome: Outcome) -> None:
    """Open and leave connections, 5,000 a second: nobody else notices, and nothing is left."""
    with server_of(lab, lab.command) as server:

        def storm(count: int) -> dict[str, float]:
            return _crowd("connects", server.port, count, _CONNECTS_PER_S)

        with watched(lab, server, outcome, first=lambda: storm(outcome.count // 5)) as watch:
            found = storm(outcome.count)
        outcome.requests += outcome.count
        outcome.figures |= found
        outcome.judge("C", not found["refused"], f"{found['refused']:g} connects were refused")
        if found["connects/s"] >= _LEAST_SHARE * _CONNECTS_PER_S:
            during = [each for each in watch.load.samples if each.intended_ns >= watch.began_ns]
            judge_latency(lab, outcome, watch.before, during, 1.5)
        else:
            outcome.notes.append("I is not judged: the machine was too busy for so many connects")
        judge_store(server, outcome)


def _crowd(kind: str, port: int, count: int, number: float) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.faults.crowd", kind, str(port), str(count), str(number)],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    if done.returncode:
        raise LabFailed(f"the crowd failed: {done.stderr.strip()[-500:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


FAULTS: Final = (
    Fault("F11", "clients that take their time, all at once", 2000, slow_clients),
    Fault("connects", "5,000 connects a second", 50_000, many_connects),
)
