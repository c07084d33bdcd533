"""Carries plans out: each step persisted, published and taken by the workers before the next.

A step that fails ends the plan, and what the plan had loaded is unloaded again. A switch that not
every worker took is switched back, so that a change is in force everywhere or nowhere; only a way
back is kept (docs/adr/0003).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from registry import desired
from registry.desired import DesiredState
from registry.errors import Corrupt
from registry.plan import Change, Load, Plan, Switch
from registry.rollout import Stamp
from serving.auth import SERVER, Actor
from serving.control.operations import Operation
from serving.control.state_writer import StateWriter
from serving.control.worker_versions import PLANNED
from serving.errors import DeadlineExpired, message_of

# Twice what a worker may stay silent: one that hangs is replaced before this is over, and then
# nobody routes by the old state any more.
TAKEN_TIMEOUT_S: Final = 10.0
_log = logging.getLogger(__name__)
Begin = Callable[[str, int, Actor, str], Operation]


class NotTaken(DeadlineExpired):
    """A switch that not every worker took in time; the text says what holds now."""


class PlanRunner:
    """Event-loop thread only. ``load``, ``unload``: begin an operation, or raise why not."""

    def __init__(self, writer: StateWriter, load: Begin, unload: Begin) -> None:
        self._writer = writer
        self._load = load
        self._unload = unload

    async def run(self, plan: Plan, actor: Actor, reason: str) -> tuple[DesiredState, DesiredState]:
        """Do every step, or raise why not; return the states around the last switch.

        Whoever was told of the end of a switch sees it on every connection: it returns when every
        listening worker routes by it.
        """
        loaded: list[Load] = []
        states = (self._writer.state, self._writer.state)
        try:
            for step in plan:
                if isinstance(step, Switch):
                    states = await self._switch(step, actor, reason)
                else:
                    is_wanted = step.version in self._writer.state.model(step.model).loaded
                    await self._loaded(step, actor, reason)
                    if not is_wanted:
                        loaded.append(step)
        except PLANNED as error:
            if not isinstance(error, NotTaken):
                await self._unload_again(loaded, message_of(error))
            raise
        return states

    async def _loaded(self, step: Load, actor: Actor, reason: str) -> None:
        try:
            await _ended(self._load(step.model, step.version, actor, reason))
        except Corrupt as error:
            # It names the object alone; who asked for a change of route knows only versions.
            raise Corrupt(
                f"{step.model}/{step.version} cannot be loaded, so the route stays as it is: "
                f"{error}"
            ) from error

    async def _switch(
        self, step: Switch, actor: Actor, reason: str
    ) -> tuple[DesiredState, DesiredState]:
        before, after = await self._writer.change_all(step.changes, actor, reason, step.checks)
        try:
            await self._writer.fleet.taken(after.generation, TAKEN_TIMEOUT_S)
        except TimeoutError as error:
            await self._not_taken(step, before, after, str(error))
        return before, after

    async def _not_taken(
        self, step: Switch, before: DesiredState, after: DesiredState, why: str
    ) -> None:
        """Raise NotTaken after the former state was published again, where it is to be."""
        what = ", ".join(f"{change.kind} of {change.model}" for change in step.changes)
        see = "GET /admin/v1/workers shows them"
        if after is before:
            raise NotTaken(f"{what}: was set already, but {why}: {see}")
        if step.is_way_back:
            raise NotTaken(
                f"{what}: is kept and will be taken, but {why}: {see}; nothing has to be repeated"
            )
        _log.error("%s is taken back: %s", what, why)
        changes = [_taking_back(name, before, after) for name in _models(step.changes)]
        try:
            unchanged, now = await self._writer.change_all(changes, SERVER, f"{what}: {why}")
        except PLANNED as error:
            raise NotTaken(
                f"{what}: {why}, and it stays in force, for it could not be taken back: "
                f"{message_of(error)}"
            ) from error
        if now is unchanged:
            raise NotTaken(f"{what}: {why}, and it was changed again meanwhile: {see}")
        raise NotTaken(
            f"{what}: {why}; the former state is in force again as generation {now.generation}: "
            f"{see}; try again when they answer"
        )

    async def _unload_again(self, loaded: Sequence[Load], why: str) -> None:
        for step in loaded:
            try:
                reason = f"loaded for a change that failed: {why}"
                await _ended(self._unload(step.model, step.version, SERVER, reason))
            except PLANNED as error:
                # Someone else names it by now: then it is theirs.
                _log.info("%s/%d stays: %s", step.model, step.version, error)


def _models(changes: Sequence[Change]) -> list[str]:
    return list(dict.fromkeys(change.model for change in changes))


def _taking_back(name: str, before: DesiredState, after: DesiredState) -> Change:
    def apply(state: DesiredState, stamp: Stamp) -> DesiredState:
        return desired.take_back(state, name, before.model(name), after.model(name), stamp)

    return Change("taken_back", name, None, apply)


async def _ended(operation: Operation) -> None:
    await operation.wait()
    if operation.error is not None:
        raise operation.error
