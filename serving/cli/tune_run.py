"""The course of ``ramrack tune``: many candidates shortly, the better half longer, two in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from registry.errors import InvalidInput
from serving.cli.tune_rig import Effort
from serving.cli.tune_search import Found, OutOfTime, Trials, Verdict, halve, judge
from serving.cli.tune_space import DEFAULTS, Candidate, crossed
from serving.client.errors import ClientError

_FIRST: Final = Effort(seconds=0.8, factor=1.5, most_probes=6)
_SECOND: Final = Effort(seconds=1.5, factor=1.25, most_probes=5)
_LAST: Final = Effort(seconds=2.0, factor=1.15, most_probes=6)
# Of all time; the rest is for the rounds of the last two.
_FIRST_SHARE, _SECOND_SHARE = 0.45, 0.62
_ROUNDS: Final = 3
# One slow candidate may take this many times its share of the time.
_PATIENCE: Final = 1.5


class Measures(Protocol):
    """Measures one candidate; ``tune_rig.Rig`` does."""

    def measure(
        self, candidate: Candidate, start: float, effort: Effort, budget_s: float, until_s: float
    ) -> Found:
        """Return the highest rate; raises OutOfTime where nothing could be measured."""
        ...


@dataclass(slots=True)
class Course:
    """One search. ``say`` is told each measurement; ``clock``: monotonic seconds."""

    rig: Measures
    total_s: float
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    trials: Trials = field(default_factory=Trials)
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    def run(self, candidates: list[Candidate]) -> Verdict:
        """Search and return the verdict; never goes on for longer than ``total_s`` and one probe.

        Raises InvalidInput where the defaults could not be measured.
        """
        self._stage("a first look", candidates, _FIRST, self._at(_FIRST_SHARE))
        if DEFAULTS not in self.trials.found:
            raise InvalidInput(
                f"{self.total_s / 60:g} minutes are too few to measure even the defaults: give "
                "more --minutes"
            )
        better = [each for each in self.trials.ranked()
                  if self.trials.last_rate(each) > self.trials.last_rate(DEFAULTS)]  # fmt: skip
        kept = halve(self.trials.ranked(), DEFAULTS)
        joined = crossed(better)
        if joined is not None:
            kept.insert(0, joined)
        self._stage("the better half", kept, _SECOND, self._at(_SECOND_SHARE))
        finalists = [each for each in self.trials.ranked() if each in kept and each != DEFAULTS]
        if not finalists:
            return judge(DEFAULTS, DEFAULTS, (), ())
        return self._final(finalists[0])

    def _at(self, share: float) -> float:
        return self._began_s + share * self.total_s

    def _stage(
        self, title: str, candidates: list[Candidate], effort: Effort, until_s: float
    ) -> None:
        self.say(f"{title}: {len(candidates)} sets of settings")
        for place, candidate in enumerate(candidates):
            left_s = until_s - self.clock()
            own_s = max(3 * effort.seconds, _PATIENCE * left_s / (len(candidates) - place))
            # All others are held to the defaults: they get the time that they need.
            budget_s = left_s if candidate == DEFAULTS else own_s
            if not self._measure(candidate, effort, budget_s, until_s):
                left = len(candidates) - place
                if candidate in self.trials.failed:
                    continue
                self.say(f"  no time for {left} of them")
                return

    def _measure(
        self, candidate: Candidate, effort: Effort, budget_s: float, until_s: float
    ) -> Found | None:
        start = self.trials.last_rate(candidate) or self.trials.last_rate(DEFAULTS)
        try:
            found = self.rig.measure(candidate, start, effort, budget_s, until_s)
        except OutOfTime:
            return None
        except (InvalidInput, ClientError) as error:
            # What a machine cannot run is no answer, and no reason to end the search.
            if candidate == DEFAULTS:
                raise
            self.trials.failed[candidate] = str(error)
            self.say(f"  {candidate.words()}: {error}")
            return None
        self.trials.add(candidate, found)
        more = " or more: the generator can send no more" if found.is_limited else ""
        p99 = "" if found.p99_ms is None else f", p99 {found.p99_ms:g} ms"
        self.say(f"  {candidate.words()}: {found.rate:,.0f} a second{more}{p99}")
        return found

    def _final(self, best: Candidate) -> Verdict:
        """Measure the defaults and the best in turn, the first one another each round."""
        self.say(f"in turn: the defaults, and {best.words()}")
        rates: dict[Candidate, list[float]] = {DEFAULTS: [], best: []}
        spent_s = 0.0
        for number in range(_ROUNDS):
            began_s = self.clock()
            # A round that would be cut short says less than no round.
            if number and began_s + spent_s > self._at(1.0):
                break
            order = (DEFAULTS, best) if number % 2 == 0 else (best, DEFAULTS)
            end_s = self._at(1.0)
            found = {each: self._measure(each, _LAST, (end_s - began_s) / 2, end_s)
                     for each in order}  # fmt: skip
            if not all(found.values()):
                break
            for each, one in found.items():
                rates[each].append(one.rate if one else 0.0)
            spent_s = self.clock() - began_s
        return judge(DEFAULTS, best, rates[DEFAULTS], rates[best])
