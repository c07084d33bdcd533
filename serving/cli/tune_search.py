"""How ``ramrack tune`` searches: the highest rate of one server, and the best of many servers.

Pure but for what is passed in: ``probe`` sends requests at a rate and says whether they were
answered within the target, and a clock says when to stop.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from serving.cli.tune_space import Candidate

LEAST_RATE: Final = 0.5
MOST_RATE: Final = 200_000.0
# A median gain below this is no reason to leave the defaults.
LEAST_GAIN: Final = 1.03


@dataclass(frozen=True, slots=True)
class Probe:
    """One run at a rate. ``is_limited``: the generator was too busy to say more."""

    is_within: bool
    p99_ms: float | None
    is_limited: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The highest rate that was answered within the target; 0: none was.

    ``is_limited``: more could not be sent, so that the server may do more.
    """

    rate: float
    p99_ms: float | None = None
    probes: int = 0
    is_limited: bool = False


class OutOfTime(Exception):
    """The time is up. What was measured until then stands."""


def highest_rate(
    probe: Callable[[float], Probe], start: float, *, factor: float, most_probes: int
) -> Found:
    """Return the highest rate within the target, looked for from ``start`` on.

    Steps by ``factor`` up or down until one rate is within and the next is not, then halves the gap
    between them as long as there are probes.
    """
    low, high = 0.0, math.inf
    best = Found(0.0)
    rate = min(MOST_RATE, max(LEAST_RATE, start))
    for count in range(1, most_probes + 1):
        try:
            seen = probe(rate)
        except OutOfTime:
            if not best.probes:
                raise
            return best
        if seen.is_within:
            low, best = rate, Found(rate, seen.p99_ms, count)
        elif seen.is_limited:
            return Found(best.rate, best.p99_ms, count, is_limited=True)
        else:
            high, best = rate, Found(best.rate, best.p99_ms, count)
        if high == math.inf:
            rate = min(MOST_RATE, low * factor)
        elif low == 0.0:
            rate = max(LEAST_RATE, high / factor)
        else:
            rate = math.sqrt(low * high)
        if rate in (low, high):
            break
    return best


@dataclass(slots=True)
class Trials:
    """What was measured: of each candidate the rates, one for each time it was measured."""

    found: dict[Candidate, list[Found]] = field(default_factory=dict)
    failed: dict[Candidate, str] = field(default_factory=dict)

    def add(self, candidate: Candidate, found: Found) -> None:
        """Keep one measurement."""
        self.found.setdefault(candidate, []).append(found)

    def last_rate(self, candidate: Candidate) -> float:
        """Return the rate that was found last; 0 where nothing was."""
        return self.found[candidate][-1].rate if self.found.get(candidate) else 0.0

    def ranked(self) -> list[Candidate]:
        """Return what was measured, the highest last rate first."""
        return sorted(self.found, key=lambda candidate: -self.last_rate(candidate))


def halve(ranked: Sequence[Candidate], default: Candidate) -> list[Candidate]:
    """Return the better half (two or more), and the defaults, which are what all are held to."""
    kept = list(ranked[: max(2, len(ranked) // 2)])
    return kept if default in kept else [*kept, default]


class Sureness(StrEnum):
    """How sure the result is."""

    CLEAR = "clear"
    LIKELY = "likely"
    NONE = "no difference"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Defaults against the best, measured in turn. ``ratios``: best by defaults, round by round."""

    chosen: Candidate
    best: Candidate
    sureness: Sureness
    best_rates: tuple[float, ...]
    default_rates: tuple[float, ...]
    ratios: tuple[float, ...]

    def words(self) -> str:
        """Return what is said of it."""
        if self.best == self.chosen and not self.best_rates:
            return "nothing better than the defaults was found"
        rounds = len(self.ratios)
        if not rounds and self.sureness is Sureness.CLEAR:
            return "the defaults kept the target at no rate that was tried: clear"
        if not rounds:
            return "there was no time to hold the best against the defaults: the defaults stay"
        wins = sum(ratio > 1 for ratio in self.ratios)
        figures = (
            f"{statistics.median(self.ratios):.2f} x the rate of the defaults "
            f"({min(self.ratios):.2f}..{max(self.ratios):.2f}), better in {wins} of {rounds} rounds"
        )
        if rounds == 1 and self.sureness is Sureness.NONE:
            return f"{figures}: one round is too few to be sure, the defaults stay"
        if self.sureness is Sureness.NONE:
            return f"{figures}: no difference that could be told from noise, the defaults stay"
        return f"{figures}: {self.sureness}"


def judge(
    default: Candidate, best: Candidate,
    default_rates: Sequence[float], best_rates: Sequence[float],
) -> Verdict:  # fmt: skip
    """Return whether ``best`` beats the defaults. Rates are of rounds in turn, pair by pair.

    CLEAR: its worst round is above the defaults' best. LIKELY: it won most rounds. Both need two
    rounds and a median gain of LEAST_GAIN; otherwise the defaults stay.
    """
    pairs = [(one, other) for one, other in zip(best_rates, default_rates, strict=False) if other]
    ratios = tuple(one / other for one, other in pairs)
    sureness = Sureness.NONE
    is_repeated = min(len(best_rates), len(default_rates)) > 1
    if is_repeated and (not ratios or statistics.median(ratios) >= LEAST_GAIN):
        # Without a ratio, the defaults kept the target at no rate at all.
        wins = sum(ratio > 1 for ratio in ratios)
        if min(best_rates) > max(default_rates):
            sureness = Sureness.CLEAR
        elif wins * 2 > len(default_rates):
            sureness = Sureness.LIKELY
    chosen = default if sureness is Sureness.NONE else best
    return Verdict(chosen, best, sureness, tuple(best_rates), tuple(default_rates), ratios)
