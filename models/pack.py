"""How workers hold a version's weights: mapped as they are, packed once for all, or each its own.

A kernel that wants weights in another order copies them, in each worker and for each version. So
what it would copy is written to the store once and mapped by all, where measuring shows that this
saves memory and costs no time. Packed objects depend on the processor and on the runtime: they are
a cache, built anew from the version whenever they are missing, damaged or of another machine.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Final

from models.child import InspectionChild
from models.computed import engine_name, is_onnx
from models.errors import LoadFailed
from models.inspect import check_private_bytes
from models.pack_build import FILE_FACTOR, NOTHING, Builder, Built
from models.servable import Inspection, parse_inspection
from models.trial import Trial
from models.weight_mode import (
    MAX_LEFT,
    MIB,
    Choice,
    Measured,
    choose,
    choose_compact,
    is_in_graph,
    least_of,
    reason_not_to_pack,
    without_close,
)
from registry.errors import Corrupt, InvalidInput, RegistryError
from registry.ident import digest_hex
from registry.manifest import Manifest
from registry.packed import PackedEntry, PackedTensor
from registry.store import Store

# Raised whenever what is packed, measured or chosen changes, so that nothing older is used.
FORMAT: Final = 2
# Of the largest value, between kernels that pack and kernels that do not. They add in another
# order, through all layers; with weights that are not the right ones it is the values themselves.
MAX_DIFFERENCE: Final = 1e-3
# How often all forms are timed before a little time decides against one that saves the memory.
MAX_MEASURED: Final = 3
_LIKE: Final = "as measured for another version of the same graph with tensors of the same shapes"
_CPU_INFO: Final = Path("/proc/cpuinfo")
_log = logging.getLogger(__name__)


def environment(threads: int) -> str:
    """Return all that packed weights depend on beside the version: runtime, processor, threads."""
    runtime = installed_version("onnxruntime")
    kernel = f"{platform.machine()}, instructions {_instructions(_read_cpu_info())}"
    return f"form {FORMAT}, onnxruntime {runtime}, {kernel}, {threads} threads"


@dataclass(frozen=True, slots=True)
class Found:
    """``is_lasting``: another try on this machine would find the same.

    ``is_close``: so little time decided against a form that another try may find otherwise.
    """

    inspection: Inspection
    built: Built = NOTHING
    is_lasting: bool = True
    is_close: bool = False
    shape: str = ""


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
        if found.is_lasting and not found.is_close:
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

    def _remember(self, manifest: Manifest, found: Found) -> None:
        built = found.built
        entry = PackedEntry(
            manifest.content_digest, self._environment, built.digests, found.inspection.to_json(),
            found.shape, built.tensors,
        )  # fmt: skip
        try:
            self._store.packed.add(entry)
        except RegistryError as error:
            _log.warning("what was found out is not kept for the next start: %s", error)
            return
        self._store.release_objects(built.digests)

    def _find_out(self, manifest: Manifest, memory_bytes: int) -> Found:
        source_bytes = manifest.weight_bytes + self._graph_bytes(manifest)
        # The plain session copies weights that nothing else has mapped yet.
        most, until_s = memory_bytes + manifest.weight_bytes, time.monotonic() + self._timeout_s
        with InspectionChild(
            manifest, self._objects_dir, self._cancelled, FILE_FACTOR * source_bytes + 64 * MIB
        ) as child:
            trial = Trial(manifest, child, most, until_s, self._threads, self._cancelled)
            if not is_onnx(manifest):
                library = engine_name(manifest)
                why = "OpenVINO" if library == "openvino" else "its own library"
                found = replace(trial.inspect(), mode="private", mode_reason=f"computed by {why}")
                # Another release of that library may find otherwise; no environment names it.
                return Found(found, is_lasting=False)
            builder = Builder(self._store, trial, source_bytes)
            if is_in_graph(manifest.weight_bytes):
                return self._of_graph(trial, builder)
            shape = trial.shape()
            # Of texts only the whole is asked, tokenizer and encoder, and never one beside another.
            is_alone = manifest.runtime["name"] != "onnx"
            like = None if is_alone else self._as_its_like(trial, builder, shape)
            return replace(like or self._of_tensors(trial, builder), shape=shape)

    def _graph_bytes(self, manifest: Manifest) -> int:
        # Not by the store's own question: that would keep a refused graph from ``gc`` for a while.
        try:
            return (self._objects_dir / digest_hex(manifest.graph)).lstat().st_size
        except FileNotFoundError:
            return 0

    def _of_graph(self, trial: Trial, builder: Builder) -> Found:
        """Find out how to hold weights that stand in the graph itself."""
        plain = trial.inspect()
        if choice := reason_not_to_pack(trial.manifest.weight_bytes, plain.private_bytes):
            return Found(replace(plain, mode=choice.mode, mode_reason=choice.text))
        return self._measured(trial, plain, *builder.compacted(), choose_compact)

    def _of_tensors(self, trial: Trial, builder: Builder) -> Found:
        """Find out how to hold a version, from nothing but itself."""
        plain = trial.inspect()
        if choice := reason_not_to_pack(trial.manifest.weight_bytes, plain.private_bytes):
            return Found(replace(plain, mode=choice.mode, mode_reason=choice.text))
        built, why_not = builder.packed(self._known(trial.manifest))
        found = self._measured(trial, plain, built, why_not, choose)
        if built.has_reused and not found.is_lasting:
            # Something that was packed for another version does not fit after all.
            found = self._measured(trial, plain, *builder.packed(()), choose)
        return found

    def _measured(
        self,
        trial: Trial,
        plain: Inspection,
        built: Built,
        why_not: str,
        choose_form: Callable[[Mapping[str, Measured], str], Choice],
    ) -> Found:
        def decide(measured: Mapping[str, Measured]) -> Choice:
            return choose_form(measured, why_not)

        def is_close(measured: Mapping[str, Measured]) -> bool:
            lenient = decide(without_close(measured))
            return decide(measured).mode == "private" != lenient.mode

        try:
            measured = _compared(trial, built, is_close)
        except LoadFailed as error:
            trial.check_cancelled(error)
            reason = why_not or f"its forms could not be compared: {error}"
            return Found(replace(plain, mode_reason=reason), is_lasting=False)
        choice, close = decide(measured), is_close(measured)
        if choice.mode == "mapped":
            plain = trial.inspect(has_prepacking=False)
        text = f"{choice.text}, which the next load measures again" if close else choice.text
        found = replace(plain, mode=choice.mode, mode_reason=text)
        if choice.mode != "packed":
            return Found(found, is_lasting=not why_not, is_close=close)
        form = measured["packed"]
        found = replace(found, load_s=form.load_s, private_bytes=form.private_bytes)
        return Found(built.opened_by(found), built)

    def _as_its_like(self, trial: Trial, builder: Builder, shape: str) -> Found | None:
        """Return what holds for a version of a graph that was measured with other weights.

        None where there is none such, or where it does not hold: then all is measured. That nothing
        pays is never taken over, for it may have been the hour.
        """
        content = trial.manifest.content_digest
        for entry in self._store.packed.of_shape(shape):
            mode, has_prepacking = entry.inspection["mode"], entry.inspection["has_prepacking"]
            # Its own entry is of no use any more, but what was measured for it is.
            reason = str(entry.inspection["mode_reason"]) if entry.source == content else _LIKE
            try:
                if mode == "packed":
                    return self._packed_as_its_like(trial, builder, reason)
                if mode == "mapped" and not has_prepacking:
                    plain = trial.inspect(has_prepacking=False)
                    return Found(replace(plain, mode="mapped", mode_reason=reason))
            except LoadFailed as error:
                trial.check_cancelled(error)
                _log.warning("a version is measured although its like was: %s", error)
                return None
        return None

    def _packed_as_its_like(self, trial: Trial, builder: Builder, reason: str) -> Found:
        built, why_not = builder.packed(self._known(trial.manifest))
        if why_not:
            raise LoadFailed(why_not)
        found, difference = trial.inspect_packed(built)
        if found.private_bytes > MAX_LEFT * sum(built.resident.values()):
            raise LoadFailed("the runtime does not use what was packed")
        if not difference <= MAX_DIFFERENCE:
            raise LoadFailed(f"packed answers differently, by {difference:.1g}")
        return Found(built.opened_by(replace(found, mode_reason=reason)), built)

    def _known(self, manifest: Manifest) -> tuple[PackedTensor, ...]:
        return self._store.packed.tensors_of({entry.digest for entry in manifest.tensors})


def _compared(
    trial: Trial, built: Built, is_close: Callable[[Mapping[str, Measured]], bool]
) -> Mapping[str, Measured]:
    """Return what each form takes, timed again while a little time would decide."""
    measured = trial.compare(built)
    for _ in range(MAX_MEASURED - 1):
        if not is_close(measured):
            break
        try:
            measured = least_of(measured, trial.compare(built))
        except LoadFailed as error:
            trial.check_cancelled(error)
            break
    return measured


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
