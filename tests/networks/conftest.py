"""Converting a network in this process and serving it with the real loader, as a worker would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.convert.detect import detect_format
from models.convert.network_child import convert_here
from models.convert.networks import Order, finish_network
from models.convert.onnx_file import About, package_onnx
from models.package import Package
from models.runtime.loader import RuntimeLoader
from models.servable import Inspection, LoadSpec, Servable
from models.signature import Signature, parse_signature
from registry.ident import digest_hex
from tests.parity.conftest import Served


@pytest.fixture
def serve(
    tmp_path: Path, shelf_of: Callable[[Package], tuple[Servable, Signature]]
) -> Callable[..., Served]:
    """Convert a file as the child process does, prove it, and load what comes out."""

    def serve(path: Path, **order: Any) -> Served:
        folder = tmp_path / f"converted-{path.name}"
        folder.mkdir()
        order = {"sample": None} | order
        asked = Order(path, detect_format(path), folder=folder, **order)
        network = finish_network(asked, convert_here(asked), 1e-5)
        package = package_onnx("m", network.graph, About(network.signature, network.parity))
        servable, signature = shelf_of(package)
        return Served(package, signature, servable)

    return serve


@pytest.fixture
def shelf_of(tmp_path: Path) -> Callable[[Package], tuple[Servable, Signature]]:
    """Load a package from a folder of its objects."""
    objects = tmp_path / "objects"
    objects.mkdir()

    def load(package: Package) -> tuple[Servable, Signature]:
        for item in package.objects:
            (objects / digest_hex(item.digest)).write_bytes(b"".join(item.chunks()))
        signature = parse_signature(package.manifest.signature)
        inspection = Inspection(signature, False, "", False, 0.0, 0.0, 0)
        spec = LoadSpec("m", 1, package.manifest, objects, 1, inspection)
        return RuntimeLoader(threads=1).load(spec), signature

    return load
