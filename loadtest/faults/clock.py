"""F8: the wall clock of every process of the server jumps to and fro at each look."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Final

from loadtest.faults.bad_requests import ask_endless
from loadtest.faults.lab import Fault, Lab, judge_latency, judge_store, watched
from loadtest.faults.outcome import Outcome
from loadtest.faults.server import FaultServer

_JUMPING: Final = Path(__file__).with_name("jumping_clock")
_DEADLINE_MS: Final = 200
# A deadline is looked at some milliseconds late; by a clock that jumps it would be days.
_SLACK_S: Final = 1.0
_MOST_P99: Final = 1.5


def jump(lab: Lab, outcome: Outcome) -> None:
    """Do what waits for a time: deadlines, supervision, loads, drains; all go by another clock."""
    command = ("env", f"PYTHONPATH={_JUMPING}", *lab.command)
    with lab.own_server(command=command) as server:
        server.serve(lab.packages.read("endless-1"))
        for number in (1, 2):
            server.serve(lab.packages.read(f"storm-{number}"))
        outcome.judge("H", _is_jumping(server), "the clock of the server stands still")
        pids = server.worker_pids()
        with watched(lab, server, outcome) as watch:
            for turn in range(outcome.count):
                version = 2 - turn % 2
                watch.change(version, partial(server.route, "echo", version))
                _expire(lab, server, outcome)
                server.must("POST", "/models/storm/versions/2:unload?wait=60")
                server.load("storm", 2)
            last_ns = time.monotonic_ns()
        during = [s for s in watch.load.samples if watch.began_ns <= s.intended_ns < last_ns]
        judge_latency(lab, outcome, watch.before, during, _MOST_P99)
        outcome.judge("C", server.worker_pids() == pids, "a worker was taken for dead")
        judge_store(server, outcome)


def _expire(lab: Lab, server: FaultServer, outcome: Outcome) -> None:
    """Ask for what never ends with a deadline: a 504 then, neither at once nor days later."""
    began = time.monotonic()
    answer = ask_endless(server, timeout_ms=_DEADLINE_MS)
    took_s = time.monotonic() - began
    outcome.judge("B", answer.status_code == 504, f"{answer.status_code} {answer.text[:200]}")
    is_early = took_s < _DEADLINE_MS / 1000
    outcome.judge("B", not is_early, f"a deadline of {_DEADLINE_MS} ms passed in {took_s:.3f} s")
    if lab.is_timed:
        is_late = took_s > _DEADLINE_MS / 1000 + _SLACK_S
        outcome.judge("H", not is_late, f"a deadline of {_DEADLINE_MS} ms took {took_s:.1f} s")


def _is_jumping(server: FaultServer) -> bool:
    """Whether what the server writes down for people is from days that are far apart."""
    events = server.must("GET", "/events?since=0")["events"]
    return len({event["time"][:7] for event in events}) > 1


FAULTS: Final = (Fault("F8", "the wall clock jumps", 50, jump),)
