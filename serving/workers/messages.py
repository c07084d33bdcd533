"""What parent and worker say to each other, as values: the bodies of the frames on the wire."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from registry.manifest import Json, JsonObject
from serving.fleet import VersionKey, VersionReport
from serving.settings import Settings, Token

# Parent to worker.
HELLO: Final = "hello"
TARGET: Final = "target"
STOP: Final = "stop"
# Another worker of the slot listens: leave it the listener and the connections, then end.
HAND_OVER: Final = "hand_over"
# Worker to parent.
READY: Final = "ready"
LISTENING: Final = "listening"
LOADING: Final = "loading"
TAKEN: Final = "taken"
REPORT: Final = "report"
HEARTBEAT: Final = "heartbeat"
FATAL: Final = "fatal"


@dataclass(frozen=True, slots=True)
class Hello:
    """All that a worker needs to begin. ``cpus``: cores to pin to; empty: none.

    ``region``: the part of the metrics page that it counts into, one of ``regions``.
    ``is_patient``: it accepts only once it holds all that is wanted, for another worker serves
    in the meantime.
    """

    slot: int
    region: int
    regions: int
    is_patient: bool
    threads: int
    cpus: tuple[int, ...]
    objects_dir: Path
    settings: Settings

    def to_json(self) -> JsonObject:
        """Return the JSON form that ``parse_hello`` reads."""
        return {
            "slot": self.slot,
            "region": self.region,
            "regions": self.regions,
            "is_patient": self.is_patient,
            "threads": self.threads,
            "cpus": list(self.cpus),
            "objects_dir": str(self.objects_dir),
            "settings": _settings_to_json(self.settings),
        }


def parse_hello(document: Mapping[str, Any]) -> Hello:
    """Return a Hello from its JSON form; only ever given what ``to_json`` made."""
    values = dict(document["settings"])
    values["store"] = Path(values["store"])
    values["tokens"] = tuple(
        Token(item["name"], item["sha256"], tuple(item["scopes"])) for item in values["tokens"]
    )
    return Hello(
        slot=document["slot"],
        region=document["region"],
        regions=document["regions"],
        is_patient=document["is_patient"],
        threads=document["threads"],
        cpus=tuple(document["cpus"]),
        objects_dir=Path(document["objects_dir"]),
        settings=Settings(**values),
    )


@dataclass(frozen=True, slots=True)
class Report:
    """Said only when ``generation`` holds in the worker. ``versions``: all of that target.

    ``unreleased``: what was unloaded since the last report, with the bytes that did not come back.
    """

    generation: int
    versions: Mapping[VersionKey, VersionReport]
    unreleased: Mapping[VersionKey, int] = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        """Return the JSON form that ``parse_report`` reads."""
        versions: list[Json] = [
            {"model": model, "version": version, **dataclasses.asdict(report)}
            for (model, version), report in self.versions.items()
        ]
        unreleased: list[Json] = [
            {"model": model, "version": version, "bytes": count}
            for (model, version), count in self.unreleased.items()
        ]
        return {
            "generation": self.generation, "versions": versions, "unreleased": unreleased,
        }  # fmt: skip


def parse_report(document: Mapping[str, Any]) -> Report:
    """Return a Report from its JSON form; raises KeyError or TypeError on a foreign one."""
    return Report(
        generation=int(document["generation"]),
        versions={
            (str(item["model"]), int(item["version"])): VersionReport(
                state=str(item["state"]),
                reason=str(item["reason"]),
                load_s=float(item["load_s"]),
                private_bytes=int(item["private_bytes"]),
                is_out_of_memory=bool(item["is_out_of_memory"]),
            )
            for item in document["versions"]
        },
        unreleased={
            (str(item["model"]), int(item["version"])): int(item["bytes"])
            for item in document["unreleased"]
        },
    )


def _settings_to_json(settings: Settings) -> JsonObject:
    values: JsonObject = dataclasses.asdict(settings)
    values["store"] = str(settings.store)
    return values
