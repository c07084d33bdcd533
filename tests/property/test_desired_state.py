"""The desired state against a plain model of dictionaries, under any sequence of changes."""

from __future__ import annotations

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from registry import desired
from registry.desired import DesiredState
from registry.errors import Conflict, NotFound
from registry.rollout import Stamp

pytestmark = pytest.mark.slow

VERSIONS = st.integers(1, 5)
ALIASES = st.sampled_from(["a", "b"])
M = "m"


class DesiredMachine(RuleBasedStateMachine):
    """Each rule does to three dictionaries what the change is documented to do."""

    def __init__(self) -> None:
        super().__init__()
        self.state = DesiredState()
        self.seq = 0
        self.states: dict[int, str] = {}
        self.aliases: dict[str, int] = {}
        self.route: int | None = None
        self.previous: int | None = None
        self.is_latest = False

    def stamp(self) -> Stamp:
        self.seq += 1
        return Stamp(self.seq, "t", "who")

    def attempt(self, is_allowed: bool, change) -> bool:
        before = self.state
        try:
            after = change()
        except (Conflict, NotFound):
            assert not is_allowed
            return False
        assert is_allowed
        assert after is before or after.generation == before.generation + 1
        self.state = after
        return True

    def ready(self) -> list[int]:
        return [v for v, state in self.states.items() if state == "READY"]

    def move(self, version: int, *, is_latest: bool) -> None:
        if self.route not in (None, version):
            self.previous = self.route if self.states.get(self.route) == "READY" else None
        self.route, self.is_latest = version, is_latest

    @rule(version=VERSIONS)
    def begin(self, version):
        allowed = self.states.get(version) not in ("READY", "LOADING")
        if self.attempt(
            allowed, lambda: desired.begin_load(self.state, M, version, {"v": version})
        ):
            self.states[version] = "LOADING"

    @rule(version=VERSIONS)
    def finish(self, version):
        allowed = self.states.get(version) in ("READY", "LOADING")
        change = lambda: desired.finish_load(self.state, M, version, self.stamp())  # noqa: E731
        if self.attempt(allowed, change):
            self.states[version] = "READY"
            if self.route is None:
                self.move(version, is_latest=False)
            elif self.is_latest:
                self.move(max(self.ready()), is_latest=True)

    @rule(version=VERSIONS)
    def fail(self, version):
        was_ready = self.states.get(version) == "READY"
        self.attempt(True, lambda: desired.fail(self.state, M, version, "why", self.stamp()))
        self.states[version] = "FAILED"
        if was_ready and self.route == version:
            if self.states.get(self.previous) == "READY":
                self.route, self.previous, self.is_latest = self.previous, None, False
        elif self.previous == version:
            self.previous = None

    def is_held(self, version: int) -> bool:
        return version in (self.route, self.previous, *self.aliases.values())

    @rule(version=VERSIONS)
    def unload(self, version):
        state = self.states.get(version)
        allowed = state == "FAILED" or (state is not None and not self.is_held(version))
        if self.attempt(allowed, lambda: desired.unload(self.state, M, version)):
            del self.states[version]

    @rule(version=VERSIONS)
    def delete(self, version):
        allowed = self.states.get(version) in (None, "FAILED") and not self.is_held(version)
        if self.attempt(allowed, lambda: desired.delete(self.state, M, version)):
            self.states.pop(version, None)

    @rule(alias=ALIASES, version=VERSIONS)
    def set_alias(self, alias, version):
        allowed = self.states.get(version) == "READY"
        change = lambda: desired.set_alias(self.state, M, alias, version, self.stamp())  # noqa: E731
        if self.attempt(allowed, change):
            self.aliases[alias] = version

    @rule(alias=ALIASES)
    def delete_alias(self, alias):
        allowed = alias in self.aliases
        if self.attempt(allowed, lambda: desired.delete_alias(self.state, M, alias)):
            del self.aliases[alias]

    @rule(version=VERSIONS)
    def set_route(self, version):
        allowed = self.states.get(version) == "READY"
        if self.attempt(allowed, lambda: desired.set_route(self.state, M, version, self.stamp())):
            self.move(version, is_latest=False)

    @rule()
    def follow_latest(self):
        allowed = bool(self.ready())
        if self.attempt(allowed, lambda: desired.follow_latest(self.state, M, self.stamp())):
            self.move(max(self.ready()), is_latest=True)

    @rule()
    def delete_route(self):
        if self.attempt(self.route is not None, lambda: desired.delete_route(self.state, M)):
            self.route = self.previous = None
            self.is_latest = False

    @precondition(lambda self: self.previous is not None)
    @rule()
    def rollback(self):
        assert desired.rollback_target(self.state, M, None) == self.previous

    @rule()
    def restart(self):
        self.state = desired.parse(json.loads(json.dumps(desired.to_json(self.state))))

    @invariant()
    def state_is_as_the_model_says(self):
        model = self.state.model(M)
        names = {True: "READY", False: "LOADING"}
        states = {v: names[entry.is_serving] for v, entry in model.loaded.items()}
        assert states | dict.fromkeys(model.failed, "FAILED") == self.states
        assert {a: entry.version for a, entry in model.aliases.items()} == self.aliases
        route = model.route
        present = (None, None, False)
        if route is not None:
            present = (route.version, route.previous, route.is_latest)
            assert route.previous != route.version
        assert present == (self.route, self.previous, self.is_latest)

    @invariant()
    def what_a_rollback_goes_to_is_in_memory(self):
        assert self.previous is None or self.states.get(self.previous) == "READY"


DesiredMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestDesiredState = DesiredMachine.TestCase
