"""How workers hold a version's weights: mapped as they are, packed once for all, or each its own.

A kernel that wants weights in another order copies them, in each worker and for each version. So
what it would copy is written to the store once and mapped by all, where measuring shows that this
saves memory and costs no time. Packed objects depend on the processor and on the runtime: they are
a cache, built anew from the version whenever they are missing, damaged or of another machine.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Final

from models.errors import LoadFailed
from models.inspect import Limits, ask_child, check_private_bytes, inspect_version
from models.packed_object import PackedObject, parse_packed_object
from models.servable import Inspection, parse_inspection
from models.text_form import engine_name, is_onnx
from models.weight_mode import (
    MIB,
    Measured,
    choose,
    choose_compact,
    is_in_graph,
    parse_measured,
    reason_not_to_pack,
)
from registry.errors import Corrupt, InvalidInput, RegistryError, StoreFull
from registry.ident import check_digest
from registry.manifest import JsonObject, Manifest
from registry.packed import PackedEntry
from registry.store import Store

# Raised whenever what is packed, measured or chosen changes, so that nothing older is used.
FORMAT: Final = 1
# What packing writes, at most, for each byte of weights: the runtime's file, then the objects.
_FILE_FACTOR: Final = 4
_ROOM_FACTOR: Final = 4
_CPU_INFO: Final = Path("/proc/cpuinfo")
_log = logging.getLogger(__name__)


def environment(threads: int) -> str:
    """Return all that packed weights depend on beside the version: runtime, processor, threads."""
    runtime = installed_version("onnxruntime")
    kernel = f"{platform.machine()}, instructions {_instructions(_read_cpu_info())}"
    return f"form {FORMAT}, onnxruntime {runtime}, {kernel}, {threads} threads"


class VersionInspector:
    """Inspects versions, packs their weights where that pays, and remembers both.

    Blocking; for any thread, and for several at once: what they build is named by its content.
    """

    def __init__(
        self,
        store: Store,
        threads: int,
        timeout_s: float,
        cancelled: threading.Event | None = None,
    ) -> None:
        self._store = store
        self._objects_dir = store.objects_dir.resolve()
        self._threads = threads
        self._timeout_s = timeout_s
        self._cancelled = cancelled or threading.Event()
        self._environment = store.packed.environment = environment(threads)

    def __call__(self, manifest: Manifest, memory_bytes: int) -> Inspection:
        """Return what is known or found out of a version whose objects are intact.

        ``memory_bytes``: private memory that it may take. Raises LoadFailed.
        """
        inspection = self._remembered(manifest)
        if inspection is not None:
            check_private_bytes(inspection, memory_bytes)
            return inspection
        found = self._find_out(manifest, memory_bytes)
        check_private_bytes(found.inspection, memory_bytes)
        if found.is_lasting:
            self._remember(manifest, found)
        return found.inspection

    def _remembered(self, manifest: Manifest) -> Inspection | None:
        entry = self._store.packed.find(manifest.content_digest)
        if entry is None:
            return None
        try:
            self._store.verify_objects(entry.objects)
            return parse_inspection(entry.inspection)
        except (Corrupt, InvalidInput, KeyError, TypeError, ValueError) as error:
            _log.warning("weights are packed anew: %s", error)
            return None

    def _remember(self, manifest: Manifest, found: _Found) -> None:
        source, document = manifest.content_digest, found.inspection.to_json()
        try:
            self._store.packed.add(PackedEntry(source, self._environment, found.objects, document))
        except RegistryError as error:
            _log.warning("what was found out is not kept for the next start: %s", error)
            return
        self._store.release_objects(found.objects)

    def _find_out(self, manifest: Manifest, memory_bytes: int) -> _Found:
        deadline = time.monotonic() + self._timeout_s

        def limits() -> Limits:
            # The plain session copies weights that nothing else has mapped yet.
            most = memory_bytes + manifest.weight_bytes
            return Limits(most, max(1.0, deadline - time.monotonic()), self._threads)

        plain = inspect_version(manifest, self._objects_dir, limits(), self._cancelled)
        if not is_onnx(manifest):
            library = engine_name(manifest)
            why = "computed by OpenVINO" if library == "openvino" else "computed by its own library"
            found = replace(plain, mode="private", mode_reason=why)
            # Another release of that library may find otherwise, and no environment names it.
            return _Found(found, is_lasting=False)
        if choice := reason_not_to_pack(manifest.weight_bytes, plain.private_bytes):
            return _Found(replace(plain, mode=choice.mode, mode_reason=choice.text))
        is_compact = is_in_graph(manifest.weight_bytes)
        built, why_not = self._try_to_build(manifest, limits(), is_compact=is_compact)
        try:
            measured = self._compare(manifest, built, limits())
        except LoadFailed as error:
            self._check_cancelled(error)
            reason = why_not or f"its forms could not be compared: {error}"
            return _Found(replace(plain, mode_reason=reason), is_lasting=False)
        choice = (choose_compact if is_compact else choose)(measured, why_not)
        if choice.mode == "mapped":
            plain = inspect_version(
                manifest, self._objects_dir, limits(), self._cancelled, has_prepacking=False
            )
        found = replace(plain, mode=choice.mode, mode_reason=choice.text)
        if choice.mode == "packed":
            form = measured["packed"]
            found = replace(
                found,
                mode="private" if is_compact else "packed",
                graph=built.graph,
                resident=built.resident,
                load_s=form.load_s,
                private_bytes=form.private_bytes,
            )
            return _Found(found, built.digests)
        return _Found(found, is_lasting=not why_not)

    def _try_to_build(
        self, manifest: Manifest, limits: Limits, *, is_compact: bool
    ) -> tuple[_Built, str]:
        """Return what was packed, or why nothing was: no reason for a version not to load."""
        try:
            return self._build(manifest, limits, is_compact=is_compact), ""
        except StoreFull as error:
            return _NOTHING, f"no room to pack: {error}"
        except (LoadFailed, RegistryError) as error:
            self._check_cancelled(error)
            return _NOTHING, f"packing failed: {error}"
        except OSError as error:
            return _NOTHING, f"packing failed: {os.strerror(error.errno or 0)}"

    def _check_cancelled(self, error: Exception) -> None:
        if self._cancelled.is_set():
            raise error

    def _build(self, manifest: Manifest, limits: Limits, *, is_compact: bool) -> _Built:
        """Let a child pack, and take what it made into the store. Raises also RegistryError."""
        graph_bytes = self._store.object_size(manifest.graph) or 0
        source_bytes = manifest.weight_bytes + graph_bytes
        needs, room = _ROOM_FACTOR * source_bytes, self._store.room_bytes()
        if needs > room:
            raise StoreFull(f"it needs up to {needs} bytes of disk, {room} are free")
        with self._store.scratch(2) as (graph_path, data_path):
            request: JsonObject = {
                "task": "pack", "is_compact": is_compact,
                "graph_path": str(graph_path), "data_path": str(data_path),
            }  # fmt: skip
            file_bytes = _FILE_FACTOR * source_bytes + 64 * MIB
            found = ask_child(
                request, manifest, self._objects_dir, limits, self._cancelled, file_bytes
            )
            try:
                objects, resident = _described(found)
            except (KeyError, TypeError, ValueError, InvalidInput):
                raise LoadFailed("the inspection process gave no proper answer") from None
            _check_resident(resident, objects, manifest)
            graph = graph_path.read_bytes()
            with data_path.open("rb") as data:
                for item in objects:
                    self._keep(item, data.fileno())
        digest = "sha256:" + hashlib.sha256(graph).hexdigest()
        with self._store.begin_upload(digest, len(graph)) as upload:
            upload.write(graph)
            upload.commit()
        # Read at a load only, as the graph of any version that holds its weights itself.
        resident[digest] = 0 if is_compact else len(graph)
        return _Built(digest, (digest, *(item.digest for item in objects)), resident)

    def _keep(self, item: PackedObject, descriptor: int) -> None:
        """Store an object unless it is there and intact; a version that shares it is why."""
        if self._store.object_size(item.digest) is not None:
            try:
                self._store.verify_objects([item.digest])
            except Corrupt:
                _log.warning("packed object %s is damaged and is stored again", item.digest)
            else:
                return
        with self._store.begin_upload(item.digest, item.size_bytes) as upload:
            for chunk in item.chunks(descriptor):
                if self._cancelled.is_set():
                    raise LoadFailed("the inspection was cancelled")
                upload.write(chunk)
            upload.commit()

    def _compare(self, manifest: Manifest, built: _Built, limits: Limits) -> Mapping[str, Measured]:
        request: JsonObject = {
            "task": "compare",
            "packed_graph": built.graph,
            "packed_objects": [*built.resident],
            "packed_bytes": 2 * sum(built.resident.values()) + 64 * MIB,
        }
        found = ask_child(request, manifest, self._objects_dir, limits, self._cancelled)
        try:
            return {
                name: parse_measured(item)
                for name, item in found.items()
                if name != "packed" or built.graph
            }
        except (KeyError, TypeError, ValueError, AttributeError):
            raise LoadFailed("the inspection process gave no proper answer") from None


@dataclass(frozen=True, slots=True)
class _Built:
    graph: str
    digests: tuple[str, ...]
    resident: Mapping[str, int]


_NOTHING: Final = _Built("", (), {})


@dataclass(frozen=True, slots=True)
class _Found:
    """``is_lasting``: another try on this machine would find the same."""

    inspection: Inspection
    objects: tuple[str, ...] = ()
    is_lasting: bool = True


def _described(found: JsonObject) -> tuple[list[PackedObject], dict[str, int]]:
    objects, resident = found["objects"], found["resident"]
    if not isinstance(objects, list) or not isinstance(resident, dict):
        raise TypeError("not what the child describes")
    return (
        [parse_packed_object(item) for item in objects],
        {check_digest(digest): int(str(count)) for digest, count in resident.items()},
    )


def _check_resident(
    resident: Mapping[str, int], objects: Sequence[PackedObject], manifest: Manifest
) -> None:
    """Raise LoadFailed where the child counts what is not there: the budget is made of this."""
    sizes = {entry.digest: entry.size_bytes for entry in manifest.tensors}
    sizes |= {item.digest: item.size_bytes for item in objects}
    for digest, count in resident.items():
        if not 0 <= count <= sizes.get(digest, -1):
            raise LoadFailed(f"the inspection process counts {count} bytes of object {digest}")


def _read_cpu_info() -> str:
    try:
        return _CPU_INFO.read_text()
    except OSError:
        return platform.processor()


def _instructions(cpu_info: str) -> str:
    """Return a name for the processor's instruction set: its model and flags, not its clock."""
    kept = ("flags", "features", "model name", "vendor_id", "cpu part", "cpu implementer")
    lines = {line for line in cpu_info.splitlines() if line.lower().startswith(kept)}
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]
