"""A folder of objects as the store keeps them, for the tests of this layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

from models import pack
from models.convert.onnx_file import package_onnx
from models.inspect import Limits, inspect_version
from models.package import Package
from models.runtime.onnx import OnnxLoader, OnnxServable
from models.servable import Inspection, LoadSpec
from models.signature import parse_signature
from registry.ident import digest_hex
from registry.store import Store
from tests.unit.models.pack_desk import Desk, FakeChild

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Shelf:
    """Holds objects under their digests, read-only, and opens versions made of them."""

    objects_dir: Path

    def put(self, model: Path | onnx.ModelProto) -> Package:
        """Package a model and keep its objects."""
        package = package_onnx("test", model)
        for item in package.objects:
            path = self.objects_dir / digest_hex(item.digest)
            if not path.exists():
                path.write_bytes(b"".join(item.chunks()))
                path.chmod(0o444)
        return package

    def load(self, package: Package, inspection: Inspection | None = None) -> OnnxServable:
        """Open a version in this process, by default with its signature as declared."""
        if inspection is None:
            signature = parse_signature(package.manifest.signature)
            inspection = Inspection(signature, False, "", False, 0.0, 0.0, 0)
        spec = LoadSpec("test", 1, package.manifest, self.objects_dir, 1, inspection)
        return OnnxLoader(threads=1).load(spec)

    def inspect(
        self, package: Package, memory_bytes: int = 256 * MIB, timeout_s: float = 60.0
    ) -> Inspection:
        """Inspect a version in a real child process."""
        limits = Limits(memory_bytes=memory_bytes, timeout_s=timeout_s, threads=1)
        return inspect_version(package.manifest, self.objects_dir, limits)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """An empty shelf."""
    folder = tmp_path / "objects"
    folder.mkdir()
    return Shelf(folder)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Weights count as large, whatever the size of the tensor that stands for them."""
    child = FakeChild()
    monkeypatch.setattr(pack, "InspectionChild", child)
    monkeypatch.setattr(pack, "reason_not_to_pack", lambda *_: None)
    monkeypatch.setattr(pack, "is_in_graph", lambda _: False)
    return Desk(tmp_path / "store", child)


@pytest.fixture
def store(desk: Desk) -> Iterator[Store]:
    """The store of ``desk``."""
    with desk.open() as opened:
        yield opened
