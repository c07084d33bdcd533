"""F13: the route goes to and fro between two versions while requests come."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from loadtest.faults.lab import Fault, Lab, judge_latency, judge_store, watched
from loadtest.faults.outcome import Outcome

_MOST_P99: Final = 1.5
_FIRST: Final = 10


def swap(lab: Lab, outcome: Outcome) -> None:
    """Change the route; no request may notice but by the version that answers."""
    with lab.serving() as server:

        def first() -> None:
            for turn in range(_FIRST):
                server.route("echo", 2 - turn % 2)

        with watched(lab, server, outcome, first=first) as watch:
            for turn in range(outcome.count):
                version = 2 - turn % 2
                watch.change(version, partial(server.route, "echo", version))
            last_ns = time.monotonic_ns()
        samples = watch.load.samples
        during = [each for each in samples if watch.began_ns <= each.intended_ns < last_ns]
        judge_latency(lab, outcome, watch.before, during, _MOST_P99)
        judge_store(server, outcome)


FAULTS: Final = (Fault("F13", "swaps of the routed version", 1000, swap),)
