"""One model as dictionaries, for the state machines: what the documented rules make of it."""

from __future__ import annotations

from hypothesis import strategies as st

from registry.traffic import Share, Traffic
from registry.traffic_rules import remaining

WHOLE = 100


def traffic_of(data: st.DataObject, versions: list[int]) -> Traffic:
    """Draw a split of one to three versions of whole weights, and shadows beside it."""
    drawn = data.draw(st.permutations(versions)) if len(versions) > 1 else versions
    count = data.draw(st.integers(1, min(3, len(drawn))))
    cuts = data.draw(
        st.lists(st.integers(1, 99), min_size=count - 1, max_size=count - 1, unique=True)
    )
    edges = [0, *sorted(cuts), WHOLE]
    shares = tuple(Share(v, edges[i + 1] - edges[i]) for i, v in enumerate(sorted(drawn[:count])))
    shadows = data.draw(st.integers(0, min(2, len(drawn) - count)))
    return Traffic(shares, tuple(sorted(drawn[count : count + shadows])))


class Model:
    """One model as dictionaries: what the documented rules make of it."""

    def __init__(self) -> None:
        self.states: dict[int, str] = {}
        self.aliases: dict[str, int] = {}
        self.traffic: Traffic | None = None
        self.previous: Traffic | None = None
        self.is_latest = False
        self.been: set[int] = set()
        self.settings: dict[str, int] = {}

    def is_ready(self, version: int) -> bool:
        return self.states.get(version) == "READY"

    def is_kept(self, version: int) -> bool:
        return self.states.get(version) in ("READY", "WAITING")

    def ready(self) -> list[int]:
        return [version for version in self.states if self.is_ready(version)]

    def may_route(self, traffic: Traffic) -> bool:
        return all(map(self.is_ready, traffic.versions))

    def move(self, traffic: Traffic, *, is_latest: bool = False) -> None:
        if self.traffic not in (None, traffic):
            self.previous = remaining(self.traffic, self.is_kept)
        self.set(traffic, is_latest=is_latest)

    def set(self, traffic: Traffic, *, is_latest: bool) -> None:
        self.traffic, self.is_latest = traffic, is_latest
        self.been |= {share.version for share in traffic.split}
        if self.previous == traffic:
            self.previous = None

    def finish(self, version: int, *, is_by_itself: bool) -> None:
        """A load ended well, or there is memory again for what waited for it."""
        self.states[version] = "READY"
        latest = max(self.ready())
        if self.traffic is None:
            if not is_by_itself:
                self.move(Traffic.whole(version))
        elif self.is_latest and (not is_by_itself or latest > max(self.traffic.versions)):
            self.move(Traffic.whole(latest), is_latest=True)

    def fail(self, version: int) -> None:
        was_kept = self.is_kept(version)
        self.states[version] = "FAILED"
        if self.traffic is None or not was_kept:
            return
        if self.previous is not None:
            self.previous = remaining(self.previous, self.is_kept)
        if version in self.traffic.shadow:
            left = tuple(v for v in self.traffic.shadow if v != version)
            self.set(Traffic(self.traffic.split, left), is_latest=self.is_latest)
        elif version in self.traffic.versions:
            goal = self.previous and remaining(self.previous, self.is_ready)
            goal = goal or remaining(self.traffic, self.is_ready) or self.previous
            goal = goal or remaining(self.traffic, self.is_kept)
            if goal is not None:
                self.previous = None
                self.set(goal, is_latest=False)
        elif self.previous == self.traffic:
            self.previous = None

    def remove_route(self) -> None:
        self.traffic = self.previous = None
        self.is_latest = False
        self.been = set()

    def rank(self, version: int) -> int:
        """Say who gets memory first at a start."""
        if self.traffic is not None and self.traffic.weight_of(version):
            return 0
        if version in self.aliases.values():
            return 1
        return 2 if self.previous is not None and version in self.previous.versions else 3

    def is_held(self, version: int) -> bool:
        named = {*self.aliases.values()}
        for traffic in (self.traffic, self.previous):
            named |= set(traffic.versions) if traffic is not None else set()
        return version in named
