"""What is wanted of one model: its versions, what names them, and how soon each comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from registry.manifest import JsonObject
from registry.model_settings import ModelSettings
from registry.rollout import Route

# How soon a version comes back, by what names it.
_ROUTED, _ALIASED, _PREVIOUS, _UNNAMED = range(4)


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """A version that shall be in memory. ``is_serving``: its load ended well, it may answer.

    ``inspection``: what the inspection found, as JSON, so that a restart need not repeat it.
    """

    inspection: JsonObject
    is_serving: bool


@dataclass(frozen=True, slots=True)
class Alias:
    """The version an alias names; ``seq``: the event that set it."""

    version: int
    seq: int

    @property
    def etag(self) -> str:
        """Name this setting of the alias, for If-Match."""
        return f'"{self.seq}"'


@dataclass(frozen=True, slots=True)
class ModelState:
    """All that is wanted of one model. ``failed``: version to the reason it does not serve.

    ``settings_seq``: the event that set ``settings``, 0 before the first. ``waiting``: those of
    ``loaded`` that there is no memory for now, with the figures; of this process, not persisted.
    """

    loaded: Mapping[int, LoadedVersion] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)
    aliases: Mapping[str, Alias] = field(default_factory=dict)
    route: Route | None = None
    settings: ModelSettings = field(default_factory=ModelSettings)
    settings_seq: int = 0
    waiting: Mapping[int, str] = field(default_factory=dict)

    @property
    def settings_etag(self) -> str:
        """Name this state of the settings, for If-Match."""
        return f'"{self.settings_seq}"'

    def is_kept(self, version: int) -> bool:
        """Say whether the version is to answer, as soon as there is memory for it."""
        entry = self.loaded.get(version)
        return entry is not None and entry.is_serving

    def is_ready(self, version: int) -> bool:
        """Say whether the version is loaded and may answer."""
        return self.is_kept(version) and version not in self.waiting

    def urgency(self, version: int) -> int:
        """Return how soon a version is to come back; the lowest number comes first.

        What the route sends requests to, what an alias names, what a rollback goes to, the rest.
        """
        if self.route is not None and self.route.traffic.weight_of(version):
            return _ROUTED
        if any(alias.version == version for alias in self.aliases.values()):
            return _ALIASED
        return _PREVIOUS if self.route is not None and self.route.is_previous(version) else _UNNAMED

    def is_asked_for(self, version: int) -> bool:
        """Say whether the route sends requests to the version, or an alias names it."""
        return self.urgency(version) <= _ALIASED

    @property
    def latest(self) -> int | None:
        """The highest READY version."""
        return max(filter(self.is_ready, self.loaded), default=None)
