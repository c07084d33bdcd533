"""When requests are meant to start, fixed before the first one is sent."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

Arrivals: TypeAlias = Literal["constant", "poisson"]

ARRIVALS: Final[tuple[Arrivals, ...]] = ("constant", "poisson")


def intended_starts_ns(
    rate: float, seconds: float, arrivals: Arrivals = "constant", seed: int = 0
) -> Iterator[int]:
    """Yield the starts within ``seconds``, in nanoseconds from the first moment, in order.

    ``constant``: evenly, ``rate`` a second. ``poisson``: as independent users come, ``rate`` a
    second on average; the same ``seed`` gives the same starts. Raises ValueError for numbers that
    are not above 0.
    """
    if not (rate > 0 and seconds > 0):
        raise ValueError(f"rate {rate:g} and seconds {seconds:g} must be above 0")
    if arrivals == "constant":
        return _constant(rate, seconds)
    return _poisson(rate, seconds, random.Random(seed))


def _constant(rate: float, seconds: float) -> Iterator[int]:
    # Each start is computed from its number: adding gaps up would add up their rounding.
    for number in range(max(1, round(rate * seconds))):
        yield round(number * 1e9 / rate)


def _poisson(rate: float, seconds: float, source: random.Random) -> Iterator[int]:
    at_s = source.expovariate(rate)
    while at_s < seconds:
        yield round(at_s * 1e9)
        at_s += source.expovariate(rate)
