"""What may be asked of routes, aliases and settings: looked up, refused, planned, carried out.

Every method returns when all listening workers act on the change. ``if_match``: the change happens
only if its object still has that ETag; Conflict otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.signature import Signature, difference, parse_signature
from registry import model_settings, plan
from registry.desired import DesiredState
from registry.errors import Conflict, NotFound
from registry.ident import check_alias, shown
from registry.known import no_route
from registry.lifecycle import State
from registry.model_state import Alias, ModelState
from registry.plan import Check, Plan
from registry.rollout import Route
from registry.traffic_rules import RouteWish
from serving.auth import Actor
from serving.control.plan_runner import PlanRunner
from serving.control.restore_order import refuse_restoring
from serving.control.state_writer import StateWriter


@dataclass(frozen=True, slots=True)
class GuardedWish:
    """One route of a release, and the ETag that it must have."""

    wish: RouteWish
    if_match: str | None = None


class TrafficControl:
    """Routes, aliases and settings of all models. Event-loop thread only."""

    def __init__(self, writer: StateWriter, runner: PlanRunner) -> None:
        self._writer = writer
        self._runner = runner

    async def set_alias(
        self, model: str, alias: str, version: int, actor: Actor, reason: str = "",
        if_match: str | None = None,
    ) -> tuple[Alias, int | None]:  # fmt: skip
        """Let an alias name a READY version; return it and the version it named before."""
        check_alias(alias)
        self._writer.record(model, version)
        refuse_restoring(self._writer, (model, version))
        steps = plan.plan_alias(model, alias, version)
        before, after = await self._run(steps, actor, reason, _etag(model, _alias(alias), if_match))
        old = before.model(model).aliases.get(alias)
        return after.model(model).aliases[alias], old.version if old is not None else None

    async def delete_alias(
        self, model: str, alias: str, actor: Actor, reason: str = "", if_match: str | None = None
    ) -> int:
        """Remove an alias and return the version it named."""
        self._writer.versions(model)
        steps = plan.plan_alias(model, check_alias(alias), None)
        before, _ = await self._run(steps, actor, reason, _etag(model, _alias(alias), if_match))
        return before.model(model).aliases[alias].version

    def route(self, model: str) -> Route:
        """Return a model's route, or raise NotFound."""
        self._writer.versions(model)
        return _route_of(self._writer.state, model)

    async def set_route(
        self, model: str, wish: RouteWish, actor: Actor, reason: str = "",
        if_match: str | None = None,
    ) -> Route:  # fmt: skip
        """Route to READY versions, or follow the highest READY one from now on."""
        routes = await self._set_routes(
            {model: GuardedWish(wish, if_match)}, "route", actor, reason
        )
        return routes[model]

    async def release(
        self, wishes: Mapping[str, GuardedWish], actor: Actor, reason: str = ""
    ) -> dict[str, Route]:
        """Set the routes of several models in one generation, all of them or none."""
        return await self._set_routes(wishes, "release", actor, reason)

    async def rollback(
        self, model: str, to: int | None, actor: Actor, reason: str = "",
        if_match: str | None = None,
    ) -> Route:  # fmt: skip
        """Restore the former traffic, or route to ``to`` alone; load what it needs first."""
        self._writer.versions(model)
        if to is not None:
            self._writer.record(model, to)
        check = _etag(model, _route_etag, if_match)
        check(self._writer.state, self._writer.state)
        steps = plan.plan_rollback(
            self._writer.state, model, to, lambda v: self._is_ready(model, v)
        )
        _, after = await self._run(steps, actor, reason, check)
        return _route_of(after, model)

    async def delete_route(
        self, model: str, actor: Actor, reason: str = "", if_match: str | None = None
    ) -> None:
        """Remove the route, so that its versions can be unloaded."""
        self._writer.versions(model)
        check = _etag(model, _route_etag, if_match)
        await self._run(plan.plan_route_deletion(model), actor, reason, check)

    def settings(self, model: str) -> ModelState:
        """Return the state that holds a model's settings and their ETag, or raise NotFound."""
        self._writer.versions(model)
        return self._writer.state.model(model)

    async def set_settings(
        self, model: str, changes: Mapping[str, Any], actor: Actor, reason: str = "",
        if_match: str | None = None,
    ) -> ModelState:  # fmt: skip
        """Change what is set for a model: a value sets, None resets, the rest stays."""
        self._writer.versions(model)
        steps = plan.plan_settings(model, lambda s: model_settings.changed(s, changes, "body"))
        check = _etag(model, lambda m: m.settings_etag, if_match)
        _, after = await self._run(steps, actor, reason, check)
        return after.model(model)

    async def _set_routes(
        self, wishes: Mapping[str, GuardedWish], kind: str, actor: Actor, reason: str
    ) -> dict[str, Route]:
        checks: list[Check] = []
        for name, item in wishes.items():
            self._writer.versions(name)
            for version in item.wish.traffic.versions if item.wish.traffic is not None else ():
                self._writer.record(name, version)
                refuse_restoring(self._writer, (name, version))
            checks.append(_etag(name, _route_etag, item.if_match))
            if not item.wish.allow_incompatible:
                checks.append(self._unmixed(name))
        steps = plan.plan_routes({name: item.wish for name, item in wishes.items()}, kind)
        _, after = await self._run(steps, actor, reason, *checks)
        return {name: _route_of(after, name) for name in wishes}

    async def _run(
        self, steps: Plan, actor: Actor, reason: str, *checks: Check
    ) -> tuple[DesiredState, DesiredState]:
        return await self._runner.run(plan.checked(steps, *checks), actor, reason)

    def _is_ready(self, model: str, version: int) -> bool:
        self._writer.record(model, version)
        return self._writer.status((model, version))[0] is State.READY

    def _unmixed(self, name: str) -> Check:
        """Return what refuses a route over versions whose inputs or outputs differ.

        A move from one version to another is no mix: it is one moment for all clients, and new
        versions do bring new columns.
        """

        def check(before: DesiredState, after: DesiredState) -> None:
            route = _route_of(after, name)
            if after.model(name).route == before.model(name).route:
                return
            first, *others = route.traffic.versions
            for other in others:
                names = (f"version {first}", f"version {other}")
                found = difference(
                    self._signature(after, name, first), self._signature(after, name, other), names
                )
                if found:
                    raise Conflict(
                        f"{name}: versions {first} and {other} cannot share requests: {found}: "
                        "route to versions with the same inputs and outputs, or give "
                        '"allow_incompatible": true (`--allow-incompatible`)'
                    )

        return check

    def _signature(self, state: DesiredState, name: str, version: int) -> Signature:
        entry = state.model(name).loaded.get(version)
        if entry is not None:
            return self._writer.inspection((name, version), entry.inspection).signature
        return parse_signature(self._writer.record(name, version).manifest.signature)


def _route_of(state: DesiredState, name: str) -> Route:
    model = state.model(name)
    if model.route is None:
        raise NotFound(
            no_route(name, [version for version in model.loaded if model.is_ready(version)])
        )
    return model.route


def _route_etag(model: ModelState) -> str | None:
    return model.route.etag if model.route is not None else None


def _alias(alias: str) -> Callable[[ModelState], str | None]:
    return lambda model: model.aliases[alias].etag if alias in model.aliases else None


def _etag(name: str, etag_of: Callable[[ModelState], str | None], if_match: str | None) -> Check:
    """Return what refuses a change of what is not as the caller saw it."""

    def check(before: DesiredState, _: DesiredState) -> None:
        if if_match is None:
            return
        present = etag_of(before.model(name))
        wanted = [tag.strip() for tag in if_match.split(",")]
        if present is None or ("*" not in wanted and present not in wanted):
            now = f"is {present} now" if present is not None else "does not exist now"
            raise Conflict(
                f"{name}: If-Match {shown(if_match)}: what it guards {now}: read it and try again"
            )

    return check
