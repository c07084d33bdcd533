"""The desired state against a plain model of dictionaries, under any sequence of changes."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from registry import budget, desired, plan, rollout, state_document
from registry.budget import Footprint
from registry.desired import DesiredState
from registry.errors import Conflict, NotFound, OverBudget, RegistryError
from registry.lifecycle import State
from registry.model_settings import ModelSettings, changed
from registry.reasons import holders
from registry.rollout import Stamp
from registry.traffic import Traffic
from registry.traffic_rules import LATEST_WISH, RouteWish, remaining
from tests.lifecycle_model import WHOLE, Model, traffic_of

pytestmark = pytest.mark.slow

MODELS = st.sampled_from(["m", "n"])
VERSIONS = st.integers(1, 6)
ALIASES = st.sampled_from(["a", "b"])
BUDGET_BYTES = 60
WORKERS = 2


class DesiredMachine(RuleBasedStateMachine):
    """Each rule does to the dictionaries what the change is documented to do."""

    @initialize()
    def begin_empty(self) -> None:
        self.state = DesiredState()
        self.seq = 0
        self.budget_bytes = BUDGET_BYTES
        self.grown: dict[tuple[str, int], int] = {}
        self.models = {"m": Model(), "n": Model()}
        self.stored: dict[str, set[int]] = {"m": set(), "n": set()}
        for version in range(1, 5):
            self.load("m", version)
            self.load("n", version)

    def stamp(self) -> Stamp:
        self.seq += 1
        return Stamp(self.seq, "t", "who")

    def attempt(self, is_allowed: bool, change) -> bool:
        before = self.state
        try:
            after = change()
        except RegistryError:
            assert not is_allowed
            return False
        assert is_allowed
        assert after is before or after.generation == before.generation + 1
        self.state = after
        return True

    def switch(self, is_allowed: bool, make) -> bool:
        """Carry out the last step of a plan as the single writer does."""

        def change() -> DesiredState:
            *_, step = make()
            after = self.state
            for one in step.changes:
                after = one.apply(after, self.stamp())
            return desired.at_once(self.state, after)

        return self.attempt(is_allowed, change)

    @rule(name=MODELS, version=VERSIONS)
    def publish(self, name, version):
        model = self.models[name]
        self.stored[name].add(version)
        shown = {**model.states, **dict.fromkeys(self.state.model(name).waiting, "FAILED")}
        states = {v: State(shown.get(v, "UNLOADED")) for v in self.stored[name]}
        for old in plan.expired(self.state.model(name), name, states, version):
            assert old not in model.states
            assert not model.is_held(old)
            assert old != version
            self.stored[name].discard(old)

    @rule(name=MODELS, version=VERSIONS)
    def begin(self, name, version):
        if version not in self.stored[name]:
            return
        model = self.models[name]
        allowed = model.states.get(version) not in ("READY", "LOADING", "WAITING")
        if allowed and not self.is_admitted((name, version)):
            return
        change = lambda: desired.begin_load(self.state, name, version, {"v": version})  # noqa: E731
        if self.attempt(allowed, change):
            model.states[version] = "LOADING"

    def is_admitted(self, key) -> bool:
        """Ask the budget as a load does, and hold its answer to a sum made here."""
        held, new = self.footprints(), self.footprint(*key)
        held.pop(key, None)
        before, after = self.taken(held), self.taken({**held, key: new})
        found = budget.plan(self.budget_bytes, held, key, new, WORKERS)
        assert found.fits == (after <= self.budget_bytes)
        assert found.over_bytes == max(0, before - self.budget_bytes)
        assert found.needs_bytes == after - before
        if found.fits:
            assert budget.admit(self.budget_bytes, held, key, new, WORKERS) == found
            return True
        with pytest.raises(OverBudget):
            budget.admit(self.budget_bytes, held, key, new, WORKERS)
        return False

    def taken(self, held: dict[tuple[str, int], Footprint]) -> int:
        """Count every byte by itself: objects once, private memory for each worker."""
        objects = {digest: size for item in held.values() for digest, size in item.objects.items()}
        private = sum(item.private_bytes_per_worker or 0 for item in held.values())
        return sum(objects.values()) + WORKERS * private

    @rule(name=MODELS, version=VERSIONS, more=st.integers(1, 20))
    def measure(self, name, version, more):
        """Workers find that a version takes more than was estimated; nobody goes for it."""
        if self.models[name].is_ready(version):
            self.grown[name, version] = self.grown.get((name, version), 0) + more

    @rule(name=MODELS, version=VERSIONS, is_by_itself=st.booleans())
    def finish(self, name, version, is_by_itself):
        model = self.models[name]
        allowed = model.states.get(version) in ("READY", "LOADING", "WAITING")
        if model.states.get(version) == "WAITING" and not self.is_admitted((name, version)):
            return
        change = lambda: desired.finish_load(  # noqa: E731
            self.state, name, version, self.stamp(), is_by_itself=is_by_itself
        )
        if self.attempt(allowed, change):
            model.finish(version, is_by_itself=is_by_itself)

    @rule(name=MODELS, version=VERSIONS)
    def load(self, name, version):
        self.publish(name, version)
        self.begin(name, version)
        self.finish(name, version, is_by_itself=False)

    @rule(name=MODELS, version=VERSIONS)
    def fail(self, name, version):
        change = lambda: desired.fail(self.state, name, version, "why", self.stamp())  # noqa: E731
        self.attempt(True, change)
        self.models[name].fail(version)

    @rule(name=MODELS, version=VERSIONS)
    def unload(self, name, version):
        model = self.models[name]
        allowed = version in model.states and not model.is_held(version)
        if self.attempt(allowed, lambda: desired.unload(self.state, name, version)):
            del model.states[version]

    @rule(name=MODELS, version=VERSIONS)
    def delete(self, name, version):
        model = self.models[name]
        allowed = model.states.get(version) in (None, "FAILED") and not model.is_held(version)
        is_last = self.stored[name] <= {version}
        change = lambda: desired.delete(self.state, name, version, is_last=is_last)  # noqa: E731
        if self.attempt(allowed, change):
            model.states.pop(version, None)
            self.stored[name].discard(version)
            if is_last:
                model.settings = {}

    @rule(name=MODELS, alias=ALIASES, version=VERSIONS)
    def set_alias(self, name, alias, version):
        model = self.models[name]
        make = lambda: plan.plan_alias(name, alias, version)  # noqa: E731
        if self.switch(model.is_ready(version), make):
            model.aliases[alias] = version

    @rule(name=MODELS, alias=ALIASES)
    def delete_alias(self, name, alias):
        model = self.models[name]
        if self.switch(alias in model.aliases, lambda: plan.plan_alias(name, alias, None)):
            del model.aliases[alias]

    def some_traffic(self, data, name: str, *, is_ready: bool = True) -> Traffic:
        """Draw traffic over what is READY, or over anything."""
        ready = sorted(self.models[name].ready()) if is_ready else []
        return traffic_of(data, ready or [1, 2, 3, 4, 5, 6])

    @rule(name=MODELS, data=st.data(), is_ready=st.sampled_from([True, True, True, False]))
    def set_route(self, name, data, is_ready):
        model = self.models[name]
        traffic = self.some_traffic(data, name, is_ready=is_ready)
        make = lambda: plan.plan_routes({name: RouteWish(traffic)})  # noqa: E731
        if self.switch(model.may_route(traffic), make):
            model.move(traffic)

    @rule(name=MODELS)
    def follow_latest(self, name):
        model = self.models[name]
        make = lambda: plan.plan_routes({name: LATEST_WISH})  # noqa: E731
        if self.switch(bool(model.ready()), make):
            model.move(Traffic.whole(max(model.ready())), is_latest=True)

    @rule(data=st.data(), is_ready=st.booleans())
    def release(self, data, is_ready):
        wishes = {
            "m": self.some_traffic(data, "m"), "n": self.some_traffic(data, "n", is_ready=is_ready)
        }  # fmt: skip
        allowed = all(self.models[name].may_route(item) for name, item in wishes.items())
        make = lambda: plan.plan_routes(  # noqa: E731
            {name: RouteWish(item) for name, item in wishes.items()}, "release"
        )
        if self.switch(allowed, make):
            for name, item in wishes.items():
                self.models[name].move(item)

    @rule(name=MODELS)
    def delete_route(self, name):
        model = self.models[name]
        make = lambda: plan.plan_route_deletion(name)  # noqa: E731
        if self.switch(model.traffic is not None, make):
            model.remove_route()

    @rule(name=MODELS, to=st.one_of(st.none(), VERSIONS))
    def rollback(self, name, to):
        model = self.models[name]
        goal = model.previous
        if to is not None:
            goal = Traffic.whole(to) if model.traffic is not None and to in model.been else None
        try:
            *loads, _ = plan.plan_rollback(self.state, name, to, model.is_ready)
        except (Conflict, NotFound):
            # The history may reach no longer to where the route has been, but never too far.
            assert goal is None or to is not None
            return
        assert goal is not None
        assert [load.version for load in loads] == [
            v for v in goal.versions if not model.is_ready(v)
        ]  # fmt: skip
        make = lambda: plan.plan_rollback(self.state, name, to, model.is_ready)  # noqa: E731
        if self.switch(not loads, make):
            model.move(goal)

    @rule(name=MODELS, data=st.data(), version=VERSIONS, is_failing=st.booleans())
    def route_that_is_taken_back(self, name, data, version, is_failing):
        model = self.models[name]
        traffic = self.some_traffic(data, name)
        if model.traffic in (None, traffic) or not model.may_route(traffic):
            return
        before, old = self.state.model(name), (model.traffic, model.previous, model.is_latest)
        self.set_route_as_model(name, traffic)
        after = self.state.model(name)
        if is_failing:
            self.fail_as_model(name, version)
        is_same = self.state.model(name).route == after.route
        change = lambda: desired.take_back(  # noqa: E731
            self.state, name, before, after, self.stamp()
        )
        self.attempt(True, change)
        if is_same and model.may_route(old[0]):
            model.traffic, model.previous, model.is_latest = old
            if model.previous is not None:
                model.previous = remaining(model.previous, model.is_kept)
            if model.previous == model.traffic:
                model.previous = None

    def set_route_as_model(self, name, traffic):
        assert self.switch(True, lambda: plan.plan_routes({name: RouteWish(traffic)}))
        self.models[name].move(traffic)

    def fail_as_model(self, name, version):
        self.state = desired.fail(self.state, name, version, "why", self.stamp())
        self.models[name].fail(version)

    @rule(
        name=MODELS,
        key=st.sampled_from(["queue_rows", "retain"]),
        value=st.one_of(st.none(), st.integers(1, 3)),
    )
    def set_settings(self, name, key, value):
        make = lambda: plan.plan_settings(  # noqa: E731
            name, lambda s: changed(s, {key: value}, "body")
        )
        assert self.switch(True, make)
        self.models[name].settings.pop(key, None)
        if value is not None:
            self.models[name].settings[key] = value

    @rule(name=MODELS, data=st.data(), is_by_itself=st.booleans())
    def finish_again(self, name, data, is_by_itself):
        """What is in memory, or waits for it, is most often what is loaded next."""
        if self.state.model(name).loaded:
            version = data.draw(st.sampled_from(sorted(self.state.model(name).loaded)))
            self.finish(name, version, is_by_itself=is_by_itself)

    @rule(budget_bytes=st.sampled_from([12, 25, BUDGET_BYTES]))
    def restart(self, budget_bytes):
        """A crash and a start: loads under way are lost, what there is no memory for waits."""
        before = self.state
        self.state = state_document.parse(json.loads(json.dumps(state_document.to_json(before))))
        self.budget_bytes, self.grown = budget_bytes, {}
        wanted = []
        for name, model in self.models.items():
            assert self.state.model(name).route == before.model(name).route
            for version, state in list(model.states.items()):
                if state == "LOADING":
                    self.fail(name, version)
                elif state != "FAILED":
                    # Nothing is in memory before it is brought back.
                    model.states[version] = "WAITING"
                    wanted.append((model.rank(version), name, version))
        for _, name, version in wanted:
            self.state = desired.wait_for_memory(self.state, name, version, "why")
        for _, name, version in sorted(wanted):
            if self.is_admitted((name, version)):
                self.state = desired.has_memory(self.state, name, version)
                self.models[name].states[version] = "READY"

    def footprint(self, name: str, version: int) -> Footprint:
        """Versions of equal parity share a weight."""
        private_bytes = 1 + self.grown.get((name, version), 0)
        return Footprint({f"shared {version % 2}": 5, f"{name}{version}": version}, private_bytes)

    def footprints(self) -> dict[tuple[str, int], Footprint]:
        return {
            (name, version): self.footprint(name, version)
            for name, version in self.state.loaded
            if version not in self.state.model(name).waiting
        }

    @invariant()
    def state_is_as_the_model_says(self):
        for name, model in self.models.items():
            state = self.state.model(name)
            names = {True: "READY", False: "LOADING"}
            states = {v: names[entry.is_serving] for v, entry in state.loaded.items()}
            states |= dict.fromkeys(state.waiting, "WAITING")
            assert state.latest == max(model.ready(), default=None)
            assert states | dict.fromkeys(state.failed, "FAILED") == model.states
            assert {a: entry.version for a, entry in state.aliases.items()} == model.aliases
            assert state.settings == ModelSettings(**model.settings)
            route = state.route
            present = (None, None, False)
            if route is not None:
                present = (route.traffic, route.previous, route.is_latest)
                assert route.history[-1].traffic == route.traffic
            assert present == (model.traffic, model.previous, model.is_latest)

    @invariant()
    def route_names_what_answers_and_previous_is_kept(self):
        for model in self.models.values():
            if model.traffic is not None:
                answering = [model.states.get(share.version) for share in model.traffic.split]
                # Only where nothing else was left does a route go on naming what cannot answer.
                assert set(answering) <= {"READY", "WAITING"} or len(answering) == 1
                assert all(map(model.is_kept, model.traffic.shadow))
                assert sum(share.weight for share in model.traffic.split) == WHOLE
            if model.previous is not None:
                assert sum(share.weight for share in model.previous.split) == WHOLE
                assert all(map(model.is_kept, model.previous.versions))
                assert model.previous != model.traffic

    @invariant()
    def workers_route_to_what_is_in_memory_with_the_slots_of_its_weights(self):
        for name, model in self.models.items():
            state = self.state.model(name)
            if state.route is None:
                continue
            route = rollout.in_force(state.route, state.waiting)
            is_there = [model.is_ready(share.version) for share in route.traffic.split]
            assert all(is_there) or route.traffic == state.route.traffic
            for split, slots in (
                (state.route.traffic.split, state.route.slots),
                (route.traffic.split, route.slots),
                (state.route.previous.split if state.route.previous else (),
                 state.route.previous_slots),
            ):  # fmt: skip
                assert Counter(slots) == {share.version: share.weight for share in split}

    @invariant()
    def holders_are_named_exactly_where_something_holds(self):
        for name, model in self.models.items():
            for version in range(1, 7):
                held_by = holders(self.state.model(name), name, version)
                assert bool(held_by) == model.is_held(version)

    @invariant()
    def only_what_was_measured_later_stands_over_the_budget(self):
        held = self.footprints()
        found = budget.excess(self.budget_bytes, held, WORKERS, held)
        assert found.committed_bytes == self.taken(held)
        assert found.over_bytes <= WORKERS * sum(self.grown.get(key, 0) for key in held)
        left = {key: item for key, item in held.items()
                if key not in {each.key for each in found.would_evict}}  # fmt: skip
        assert self.taken(left) <= self.budget_bytes
        assert self.taken(held) - self.taken(left) == sum(e.frees_bytes for e in found.would_evict)


DesiredMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestDesiredState = DesiredMachine.TestCase
