"""How many users there are at each moment of a run, as plain arithmetic."""

from __future__ import annotations

import math
from typing import Final

STEPS: Final = 5
# Outside its spike a run has this share of the users, and a day's quietest hour does.
QUIET_SHARE: Final = 0.1
_SPIKE: Final = (0.4, 0.6)
_RAMP_SHARE: Final = 0.05
SHAPES: Final = {
    "steps": f"{STEPS} equal steps up to all users",
    "spike": f"{QUIET_SHARE:.0%} of the users, and all at once in the middle fifth",
    "soak": "all users for the whole run, after a short ramp",
    "diurnal": f"one day as the whole run: from {QUIET_SHARE:.0%} to all users and back",
}


def users_at(shape: str, elapsed_s: float, total_s: float, most: int) -> int | None:
    """Return the users at a moment; None once the run is over.

    At least 1 and at most ``most``. Raises ValueError for a shape that is not in SHAPES.
    """
    if shape not in SHAPES:
        raise ValueError(f"shape {shape!r} is not one of {', '.join(SHAPES)}")
    if elapsed_s >= total_s:
        return None
    share = _share(shape, elapsed_s / total_s)
    return min(most, max(1, math.ceil(share * most)))


def _share(shape: str, done: float) -> float:
    if shape == "steps":
        return (math.floor(done * STEPS) + 1) / STEPS
    if shape == "spike":
        return 1.0 if _SPIKE[0] <= done < _SPIKE[1] else QUIET_SHARE
    if shape == "soak":
        return min(1.0, done / _RAMP_SHARE)
    return QUIET_SHARE + (1 - QUIET_SHARE) * (1 - math.cos(2 * math.pi * done)) / 2
