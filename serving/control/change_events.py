"""What the event of a change says: who wanted it, when, and what it made different."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from registry.desired import DesiredState
from registry.events import Event, utc_now
from registry.manifest import Json, JsonObject
from registry.model_state import ModelState
from registry.rollout import Stamp
from serving.auth import Actor

MAX_REASON_CHARS: Final = 1000


@dataclass(frozen=True, slots=True)
class Note:
    """What the event of a change says: what happened, to what, who wanted it and why."""

    kind: str
    model: str | None
    version: int | None
    actor: Actor
    reason: str = ""


def stamp_of(note: Note | None, seq: int) -> Stamp:
    """Return the stamp of a change that is event ``seq``, made now; nobody's without a note."""
    who, address, reason = ("", "", "")
    if note is not None:
        who, address = note.actor.name, note.actor.address
        reason = note.reason[:MAX_REASON_CHARS]
    return Stamp(seq, utc_now(), who, address, reason)


def event_of(note: Note, stamp: Stamp, before: Json, after: Json) -> Event:
    """Return the event of a change, with what was before it and what is after it."""
    return Event(
        seq=stamp.seq, time=stamp.time, kind=note.kind, model=note.model, version=note.version,
        who=stamp.who, address=stamp.address, reason=stamp.reason, before=before, after=after,
    )  # fmt: skip


def difference(before: DesiredState, after: DesiredState, name: str | None) -> tuple[Json, Json]:
    """Return what a change made different in one model, as the event shows it."""
    if name is None:
        return None, None
    old, new = _facts(before.model(name)), _facts(after.model(name))
    changed = [key for key in old if old[key] != new[key]]
    return {key: old[key] for key in changed}, {key: new[key] for key in changed}


def moved_routes(before: DesiredState, after: DesiredState) -> int:
    """Return how many models' requests are answered by other versions, or other parts of them."""
    return sum(
        route is not None and old is not None and route.traffic.split != old.traffic.split
        for name, model in after.models.items()
        for route, old in ((model.route, before.model(name).route),)
    )


def _facts(model: ModelState) -> JsonObject:
    ready: list[Json] = [v for v in sorted(model.loaded) if model.is_ready(v)]
    failed: JsonObject = {str(version): reason for version, reason in model.failed.items()}
    return {
        "ready": ready,
        "failed": failed,
        "aliases": {name: alias.version for name, alias in sorted(model.aliases.items())},
        "route": None if model.route is None else model.route.facts(),
        "settings": model.settings.to_json(),
    }
