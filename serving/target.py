"""The target: the whole state that the parent wants every worker to have, as it goes on the wire.

A worker never needs a history: the newest target alone says what to load, what may answer, where
requests without a version go, and which versions are known without being loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from models.servable import Inspection, parse_inspection
from registry.manifest import Json, JsonObject, Manifest, parse_manifest
from registry.model_settings import ModelSettings
from registry.slots import Slots
from registry.traffic import Traffic


@dataclass(frozen=True, slots=True)
class TargetVersion:
    """A version that must be in memory; ``is_serving``: it may also answer requests."""

    model: str
    version: int
    manifest: Manifest
    inspection: Inspection
    is_serving: bool

    @property
    def form(self) -> str:
        """What a worker holds. Where it changes, a worker that holds another form loads anew.

        A graph of which no run reads anything is not part of it: whoever has loaded it keeps what
        it has, whatever becomes of the file.
        """
        found = self.inspection
        bare = "" if found.has_prepacking else "without prepacking"
        is_read = not found.resident or any(found.resident.values())
        graph = found.graph if is_read else ""
        return f"{self.manifest.digest} {graph or bare}".rstrip()


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """What is known of a version, loaded or not, for listings and for honest 503s."""

    state: str
    reason: str
    digest: str
    signature: JsonObject


@dataclass(frozen=True, slots=True)
class Target:
    """The wanted state. ``generation`` only rises; a report names the generation it holds.

    ``routes``: model to where a request without a version goes. ``settings``: what is set for it.
    ``slots``: of models whose route is a split, which version a routing key belongs to.
    ``catalog``: model to version to entry, every published version.
    ``is_restored``: the loads that a start repeats are over, so ready may be said.
    """

    generation: int
    versions: tuple[TargetVersion, ...] = ()
    routes: Mapping[str, Traffic] = field(default_factory=dict)
    aliases: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    catalog: Mapping[str, Mapping[int, CatalogEntry]] = field(default_factory=dict)
    is_restored: bool = True
    settings: Mapping[str, ModelSettings] = field(default_factory=dict)
    slots: Mapping[str, Slots] = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        """Return the JSON form that ``parse_target`` reads."""
        versions: list[Json] = [
            {
                "model": v.model,
                "version": v.version,
                "manifest": v.manifest.to_json(),
                "inspection": v.inspection.to_json(),
                "is_serving": v.is_serving,
            }
            for v in self.versions
        ]
        catalog: JsonObject = {
            model: {
                str(version): {
                    "state": entry.state,
                    "reason": entry.reason,
                    "digest": entry.digest,
                    "signature": entry.signature,
                }
                for version, entry in entries.items()
            }
            for model, entries in self.catalog.items()
        }
        return {
            "generation": self.generation,
            "versions": versions,
            "routes": {model: traffic.to_json() for model, traffic in self.routes.items()},
            "aliases": {model: dict(names) for model, names in self.aliases.items()},
            "catalog": catalog,
            "is_restored": self.is_restored,
            "settings": {model: item.to_json() for model, item in self.settings.items()},
            "slots": {model: list(slots) for model, slots in self.slots.items()},
        }


def parse_target(document: Mapping[str, Any]) -> Target:
    """Return a Target from its JSON form; only ever given what ``to_json`` made."""
    return Target(
        generation=document["generation"],
        versions=tuple(
            TargetVersion(
                model=v["model"],
                version=v["version"],
                manifest=parse_manifest(v["manifest"]),
                inspection=parse_inspection(v["inspection"]),
                is_serving=v["is_serving"],
            )
            for v in document["versions"]
        ),
        routes={model: Traffic.of_json(item) for model, item in document["routes"].items()},
        aliases=document["aliases"],
        catalog={
            model: {int(version): CatalogEntry(**entry) for version, entry in entries.items()}
            for model, entries in document["catalog"].items()
        },
        is_restored=document["is_restored"],
        settings={
            model: ModelSettings.of_json(item) for model, item in document["settings"].items()
        },
        slots={model: tuple(slots) for model, slots in document["slots"].items()},
    )
