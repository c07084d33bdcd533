"""Prometheus' text format, written straight away: a page has ten thousand lines of a few shapes.

prometheus_client checks, sorts and escapes each line anew, which takes longer than reading all
workers' numbers. Tests hold what is written here to its parser.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"


def labels(**values: str) -> str:
    """Return labels as they stand between the braces."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class PageText:
    """A page under construction; families come whole, one after another."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._name = ""

    def family(self, name: str, kind: str, text: str) -> None:
        """Begin a metric: what follows are its samples. ``text``: one line."""
        self._name = name
        self._lines.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")

    def sample(self, value: float, where: str = "") -> None:
        """Write a sample; ``where``: its labels, as ``labels`` gives them."""
        at = f"{{{where}}}" if where else ""
        number = "+Inf" if value == math.inf else value
        self._lines.append(f"{self._name}{at} {number}\n")

    def buckets(
        self, begins: Sequence[str], counts: Sequence[int], total: float, where: str
    ) -> None:
        """Write a histogram. ``begins``: see ``bucket_begins``; ``counts``: cumulative."""
        name = self._name
        end = f"{where}}} "
        self._lines += [
            f"{begin}{end}{count}\n" for begin, count in zip(begins, counts, strict=True)
        ]
        self._lines.append(f"{name}_count{{{end}{counts[-1]}\n{name}_sum{{{end}{total}\n")

    def bucket_begins(self, bounds: Sequence[float]) -> list[str]:
        """Return the beginnings of the lines of the current histogram's buckets."""
        names = [*(str(float(bound)) for bound in bounds), "+Inf"]
        return [f'{self._name}_bucket{{le="{name}",' for name in names]

    def encoded(self) -> bytes:
        """Return the page."""
        return "".join(self._lines).encode()
