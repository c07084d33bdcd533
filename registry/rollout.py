"""Where requests without a version go: one model's route, how it moves, and how it goes back.

Pure values: every function returns a new Route. Which versions may be named is decided by
``registry.desired``, which knows what is READY.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from registry.errors import Conflict, InvalidInput
from registry.ident import check_version, shown
from registry.manifest import JsonObject

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
    version: int
    is_latest: bool

    def to_json(self) -> JsonObject:
        """Return the JSON form, for users and for the persisted state."""
        return {
            "seq": self.seq,
            "time": self.time,
            "who": self.who,
            "reason": self.reason,
            "split": [{"version": self.version, "weight": 100}],
            "latest": self.is_latest,
        }


@dataclass(frozen=True, slots=True)
class Route:
    """The version that answers where none is asked for.

    ``previous``: the version that the route came from; it stays READY, so a rollback is instant.
    ``is_latest``: the route follows the highest READY version.
    ``history``: oldest first, at most HISTORY_ENTRIES, the present route last.
    """

    version: int
    is_latest: bool
    previous: int | None
    history: tuple[RouteChange, ...]

    @property
    def etag(self) -> str:
        """Name this state of the route, for If-Match; no two changes share a number."""
        return f'"{self.history[-1].seq}"'

    @property
    def pinned(self) -> frozenset[int]:
        """Versions that must stay READY for this route."""
        return frozenset({self.version} if self.previous is None else {self.version, self.previous})

    def to_json(self) -> JsonObject:
        """Return the form that is persisted."""
        return {
            "version": self.version,
            "latest": self.is_latest,
            "previous": self.previous,
            "history": [change.to_json() for change in self.history],
        }


def moved(route: Route | None, version: int, stamp: Stamp, *, is_latest: bool = False) -> Route:
    """Return the route after it was set to ``version``; setting it to what it is changes nothing.

    A change of ``is_latest`` alone is a change, but leaves ``previous`` as it is.
    """
    if route is not None and (route.version, route.is_latest) == (version, is_latest):
        return route
    change = RouteChange(stamp.seq, stamp.time, stamp.who, stamp.reason, version, is_latest)
    if route is None:
        return Route(version, is_latest, None, (change,))
    return Route(
        version=version,
        is_latest=is_latest,
        previous=route.previous if route.version == version else route.version,
        history=(*route.history, change)[-HISTORY_ENTRIES:],
    )


def rollback_version(name: str, route: Route, to: int | None) -> int:
    """Return the version that a rollback of model ``name`` goes to: ``to``, or the previous one.

    ``to`` must be a version that the route has been at, as far as the history reaches.
    """
    way = f"PUT /admin/v1/models/{name}/route or `ramrack route {name} VERSION`"
    if to is None:
        if route.previous is None:
            raise Conflict(
                f"{name} cannot be rolled back: no version before {route.version} is kept for it: "
                f"choose one with {way}"
            )
        return route.previous
    been = {change.version for change in route.history} | route.pinned
    if to not in been:
        raise Conflict(
            f"{name} cannot be rolled back to version {to}: its route has been at "
            f"{', '.join(map(str, sorted(been)))} only: go to a new one with {way}"
        )
    return to


def without_previous(route: Route, version: int) -> Route:
    """Return the route with ``previous`` forgotten if it is ``version``."""
    return replace(route, previous=None) if route.previous == version else route


def parse_route(document: Any, where: str) -> Route:
    """Return a Route from its persisted form, or raise InvalidInput naming the field."""
    if not isinstance(document, dict) or set(document) != {
        "version", "latest", "previous", "history"
    }:  # fmt: skip
        raise InvalidInput(f"{where}: must be an object of version, latest, previous, history")
    history = document["history"]
    if not isinstance(history, list) or not 1 <= len(history) <= HISTORY_ENTRIES:
        raise InvalidInput(f"{where}.history: must be a list of 1 to {HISTORY_ENTRIES} changes")
    previous = document["previous"]
    return Route(
        version=check_version(document["version"]),
        is_latest=_flag(document["latest"], f"{where}.latest"),
        previous=None if previous is None else check_version(previous),
        history=tuple(
            _change(item, f"{where}.history[{index}]") for index, item in enumerate(history)
        ),
    )


def _change(item: Any, where: str) -> RouteChange:
    keys = {"seq", "time", "who", "reason", "split", "latest"}
    if not isinstance(item, dict) or set(item) != keys:
        raise InvalidInput(f"{where}: must be an object of {', '.join(sorted(keys))}")
    if type(item["seq"]) is not int or not all(
        isinstance(item[key], str) for key in ("time", "who", "reason")
    ):
        raise InvalidInput(f"{where}: seq must be an integer, time, who and reason strings")
    return RouteChange(
        seq=item["seq"],
        time=item["time"],
        who=item["who"],
        reason=item["reason"],
        version=parse_split(item["split"], f"{where}.split"),
        is_latest=_flag(item["latest"], f"{where}.latest"),
    )


def parse_split(value: Any, where: str = "split") -> int:
    """Return the one version of a split, or raise InvalidInput: the whole traffic goes to it."""
    if not isinstance(value, list) or len(value) != 1:
        count = f"{len(value)} entries" if isinstance(value, list) else type(value).__name__
        raise InvalidInput(
            f"{where}: got {count}; this release routes to exactly one version of weight 100"
        )
    entry = value[0]
    if not isinstance(entry, dict) or set(entry) != {"version", "weight"}:
        raise InvalidInput(f"{where}[0]: must be an object of version and weight")
    if type(entry["weight"]) is not int or entry["weight"] != 100:
        raise InvalidInput(
            f"{where}[0].weight: {shown(entry['weight'])} is not supported: "
            "this release routes to exactly one version of weight 100"
        )
    return check_version(entry["version"])


def _flag(value: Any, where: str) -> bool:
    if type(value) is not bool:
        raise InvalidInput(f"{where}: {shown(value)} must be true or false")
    return value
