"""Drives a store, keeps a plain account of what it acknowledged, and compares the two."""

from __future__ import annotations

import hashlib
import itertools
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from models.package import Package
from registry.errors import MissingObjects
from registry.manifest import Manifest, TensorEntry
from registry.objects import LEASE_S
from registry.store import Store
from tests.disk_model import ModelDisk, PowerCut


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def object_path(store: Store, digest: str) -> Path:
    return store.objects_dir / digest.removeprefix("sha256:")


def publish_package(store: Store, package: Package) -> None:
    """Take a package in, as the server does what is pushed."""
    for item in package.objects:
        with store.begin_upload(item.digest, item.size_bytes) as upload:
            for chunk in item.chunks():
                upload.write(chunk)
            upload.commit()
    store.publish(package.manifest)


def payload(index: int) -> bytes:
    return f"object {index} ".encode() * (10 + index)


def upload(store: Store, data: bytes, announced: int | None = None) -> str:
    digest = digest_of(data)
    with store.begin_upload(digest, announced) as transfer:
        half = len(data) // 2
        transfer.write(data[:half])
        transfer.write(data[half:])
        transfer.commit()
    return digest


def manifest_of(model: str, graph: int, tensors: tuple[int, ...] = (), mark: int = 0) -> Manifest:
    return Manifest(
        model=model,
        graph=digest_of(payload(graph)),
        tensors=tuple(TensorEntry(digest_of(payload(i)), len(payload(i))) for i in tensors),
        signature={"mark": mark},
        runtime={"name": "onnx"},
    )


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Account:
    """What was acknowledged. ``used``: numbers that may never come again."""

    versions: dict[tuple[str, int], str] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    document: int | None = None
    events: list[tuple[int, str]] = field(default_factory=list)
    uploaded: set[int] = field(default_factory=set)

    def copy(self) -> Account:
        return Account(
            dict(self.versions),
            dict(self.used),
            self.document,
            list(self.events),
            set(self.uploaded),
        )


class StoreDriver:
    """One store on a disk that may fail. Close it to release what it holds."""

    def __init__(self, base: Path, disk_type: type[ModelDisk] = ModelDisk) -> None:
        self._base = base
        self._disk_type = disk_type
        self._roots = itertools.count()
        self._marks = itertools.count(1)
        self.clock = Clock()
        self.account = Account()
        # What the operation under way may have done when the power went.
        self.may_be: Account | None = None
        self.root = base / "0"
        next(self._roots)
        self.disk = disk_type(self.root)
        self.store = self._open()

    def _open(self) -> Store:
        return Store.open(self.root, files=self.disk, monotonic_s=self.clock, reserve_bytes=0)

    def upload(self, index: int) -> None:
        upload(self.store, payload(index))
        self.account.uploaded.add(index)

    def publish(self, model: str, graph: int, tensors: tuple[int, ...] = (), mark: int = 0) -> bool:
        manifest = manifest_of(model, graph, tensors, mark)
        absent = manifest.object_digests - {digest_of(payload(i)) for i in self.account.uploaded}
        known = {d: key for key, d in self.account.versions.items() if key[0] == model}
        number = self.account.used.get(model, 0) + 1
        after = self.account.copy()
        if manifest.digest not in known:
            after.versions[model, number] = manifest.digest
        self.may_be = after
        try:
            record, is_new = self.store.publish(manifest)
        except MissingObjects as error:
            missing = set(error.digests)
        else:
            missing = set()
        assert missing <= absent  # an upload that was cut short may be there all the same
        if missing:
            self.may_be = None
            return False
        if manifest.digest in known:
            assert (record.version, is_new) == (known[manifest.digest][1], False)
        else:
            assert is_new
            assert record.version >= number
            self.account.versions[model, record.version] = manifest.digest
            self.account.used[model] = record.version
        self.may_be = None
        return True

    def delete(self, model: str, version: int) -> None:
        self.may_be = self.account.copy()
        del self.may_be.versions[model, version]
        self.store.delete_version(model, version)
        self.account = self.may_be
        self.may_be = None

    def delete_newest(self, model: str) -> None:
        self.delete(model, max(n for name, n in self.account.versions if name == model))

    def write_document(self) -> None:
        value = next(self._marks)
        self.may_be = self.account.copy()
        self.may_be.document = value
        self.store.write_document("state", {"value": value})
        self.account = self.may_be
        self.may_be = None

    def append_event(self) -> None:
        kind = f"kind-{next(self._marks)}"
        self.may_be = self.account.copy()
        self.may_be.events.append((self.store.events.last_seq + 1, kind))
        seq = self.store.events.append(kind, model="m")
        self.account.events.append((seq, kind))
        self.may_be = None

    def gc(self, is_later: bool) -> None:
        if is_later:
            self.clock.now_s += LEASE_S + 1
        # Objects without a version may go, before and after any crash; the others may not.
        used, uploaded = self.used_digests(), self.account.uploaded
        self.account.uploaded = {i for i in uploaded if digest_of(payload(i)) in used}
        self.store.gc()
        self.account.uploaded |= {
            i
            for i in uploaded
            if self.store.objects_dir.joinpath(digest_of(payload(i))[7:]).exists()
        }

    def used_digests(self) -> set[str]:
        return {
            digest
            for model in self.store.models()
            for record in self.store.versions(model)
            for digest in record.manifest.object_digests
        }

    def restart(self) -> None:
        """End the process, orderly or not, and start another; the power stays on."""
        _close(self.store, self.disk)
        self.store = self._open()
        self.check()

    def power_cut(self, choice: random.Random | None) -> None:
        """Take the power away, then open what is left of the disk, twice, and check it."""
        _close(self.store, self.disk)
        self.root = self._base / str(next(self._roots))
        self.disk.cut(self.root, choice)
        self.disk = self._disk_type(self.root)
        self.store = self._open()
        self.check()
        before = describe(self.store)
        _close(self.store, self.disk)
        self.store = self._open()
        assert describe(self.store) == before, "recovery twice must equal recovery once"

    def check(self) -> None:
        """Hold the store against the account: old or new, and all that was acknowledged."""
        found = {
            (model, record.version): record.digest
            for model in self.store.models()
            for record in self.store.versions(model)
        }
        versions = [self.account.versions]
        documents = [self.account.document]
        events = [self.account.events]
        if self.may_be is not None:
            versions.append(self.may_be.versions)
            documents.append(self.may_be.document)
            events.append(self.may_be.events)
        assert found in versions
        document = self.store.read_document("state")
        assert (document and document["value"]) in documents
        logged = [(event.seq, event.kind) for event in self.store.events.read()]
        assert logged in events
        assert self.store.verify().damaged == {}
        assert list(self.root.joinpath("tmp").iterdir()) == []
        for index in self.account.uploaded:
            digest = digest_of(payload(index))
            assert self.store.object_size(digest) == len(payload(index))
            self.store.verify_objects([digest], thorough=True)
        self._take_over(found, document and document["value"], logged)

    def _take_over(
        self, found: dict[tuple[str, int], str], document: object, logged: list[tuple[int, str]]
    ) -> None:
        self.account.versions = found
        self.account.document = document  # type: ignore[assignment]  # an int or None, as written
        self.account.events = logged
        for model, version in found:
            self.account.used[model] = max(self.account.used.get(model, 0), version)
        self.may_be = None

    def close(self) -> None:
        _close(self.store, self.disk)
        shutil.rmtree(self._base)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _close(store: Store, disk: ModelDisk) -> None:
    try:
        store.close()
    except PowerCut:
        store.close()
    disk.release()


def describe(store: Store) -> object:
    """Return all that a store holds, for comparison."""
    return (
        {model: store.versions(model) for model in store.models()},
        store.read_document("state"),
        store.events.read(),
        store.verify(),
        store.usage().objects,
    )


Step = Callable[[StoreDriver], object]
