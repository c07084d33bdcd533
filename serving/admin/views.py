"""What the admin plane shows, as JSON: models, versions, routes, memory, workers, health."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from registry.desired import Key
from registry.lifecycle import State
from registry.manifest import Json, JsonObject
from registry.model_state import ModelState
from registry.rollout import Route
from registry.store import VersionRecord
from serving.control.control_plane import ControlPlane
from serving.control.ledger import VersionMemory
from serving.control.residency import InRam
from serving.fleet import SERVING
from serving.settings import Settings

# Triton has no word for a version that failed: its reason says so.
TRITON_STATES: Final[Mapping[State, str]] = {
    State.UNLOADED: "UNAVAILABLE",
    State.LOADING: "LOADING",
    State.READY: "READY",
    State.DRAINING: "UNLOADING",
    State.FAILED: "UNAVAILABLE",
}


class AdminViews:
    """Reads the control plane; changes nothing."""

    def __init__(self, control: ControlPlane, settings: Settings) -> None:
        self._control = control
        self._settings = settings

    def models(self) -> JsonObject:
        """Return all models in order."""
        memory = self._control.ledger.versions()
        names = sorted(self._control.writer.records)
        return {"models": [self._model(name, memory) for name in names]}

    def model(self, name: str) -> JsonObject:
        """Return one model, or raise NotFound."""
        self._control.writer.versions(name)
        return self._model(name, self._control.ledger.versions())

    def version(self, name: str, version: int) -> JsonObject:
        """Return one version, or raise NotFound."""
        record = self._control.writer.record(name, version)
        return self._version(record, self._control.ledger.versions())

    def _model(self, name: str, memory: Mapping[Key, VersionMemory]) -> JsonObject:
        model = self._control.model(name)
        aliases: JsonObject = {a: entry.version for a, entry in sorted(model.aliases.items())}
        records = self._control.writer.versions(name).values()
        return {
            "name": name,
            "versions": [self._version(record, memory) for record in records],
            "aliases": aliases,
            "alias_etags": {a: entry.etag for a, entry in sorted(model.aliases.items())},
            "route": None if model.route is None else route_json(name, model.route),
            "settings": settings_json(model),
        }

    def _version(self, record: VersionRecord, memory: Mapping[Key, VersionMemory]) -> JsonObject:
        key = (record.model, record.version)
        manifest = record.manifest
        model = self._control.model(record.model)
        state, reason = self._control.status(*key)
        entry, route = model.loaded.get(record.version), model.route
        inspection = None
        signature = manifest.signature
        if entry is not None:
            inspection = self._control.writer.inspection(key, entry.inspection)
            signature = inspection.signature.to_json()
        aliases: list[Json] = [a for a, named in sorted(model.aliases.items())
                               if named.version == record.version]  # fmt: skip
        return {
            "model": record.model,
            "version": record.version,
            "state": state.value,
            "reason": reason,
            "digest": record.digest,
            "published": record.published,
            "created": manifest.created,
            "meta": manifest.meta,
            "source": manifest.source,
            "signature": signature,
            "runtime": manifest.runtime,
            "parity": manifest.parity,
            "aliases": aliases,
            "traffic": 0 if route is None else route.traffic.weight_of(record.version),
            "is_shadow": route is not None and record.version in route.traffic.shadow,
            "is_previous": route is not None and route.is_previous(record.version),
            "memory": _memory_json(
                memory.get(key) or self._control.ledger.at_rest(record),
                self._control.residency.of(key),
            ),
            "load_s": self._control.loads.load_s.get(key),
            "batching": None if inspection is None else {
                "allowed": inspection.is_batchable, "reason": inspection.batch_reason,
            },
            "weights": None if inspection is None else {
                "mode": inspection.mode, "reason": inspection.mode_reason,
            },
        }  # fmt: skip

    def memory(self) -> JsonObject:
        """Return the ledger: all that is reserved, in sum and by version."""
        ledger, residency = self._control.ledger, self._control.residency
        in_ram, last = residency.total(), ledger.last_unload
        committed = ledger.committed_bytes()
        versions: list[Json] = [
            {
                "model": key[0], "version": key[1], **_memory_json(item, residency.of(key)),
                "mode": item.mode, "mode_reason": item.mode_reason,
            }
            for key, item in ledger.versions().items()
        ]  # fmt: skip
        return {
            "budget_bytes": ledger.budget_bytes,
            "committed_bytes": committed,
            "over_bytes": max(0, committed - ledger.budget_bytes),
            "free_bytes": max(0, ledger.budget_bytes - committed),
            "unreleased_bytes": ledger.unreleased_bytes(),
            "last_unload": None if last is None else {
                "model": last.key[0], "version": last.key[1],
                "unreleased_bytes": last.unreleased_bytes, "reason": last.reason,
            },
            "resident_bytes": in_ram.resident_bytes,
            "locked_bytes": in_ram.locked_bytes,
            "workers": ledger.workers,
            "versions": versions,
        }  # fmt: skip

    def workers(self) -> JsonObject:
        """Return every worker slot."""
        workers: list[Json] = [
            {
                "slot": worker.slot,
                "pid": worker.pid,
                "state": worker.state,
                "generation": worker.generation,
                "cpus": list(worker.cpus),
                "restarts": worker.restarts,
                "reason": worker.reason,
                "memory_bytes": worker.memory_bytes,
            }
            for worker in self._control.workers()
        ]
        return {"workers": workers}

    def repository_index(self, *, is_ready_only: bool) -> list[Json]:
        """Return every version in Triton's form."""
        index: list[Json] = []
        for name in sorted(self._control.writer.records):
            for version in self._control.writer.versions(name):
                state, reason = self._control.status(name, version)
                if is_ready_only and state is not State.READY:
                    continue
                index.append({
                    "name": name,
                    "version": str(version),
                    "state": TRITON_STATES[state],
                    "reason": "" if state is State.READY else f"{state}: {reason}",
                })  # fmt: skip
        return index

    def readiness(self) -> tuple[bool, JsonObject]:
        """Return whether the server is ready, and the body that says why not and what FAILED."""
        failed: list[Json] = [
            {"model": name, "version": version, "reason": reason}
            for name, model in sorted(self._control.writer.state.models.items())
            for version, reason in sorted({**model.failed, **model.waiting}.items())
        ]
        reason = self._unready_reason(len(failed))
        body: JsonObject = {"ready": not reason, "failed": failed}
        if reason:
            body["error"] = reason
        return not reason, body

    def _unready_reason(self, failed: int) -> str:
        if not self._control.writer.is_restored:
            return "what was loaded before the start is still being loaded again"
        if not any(worker.state == SERVING for worker in self._control.workers()):
            return "no worker serves yet"
        if failed and self._settings.ready_requires == "all":
            return f"{failed} versions FAILED, and ready_requires is 'all'"
        return ""


def route_json(name: str, route: Route) -> JsonObject:
    """Return a route as users see it."""
    return {"model": name, **route.facts(), "etag": route.etag}


def settings_json(model: ModelState) -> JsonObject:
    """Return every setting of a model; null where the server's own holds."""
    return asdict(model.settings)


def _memory_json(memory: VersionMemory, in_ram: InRam | None) -> JsonObject:
    shared_with: list[Json] = [
        {"model": model, "version": version} for model, version in memory.shared_with
    ]
    return {
        "disk_bytes": memory.disk_bytes,
        "weight_bytes": memory.weight_bytes,
        "object_bytes": memory.object_bytes,
        "unique_bytes": memory.unique_bytes,
        "shared_bytes": memory.shared_bytes,
        "shared_with": shared_with,
        "private_bytes_per_worker": memory.private_bytes_per_worker,
        "private_bytes": memory.private_bytes,
        "resident_bytes": in_ram.resident_bytes if in_ram else 0,
        "locked_bytes": in_ram.locked_bytes if in_ram else 0,
    }
