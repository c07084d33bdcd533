"""Packing with real children and the real runtime."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from models import pack
from models.convert.onnx_file import package_onnx
from models.pack import VersionInspector
from models.runtime.onnx import OnnxLoader
from models.servable import Inspection, LoadSpec
from models.signature import Signature, TensorSpec
from models.synthetic import first_inputs, make_inputs
from models.weight_mode import MIB
from registry.ident import digest_hex
from registry.manifest import Manifest
from registry.store import Store
from tests import graphs
from tests.disk_model import UnsyncedFiles
from tests.store_driver import publish_package
from tests.tmpfs import small_disk


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for all that is packed for real, so that little is packed twice."""
    root = tmp_path_factory.mktemp("packed") / "store"
    with Store.open(root, files=UnsyncedFiles(), reserve_bytes=0) as opened:
        yield opened


@pytest.mark.slow
class TestForReal:
    """With real children and the real runtime, on 12 MiB of weights."""

    def push(self, store: Store, model: onnx.ModelProto) -> Manifest:
        package = package_onnx("m", model)
        publish_package(store, package)
        return package.manifest

    def load_and_answer(
        self, store: Store, manifest: Manifest, inspection: Inspection
    ) -> list[np.ndarray]:
        spec = LoadSpec("m", 1, manifest, store.objects_dir, 1, inspection)
        servable = OnnxLoader(1).load(spec)
        style, _ = first_inputs(servable.run, servable.signature)
        answers = [servable.run(make_inputs(servable.signature, style, n))[0] for n in (1, 32)]
        servable.close()
        return answers

    def test_a_version_is_packed_damaged_and_packed_again(self, shelf: Store) -> None:
        """Answers stay the same bit for bit; workers copy next to nothing."""
        manifest = self.push(shelf, graphs.layers(1, 2, 3))
        inspect = VersionInspector(shelf, 1, 120.0)
        found = inspect(manifest, 64 * MIB)
        assert found.mode == "packed", found.mode_reason
        assert found.private_bytes < 0.2 * manifest.weight_bytes
        assert manifest.weight_bytes <= sum(found.resident.values()) < 1.1 * manifest.weight_bytes
        plain = replace(found, graph="", resident={})
        expected = self.load_and_answer(shelf, manifest, plain)
        for left, right in zip(expected, self.load_and_answer(shelf, manifest, found), strict=True):
            assert np.array_equal(left, right)
        path = shelf.objects_dir / digest_hex(max(found.resident))
        path.chmod(0o644)
        os.truncate(path, path.stat().st_size // 2)
        again = inspect(manifest, 64 * MIB)
        assert (again.graph, again.resident) == (found.graph, found.resident)
        for left, right in zip(expected, self.load_and_answer(shelf, manifest, again), strict=True):
            assert np.array_equal(left, right)

    def test_a_disk_that_fills_while_the_runtime_writes_is_the_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The version serves as it is, nothing of what was written stays, and the rest is whole."""
        monkeypatch.setattr("models.pack_build._ROOM_FACTOR", 0)  # what else fills it comes later
        with (
            small_disk(tmp_path / "disk", 24 * MIB) as disk,
            Store.open(disk / "store", files=UnsyncedFiles(), reserve_bytes=0) as store,
        ):
            manifest = self.push(store, graphs.layers(1, 2, 3))
            found = VersionInspector(store, 1, 120.0)(manifest, 64 * MIB)
            assert (found.mode, found.graph) == ("private", "")
            assert "no room to pack: the store's disk ran full" in found.mode_reason
            assert str(tmp_path) not in found.mode_reason
            assert not list((disk / "store" / "tmp").iterdir())
            assert not store.verify().damaged
            self.load_and_answer(store, manifest, found)

    def test_a_version_that_changed_one_layer_shares_the_others(self, shelf: Store) -> None:
        """On disk and in memory only the changed layer comes on top."""
        inspect = VersionInspector(shelf, 1, 120.0)
        manifests = [self.push(shelf, graphs.layers(1, 2, last)) for last in (3, 4)]
        found = [inspect(manifest, 64 * MIB) for manifest in manifests]
        assert "another version" in found[1].mode_reason
        plain = replace(found[1], graph="", resident={})
        for left, right in zip(
            self.load_and_answer(shelf, manifests[1], plain),
            self.load_and_answer(shelf, manifests[1], found[1]),
            strict=True,
        ):
            assert np.array_equal(left, right)
        own = {key: size for key, size in found[1].resident.items() if key not in found[0].resident}
        assert sum(own.values()) < 0.4 * sum(found[1].resident.values())

    def test_a_worker_opens_the_version_where_its_packed_form_does_not(self, shelf: Store) -> None:
        """A runtime that refuses what was packed costs memory, never the version."""
        manifest = self.push(shelf, graphs.layers(1, 2, 3))
        signature = Signature(
            (TensorSpec("x", "FP32", (-1, 1024)),), (TensorSpec("t2", "FP32", (-1, 1024)),)
        )
        wrong = Inspection(
            signature, True, "", False, 0.0, 0.0, 0, graph=manifest.tensors[0].digest
        )
        one, many = self.load_and_answer(shelf, manifest, wrong)
        assert (len(one), len(many)) == (1, 32)

    def test_answers_stay_when_the_environment_changes(
        self, shelf: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Packed for one key and anew for another: each answers as the published form does."""
        manifest = self.push(shelf, graphs.layers(1, 2, 3))
        built = {}
        for is_changed in (False, True):
            if is_changed:
                monkeypatch.setattr(pack, "_read_cpu_info", lambda: "flags : avx1024")
            found = VersionInspector(shelf, 1, 120.0)(manifest, 64 * MIB)
            assert found.mode == "packed", found.mode_reason
            entry = shelf.packed.find(manifest.content_digest)
            assert entry is not None
            # The names are the digests of what this build wrote.
            shelf.verify_objects(entry.objects, thorough=True)
            built[entry.environment] = found
        assert len(built) == 2, "the second environment took what was built for the first"
        plain = replace(found, graph="", resident={})
        expected = self.load_and_answer(shelf, manifest, plain)
        for each in built.values():
            answers = self.load_and_answer(shelf, manifest, each)
            for left, right in zip(expected, answers, strict=True):
                assert np.array_equal(left, right)
