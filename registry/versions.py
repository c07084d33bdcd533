"""The versions of all models: one sealed record each, numbers that are never given twice.

Guarantees:
1. A version is listed only once its record is on the disk, and then it never changes.
2. The highest number is made durable before the record that carried it goes, so that no number
   comes back, through any crash.
3. ``is_used`` says yes for every object of a record that may still be on the disk.
Thread-safe: changes wait for each other, reads wait for nothing.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from registry.documents import read_document, seal, write_document
from registry.errors import Conflict, Corrupt, InvalidInput, RegistryError
from registry.events import utc_now
from registry.files import Files, disk_errors, replace_file
from registry.ident import MAX_VERSION, check_model_name, shown
from registry.known import unknown_model, unknown_version
from registry.manifest import JsonObject, Manifest, parse_manifest

_NUMBERS_FILE: Final = "numbers.json"
_VERSIONS_DIR: Final = "versions"
_RECORD_NAME: Final = re.compile(r"([1-9][0-9]{0,15})\.json")


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """One published version. ``published`` is ISO UTC; ``disk_bytes`` the graph and tensors."""

    model: str
    version: int
    manifest: Manifest
    digest: str
    published: str
    disk_bytes: int


class VersionTable:
    """The records of one store, in memory and on the disk."""

    def __init__(self, models_dir: Path, temporary_dir: Path, files: Files) -> None:
        self._dir = models_dir
        self._temporary_dir = temporary_dir
        self._files = files
        self._lock = threading.Lock()
        # Replaced as a whole at each change, so that a reader needs no lock.
        self._records: dict[str, dict[int, VersionRecord]] = {}
        self._highest: dict[str, int] = {}
        self._damaged: dict[tuple[str, int], str] = {}
        self._events: dict[tuple[str, int], JsonObject] = {}
        self._uses: Counter[str] = Counter()
        self._object_bytes: dict[str, int] = {}
        self._durable_folders: set[str] = set()
        self._load()

    def models(self) -> tuple[str, ...]:
        """Return the models that have a version, in order."""
        return tuple(sorted(self._records))

    def versions(self, model: str) -> tuple[VersionRecord, ...]:
        """Return a model's versions by number, or raise NotFound."""
        records = self._records.get(model)
        if records is None:
            raise unknown_model(model, self._records)
        return tuple(records[number] for number in sorted(records))

    def version(self, model: str, version: int) -> VersionRecord:
        """Return one version, or raise NotFound; Corrupt where its record cannot be read."""
        record = self._records.get(model, {}).get(version)
        if record is not None:
            return record
        if reason := self._damaged.get((model, version)):
            raise Corrupt(reason)
        if model not in self._records:
            raise unknown_model(model, self._records)
        raise unknown_version(model, version, self._records[model])

    def damaged(self) -> Mapping[tuple[str, int], str]:
        """Return the versions whose record cannot be read, with the reason; number 0: all."""
        return dict(self._damaged)

    def is_used(self, digest: str) -> bool:
        """Tell whether a version needs the object."""
        return self._uses[digest] > 0

    def object_bytes(self, digest: str) -> int | None:
        """Return how large an object is that a version needs; None where no version says."""
        return self._object_bytes.get(digest)

    def holds(self, manifest: Manifest) -> bool:
        """Tell whether a publish of the manifest would make no new version."""
        digest = manifest.digest
        records = self._records.get(manifest.model, {})
        return any(record.digest == digest for record in records.values())

    def used_digests(self) -> tuple[str, ...]:
        """Return every object that a version needs, in order."""
        return tuple(sorted(self._uses.copy()))

    def contents(self) -> frozenset[str]:
        """Return the digest of every version's content, see ``Manifest.content_digest``."""
        return frozenset(
            record.manifest.content_digest
            for records in self._records.values()
            for record in records.values()
        )

    def event_of(self, model: str, version: int) -> JsonObject | None:
        """Return the event that the record carries for the log, if any."""
        return self._events.get((model, version))

    def publish(
        self, manifest: Manifest, sizes: Mapping[str, int], event: JsonObject | None
    ) -> tuple[VersionRecord, bool]:
        """Return the version of this content and whether it is new.

        ``sizes``: the size of every object, held present by the caller for the time of the call.
        Raises InvalidInput where the manifest declares other sizes.
        """
        model = check_model_name(manifest.model)
        _check_sizes(manifest, sizes)
        digest = manifest.digest
        with self._lock:
            for record in self._records.get(model, {}).values():
                if record.digest == digest:
                    return record, False
            if reason := self._damaged.get((model, 0)):
                raise Corrupt(reason)
            number = self._highest.get(model, 0) + 1
            if number > MAX_VERSION:
                raise Conflict(f"model {shown(model)} has used all version numbers")
            record = VersionRecord(model, number, manifest, digest, utc_now(), sum(sizes.values()))
            self._write_record(record, event)
            self._add(record, event)
            return record, True

    def delete(self, model: str, version: int) -> None:
        """Take a version away for good; after an error it is still there, or may be at restart."""
        with self._lock:
            record = self.version(model, version)
            path = self._record_path(model, version)
            what = f"remove version {version} of model {model}"
            self._write_highest(model)
            with disk_errors(what):
                try:
                    self._files.unlink(path)
                    self._files.fsync_dir(path.parent)
                except OSError:
                    # Not known to be durable, and a second sync could say yes without having
                    # written: so the record comes back, and the next try starts anew.
                    self._restore(path, record)
                    raise
            self._remove(record)

    def _write_record(self, record: VersionRecord, event: JsonObject | None) -> None:
        path = self._record_path(record.model, record.version)
        document = _document_of(record, event)
        data = seal(document)
        with disk_errors(f"publish version {record.version} of model {record.model}"):
            self._make_folder(record.model)
            try:
                replace_file(self._files, self._temporary_dir, path, data)
            except OSError:
                self._give_up(record, path)
                raise

    def _give_up(self, record: VersionRecord, path: Path) -> None:
        """Undo a record that may or may not survive; until the next open its objects are kept."""
        try:
            self._files.unlink(path)
        except FileNotFoundError:
            return
        except OSError:
            pass
        self._highest[record.model] = record.version
        self._uses.update(record.manifest.object_digests)

    def _restore(self, path: Path, record: VersionRecord) -> None:
        data = seal(_document_of(record, self._events.get((record.model, record.version))))
        with suppress(OSError):
            replace_file(self._files, self._temporary_dir, path, data)

    def _make_folder(self, model: str) -> None:
        if model in self._durable_folders:
            return
        folder = self._dir / model
        try:
            self._files.mkdir(folder)
            self._files.mkdir(folder / _VERSIONS_DIR)
            self._files.fsync_dir(folder)
            self._files.fsync_dir(self._dir)
        except OSError:
            # As everywhere: what a failed sync left is made anew, not synced again.
            with suppress(OSError):
                self._files.rmdir(folder / _VERSIONS_DIR)
                self._files.rmdir(folder)
            raise
        self._durable_folders.add(model)

    def _write_highest(self, model: str) -> None:
        path = self._dir / model / _NUMBERS_FILE
        what = f"the used numbers of model {model}"
        document: JsonObject = {"highest": self._highest[model]}
        if read_document(path, what) != document:
            write_document(self._files, self._temporary_dir, path, document, what)

    def _record_path(self, model: str, version: int) -> Path:
        return self._dir / model / _VERSIONS_DIR / f"{version}.json"

    def _add(self, record: VersionRecord, event: JsonObject | None) -> None:
        key = (record.model, record.version)
        if event is not None:
            self._events[key] = event
        self._highest[record.model] = max(self._highest.get(record.model, 0), record.version)
        self._uses.update(record.manifest.object_digests)
        self._object_bytes.update(_object_bytes(record))
        records = {**self._records.get(record.model, {}), record.version: record}
        self._records = {**self._records, record.model: records}

    def _remove(self, record: VersionRecord) -> None:
        records = dict(self._records[record.model])
        del records[record.version]
        models = {**self._records, record.model: records}
        if not records:
            del models[record.model]
        self._records = models
        self._events.pop((record.model, record.version), None)
        for digest in record.manifest.object_digests:
            self._uses[digest] -= 1
            if not self._uses[digest]:
                del self._uses[digest]
                self._object_bytes.pop(digest, None)

    def _load(self) -> None:
        with disk_errors("list the models"):
            folders = sorted(entry for entry in self._dir.iterdir() if entry.is_dir())
        for folder in folders:
            with suppress(InvalidInput):
                self._load_model(check_model_name(folder.name), folder)

    def _load_model(self, model: str, folder: Path) -> None:
        numbers = []
        with disk_errors(f"list the versions of model {model}"), suppress(FileNotFoundError):
            names = [entry.name for entry in (folder / _VERSIONS_DIR).iterdir()]
            numbers = [int(match[1]) for name in names if (match := _RECORD_NAME.fullmatch(name))]
        self._highest[model] = max([*numbers, self._read_highest(model, folder)])
        for number in sorted(numbers):
            what = f"the record of model {model} version {number}"
            try:
                document = read_document(self._record_path(model, number), what)
                if document is not None:
                    self._add(*_record_of(document, model, number, what))
            except RegistryError as error:
                self._damaged[model, number] = str(error)

    def _read_highest(self, model: str, folder: Path) -> int:
        what = f"the list of used numbers of model {model}"
        try:
            document = read_document(folder / _NUMBERS_FILE, what)
        except RegistryError as error:
            self._damaged[model, 0] = f"{error}; restore it from a backup"
            return 0
        highest = document["highest"] if document else 0
        return highest if isinstance(highest, int) else 0

    def never_give(self, model: str, version: int) -> None:
        """Count a number as used, whether or not there is a record of it."""
        self._highest[model] = max(self._highest.get(model, 0), version)

    def sync_folders(self) -> None:
        """Make every name that was found at the start durable, before anything builds on it."""
        with disk_errors("sync the models"):
            for model in self._highest:
                for folder in (self._dir / model / _VERSIONS_DIR, self._dir / model):
                    if folder.is_dir():
                        self._files.fsync_dir(folder)
            self._files.fsync_dir(self._dir)


def _check_sizes(manifest: Manifest, sizes: Mapping[str, int]) -> None:
    for index, entry in enumerate(manifest.tensors):
        if entry.size_bytes != sizes[entry.digest]:
            raise InvalidInput(
                f"manifest: tensors[{index}].bytes {entry.size_bytes} is wrong: "
                f"object {entry.digest} has {sizes[entry.digest]}"
            )


def _object_bytes(record: VersionRecord) -> dict[str, int]:
    sizes = {entry.digest: entry.size_bytes for entry in record.manifest.tensors}
    # The manifest does not say how large the graph is: it is what the record counts beside them.
    sizes.setdefault(record.manifest.graph, record.disk_bytes - sum(sizes.values()))
    return sizes


def _document_of(record: VersionRecord, event: JsonObject | None) -> JsonObject:
    return {
        "model": record.model,
        "version": record.version,
        "digest": record.digest,
        "published": record.published,
        "disk_bytes": record.disk_bytes,
        "manifest": record.manifest.to_json(),
        "event": event,
    }


def _record_of(
    document: JsonObject, model: str, version: int, what: str
) -> tuple[VersionRecord, JsonObject | None]:
    """Return the record that a sealed document holds, or raise Corrupt."""
    match document:
        case {
            "model": str(found_model),
            "version": int(found_version),
            "digest": str(digest),
            "published": str(published),
            "disk_bytes": int(disk_bytes),
            "manifest": found_manifest,
            "event": (dict() | None) as event,
        }:
            pass
        case _:
            raise Corrupt(f"{what} is damaged: fields are missing")
    if (found_model, found_version) != (model, version):
        raise Corrupt(f"{what} belongs to model {found_model} version {found_version}")
    manifest = parse_manifest(found_manifest)
    if manifest.model != model or manifest.digest != digest:
        raise Corrupt(f"{what} is damaged: its manifest has another digest")
    return VersionRecord(model, version, manifest, digest, published, disk_bytes), event
