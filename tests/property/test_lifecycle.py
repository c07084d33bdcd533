"""The whole control plane against a plain account: any change, any crash, any budget at a start."""

from __future__ import annotations

import asyncio
import copy
import itertools
import random
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from models.errors import ModelsError
from registry.errors import RegistryError
from registry.traffic import Traffic
from registry.traffic_rules import LATEST_WISH, RouteWish
from tests.disk_model import ModelDisk, PowerCut, scratch_parent
from tests.lifecycle_account import BUDGETS, PRIVATE_BYTES, Account, Key, graph_of, weights_of
from tests.lifecycle_model import Model, traffic_of
from tests.unit.serving.admin.conftest import QUIET, World

MODELS = st.sampled_from(["m", "n"])
ALIASES = st.sampled_from(["a", "b"])
MOST_VERSIONS = 4
# The power goes before the n-th step of the disk from now; most changes take fewer.
FATES = st.sampled_from([None] * 5 + list(range(1, 12)))
Step = Callable[[Account], object]


class LifecycleMachine(RuleBasedStateMachine):
    """Every change is there after a crash, or nothing of it; memory is counted to the byte."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="lifecycle-", dir=scratch_parent()))
        self.roots = itertools.count()
        self.marks = itertools.count()
        self.runner = asyncio.Runner()
        self.account = Account()
        # Numbers that may never come again.
        self.used: dict[str, set[int]] = {"m": set(), "n": set()}

    @initialize(count=st.integers(2, 3), budget_bytes=st.sampled_from(BUDGETS), data=st.data())
    def begin(self, count: int, budget_bytes: int, data: st.DataObject) -> None:
        """Begin where most is decided: after a start, in too little memory more often than not."""
        root = self.base / str(next(self.roots))
        self.disk = ModelDisk(root)
        self.world = World(root, QUIET, budget_bytes=BUDGETS[0], files=self.disk)
        self.world.inspector.private_bytes = PRIVATE_BYTES
        self.runner.run(self.world.start())
        for name in self.account.models:
            for _ in range(count):
                self.push_and_load(name, None)
        for name, alias in (("m", "a"), ("n", "b")):
            self.set_alias_of(name, alias, data.draw(st.integers(1, count)), None)
        self.start_in(budget_bytes, {data.draw(st.sampled_from(self.account.keys("READY")))})
        if self.account.keys("READY"):
            self.quarantine(data)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.runner.run(self.world.stop())
            self.disk.release()
        self.runner.close()
        shutil.rmtree(self.base)

    # How a change is made, cut short, and looked at

    def attempt(
        self, work: Callable[[], Coroutine[Any, Any, object]], steps: list[Step],
        fate: int | None, *, is_allowed: bool = True,
    ) -> None:  # fmt: skip
        """Make a change whose ``steps`` are safe one by one; all of it, unless the power goes."""
        may_be = [copy.deepcopy(self.account)]
        for step in steps:
            may_be.append(copy.deepcopy(may_be[-1]))
            step(may_be[-1])
        while steps and (key := may_be[-1].asked_for()) is not None:
            may_be.append(copy.deepcopy(may_be[-1]))
            may_be[-1].models[key[0]].finish(key[1], is_by_itself=True)
        self.carry_out(work(), may_be, fate, is_allowed=is_allowed)

    def carry_out(
        self, work: Coroutine[Any, Any, object], may_be: list[Account], fate: int | None,
        *, is_allowed: bool,
    ) -> None:  # fmt: skip
        """Do the work, to the last account of ``may_be``; to any of them if the power goes."""
        if fate is not None:
            self.disk.die_in(fate)
        is_done = self.runner.run(self.until_dark(work))
        if self.disk.is_off:
            self.go_dark(fate)
            self.take_over(may_be)
            return
        self.disk.stay_on()
        assert is_done == is_allowed
        self.account = may_be[-1]

    async def until_dark(self, work: Coroutine[Any, Any, object]) -> bool:
        """Return whether the work was done, and what follows from it, before the power went."""

        async def all_of_it() -> bool:
            try:
                await work
            except (RegistryError, ModelsError, PowerCut):
                is_done = False
            else:
                is_done = True
            while not self.disk.is_off and (running := self.world.control.operations.under_way()):
                await running[0].wait()
                await asyncio.sleep(0)
            return is_done

        task = asyncio.create_task(all_of_it())
        while not task.done() and not self.disk.is_off:
            await asyncio.wait({task}, timeout=0.002)
        if self.disk.is_off:
            task.cancel()
            await asyncio.wait({task})
            return False
        return task.result()

    def go_dark(self, seed: int | None) -> None:
        """Lose what was not synced, or some of it, and start again from what the disk has."""

        async def cut() -> None:
            await self.world.control.close()
            try:
                self.world.store.close()
            except PowerCut:
                self.world.store.close()
            root = self.base / str(next(self.roots))
            self.disk.cut(root, random.Random(seed))
            self.disk.release()
            self.disk = self.world.files = ModelDisk(root)
            self.world.root = root
            await self.start_again(set())

        self.runner.run(cut())

    def take_over(self, may_be: list[Account]) -> None:
        """Go on from the one of the states on the way that is there."""
        seen = self.observe()
        for account in may_be:
            account.restart(account.budget_bytes, set())
        views = [account.view() for account in may_be]
        assert seen in views
        self.account = may_be[views.index(seen)]

    async def start_again(self, refused: set[Key]) -> None:
        """Start over the same disk. ``refused``: what no worker can open for now."""
        why = dict.fromkeys(refused, "a worker cannot open it")
        await self.world.start(lambda fleet: fleet.refused.update(why))
        await self.world.control.restored()
        assert self.world.fleet.targets[-1].is_restored
        self.world.fleet.refused.clear()

    def observe(self) -> object:
        """What users see."""
        writer = self.world.control.writer
        stored = {(name, v) for name, records in writer.records.items() for v in records}
        models = {}
        for name in self.account.models:
            state = writer.state.model(name)
            states = {
                v: "WAITING" if v in state.waiting else str(writer.status((name, v))[0])
                for n, v in stored if n == name
            }  # fmt: skip
            route = state.route
            models[name] = (
                {v: each for v, each in states.items() if each != "UNLOADED"},
                {alias: entry.version for alias, entry in state.aliases.items()},
                route and route.traffic,
                route and route.previous,
                route is not None and route.is_latest,
                {k: v for k, v in state.settings.to_json().items() if v is not None},
            )
        return stored, models

    # Versions

    @rule(name=MODELS, fate=FATES)
    def push_and_load(self, name: str, fate: int | None) -> None:
        if sum(key[0] == name for key in self.account.stored) < MOST_VERSIONS:
            before = set(self.account.stored)
            self.push(name, fate)
            for key in self.account.stored.keys() - before:
                self.load_key(key, fate)

    def push(self, name: str, fate: int | None) -> None:
        mark = next(self.marks)
        weights = weights_of(mark)
        if fate is not None:
            self.disk.die_in(fate)
        before = copy.deepcopy(self.account)
        is_done = self.runner.run(self.until_dark(self.world.push(name, graph_of(mark), *weights)))
        is_off = self.disk.is_off
        assert is_done or is_off
        if not is_off:
            self.disk.stay_on()
            (key,) = self.observe()[0] - before.stored.keys()
            assert key[1] not in self.used[name]
            self.used[name].add(key[1])
            self.account.stored[key] = mark
            return
        self.go_dark(fate)
        after = copy.deepcopy(before)
        for key in self.observe()[0] - before.stored.keys():
            after.stored[key] = mark
        self.take_over([before, after])

    @precondition(lambda self: self.account.stored)
    @rule(data=st.data(), fate=FATES)
    def load(self, data: st.DataObject, fate: int | None) -> None:
        """What waits for memory is most often what somebody loads."""
        stored = sorted(self.account.stored)
        self.load_key(data.draw(st.sampled_from(self.account.keys("WAITING") * 3 + stored)), fate)

    def load_key(self, key: Key, fate: int | None) -> None:
        name, version = key
        account, was = self.account, self.account.models[name].states.get(version)
        if was == "READY":
            return
        has_room = account.has_room(key)
        steps: list[Step] = []
        if not (has_room or was == "WAITING"):
            steps = [lambda a: a.models[name].fail(version)]
        elif has_room:
            # Between them nobody was told of anything: a crash there is a load that failed.
            steps = [lambda a: a.models[name].finish(version, is_by_itself=False)]
            if was != "WAITING":
                steps.insert(0, lambda a: a.models[name].fail(version))
        self.attempt(lambda: self.world.load(name, version), steps, fate, is_allowed=has_room)

    @precondition(lambda self: self.account.stored)
    @rule(data=st.data(), fate=FATES)
    def unload(self, data: st.DataObject, fate: int | None) -> None:
        """Mostly what nothing holds, for that makes room."""
        models = self.account.models
        free = [key for key in self.account.keys("READY") if not models[key[0]].is_held(key[1])]
        name, version = data.draw(st.sampled_from(free * 9 + sorted(self.account.stored)))
        model = self.account.models[name]
        is_held = version in model.states and model.is_held(version)
        steps: list[Step] = [lambda a: a.models[name].states.pop(version, None)]
        self.attempt(
            lambda: self.world.unload(name, version), [] if is_held else steps, fate,
            is_allowed=not is_held,
        )  # fmt: skip

    @precondition(lambda self: self.account.stored)
    @rule(data=st.data(), fate=FATES)
    def delete(self, data: st.DataObject, fate: int | None) -> None:
        name, version = data.draw(st.sampled_from(sorted(self.account.stored)))
        model = self.account.models[name]
        is_free = model.states.get(version) in (None, "FAILED") and not model.is_held(version)

        def step(account: Account) -> None:
            del account.stored[name, version]
            account.models[name].states.pop(version, None)
            if not any(key[0] == name for key in account.stored):
                account.models[name].settings = {}

        control, actor = self.world.control, self.world.actor
        self.attempt(
            lambda: control.delete(name, version, actor), [step] if is_free else [], fate,
            is_allowed=is_free,
        )  # fmt: skip

    @precondition(lambda self: self.account.keys("READY"))
    @rule(data=st.data())
    def quarantine(self, data: st.DataObject) -> None:
        """A version that kills workers is taken out; what waits may have its room."""
        name, version = data.draw(st.sampled_from(self.account.keys("READY")))

        async def fail() -> None:
            self.world.fleet.quarantine(name, version, "killed three workers")
            tasks = [t for t in asyncio.all_tasks() if t.get_name().startswith("quarantine-")]
            await asyncio.gather(*tasks)

        self.attempt(fail, [lambda a: a.models[name].fail(version)], None)

    # Who answers

    @rule(name=MODELS, data=st.data(), fate=FATES)
    def set_route(self, name: str, data: st.DataObject, fate: int | None) -> None:
        versions = sorted(v for n, v in self.account.stored if n == name)
        ready = sorted(self.account.models[name].ready())
        if versions:
            traffic = traffic_of(data, ready or versions)
            self.switch(
                name, lambda t: t.set_route(name, RouteWish(traffic), self.world.actor),
                lambda model: model.move(traffic), fate,
                is_allowed=self.account.models[name].may_route(traffic),
            )  # fmt: skip

    @rule(name=MODELS, fate=FATES)
    def follow_latest(self, name: str, fate: int | None) -> None:
        self.switch(
            name, lambda t: t.set_route(name, LATEST_WISH, self.world.actor),
            lambda model: model.move(Traffic.whole(max(model.ready())), is_latest=True), fate,
            is_allowed=bool(self.account.models[name].ready()),
        )  # fmt: skip

    @rule(data=st.data(), fate=FATES)
    def roll_back(self, data: st.DataObject, fate: int | None) -> None:
        """To what is in memory; what waits for it is loaded by a rule of its own."""
        name = data.draw(MODELS)
        previous = self.account.models[name].previous
        if previous is None or self.account.models[name].may_route(previous):
            self.switch(
                name, lambda t: t.rollback(name, None, self.world.actor),
                lambda model: model.move(model.previous), fate, is_allowed=previous is not None,
            )  # fmt: skip

    @rule(name=MODELS, fate=FATES)
    def delete_route(self, name: str, fate: int | None) -> None:
        self.switch(
            name, lambda t: t.delete_route(name, self.world.actor), Model.remove_route, fate,
            is_allowed=self.account.models[name].traffic is not None,
        )  # fmt: skip

    @precondition(lambda self: self.account.stored)
    @rule(data=st.data(), alias=ALIASES, fate=FATES)
    def set_alias(self, data: st.DataObject, alias: str, fate: int | None) -> None:
        name, version = data.draw(st.sampled_from(sorted(self.account.stored)))
        self.set_alias_of(name, alias, version, fate)

    def set_alias_of(self, name: str, alias: str, version: int, fate: int | None) -> None:
        self.switch(
            name, lambda t: t.set_alias(name, alias, version, self.world.actor),
            lambda model: model.aliases.update({alias: version}), fate,
            is_allowed=self.account.models[name].is_ready(version),
        )  # fmt: skip

    @rule(name=MODELS, alias=ALIASES, fate=FATES)
    def delete_alias(self, name: str, alias: str, fate: int | None) -> None:
        self.switch(
            name, lambda t: t.delete_alias(name, alias, self.world.actor),
            lambda model: model.aliases.pop(alias), fate,
            is_allowed=alias in self.account.models[name].aliases,
        )  # fmt: skip

    @rule(name=MODELS, rows=st.none() | st.integers(1, 3), fate=FATES)
    def set_settings(self, name: str, rows: int | None, fate: int | None) -> None:
        def step(model: Model) -> None:
            model.settings = {} if rows is None else {"queue_rows": rows}

        self.switch(
            name, lambda t: t.set_settings(name, {"queue_rows": rows}, self.world.actor), step,
            fate, is_allowed=any(key[0] == name for key in self.account.stored),
        )  # fmt: skip

    def switch(
        self, name: str, change: Callable[[Any], Coroutine[Any, Any, object]],
        step: Callable[[Model], object], fate: int | None, *, is_allowed: bool,
    ) -> None:  # fmt: skip
        """Move what requests meet; nothing comes into memory or leaves it by that."""
        may_be = [copy.deepcopy(self.account), copy.deepcopy(self.account)]
        if is_allowed:
            step(may_be[1].models[name])
        self.carry_out(change(self.world.control.traffic), may_be, fate, is_allowed=is_allowed)

    # Ends and starts

    @rule(budget_bytes=st.sampled_from(BUDGETS), data=st.data())
    def restart(self, budget_bytes: int, data: st.DataObject) -> None:
        """An end without a goodbye, and a start with more memory, less, or versions that fail."""
        kept = self.account.keys("READY", "WAITING")
        refused = data.draw(st.lists(st.sampled_from(kept), max_size=2)) if kept else []
        self.start_in(budget_bytes, set(refused))

    def start_in(self, budget_bytes: int, refused: set[Key]) -> None:
        async def restart() -> None:
            await self.world.stop()
            self.disk.release()
            self.world.budget_bytes = budget_bytes
            await self.start_again(refused)

        self.runner.run(restart())
        self.account.restart(budget_bytes, refused)

    # What holds at all times

    @invariant()
    def users_see_what_was_acknowledged(self) -> None:
        if hasattr(self, "world"):
            assert self.observe() == self.account.view()

    @invariant()
    def workers_hold_what_is_ready_and_every_byte_of_it_is_counted(self) -> None:
        if not hasattr(self, "world"):
            return
        ready, control = self.account.keys("READY"), self.world.control
        assert self.world.fleet.held == dict.fromkeys(ready, True)
        assert control.ledger.committed_bytes() == self.account.taken(ready)
        assert control.ledger.committed_bytes() <= self.account.budget_bytes
        assert not control.ledger.leaving_bytes()
        for key in self.account.stored:
            assert (control.residency.of(key) is not None) == (key in ready)

    @invariant()
    def every_change_of_a_route_has_its_event(self) -> None:
        if not hasattr(self, "world"):
            return
        events = self.world.store.events.read()
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        told = {(event.seq, event.model, event.time) for event in events}
        for name in self.account.models:
            route = self.world.control.model(name).route
            for change in route.history if route is not None else ():
                assert (change.seq, name, change.time) in told


LifecycleMachine.TestCase.settings = settings(
    max_examples=20, stateful_step_count=25, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
TestLifecycle = pytest.mark.slow(pytest.mark.timeout(300)(LifecycleMachine.TestCase))
