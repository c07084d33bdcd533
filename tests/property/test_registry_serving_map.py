"""The serving map against a list of who holds what."""

from __future__ import annotations

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from registry.errors import NotFound, NotReady
from registry.lifecycle import State
from registry.serving_map import Handle, ModelView, ServingMap, Snapshot, VersionView
from registry.traffic import Traffic

versions = st.dictionaries(st.integers(1, 4), st.sampled_from(State), max_size=4)
selectors = st.none() | st.integers(1, 4) | st.sampled_from(["latest", "stable", "other"])


class ServingMapMachine(RuleBasedStateMachine):
    """Handles are taken, given back and waited for while snapshots come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.map: ServingMap[object] = ServingMap()
        self.generation = 0
        self.states: dict[int, State] = {}
        self.route: int | None = None
        self.alias: int | None = None
        self.targets: dict[int, object] = {}
        self.held: list[Handle[object]] = []
        self.waiters: list[tuple[int, asyncio.Task[None]]] = []

    def teardown(self) -> None:
        for handle in self.held:
            handle.release()
        self.turn()
        assert all(task.done() for _, task in self.waiters)
        self.runner.close()

    def turn(self) -> None:
        """Let every task that can go on do so."""

        async def turns() -> None:
            for _ in range(3):
                await asyncio.sleep(0)

        self.runner.run(turns())

    @rule(states=versions, route=st.none() | st.integers(1, 4), alias=st.none() | st.integers(1, 4))
    def replace(self, states: dict[int, State], route: int | None, alias: int | None) -> None:
        self.generation += 1
        self.states, self.route, self.alias = states, route, alias
        self.targets = {v: object() for v, state in states.items() if state is State.READY}
        views = {
            v: VersionView("m", v, state, "reason", "digest", {}, self.targets.get(v))
            for v, state in states.items()
        }
        traffic = None if route is None else Traffic.whole(route)
        model = ModelView("m", views, {} if alias is None else {"stable": alias}, traffic)
        self.map.replace(Snapshot({"m": model}, self.generation, is_restored=True))

    def meant(self, selector: int | str | None) -> int | None:
        if selector == "latest":
            return max(self.targets, default=None)
        return {"stable": self.alias, "other": None, None: self.route}.get(selector, selector)

    @rule(selector=selectors)
    def acquire(self, selector: int | str | None) -> None:
        version = self.meant(selector)
        try:
            handle = self.map.acquire("m", selector)
        except (NotFound, NotReady):
            assert version not in self.targets
            return
        assert handle.view.version == version
        assert handle.target is self.targets[version]
        self.held.append(handle)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), times=st.integers(1, 2))
    def release(self, data: st.DataObject, times: int) -> None:
        handle = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        for _ in range(times):
            handle.release()

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
            held = [handle for handle in self.held if handle.view.version == version]
            assert self.map.handles("m", version) == len(held)

    @invariant()
    def waiters_wait_just_for_held_versions(self) -> None:
        self.turn()
        held = {handle.view.version for handle in self.held}
        for version, task in self.waiters:
            assert version in held or task.done()
        self.waiters = [(version, task) for version, task in self.waiters if not task.done()]
        assert {version for version, _ in self.waiters} <= held


TestServingMap = ServingMapMachine.TestCase
TestServingMap.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
