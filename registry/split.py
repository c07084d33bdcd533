"""Which version of a split answers: by evenly spread turns, or by the side of a routing key."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Final

from registry.slots import first_slots
from registry.traffic import Share

_BITS: Final = 64
_CIRCLE: Final = 1 << _BITS
# The circle divided by the golden ratio, made odd: points this far apart lie more evenly than any
# others, and so does every second, third, n-th of them. A table of turns repeated over and over
# would give all odd requests of a client that alternates between two kinds to the same version.
_STEP: Final = 0x9E3779B97F4A7C15


class Split:
    """A split as one worker decides it.

    Turns: of ANY 1,000 that follow each other, each version gets within 3 of its weight; of any
    fewer, within 4 (the discrepancy of the golden rotation is at most 2.65 for 1,000 points and at
    most 3.69 below). So 1,000 requests over w workers, however they fall, are within 4 w.

    Keys: the hash of a key is its slot, and the route says whose slot that is; so every worker and
    every start decides alike, and a change of weights moves as few keys as it can.
    """

    __slots__ = ("_keyed", "_places", "_slots", "position")

    def __init__(
        self,
        model: str,
        shares: Sequence[Share],
        answering: Collection[int],
        position: int,
        slots: Sequence[int] = (),
    ) -> None:
        """Only ``answering`` versions get turns. ``position``: anywhere on the circle.

        ``slots``: whose each slot is, from ``registry.slots``; empty: as for a new split.
        """
        self.position = position % _CIRCLE
        # One place for each percent: neighbouring places make one arc for each version.
        self._places = tuple(
            share.version
            for share in shares
            if share.version in answering
            for _ in range(share.weight)
        )
        self._slots = tuple(slots) or first_slots(shares)
        # With the model in the hash, the keys of one model's split say nothing of another's.
        self._keyed = blake2b(f"{model}\0".encode(), digest_size=_BITS // 8)

    def next_version(self) -> int | None:
        """Return whose turn it is, or None where no version answers."""
        places = self._places
        self.position = position = (self.position + _STEP) % _CIRCLE
        return places[position * len(places) >> _BITS] if places else None

    def version_of(self, key: bytes) -> int:
        """Return the version that ``key`` belongs to, whether or not it answers here."""
        hashed = self._keyed.copy()
        hashed.update(key)
        return self._slots[int.from_bytes(hashed.digest()) * len(self._slots) >> _BITS]
