"""The version that is tuned, read from a store that nothing here ever changes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from models.package import CHUNK_BYTES, Package
from registry.errors import InvalidInput
from registry.layout import OBJECTS_DIR
from registry.manifest import Manifest
from registry.store import Store, VersionRecord

_ROOM_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as it lies in a store, to be sent to another one."""

    path: Path
    digest: str
    size_bytes: int

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in order."""
        with self.path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk


def package_of(root: Path, name: str, version: int | None) -> tuple[Package, int]:
    """Return a version as it would be pushed, and its number; None: the highest one.

    The store may belong to a running server: it is only read. Raises InvalidInput, StoreFormat.
    """
    with Store.open_read_only(root) as store:
        if name not in store.models():
            known = ", ".join(store.models()[:10]) or "none"
            raise InvalidInput(f"model {name!r} is not in this store: it has {known}")
        records = {record.version: record for record in store.versions(name)}
        number = version if version is not None else max(records, default=0)
        if number not in records:
            raise InvalidInput(f"version {number} of {name!r} is not in this store")
        return _package(root, store, records[number]), number


def _package(root: Path, store: Store, record: VersionRecord) -> Package:
    manifest: Manifest = record.manifest
    objects = []
    for digest in sorted(manifest.object_digests):
        size_bytes = store.object_size(digest)
        if size_bytes is None:
            raise InvalidInput(f"the store has no object {digest}: ramrack verify says more")
        path = root / OBJECTS_DIR / digest.removeprefix("sha256:")
        objects.append(StoredObject(path, digest, size_bytes))
    return Package(manifest, tuple(objects))


def work_parent(root: Path, package: Package) -> Path | None:
    """Return a folder whose disk has room for a copy of the package; None: the system's own.

    Raises InvalidInput where neither has.
    """
    needed = _ROOM_BYTES + 2 * sum(source.size_bytes for source in package.objects)
    for folder, found in ((root.absolute().parent, root.absolute().parent),
                          (Path(tempfile.gettempdir()), None)):  # fmt: skip
        if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= needed:
            return found
    raise InvalidInput(
        f"a copy of the version to try needs {needed >> 20} MiB of disk, and neither "
        f"{root.absolute().parent} nor {tempfile.gettempdir()} has them"
    )
