"""Which version of a split answers: by evenly spread turns, or by the side of a routing key."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2b
from math import log
from typing import Final

from registry.traffic import Share

_BITS: Final = 64
_CIRCLE: Final = 1 << _BITS
# The circle divided by the golden ratio, made odd: points this far apart lie more evenly than any
# others, and so does every second, third, n-th of them. A table of turns repeated over and over
# would give all odd requests of a client that alternates between two kinds to the same version.
_STEP: Final = 0x9E3779B97F4A7C15
# A double holds this many bits exactly, so that no key lands on 0 or 1.
_HASH_BITS: Final = 53


class Split:
    """A split as one worker decides it.

    Turns: of ANY 1,000 that follow each other, each version gets within 3 of its weight; of any
    fewer, within 4 (the discrepancy of the golden rotation is at most 2.65 for 1,000 points and at
    most 3.69 below). So 1,000 requests over w workers, however they fall, are within 4 w.

    Keys: an exponential race, also known as weighted rendezvous hashing; the hash is fixed, so
    every worker and every start decides alike. Where weights change, a version loses keys only to
    versions whose weight grew by a larger factor: with two versions exactly the keys that must
    move do, and a version taken out moves only its own. With more versions at most 2d/(1+d) of all
    keys move where d must, and no choice that remembers nothing does better in general (Moulton
    and Jiang, "Maximally consistent sampling and the Jaccard index of probability distributions").
    """

    __slots__ = ("_places", "_racers", "position")

    def __init__(
        self, model: str, shares: Sequence[Share], answering: Collection[int], position: int
    ) -> None:
        """Only ``answering`` versions get turns. ``position``: anywhere on the circle."""
        self.position = position % _CIRCLE
        # One place for each percent: neighbouring places make one arc for each version.
        self._places = tuple(
            share.version
            for share in shares
            if share.version in answering
            for _ in range(share.weight)
        )
        # With the model in the hash, the keys of one model's split say nothing of another's.
        self._racers = tuple(
            (share.version, share.weight, blake2b(f"{model}\0{share.version}\0".encode()))
            for share in shares
            if share.weight
        )

    def next_version(self) -> int | None:
        """Return whose turn it is, or None where no version answers."""
        places = self._places
        self.position = position = (self.position + _STEP) % _CIRCLE
        return places[position * len(places) >> _BITS] if places else None

    def version_of(self, key: bytes) -> int:
        """Return the version that ``key`` belongs to, whether or not it answers here."""
        return min(
            _finish(weight, hashed, key, version) for version, weight, hashed in self._racers
        )[1]


def _finish(weight: int, hashed: blake2b, key: bytes, version: int) -> tuple[float, int]:
    """Return when a version would reach the goal: exponential, with its weight as the rate."""
    own = hashed.copy()
    own.update(key)
    number = int.from_bytes(own.digest()[:8]) >> (_BITS - _HASH_BITS)
    return -log((number + 0.5) / (1 << _HASH_BITS)) / weight, version
