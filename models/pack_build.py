"""Taking what the child packed into the store: hashed on the way, and believed in nothing else.

The child had opened a graph that somebody pushed. What it says of a tensor is checked before other
versions may use it: the object holds the tensor's own bytes where graphs will look for them, and
the runtime itself compares the blobs before them at each load.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from models.child import NO_ANSWER
from models.errors import LoadFailed
from models.packed_object import PackedObject, Part, digest_of, parse_packed_object
from models.servable import Inspection
from models.weight_mode import MIB
from registry.errors import Corrupt, InvalidInput, RegistryError, StoreFull
from registry.ident import check_digest
from registry.manifest import JsonObject
from registry.packed import PackedTensor, parse_packed_tensor
from registry.store import Store

if TYPE_CHECKING:
    from models.trial import Trial

# What packing writes, at most, for each byte of weights: the runtime's file, then the objects.
FILE_FACTOR: Final = 4
_ROOM_FACTOR: Final = 4
_FILLED: Final = "the store's disk ran full while the runtime wrote the packed weights"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Built:
    """What stands in for a version: a graph, all objects it needs, what serving reads of them.

    ``tensors``: which of them for which tensor. ``has_reused``: some were made for another version.
    """

    graph: str
    digests: tuple[str, ...]
    resident: Mapping[str, int]
    tensors: tuple[PackedTensor, ...] = ()
    is_compact: bool = False
    has_reused: bool = False

    def to_json(self) -> JsonObject:
        """Return the part of a question that names it."""
        return {
            "packed_graph": self.graph,
            "packed_objects": [*self.resident],
            "packed_bytes": 2 * sum(self.resident.values()) + 64 * MIB,
        }

    def opened_by(self, found: Inspection) -> Inspection:
        """Return what workers are told, who open this instead of the version."""
        mode = "private" if self.is_compact else "packed"
        return replace(found, mode=mode, graph=self.graph, resident=self.resident)


NOTHING: Final = Built("", (), {})


class _NoRoom(StoreFull):
    """Says how many bytes packing needs, and how many are free."""


class Builder:
    """Has one version packed. ``source_bytes``: its weights and its graph."""

    def __init__(self, store: Store, trial: Trial, source_bytes: int) -> None:
        self._store = store
        self._trial = trial
        self._source_bytes = source_bytes
        self._published = {entry.digest: entry.size_bytes for entry in trial.manifest.tensors}

    def packed(self, known: Sequence[PackedTensor]) -> tuple[Built, str]:
        """Return what was packed, or why nothing was: no reason for a version not to load.

        ``known``: what was packed for other versions and may be used again.
        """
        return self._try(known, is_compact=False)

    def compacted(self) -> tuple[Built, str]:
        """Return the graph in the runtime's own format, or why there is none."""
        return self._try((), is_compact=True)

    def _try(self, known: Sequence[PackedTensor], *, is_compact: bool) -> tuple[Built, str]:
        try:
            return self._build(known, is_compact=is_compact), ""
        except StoreFull as error:
            return NOTHING, f"no room to pack: {error}"
        except (LoadFailed, RegistryError) as error:
            self._trial.check_cancelled(error)
            return NOTHING, f"packing failed: {error}"
        except OSError as error:
            return NOTHING, f"packing failed: {os.strerror(error.errno or 0)}"

    def _build(self, known: Sequence[PackedTensor], *, is_compact: bool) -> Built:
        """Let the child pack, and take what it made into the store. Raises also RegistryError."""
        needs_bytes = self._check_room(known)
        with self._store.scratch(2) as paths:
            try:
                return self._taken_in(known, *paths, is_compact=is_compact)
            except (LoadFailed, StoreFull, OSError) as error:
                # While what was written is there: it is what filled the disk.
                raise self._reason(error, needs_bytes, paths) from error

    def _taken_in(
        self, known: Sequence[PackedTensor], graph_path: Path, data_path: Path, *, is_compact: bool
    ) -> Built:
        found = self._trial.ask({
            "task": "pack", "is_compact": is_compact,
            "graph_path": str(graph_path), "data_path": str(data_path),
            "known": [tensor.to_json() for tensor in known],
        })  # fmt: skip
        try:
            answer = _Answer.of(found)
        except (KeyError, TypeError, ValueError, InvalidInput):
            raise LoadFailed(NO_ANSWER) from None
        reused = [tensor for tensor in known if tensor.use in answer.reused]
        if damaged := self._damaged(reused):
            intact = [tensor for tensor in known if tensor.object not in damaged]
            return self._build(intact, is_compact=is_compact)
        resident = self._checked_resident(answer, reused)
        if answer.objects:
            with data_path.open("rb") as data:
                for item in answer.objects:
                    self._keep(item, data.fileno())
                tensors = self._checked(answer, data.fileno())
        else:
            tensors = self._checked(answer, -1)
        digest, graph_bytes = self._keep_graph(graph_path)
        # Read at a load only, as the graph of any version that holds its weights itself.
        resident[digest] = 0 if is_compact else graph_bytes
        made = (digest, *(item.digest for item in answer.objects))
        shared = (each.object for each in reused if each.object not in self._published)
        return Built(
            digest, tuple(dict.fromkeys((*made, *shared))), resident, (*tensors, *reused),
            is_compact=is_compact, has_reused=bool(reused),
        )  # fmt: skip

    def _check_room(self, known: Iterable[PackedTensor]) -> int:
        """Return what packing may need of the disk; raises StoreFull where less is free."""
        there = {tensor.source for tensor in known}
        shared = sum(size for digest, size in self._published.items() if digest in there)
        needs, room = _ROOM_FACTOR * (self._source_bytes - shared), self._store.room_bytes()
        if needs > room:
            raise _NoRoom(f"it needs up to {needs} bytes of disk, {room} are free")
        return needs

    def _reason(
        self, error: LoadFailed | StoreFull | OSError, needs_bytes: int, paths: Iterable[Path]
    ) -> Exception:
        """Return what to tell of an error; of what a full disk led to, that it is full."""
        if isinstance(error, _NoRoom):
            return error
        self._trial.check_cancelled(error)
        room = self._store.room_bytes()
        if room and not isinstance(error, StoreFull):
            return error
        what = str(error) if isinstance(error, StoreFull) else _FILLED
        written = sum(path.stat().st_size for path in paths if path.exists())
        return _NoRoom(
            f"{what}; packing had written {written} bytes of up to {needs_bytes} that it needs, "
            f"{room} are free"
        )

    def _damaged(self, reused: Iterable[PackedTensor]) -> set[str]:
        """Keep objects of other versions from ``gc``; return those that are not intact."""
        damaged = set()
        for digest in sorted({tensor.object for tensor in reused}):
            try:
                if self._store.object_size(digest) is None:
                    raise Corrupt(f"object {digest} is missing")
                self._store.verify_objects([digest])
            except Corrupt as error:
                _log.warning("packed weights are not shared: %s", error)
                damaged.add(digest)
        return damaged

    def _keep_graph(self, path: Path) -> tuple[str, int]:
        """Store the graph that the child wrote; return its digest and size.

        In pieces: a graph of trees is as large as they are.
        """
        with path.open("rb") as file:
            parts = (Part(0, 0, os.fstat(file.fileno()).st_size),)
            item = PackedObject(digest_of(file.fileno(), parts), parts)
            self._keep(item, file.fileno())
        return item.digest, item.size_bytes

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
                self._trial.check_cancelled(LoadFailed("the inspection was cancelled"))
                upload.write(chunk)
            upload.commit()

    def _checked(self, answer: _Answer, descriptor: int) -> tuple[PackedTensor, ...]:
        """Return what the child says of tensors, or raise LoadFailed where that is not so."""
        made = {item.digest: item.parts[-1] for item in answer.objects if item.parts}
        for tensor in answer.tensors:
            if tensor.object in made:
                last = made[tensor.object]
                source = digest_of(descriptor, (Part(0, last.offset, last.size_bytes),))
            else:
                last = Part(0, 0, self._published.get(tensor.object, -1))
                source = tensor.object
            stands = {"offset": str(last.start), "length": str(last.size_bytes)}
            if tensor.source != source or not stands.items() <= tensor.names.items():
                raise LoadFailed(
                    f"the inspection process says that object {tensor.object} holds tensor "
                    f"{tensor.source}, which it does not"
                )
        return answer.tensors

    def _checked_resident(self, answer: _Answer, reused: Iterable[PackedTensor]) -> dict[str, int]:
        """Raise LoadFailed where the child counts what is not there: the budget is made of this."""
        sizes = self._published | {item.digest: item.size_bytes for item in answer.objects}
        sizes |= {each.object: self._store.object_size(each.object) or 0 for each in reused}
        for digest, count in answer.resident.items():
            if not 0 <= count <= sizes.get(digest, -1):
                raise LoadFailed(f"the inspection process counts {count} bytes of object {digest}")
        return dict(answer.resident)


@dataclass(frozen=True, slots=True)
class _Answer:
    objects: tuple[PackedObject, ...]
    resident: Mapping[str, int]
    tensors: tuple[PackedTensor, ...]
    reused: frozenset[str]

    @classmethod
    def of(cls, found: JsonObject) -> _Answer:
        """Return it parsed; raises KeyError, TypeError, ValueError, InvalidInput or LoadFailed."""
        objects, resident = found["objects"], found["resident"]
        tensors, reused = found["tensors"], found["reused"]
        if not (
            isinstance(objects, list)
            and isinstance(resident, dict)
            and isinstance(tensors, list)
            and isinstance(reused, list)
        ):
            raise TypeError("not what the child describes")
        return cls(
            tuple(map(parse_packed_object, objects)),
            {check_digest(digest): int(str(count)) for digest, count in resident.items()},
            tuple(map(parse_packed_tensor, tensors)),
            frozenset(map(str, reused)),
        )
