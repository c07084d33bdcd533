"""How fast something grows, told from few noisy looks, and how sure that is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

_HOUR_S: Final = 3600.0
_Z_95: Final = 1.96


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth an hour; 95 % of such intervals from ``low`` to ``high`` hold the true one.

    Provided that the looks err independently: a heap that wanders makes the interval too narrow.
    """

    per_hour: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.per_hour:+.3g} an hour ({self.low:+.3g} to {self.high:+.3g})"


def slope_of(points: Sequence[tuple[float, float]]) -> Slope:
    """Return the slope of ``(seconds, value)``; nothing is known from fewer than three.

    The median of the slopes of all pairs (Theil-Sen), so that up to a quarter of the looks may be
    far off; the interval is that of Sen, "Estimates of the regression coefficient based on
    Kendall's tau", 1968.
    """
    n = len(points)
    slopes = sorted(
        (later[1] - earlier[1]) / (later[0] - earlier[0]) * _HOUR_S
        for earlier, later in combinations(sorted(points), 2)
        if later[0] > earlier[0]
    )
    if n < 3 or not slopes:
        return Slope(0.0, -math.inf, math.inf)
    spread = _Z_95 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = math.floor((len(slopes) - spread) / 2) - 1
    high = math.ceil((len(slopes) + spread) / 2)
    return Slope(
        statistics.median(slopes),
        slopes[low] if low >= 0 else -math.inf,
        slopes[high] if high < len(slopes) else math.inf,
    )
