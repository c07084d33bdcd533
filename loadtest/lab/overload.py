"""What a server made of more requests than it can answer, from the times of each of them."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.exchange import Exchange
from loadtest.lab.processes import LabFailed


def answered_rate(samples: Sequence[Exchange]) -> float:
    """Return good answers a second, of those that came while requests were still sent."""
    began_ns = min(each.intended_ns for each in samples)
    ended_ns = max(each.intended_ns for each in samples)
    answered = sum(each.status == 200 and each.done_ns <= ended_ns for each in samples)
    return answered / max(1e-9, (ended_ns - began_ns) / 1e9)


def recovery_s(probes: Sequence[Exchange], began_ns: int, ended_ns: int) -> float:
    """Return seconds from ``ended_ns`` until every later probe is as before ``began_ns``.

    As before: answered 200 within twice the slowest of the earlier ones.
    """
    before = [p.latency_ns for p in probes if p.done_ns < began_ns and p.status == 200]
    if not before:
        raise LabFailed("no probe was answered before the overload")
    slow = [
        p.intended_ns
        for p in probes
        if p.intended_ns >= ended_ns and (p.status != 200 or p.latency_ns > 2 * max(before))
    ]
    return (slow[-1] - ended_ns) / 1e9 if slow else 0.0
