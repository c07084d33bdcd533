"""A claim with its target, the values measured round by round, and the verdict on their median."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from loadtest.lab.machine import describe_machine


class Verdict(StrEnum):
    """How a claim came out. SKIPPED: it could not be measured here, and the reason is printed."""

    MET = "met"
    MISSED = "MISSED"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Target:
    """What the median must be: at least, or at most, ``bound``; ``unit`` is printed behind it."""

    sense: Literal[">=", "<="]
    bound: float
    unit: str = "x"

    def holds(self, value: float) -> bool:
        """Whether ``value`` is within the target."""
        return value >= self.bound if self.sense == ">=" else value <= self.bound

    def __str__(self) -> str:
        return f"{self.sense} {self.bound:g} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Claim:
    """One stated target and what was seen; no values means that it was skipped, for ``note``."""

    name: str
    target: Target
    values: tuple[float, ...]
    note: str = ""
    is_valid: bool = True

    @property
    def median(self) -> float | None:
        """The middle of the values."""
        return statistics.median(self.values) if self.values else None

    @property
    def verdict(self) -> Verdict:
        """Whether the median is within the target."""
        if self.median is None or not self.is_valid:
            return Verdict.SKIPPED
        return Verdict.MET if self.target.holds(self.median) else Verdict.MISSED

    def line(self) -> str:
        """Return the line that is printed."""
        text = f"  {self.verdict:<8} {self.name}: "
        if self.median is None:
            return f"{text}target {self.target}; {self.note}"
        unit = f" {self.target.unit}" if self.target.unit else ""
        text += f"{spread(self.values)}{unit}, target {self.target}"
        return f"{text}; {self.note}" if self.note else text

    def to_json(self) -> dict[str, object]:
        """Return the claim for ``--json``."""
        return {
            "name": self.name, "target": str(self.target), "values": list(self.values),
            "median": self.median, "verdict": self.verdict.lower(), "note": self.note,
        }  # fmt: skip


@dataclass(slots=True)
class Findings:
    """What one bench found, printed as it comes.

    While ``is_late``, a generator missed its schedule: claims are printed but not judged.
    """

    bench: str
    claims: list[Claim] = field(default_factory=list)
    measured: dict[str, object] = field(default_factory=dict)
    is_late: bool = False
    doubts: Counter[str] = field(default_factory=Counter)

    def say(self, line: str = "") -> None:
        """Print a line at once."""
        print(line, flush=True)

    def doubt(self, reason: str) -> None:
        """Note what makes the numbers less certain; printed now, once, and again at the end."""
        self.doubts[reason] += 1
        if self.doubts[reason] == 1:
            self.say(f"  doubt: {reason}")

    def late(self, reason: str) -> None:
        """Note that a generator was late: what follows is no proof until ``is_late`` is reset."""
        self.is_late = True
        self.doubt(reason)

    def claim(self, name: str, target: Target, values: Sequence[float], note: str = "") -> None:
        """Judge and print one claim."""
        if self.is_late and values:
            note = f"not judged, the generator was late; {note}"
        claim = Claim(name, target, tuple(values), note, is_valid=not self.is_late)
        self.claims.append(claim)
        self.say(claim.line())

    def skip(self, name: str, target: Target, why: str) -> None:
        """Say that a claim could not be measured here."""
        self.claim(name, target, (), why)

    def finish(self, path: Path | None) -> int:
        """Print the end, write ``path`` if there is one; 1 if a target was missed, else 0."""
        counts = dict.fromkeys(Verdict, 0)
        for claim in self.claims:
            counts[claim.verdict] += 1
        self.say()
        for reason, count in self.doubts.items():
            self.say(f"doubt: {reason}" + (f" ({count} times)" if count > 1 else ""))
        for claim in self.claims:
            if claim.verdict is Verdict.MISSED:
                self.say(f"missed: {claim.name} ({spread(claim.values)}, target {claim.target})")
        self.say(f"{self.bench}: " + ", ".join(f"{count} {verdict.lower()}"
                                              for verdict, count in counts.items()))  # fmt: skip
        if path is not None:
            path.write_text(json.dumps(self.to_json(), indent=1), encoding="utf-8")
        return 1 if counts[Verdict.MISSED] else 0

    def to_json(self) -> dict[str, object]:
        """Return everything for ``--json``."""
        return {
            "bench": self.bench, "machine": describe_machine(), "doubts": dict(self.doubts),
            "claims": [claim.to_json() for claim in self.claims], "measured": self.measured,
        }  # fmt: skip


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return ours by theirs, round by round, so that a drift of the machine falls out.

    A round where theirs is 0 says nothing and is left out.
    """
    return [one / other for one, other in zip(ours, theirs, strict=True) if other]


def spread(values: Sequence[float]) -> str:
    """Return median, least and most as text."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{number(middle)} ({number(least)}..{number(most)})"


def number(value: float) -> str:
    """Return a number with about three digits that count."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"
