"""The index of what was built for this machine: which packed objects stand in for which content.

Packed objects lie among all others; only this index knows them. It is a cache: an entry that is
damaged, or that another machine, runtime or number of threads made, counts as not there, and what
it named is built again from the version, which alone is the truth.

An entry also says of each tensor which object stands in for it, so that another version which has
that tensor need not pack it again; and of which shape its graph is, so that what was measured of
one version holds for its like.
Thread-safe.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from registry.documents import read_document, write_document
from registry.errors import Corrupt, InvalidInput
from registry.files import Files, discard, disk_errors
from registry.ident import check_digest, digest_hex
from registry.manifest import JsonObject

_ENTRY_NAME: Final = re.compile(r"([0-9a-f]{64})\.json")
_WHAT: Final = "the index of packed weights"


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """Which object stands in for one tensor where nodes use it in one way.

    ``use``: a hash of the tensor's bytes and of all that decides what kernels make of them.
    ``source``: digest of the tensor's own bytes. ``object``: digest of the object. ``names``: how a
    packed graph finds the tensor and its blobs in there. ``served_bytes``: what serving reads of
    the object, from its start.
    """

    use: str
    source: str
    object: str
    names: Mapping[str, str]
    served_bytes: int

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {
            "use": self.use, "source": self.source, "object": self.object,
            "names": dict(self.names), "served_bytes": self.served_bytes,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class PackedEntry:
    """What was found and built for one content, the same under any name.

    ``source``: ``Manifest.content_digest``. ``environment``: all else that the result depends on.
    ``objects``: digests of what was built (none where packing did not pay). ``inspection``: what
    the models layer found. ``shape``: a hash of the graph and of its tensors' shapes, without their
    values; empty where it was not looked at. ``tensors``: what stands in for each tensor.
    """

    source: str
    environment: str
    objects: tuple[str, ...]
    inspection: JsonObject
    shape: str = ""
    tensors: tuple[PackedTensor, ...] = ()


class PackedIndex:
    """The entries of one store: one sealed document each, named by the content."""

    def __init__(self, folder: Path, temporary_dir: Path, files: Files) -> None:
        self._folder = folder
        self._temporary_dir = temporary_dir
        self._files = files
        self._lock = threading.Lock()
        # That of this process; set by what builds and looks entries up, empty where nothing does.
        self.environment = ""
        self._entries = _read(folder)
        self._uses: Counter[str] = Counter(
            digest for entry in self._entries.values() for digest in entry.objects
        )

    def find(self, source: str) -> PackedEntry | None:
        """Return the entry of a content, None where there is none that holds here and now."""
        entry = self._entries.get(source)
        is_ours = entry is not None and entry.environment == self.environment
        return entry if is_ours else None

    def of_shape(self, shape: str) -> tuple[PackedEntry, ...]:
        """Return the entries that hold here and now of graphs of this shape, the newest first."""
        entries = tuple(self._entries.values())
        return tuple(
            entry
            for entry in reversed(entries)
            if shape and entry.shape == shape and entry.environment == self.environment
        )

    def tensors_of(self, sources: Collection[str]) -> tuple[PackedTensor, ...]:
        """Return what stands in for tensors of these digests, one for each way of using them.

        With them comes what was made of tensors that the runtime had computed, of versions that
        have one of the digests: what it computes of equal tensors is equal, too.
        """
        found: dict[str, PackedTensor] = {}
        for entry in tuple(self._entries.values()):
            if entry.environment != self.environment:
                continue
            if any(tensor.source in sources for tensor in entry.tensors):
                found |= {tensor.use: tensor for tensor in entry.tensors}
        return tuple(found.values())

    def add(self, entry: PackedEntry) -> None:
        """Keep an entry in the place of an older one of the same content.

        Raises StoreFull or StoreFailed; the entry then holds until the process ends.
        """
        with self._lock:
            before = self._entries.get(entry.source)
            # In use before it is on the disk, so that no collection takes the objects in between.
            self._uses.update(entry.objects)
            self._entries = {**self._entries, entry.source: entry}
            if before is not None:
                self._forget_uses(before)
            document: JsonObject = {
                "source": entry.source,
                "environment": entry.environment,
                "objects": list(entry.objects),
                "inspection": entry.inspection,
                "shape": entry.shape,
                "tensors": [tensor.to_json() for tensor in entry.tensors],
            }
            write_document(
                self._files, self._temporary_dir, self._path(entry.source), document, _WHAT
            )

    def drop(self, sources: Collection[str]) -> None:
        """Drop every entry whose content is not in ``sources``, or of another environment."""
        with self._lock, disk_errors(f"clean {_WHAT}"):
            stale = [
                entry
                for entry in self._entries.values()
                if entry.source not in sources
                or (self.environment and entry.environment != self.environment)
            ]
            for entry in stale:
                with suppress(FileNotFoundError):
                    self._files.unlink(self._path(entry.source))
                self._entries = {k: v for k, v in self._entries.items() if k != entry.source}
                self._forget_uses(entry)
            for name in _names(self._folder):
                if "sha256:" + name not in self._entries:
                    discard(self._files, self._folder / f"{name}.json")
            # Not synced: an entry that comes back after a power cut is stale again.

    def is_used(self, digest: str) -> bool:
        """Tell whether an entry needs the object."""
        return self._uses[digest] > 0

    def used_digests(self) -> tuple[str, ...]:
        """Return every object that an entry needs, in order."""
        return tuple(sorted(digest for digest, uses in self._uses.copy().items() if uses > 0))

    def _forget_uses(self, entry: PackedEntry) -> None:
        self._uses.subtract(entry.objects)
        for digest in entry.objects:
            if self._uses[digest] <= 0:
                del self._uses[digest]

    def _path(self, source: str) -> Path:
        return self._folder / f"{digest_hex(source)}.json"


def _names(folder: Path) -> list[str]:
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return []  # a store of an older release that is only looked at
    return sorted(match[1] for name in names if (match := _ENTRY_NAME.fullmatch(name)))


def _read(folder: Path) -> Mapping[str, PackedEntry]:
    entries = {}
    with disk_errors(f"read {_WHAT}"):
        names = _names(folder)
    for name in names:
        with suppress(Corrupt, InvalidInput):
            document = read_document(folder / f"{name}.json", _WHAT)
            entry = None if document is None else _parse(document)
            if entry is not None and entry.source == "sha256:" + name:
                entries[entry.source] = entry
    return entries


def _parse(document: JsonObject) -> PackedEntry | None:
    match document:
        case {
            "source": str(source),
            "environment": str(environment),
            "objects": list(objects),
            "inspection": dict(inspection),
        }:
            digests = tuple(check_digest(digest) for digest in objects)
            shape, items = document.get("shape"), document.get("tensors")
            return PackedEntry(
                check_digest(source),
                environment,
                digests,
                inspection,
                shape if isinstance(shape, str) else "",
                # Not there in what an older release wrote: nothing of it is used again then.
                tuple(map(parse_packed_tensor, items if isinstance(items, list) else [])),
            )
    return None


def parse_packed_tensor(document: object) -> PackedTensor:
    """Return a PackedTensor from its JSON form, or raise InvalidInput."""
    match document:
        case {
            "use": str(use),
            "source": str(source),
            "object": str(digest),
            "names": dict(names),
            "served_bytes": int(served_bytes),
        } if served_bytes >= 0:
            named = {str(key): str(value) for key, value in names.items()}
            return PackedTensor(
                use, check_digest(source), check_digest(digest), named, served_bytes
            )
    raise InvalidInput("what stands in for a tensor is not described properly")
