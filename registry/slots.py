"""Which version the keys of a split belong to: one slot a percent, and a change moves the fewest.

Pure. A key belongs to a slot for ever, a slot to a version until a weight changes. A choice that
remembered nothing would have to move more keys than the weights differ by, with three versions or
more (docs/adr/0009); so the slots are kept with the route.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from registry.traffic import Share

# The version of each slot; as many of a version as its weight.
Slots: TypeAlias = tuple[int, ...]


def first_slots(shares: Iterable[Share]) -> Slots:
    """Return the slots of a split that came from nothing."""
    return tuple(share.version for share in shares for _ in range(share.weight))


def moved_slots(slots: Sequence[int], shares: Sequence[Share]) -> Slots:
    """Return ``slots`` for other weights: only as many change hands as the weights grew together.

    None goes to a version whose weight did not grow, or from one whose weight did not shrink. Two
    versions that give each other slots give back the last ones first.
    """
    missing = Counter({share.version: share.weight for share in shares})
    missing.subtract(slots)
    moved = list(slots)
    takers = [version for version in sorted(missing) if missing[version] > 0]
    for giver in sorted(missing):
        for taker in takers:
            count = min(-missing[giver], missing[taker])
            if count <= 0:
                continue
            own = [index for index, version in enumerate(moved) if version == giver]
            # Lower versions keep the lower slots, so that the way back is the same way.
            for index in own[-count:] if giver < taker else own[:count]:
                moved[index] = taker
            missing[giver] += count
            missing[taker] -= count
    return tuple(moved)
