"""What traffic is allowed, and what is left of it when a version drops out. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from registry.errors import InvalidInput
from registry.ident import check_version, shown
from registry.traffic import WEIGHT_SUM, Share, Traffic

MAX_SPLIT: Final = 16
_SHARE_KEYS: Final = ("version", "weight")
MAX_SHADOWS: Final = 4
WISH_FIELDS: Final = ("split", "shadow", "latest", "allow_incompatible")


@dataclass(frozen=True, slots=True)
class RouteWish:
    """What someone wants of a route. ``traffic``: None follows the highest READY version.

    ``allow_incompatible``: versions may be mixed although their inputs or outputs differ.
    """

    traffic: Traffic | None
    allow_incompatible: bool = False

    @classmethod
    def whole(cls, version: int) -> RouteWish:
        """Return the wish for one version alone."""
        return cls(Traffic.whole(version))


LATEST_WISH: Final = RouteWish(None)


def parse_wish(document: Mapping[str, Any], where: str) -> RouteWish:
    """Return the wish of a route's body, or raise InvalidInput naming field, value and limit."""
    latest = _flag(document.get("latest", False), f"{where}: latest")
    allow = _flag(document.get("allow_incompatible", False), f"{where}: allow_incompatible")
    if latest == ("split" in document):
        raise InvalidInput(f'{where}: give either split or "latest": true')
    shadow = document.get("shadow")
    if not latest:
        return RouteWish(parse_traffic(document["split"], shadow, where), allow)
    if shadow not in (None, []):
        raise InvalidInput(
            f"{where}: shadow: {shown(shadow)} does not go with latest: a version that is loaded "
            "gets all requests at once then; give a split"
        )
    return RouteWish(None, allow)


def parse_traffic(split: Any, shadow: Any, where: str) -> Traffic:
    """Return the traffic of a split and its shadows, each in the order of their versions.

    ``shadow``: None is none. Raises InvalidInput.
    """
    shares = _parse_split(split, f"{where}: split")
    return Traffic(shares, _parse_shadow(shadow, f"{where}: shadow", {s.version for s in shares}))


def _check_keys(entry: Mapping[str, Any], here: str) -> None:
    for key in entry:
        if key not in _SHARE_KEYS:
            near = difflib.get_close_matches(key, _SHARE_KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "an entry has version and weight"
            raise InvalidInput(f"{here}.{key} is not known: {hint}")
    for key in _SHARE_KEYS:
        if key not in entry:
            raise InvalidInput(f"{here}.{key} is missing: an entry has version and weight")


def _parse_split(value: Any, where: str) -> tuple[Share, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_SPLIT:
        raise InvalidInput(f"{where}: got {_count(value)}: use a list of 1 to {MAX_SPLIT} entries")
    weights: dict[int, int] = {}
    for index, entry in enumerate(value):
        here = f"{where}[{index}]"
        if not isinstance(entry, dict):
            raise InvalidInput(f"{here}: {shown(entry)} must be an object of version and weight")
        _check_keys(entry, here)
        version, weight = _version(entry["version"], f"{here}.version"), entry["weight"]
        if type(weight) is not int or not 1 <= weight <= WEIGHT_SUM:
            raise InvalidInput(
                f"{here}.weight: {shown(weight)} is not allowed: use an integer from 1 to "
                f"{WEIGHT_SUM}"
            )
        if version in weights:
            raise InvalidInput(f"{here}.version: {version} stands twice: give each version once")
        weights[version] = weight
    total = sum(weights.values())
    if total != WEIGHT_SUM:
        raise InvalidInput(f"{where}: the weights sum to {total}: they must sum to {WEIGHT_SUM}")
    return tuple(Share(version, weights[version]) for version in sorted(weights))


def _parse_shadow(value: Any, where: str, split: Collection[int]) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_SHADOWS:
        raise InvalidInput(
            f"{where}: got {_count(value)}: use a list of at most {MAX_SHADOWS} versions"
        )
    shadows: list[int] = []
    for index, entry in enumerate(value):
        version = _version(entry, f"{where}[{index}]")
        if version in split:
            raise InvalidInput(
                f"{where}[{index}]: {version} is in the split: a version either answers or shadows"
            )
        if version in shadows:
            raise InvalidInput(f"{where}[{index}]: {version} stands twice: give each version once")
        shadows.append(version)
    return tuple(sorted(shadows))


def remaining(traffic: Traffic, is_ready: Callable[[int], bool]) -> Traffic | None:
    """Return the traffic without the versions that are not READY; None if nobody would answer.

    The others take the missing share in proportion to their own (largest remainder, so that the
    weights are whole and sum to 100).
    """
    shadow = tuple(version for version in traffic.shadow if is_ready(version))
    staying = [share for share in traffic.split if is_ready(share.version)]
    if not staying:
        return None
    total = sum(share.weight for share in staying)
    weights = {s.version: s.weight * WEIGHT_SUM // total for s in staying}
    by_remainder = sorted(staying, key=lambda s: (-(s.weight * WEIGHT_SUM % total), s.version))
    for share in by_remainder[: WEIGHT_SUM - sum(weights.values())]:
        weights[share.version] += 1
    return Traffic(tuple(Share(s.version, weights[s.version]) for s in staying), shadow)


def _version(value: Any, where: str) -> int:
    try:
        return check_version(value)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error


def _count(value: Any) -> str:
    return f"{len(value)} entries" if isinstance(value, list) else shown(value)


def _flag(value: Any, where: str) -> bool:
    if type(value) is not bool:
        raise InvalidInput(f"{where} {shown(value)} must be true or false")
    return value
