"""What answers now: an immutable snapshot swapped by one pointer, and counted handles on it.

Guarantees:
1. ``acquire`` reads one snapshot: a request never sees half of a change.
2. A held handle keeps its target: ``replace`` takes versions from new requests only.
3. ``drained`` returns once nobody holds the version, in the snapshot or long out of it.
4. A split keeps its turns while snapshots come and go, so that the shares hold across them.

Everything here belongs to one event loop's thread; nothing locks and nothing blocks.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, TypeVar

from registry.errors import Conflict, NotReady
from registry.ident import LATEST, shown
from registry.known import no_route, unknown_alias, unknown_model, unknown_version
from registry.lifecycle import State
from registry.manifest import JsonObject
from registry.slots import Slots
from registry.split import Split
from registry.traffic import Traffic

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VersionView(Generic[T]):
    """One version as requests see it; ``target`` is there only where it may answer."""

    model: str
    version: int
    state: State
    reason: str
    digest: str
    signature: JsonObject
    target: T | None = None


@dataclass(frozen=True, slots=True)
class ModelView(Generic[T]):
    """One model: its versions, its aliases, and where a request without a version goes.

    ``slots``: which of them a routing key belongs to; empty: as in a new split.
    """

    name: str
    versions: Mapping[int, VersionView[T]]
    aliases: Mapping[str, int] = field(default_factory=dict)
    route: Traffic | None = None
    slots: Slots = ()


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[T]):
    """All models at one generation. ``is_restored``: the loads repeated at start are over."""

    models: Mapping[str, ModelView[T]] = field(default_factory=dict)
    generation: int = 0
    is_restored: bool = False


class Uses:
    """How many use one version now, over all snapshots that it was in."""

    __slots__ = ("count", "idle")

    def __init__(self) -> None:
        self.count = 0
        # Set when the last use ends, where somebody waits for that.
        self.idle: asyncio.Event | None = None

    def end(self) -> None:
        """End one use; each that was begun is ended once."""
        self.count -= 1
        if not self.count and self.idle is not None:
            self.idle.set()
            self.idle = None


class Handle(Generic[T]):
    """The right to use one version's target until ``release``."""

    __slots__ = ("_uses", "target", "view")

    def __init__(self, uses: Uses, view: VersionView[T], target: T) -> None:
        self._uses: Uses | None = uses
        self.view = view
        self.target = target

    def release(self) -> None:
        """Give the handle back; again is harmless."""
        uses, self._uses = self._uses, None
        if uses is not None:
            uses.end()

    def __enter__(self) -> Handle[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class ServingMap(Generic[T]):
    """The present snapshot and the handles held on its versions and on those before it."""

    def __init__(self, snapshot: Snapshot[T] | None = None) -> None:
        self._snapshot: Snapshot[T] = snapshot or Snapshot()
        self._uses: dict[tuple[str, int], Uses] = {}
        # What the snapshot's routes come to, so that most requests look up one thing.
        self._whole: dict[str, tuple[T, Uses]] = {}
        self._splits: dict[str, Split] = {}
        self._shadows: dict[str, tuple[int, ...]] = {}
        # Whether any version gets copies of requests.
        self.has_shadows = False
        self._read_routes()

    @property
    def snapshot(self) -> Snapshot[T]:
        """What new requests see."""
        return self._snapshot

    def replace(self, snapshot: Snapshot[T]) -> None:
        """Show ``snapshot`` to all requests from now on; its generation may not be older."""
        if snapshot.generation < self._snapshot.generation:
            raise Conflict(
                f"generation {snapshot.generation} is older than {self._snapshot.generation}, "
                "which serves already"
            )
        self._snapshot = snapshot
        self._read_routes()

    def shadows(self, model: str) -> tuple[int, ...]:
        """Return the versions that get copies of the requests that the model's route answers."""
        return self._shadows.get(model, ())

    def find(
        self, model: str, selector: int | str | None, routing_key: bytes | None = None
    ) -> VersionView[T]:
        """Return the version that ``selector`` means, whatever its state.

        ``selector``: a number, an alias, ``latest`` (the highest that serves), or None for the
        route; of a split the version that ``routing_key`` belongs to, or without a key the first.
        Raises NotFound for an unknown model, version or alias; NotReady where ``latest`` or the
        route means nothing now.
        """
        known = self._snapshot.models.get(model)
        if known is None:
            raise unknown_model(model, self._snapshot.models)
        if type(selector) is int:
            number = selector
        elif selector is None and routing_key is not None and (split := self._splits.get(model)):
            number = split.version_of(routing_key)
        else:
            number = _resolve(known, selector)
        view = known.versions.get(number)
        if view is None:
            raise unknown_version(model, number, known.versions)
        return view

    def acquire(
        self, model: str, selector: int | str | None, routing_key: bytes | None = None
    ) -> Handle[T]:
        """Return a handle on the version that ``selector`` means, as ``find`` reads it.

        A split without a key is shared out over those of its versions that answer here, by weight:
        a worker may be behind the others for a moment, and its answer says which version it is of.
        A key goes to its own version or to none, for its caller relies on that version.
        Raises NotReady, with state and reason, for a version that is known and may not answer.
        """
        view, target = self._answering(model, selector, routing_key)
        uses = self._uses_of(view)
        uses.count += 1
        return Handle(uses, view, target)

    def begin_use(
        self, model: str, selector: int | str | None, routing_key: bytes | None = None
    ) -> tuple[T, Uses]:
        """Return the target that ``acquire`` would, in use until ``end`` is called once.

        For who ends it surely and has no need of a handle of its own: it costs half as much.
        """
        found = self._whole.get(model) if selector is None else None
        if found is None:
            view, target = self._answering(model, selector, routing_key)
            found = target, self._uses_of(view)
        found[1].count += 1
        return found

    def handles(self, model: str, version: int) -> int:
        """Return how many handles are held on a version, in the snapshot or not."""
        uses = self._uses.get((model, version))
        return uses.count if uses is not None else 0

    async def drained(self, model: str, version: int) -> None:
        """Wait until no handle on the version is held; bound it with ``asyncio.timeout``."""
        while (uses := self._uses.get((model, version))) is not None and uses.count:
            if uses.idle is None:
                uses.idle = asyncio.Event()
            await uses.idle.wait()

    def _answering(
        self, model: str, selector: int | str | None, routing_key: bytes | None
    ) -> tuple[VersionView[T], T]:
        is_routed = selector is None
        view = self._routed(model, routing_key) if is_routed else self.find(model, selector)
        if view.target is None:
            raise NotReady(
                f"model {shown(model)} version {view.version} is {view.state}: {view.reason}"
            )
        return view, view.target

    def _uses_of(self, view: VersionView[T]) -> Uses:
        key = (view.model, view.version)
        uses = self._uses.get(key)
        if uses is None:
            uses = self._uses[key] = Uses()
        return uses

    def _routed(self, model: str, routing_key: bytes | None) -> VersionView[T]:
        if routing_key is None and (split := self._splits.get(model)):
            number = split.next_version()
            if number is not None:
                return self._snapshot.models[model].versions[number]
        return self.find(model, None, routing_key)

    def _read_routes(self) -> None:
        former = self._splits
        self._whole, self._splits, self._shadows = {}, {}, {}
        self._uses = {key: uses for key, uses in self._uses.items() if uses.count or uses.idle}
        for name, model in self._snapshot.models.items():
            if model.route is None:
                continue
            if model.route.shadow:
                self._shadows[name] = model.route.shadow
            shares = model.route.split
            if len(shares) == 1:
                view = model.versions.get(shares[0].version)
                if view is not None and view.target is not None:
                    self._whole[name] = view.target, self._uses_of(view)
                continue
            answering = {n for n, view in model.versions.items() if view.target is not None}
            position = former[name].position if name in former else secrets.randbits(64)
            self._splits[name] = Split(name, shares, answering, position, model.slots)
        self.has_shadows = bool(self._shadows)


def _resolve(model: ModelView[T], selector: str | int | None) -> int:
    if selector is None:
        if model.route is None:
            raise NotReady(no_route(model.name, _serving(model)))
        return model.route.split[0].version
    if selector == LATEST:
        serving = _serving(model)
        if not serving:
            raise NotReady(f"model {shown(model.name)} has no version that serves")
        return max(serving)
    if isinstance(selector, str) and selector in model.aliases:
        return model.aliases[selector]
    raise unknown_alias(model.name, selector, model.versions)


def _serving(model: ModelView[T]) -> list[int]:
    return [number for number, view in model.versions.items() if view.target is not None]
