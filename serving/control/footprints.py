"""What a version will hold in RAM, as far as that is known before its inspection."""

from __future__ import annotations

from collections.abc import Iterable

from models.servable import Inspection, parse_inspection
from models.weight_mode import FLOOR_BYTES, is_in_graph
from registry.desired import Key
from registry.errors import InvalidInput
from registry.packed import PackedEntry, PackedIndex
from registry.store import VersionRecord


class IndexedInspections:
    """What the index of packed weights says of a version, parsed once for each entry."""

    def __init__(self) -> None:
        self._sources: dict[Key, str] = {}
        self._parsed: dict[Key, tuple[PackedEntry, Inspection | None]] = {}

    def of(self, index: PackedIndex, record: VersionRecord) -> Inspection | None:
        """Return what was found of the version's content, None where nothing is kept for it."""
        key = (record.model, record.version)
        if key not in self._sources:
            self._sources[key] = record.manifest.content_digest
        entry = index.find(self._sources[key])
        if entry is None:
            return None
        parsed = self._parsed.get(key)
        if parsed is None or parsed[0] is not entry:
            parsed = self._parsed[key] = (entry, _parse(entry))
        return parsed[1]

    def forget(self, key: Key) -> None:
        """Let go of a version that was deleted."""
        self._sources.pop(key, None)
        self._parsed.pop(key, None)


def _parse(entry: PackedEntry) -> Inspection | None:
    try:
        return parse_inspection(entry.inspection)
    except (InvalidInput, KeyError, TypeError, ValueError):
        return None  # of another release: a load finds out anew


def objects_of(record: VersionRecord) -> dict[str, int]:
    """Return the graph and tensors of a version, digest to bytes.

    The manifest does not say how large its graph is; what is left of the disk space is it.
    """
    objects = {entry.digest: entry.size_bytes for entry in record.manifest.tensors}
    if record.manifest.graph not in objects:
        objects[record.manifest.graph] = max(0, record.disk_bytes - sum(objects.values()))
    return objects


def least_objects(record: VersionRecord, held: Iterable[VersionRecord]) -> dict[str, int]:
    """Return those objects that a version surely adds to what ``held`` versions have in RAM.

    A tensor that one of them has is in RAM in some form, packed or as it was published, and an
    inspection may find that this version reads the same form. A graph that all the weights stand
    in may be served in a format of the runtime that lies in no shared memory at all.
    """
    manifest = record.manifest
    present = {digest for other in held for digest in other.manifest.object_digests}
    objects = {d: size for d, size in objects_of(record).items() if d not in present}
    if is_in_graph(manifest.weight_bytes) and objects.get(manifest.graph, 0) > FLOOR_BYTES:
        del objects[manifest.graph]
    return objects
