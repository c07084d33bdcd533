"""The serving map against a list of who holds what, through the deaths of its worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from registry.errors import Conflict, NotFound, NotReady
from registry.lifecycle import State
from registry.serving_map import ModelView, ServingMap, Snapshot, VersionView
from registry.slots import Slots, moved_slots
from registry.split import Split
from registry.traffic import WEIGHT_SUM, Share, Traffic

# Mostly what can be held: otherwise few runs get to a handle, and none to what is done with it.
states = st.sampled_from([State.READY] * 8 + list(State))
versions = st.dictionaries(st.integers(1, 4), states, min_size=2, max_size=4)
keys = st.none() | st.sampled_from([b"", b"ann", b"bob", b"\xff" * 256])
selectors = st.none() | st.integers(1, 4) | st.sampled_from(["latest", "stable", "other"])


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    """Draw a whole route or a split over two or three versions, and shadows beside it."""
    split = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True))
    weights = [draw(st.integers(1, 33)) for _ in split[1:]]
    shares = [Share(split[0], WEIGHT_SUM - sum(weights)), *map(Share, split[1:], weights)]
    shadow = draw(st.lists(st.integers(1, 4), max_size=2, unique=True))
    return Traffic(tuple(shares), tuple(shadow))


@dataclass(frozen=True)
class Wanted:
    """What the parent knows of the model, which outlives every worker."""

    states: dict[int, State]
    route: Traffic | None
    alias: int | None
    slots: Slots


NOTHING = Wanted({}, None, None, ())


class ServingMapMachine(RuleBasedStateMachine):
    """Handles are taken, given back and waited for while snapshots and processes come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.map: ServingMap[object] = ServingMap()
        self.generation = 0
        self.wanted = NOTHING
        self.states: dict[int, State] = {}
        self.route: Traffic | None = None
        self.slots: Slots = (1,) * WEIGHT_SUM
        self.alias: int | None = None
        self.targets: dict[int, object] = {}
        # The version that each use is of, and what ends it.
        self.held: list[tuple[int, Callable[[], None]]] = []
        self.waiters: list[tuple[int, asyncio.Task[None]]] = []

    @initialize()
    def begin_ready(self) -> None:
        self.replace(dict.fromkeys(range(1, 5), State.READY), Traffic.whole(1), 2)

    def teardown(self) -> None:
        for _, end in self.held:
            end()
        self.turn()
        assert all(task.done() for _, task in self.waiters)
        self.runner.close()

    def turn(self) -> None:
        """Let every task that can go on do so."""

        async def turns() -> None:
            for _ in range(3):
                await asyncio.sleep(0)

        self.runner.run(turns())

    @rule(states=versions, route=st.none() | traffics(), alias=st.none() | st.integers(1, 4))
    def replace(self, states: dict[int, State], route: Traffic | None, alias: int | None) -> None:
        slots = moved_slots(self.wanted.slots or self.slots, route.split) if route else ()
        self.generation += 1
        self.wanted = Wanted(states, route, alias, slots or self.wanted.slots)
        self.show()

    def show(self) -> None:
        """Give the worker what is wanted, with servables of its own."""
        wanted = self.wanted
        self.states, self.route, self.alias = wanted.states, wanted.route, wanted.alias
        self.slots = wanted.slots or self.slots
        self.targets = {v: object() for v, state in self.states.items() if state is State.READY}
        views = {
            v: VersionView("m", v, state, "reason", "digest", {}, self.targets.get(v))
            for v, state in self.states.items()
        }
        aliases = {} if self.alias is None else {"stable": self.alias}
        slots = wanted.slots if self.route is not None else ()
        model = ModelView("m", views, aliases, self.route, slots)
        self.map.replace(Snapshot({"m": model}, self.generation, is_restored=True))

    @rule(age=st.integers(1, 3))
    def show_what_is_older(self, age: int) -> None:
        """What comes late changes nothing."""
        older = self.map.snapshot.generation - age
        if older < 0:
            return
        with pytest.raises(Conflict):
            self.map.replace(Snapshot({}, older))

    @rule(is_at_once=st.booleans())
    def crash(self, is_at_once: bool) -> None:
        """A worker dies with all that was in use; the next begins with nothing, then is told."""
        for _, task in self.waiters:
            task.cancel()
        dead, self.held, self.waiters = self.held, [], []
        self.map = ServingMap()
        self.states, self.route, self.alias, self.targets = {}, None, None, {}
        for _, end in dead:
            end()
        if is_at_once:
            self.restart()

    @precondition(lambda self: self.map.snapshot.generation < self.generation)
    @rule()
    def restart(self) -> None:
        """It answers as the one before it did: the same versions, each key its own."""
        self.show()

    def meant(self, selector: int | str | None, key: bytes | None) -> set[int]:
        """Return the versions one of which must answer, if any of them can."""
        if selector is None:
            return self.routed(key)
        if selector == "latest":
            return {max(self.targets)} if self.targets else set()
        named = {"stable": self.alias, "other": None}.get(selector, selector)
        return set() if named is None else {named}

    def routed(self, key: bytes | None) -> set[int]:
        if self.route is None:
            return set()
        members = {share.version for share in self.route.split}
        if key is None or len(members) == 1:
            return members
        return {Split("m", self.route.split, (), 0, self.slots).version_of(key)}

    @rule(selector=selectors, key=keys)
    def acquire(self, selector: int | str | None, key: bytes | None) -> None:
        meant = self.meant(selector, key)
        try:
            handle = self.map.acquire("m", selector, key)
        except (NotFound, NotReady):
            assert not meant & self.targets.keys()
            return
        assert handle.view.version in meant
        assert handle.target is self.targets[handle.view.version]
        self.held.append((handle.view.version, handle.release))

    @invariant()
    def requests_meet_what_is_shown_now(self) -> None:
        """Nothing of an earlier snapshot, or of a worker that died, is left to be found."""
        for selector in (None, "latest", 1):
            is_there = bool(self.meant(selector, None) & self.targets.keys())
            try:
                target, uses = self.map.begin_use("m", selector)
            except (NotFound, NotReady):
                assert not is_there
            else:
                uses.end()
                assert target in [self.targets.get(v) for v in self.meant(selector, None)]

    @rule(selector=selectors, key=keys)
    def begin_use(self, selector: int | str | None, key: bytes | None) -> None:
        """The short way, which requests take: its end is called once, for certain."""
        meant = self.meant(selector, key)
        try:
            target, uses = self.map.begin_use("m", selector, key)
        except (NotFound, NotReady):
            assert not meant & self.targets.keys()
            return
        (version,) = (v for v in meant if self.targets.get(v) is target)
        is_ended = False

        def end() -> None:
            nonlocal is_ended
            if not is_ended:
                is_ended = True
                uses.end()

        self.held.append((version, end))

    @rule(key=keys)
    def find_changes_no_turn(self, key: bytes | None) -> None:
        """What is asked about without being used is the same however often it is asked."""
        found = []
        for _ in range(3):
            try:
                found.append(self.map.find("m", None, key).version)
            except (NotFound, NotReady):
                found.append(None)
        assert len(set(found)) == 1
        assert found[0] is None or found[0] in self.routed(key)

    @invariant()
    def shadows_are_those_of_the_route(self) -> None:
        assert self.map.shadows("m") == (self.route.shadow if self.route else ())

    @precondition(lambda self: self.held)
    @rule(data=st.data(), times=st.integers(1, 2))
    def release(self, data: st.DataObject, times: int) -> None:
        _, end = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        for _ in range(times):
            end()

    @precondition(lambda self: self.targets)
    @rule(data=st.data(), count=st.integers(2, 4))
    def release_one_of_several_twice(self, data: st.DataObject, count: int) -> None:
        """What ends one use twice ends the use of somebody else."""
        version = data.draw(st.sampled_from(sorted(self.targets)))
        self.held += [(version, self.map.acquire("m", version).release) for _ in range(count)]
        _, end = self.held.pop()
        end()
        end()

    @rule(version=st.integers(1, 4))
    def wait_for_drain(self, version: int) -> None:
        async def start() -> None:
            task = asyncio.get_running_loop().create_task(self.map.drained("m", version))
            self.waiters.append((version, task))

        self.runner.run(start())

    @precondition(lambda self: self.waiters)
    @rule(data=st.data())
    def give_up_waiting(self, data: st.DataObject) -> None:
        _, task = self.waiters.pop(data.draw(st.integers(0, len(self.waiters) - 1)))
        task.cancel()

    @invariant()
    def handles_are_those_held(self) -> None:
        for version in range(1, 5):
            held = [one for one, _ in self.held if one == version]
            assert self.map.handles("m", version) == len(held)

    @invariant()
    def waiters_wait_just_for_held_versions(self) -> None:
        self.turn()
        held = {version for version, _ in self.held}
        for version, task in self.waiters:
            assert version in held or task.done()
        self.waiters = [(version, task) for version, task in self.waiters if not task.done()]
        assert {version for version, _ in self.waiters} <= held


TestServingMap = ServingMapMachine.TestCase
TestServingMap.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
