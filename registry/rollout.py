"""Where requests without a version go: one model's route, how it moves, and how it goes back.

Pure values: every function returns a new Route. Which versions may be named is decided by
``registry.desired``, which knows what is READY.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from registry.errors import Conflict
from registry.manifest import Json, JsonObject
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

    ``previous``: the whole traffic that the route came from; its versions stay READY until the
    next change, so a rollback is instant. ``is_latest``: the route follows the highest READY
    version. ``history``: oldest first, at most HISTORY_ENTRIES, the present route last.
    """

    traffic: Traffic
    is_latest: bool
    previous: Traffic | None
    history: tuple[RouteChange, ...]

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
        return Route(traffic, is_latest, None, (_change(traffic, stamp, is_latest=is_latest),))
    previous = route.previous if route.traffic == traffic else route.traffic
    return _changed(route, traffic, previous, stamp, is_latest=is_latest)


def backed(route: Route, is_ready: Callable[[int], bool]) -> Route:
    """Return the route with what of its previous traffic can answer; perhaps nothing of it."""
    if route.previous is None:
        return route
    previous = remaining(route.previous, is_ready)
    return replace(route, previous=None if previous == route.traffic else previous)


def after_failure(
    route: Route, version: int, stamp: Stamp, is_ready: Callable[[int], bool]
) -> Route:
    """Return the route after a version that it may name, and that was READY, failed.

    A shadow is taken out. Where one of the split failed, the whole route goes back to the previous
    traffic, which someone chose and which has answered before; without one its share goes to the
    others of the split; with no other the route goes on naming it, and requests learn why.
    """
    route = backed(route, is_ready)
    if version not in route.traffic.versions:
        return route
    if version in route.traffic.shadow:
        shadow = tuple(other for other in route.traffic.shadow if other != version)
        traffic = replace(route.traffic, shadow=shadow)
        route = _changed(route, traffic, route.previous, stamp, is_latest=route.is_latest)
        return backed(route, is_ready)
    goal = route.previous or remaining(route.traffic, is_ready)
    if goal is None:
        return route
    # What it comes from names the failed one: no way to go back to.
    return _changed(route, goal, None, stamp, is_latest=False)


def taken_back(
    present: Route | None, before: Route, stamp: Stamp, is_ready: Callable[[int], bool]
) -> Route:
    """Return the route as it was ``before`` a change that not every worker took.

    ``present``: what the change made of it, None where it removed it.
    """
    history = before.history if present is None else present.history
    back = replace(before, history=history)
    return backed(
        _changed(back, before.traffic, before.previous, stamp, is_latest=before.is_latest), is_ready
    )


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


def _changed(
    route: Route, traffic: Traffic, previous: Traffic | None, stamp: Stamp, *, is_latest: bool
) -> Route:
    change = _change(traffic, stamp, is_latest=is_latest)
    return Route(traffic, is_latest, previous, (*route.history, change)[-HISTORY_ENTRIES:])


def _change(traffic: Traffic, stamp: Stamp, *, is_latest: bool) -> RouteChange:
    return RouteChange(stamp.seq, stamp.time, stamp.who, stamp.reason, traffic, is_latest)
