"""What came of one fault: a verdict for each rule that applies, and the line that is printed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

LETTERS: Final = "ABCDEFGHI"
HELD: Final = "ok"
BROKEN: Final = "FAIL"
NOT_JUDGED: Final = "-"


@dataclass(slots=True)
class Outcome:
    """One fault that was done ``count`` times. A rule is broken if one look found it so.

    ``notes``: what the row of the table has no room for.
    """

    fault: str
    title: str
    count: int
    requests: int = 0
    failed: int = 0
    seconds: float = 0.0
    skipped: str = ""
    verdicts: dict[str, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def judge(self, letter: str, is_held: bool, why: str) -> None:
        """Add one look at a rule; ``why`` is said where it is broken."""
        if is_held:
            self.verdicts.setdefault(letter, HELD)
            return
        self.verdicts[letter] = BROKEN
        self.reasons.append(f"{letter}: {why}")

    def verdict(self, letter: str) -> str:
        """Return what was found about a rule: HELD, BROKEN or NOT_JUDGED."""
        return self.verdicts.get(letter, NOT_JUDGED)

    @property
    def is_held(self) -> bool:
        """Whether no rule was broken."""
        return BROKEN not in self.verdicts.values()

    def line(self) -> str:
        """Return the row of the table; HEADER is above it."""
        start = f"{self.fault:<7} {self.count:>6} "
        if self.skipped:
            return f"{start}skipped: {self.skipped}"
        cells = "".join(f"{self.verdict(letter):>5}" for letter in LETTERS)
        figures = ", ".join(f"{name} {value:.3g}" for name, value in self.figures.items())
        return (
            f"{start}{self.requests:>9} {self.failed:>7} {self.seconds:>8.1f}{cells}  "
            f"{self.title}" + (f" ({figures})" if figures else "")
        )

    def to_json(self) -> dict[str, object]:
        """Return everything for ``--json``."""
        return {
            "fault": self.fault, "title": self.title, "count": self.count,
            "requests": self.requests, "failed": self.failed,
            "seconds": round(self.seconds, 2), "skipped": self.skipped,
            "verdicts": dict(self.verdicts), "reasons": list(self.reasons),
            "figures": dict(self.figures), "notes": list(self.notes),
        }  # fmt: skip


HEADER: Final = (
    f"{'fault':<7} {'count':>6} {'requests':>9} {'failed':>7} {'seconds':>8}"
    + "".join(f"{letter:>5}" for letter in LETTERS)
    + "  what"
)


def table(outcomes: Iterable[Outcome]) -> str:
    """Return all outcomes, and below them their notes and why a rule was broken."""
    found = list(outcomes)
    lines = [HEADER, *(each.line() for each in found)]
    lines += [f"{each.fault} {text}" for each in found for text in (*each.notes, *each.reasons)]
    return "\n".join(lines)
