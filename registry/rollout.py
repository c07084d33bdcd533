"""Where requests without a version go: one model's route, how it moves, and how it goes back.

Pure values: every function returns a new Route. Which versions may be named is decided by
``registry.desired``, which knows what is READY.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Final

from registry.errors import Conflict
from registry.manifest import Json, JsonObject
from registry.slots import Slots, first_slots, moved_slots
from registry.traffic import Traffic
from registry.traffic_rules import remaining

HISTORY_ENTRIES: Final = 100


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who changed what when: ``seq`` is the number of the event, ``time`` ISO 8601 in UTC."""

    seq: int
    time: str
    who: str
    address: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RouteChange:
    """One line of the history: what the route became, and who wanted it."""

    seq: int
    time: str
    who: str
    reason: str
    traffic: Traffic
    is_latest: bool

    def to_json(self) -> JsonObject:
        """Return the JSON form, for users and for the persisted state."""
        return {
            "seq": self.seq,
            "time": self.time,
            "who": self.who,
            "reason": self.reason,
            **self.traffic.to_json(),
            "latest": self.is_latest,
        }


@dataclass(frozen=True, slots=True)
class Route:
    """The versions that answer where none is asked for, and those that shadow them.

    ``previous``: the whole traffic that the route came from; its versions are kept until the next
    change, so a rollback is instant where there is memory for them. ``is_latest``: the route
    follows the highest READY version. ``history``: oldest first, at most HISTORY_ENTRIES, the
    present route last. ``slots``, ``previous_slots``: which keys belong to which version, now and
    then; empty without a previous.
    """

    traffic: Traffic
    is_latest: bool
    previous: Traffic | None
    history: tuple[RouteChange, ...]
    slots: Slots
    previous_slots: Slots = ()

    @property
    def etag(self) -> str:
        """Name this state of the route, for If-Match; no two changes share a number."""
        return f'"{self.history[-1].seq}"'

    def is_previous(self, version: int) -> bool:
        """Say whether a rollback would go back to the version, among others perhaps."""
        return self.previous is not None and version in self.previous.versions

    def facts(self) -> JsonObject:
        """Return what the route is, without how it came to it."""
        previous: Json = None if self.previous is None else self.previous.to_json()
        return {**self.traffic.to_json(), "latest": self.is_latest, "previous": previous}


def moved(route: Route | None, traffic: Traffic, stamp: Stamp, *, is_latest: bool = False) -> Route:
    """Return the route after it was set to ``traffic``; setting it to what it is changes nothing.

    A change of ``is_latest`` alone is a change, but leaves ``previous`` as it is.
    """
    if route is not None and (route.traffic, route.is_latest) == (traffic, is_latest):
        return route
    if route is None:
        history = (_change(traffic, stamp, is_latest=is_latest),)
        return Route(traffic, is_latest, None, history, first_slots(traffic.split))
    if route.traffic == traffic:
        previous, previous_slots = route.previous, route.previous_slots
    else:
        previous, previous_slots = route.traffic, route.slots
    route = _changed(route, traffic, stamp, is_latest=is_latest)
    return replace(route, previous=previous, previous_slots=previous_slots)


def backed(route: Route, is_kept: Callable[[int], bool]) -> Route:
    """Return the route with what of its previous traffic is kept; perhaps nothing of it."""
    if route.previous is None:
        return route
    previous = remaining(route.previous, is_kept)
    if previous is None or previous == route.traffic:
        return replace(route, previous=None, previous_slots=())
    slots = moved_slots(route.previous_slots, previous.split)
    return replace(route, previous=previous, previous_slots=slots)


def in_force(route: Route, lacking: Container[int]) -> Route:
    """Return the route as workers act on it: others of a split stand in for those ``lacking``.

    Nobody stands in for all of it: an older version never answers without being asked to.
    """
    traffic = remaining(route.traffic, lambda version: version not in lacking)
    if traffic is None or traffic == route.traffic:
        return route
    return replace(route, traffic=traffic, slots=moved_slots(route.slots, traffic.split))


def after_failure(
    route: Route,
    version: int,
    stamp: Stamp,
    is_ready: Callable[[int], bool],
    is_kept: Callable[[int], bool],
) -> Route:
    """Return the route after a version that it may name, and that was kept, failed.

    A shadow is taken out. Where one of the split failed, the whole route goes back to the previous
    traffic, which someone chose and which has answered before; without one its share goes to the
    others of the split; with no other the route goes on naming it, and requests learn why. Where
    there is no memory for the previous traffic, the others of the split come before it.
    """
    route = backed(route, is_kept)
    if version not in route.traffic.versions:
        return route
    if version in route.traffic.shadow:
        shadow = tuple(other for other in route.traffic.shadow if other != version)
        traffic = replace(route.traffic, shadow=shadow)
        return backed(_changed(route, traffic, stamp, is_latest=route.is_latest), is_kept)
    former = route.previous and remaining(route.previous, is_ready)
    goal = (
        former
        or remaining(route.traffic, is_ready)
        or route.previous
        or remaining(route.traffic, is_kept)
    )
    if goal is None:
        return route
    # What it comes from names the failed one: no way to go back to.
    route = _changed(route, goal, stamp, is_latest=False)
    return replace(route, previous=None, previous_slots=())


def taken_back(
    present: Route | None, before: Route, stamp: Stamp, is_kept: Callable[[int], bool]
) -> Route:
    """Return the route as it was ``before`` a change that not every worker took.

    ``present``: what the change made of it, None where it removed it.
    """
    history = before.history if present is None else present.history
    back = replace(before, history=history)
    return backed(_changed(back, before.traffic, stamp, is_latest=before.is_latest), is_kept)


def rollback_traffic(name: str, route: Route, to: int | None) -> Traffic:
    """Return the traffic that a rollback of model ``name`` restores.

    ``to``: the version that gets everything; it must be one that has answered, as far as the
    history reaches. None: the whole traffic before the present one.
    """
    way = f"PUT /admin/v1/models/{name}/route or `ramrack route {name} VERSION`"
    if to is None:
        if route.previous is None:
            versions = ", ".join(str(share.version) for share in route.traffic.split)
            raise Conflict(
                f"{name} cannot be rolled back: no version before {versions} is kept for it: "
                f"choose one with {way}"
            )
        return route.previous
    known = [route.traffic, *(change.traffic for change in route.history)]
    known += [route.previous] if route.previous is not None else []
    been = {share.version for traffic in known for share in traffic.split}
    if to not in been:
        raise Conflict(
            f"{name} cannot be rolled back to version {to}: its route has been at "
            f"{', '.join(map(str, sorted(been)))} only: go to a new one with {way}"
        )
    return Traffic.whole(to)


def _changed(route: Route, traffic: Traffic, stamp: Stamp, *, is_latest: bool) -> Route:
    """Return the route with other traffic and one more change; what it came from stays."""
    change = _change(traffic, stamp, is_latest=is_latest)
    history = (*route.history, change)[-HISTORY_ENTRIES:]
    slots = moved_slots(route.slots, traffic.split)
    is_back = route.previous is not None and traffic.split == route.previous.split
    if is_back and traffic.split != route.traffic.split:
        # Every key goes back to the version that it came from.
        slots = route.previous_slots
    return replace(route, traffic=traffic, is_latest=is_latest, history=history, slots=slots)


def _change(traffic: Traffic, stamp: Stamp, *, is_latest: bool) -> RouteChange:
    return RouteChange(stamp.seq, stamp.time, stamp.who, stamp.reason, traffic, is_latest)
