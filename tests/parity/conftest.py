"""Serving a converted file with the real loader, as a worker would."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before a library reads it: several test processes on few cores wait for each other's threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import joblib
import numpy as np
import pytest

from models.convert import ConvertOptions, convert
from models.golden import drift
from models.package import Package
from models.runtime.loader import RuntimeLoader
from models.servable import Array, Inspection, LoadSpec, Servable
from models.signature import Signature, parse_signature
from registry.ident import digest_hex
from tests.unit.models.conftest import Shelf


@dataclass(frozen=True, slots=True)
class Served:
    """A converted model, loaded."""

    package: Package
    signature: Signature
    servable: Servable

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        names = [spec.name for spec in self.signature.outputs]
        return dict(zip(names, self.servable.run(inputs), strict=True))

    @property
    def parity(self) -> dict[str, Any]:
        record = self.package.manifest.parity
        assert record is not None
        return record

    @property
    def runtime(self) -> object:
        return self.package.manifest.runtime["name"]


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Served]:
    """Save a model, convert the file, load what comes out."""
    folder = tmp_path / "objects"
    folder.mkdir()

    def serve(model: object, **options: Any) -> Served:
        path = model if isinstance(model, Path) else tmp_path / "model.joblib"
        if path is not model:
            joblib.dump(model, path)
        package = convert("m", path, ConvertOptions(**options))
        for item in package.objects:
            (folder / digest_hex(item.digest)).write_bytes(b"".join(item.chunks()))
        signature = parse_signature(package.manifest.signature)
        inspection = Inspection(signature, False, "", False, 0.0, 0.0, 0)
        spec = LoadSpec("m", 1, package.manifest, folder, 1, inspection)
        servable = RuntimeLoader(threads=1).load(spec)
        assert drift(servable.run, signature, package.manifest.parity) == ""
        return Served(package, signature, servable)

    return serve


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """An empty shelf, for files that are ONNX already."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    return Shelf(folder)


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers, the same each time."""
    return np.random.default_rng(5)


def hard_rows(thresholds: Array, x: Array, rng: np.random.Generator) -> Array:
    """Return 2,400 float32 rows: of training, random, and each threshold with both neighbours."""
    split = np.asarray(thresholds, dtype=np.float32)
    with np.errstate(over="ignore"):
        around = [split, np.nextafter(split, np.float32(-np.inf)),
                  np.nextafter(split, np.float32(np.inf))]  # fmt: skip
    special = np.float32([0, -0.0, np.nan, np.inf, -np.inf, 1e30, 1e-30, 1e-45])
    edges = rng.choice(np.concatenate([*around, special]), size=(800, x.shape[1]))
    seen = x[rng.integers(0, len(x), 800)]
    return np.concatenate([seen, rng.normal(size=seen.shape), edges]).astype(np.float32)


def worst(got: Array, expected: Array) -> float:
    """Return the largest ``|difference| / max(1, |native|)``."""
    expected = np.asarray(expected, dtype=np.float64)
    difference = np.abs(np.asarray(got, dtype=np.float64) - expected)
    return float((difference / np.maximum(1.0, np.abs(expected))).max())
