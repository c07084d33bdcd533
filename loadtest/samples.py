"""Every request of an open-loop run as a line of text, to ask later what an average hides."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from loadtest.exchange import Exchange


def write_samples(path: Path, exchanges: Iterable[Exchange]) -> None:
    """Write intended, sent, done (ns of the machine's monotonic clock), status, watched header."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(
            f"{each.intended_ns}\t{each.sent_ns}\t{each.done_ns}\t{each.status}\t{each.watched}\n"
            for each in exchanges
        )


def read_samples(path: Path) -> list[Exchange]:
    """Return what was written, by intended start."""
    found = []
    for line in path.read_text("utf-8").splitlines():
        intended, sent, done, status, watched = line.split("\t")
        found.append(Exchange(int(intended), int(sent), int(done), int(status), watched=watched))
    return sorted(found, key=lambda each: each.intended_ns)
