"""Versions that their own library computes: opening, refusing, inspecting, running."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.convert import ConvertOptions, convert
from models.errors import InputRefused, LoadFailed, RunFailed, RunTerminated
from models.inspect import Limits, inspect_version
from models.package import BytesObject, Package
from models.runtime import native
from models.runtime.loader import RuntimeLoader
from models.runtime.shared_library import shared_library
from models.servable import Inspection, LoadSpec, Servable
from models.signature import parse_signature
from registry.ident import digest_hex
from tests.unit.models.conftest import MIB, Shelf

pytestmark = [pytest.mark.extra, pytest.mark.slow]
LIBRARIES = ("lightgbm", "xgboost", "catboost")


def rows(count: int = 300) -> np.ndarray:
    return np.random.default_rng(7).normal(size=(count, 3)).astype(np.float32)


def trained(library: str, folder: Path) -> Path:
    """Train a small classifier and return its file, in the library's safe form."""
    x = rows()
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    if library == "lightgbm":
        import lightgbm

        path = folder / "m.txt"
        model = lightgbm.LGBMClassifier(n_estimators=10, verbose=-1, num_threads=1).fit(x, y)
        model.booster_.save_model(path)
    elif library == "xgboost":
        xgboost = pytest.importorskip("xgboost")
        path = folder / "m.ubj"
        xgboost.XGBClassifier(n_estimators=10, n_jobs=1).fit(x, y).save_model(path)
    else:
        catboost = pytest.importorskip("catboost")
        path = folder / "m.cbm"
        catboost.CatBoostClassifier(
            iterations=10, depth=3, verbose=0, allow_writing_files=False, thread_count=1
        ).fit(x, y).save_model(str(path))
    return path


def keep(shelf: Shelf, package: Package) -> Package:
    for item in package.objects:
        (shelf.objects_dir / digest_hex(item.digest)).write_bytes(b"".join(item.chunks()))
    return package


def with_file(shelf: Shelf, package: Package, data: bytes) -> Package:
    """Return the version with another model file under the same manifest."""
    item = BytesObject.of(data)
    manifest = replace(package.manifest, graph=item.digest)
    return keep(shelf, Package(manifest, (item,)))


def with_runtime(package: Package, **fields: Any) -> Package:
    runtime = package.manifest.runtime | fields
    return replace(package, manifest=replace(package.manifest, runtime=runtime))


def load(shelf: Shelf, package: Package) -> Servable:
    signature = parse_signature(package.manifest.signature)
    inspection = Inspection(signature, True, "", False, 0.0, 0.0, 0)
    spec = LoadSpec("m", 1, package.manifest, shelf.objects_dir, 1, inspection)
    return RuntimeLoader(threads=1).load(spec)


def inspect(shelf: Shelf, package: Package) -> Inspection:
    limits = Limits(memory_bytes=256 * MIB, timeout_s=60, threads=1)
    return inspect_version(package.manifest, shelf.objects_dir, limits)


@pytest.fixture
def version(shelf: Shelf, tmp_path: Path) -> Callable[[str], Package]:
    """Makes a native version of a library and keeps its objects."""

    def make(library: str) -> Package:
        path = trained(library, tmp_path)
        return keep(shelf, convert("m", path, ConvertOptions(runtime="native")))

    return make


def inputs_of(package: Package, x: np.ndarray) -> dict[str, np.ndarray]:
    is_double = package.manifest.signature["inputs"][0]["datatype"] == "FP64"
    return {"input": x.astype(np.float64 if is_double else np.float32)}


@pytest.mark.parametrize("library", LIBRARIES)
class TestEachLibrary:
    def test_the_child_measures_it(self, shelf: Shelf, version, library) -> None:
        """The inspection finds that rows may batch, and memory without the library's own."""
        package = version(library)
        found = inspect(shelf, package)
        assert (found.is_batchable, found.has_control_flow) == (True, False)
        assert found.run_s < 0.1
        assert found.private_bytes < 16 * MIB
        assert package.manifest.runtime["library"] == library
        assert package.manifest.object_digests == {package.objects[0].digest}

    def test_damaged_and_foreign_files_are_refused(self, shelf: Shelf, version, library) -> None:
        """Whatever lies in the file, the child says no or dies alone, and this process lives."""
        package = version(library)
        whole = package.objects[0].data
        for data in (b"\x80\x04.", whole[: len(whole) // 2], whole[:12]):
            with pytest.raises(LoadFailed):
                inspect(shelf, with_file(shelf, package, data))

    def test_another_width_is_refused(self, shelf: Shelf, version, library) -> None:
        """A signature with fewer features than the model is refused, naming both."""
        package = version(library)
        signature = package.manifest.signature
        signature["inputs"][0]["shape"] = [-1, 2]
        signature["inputs"][0].pop("columns", None)
        with pytest.raises(LoadFailed, match=r"the signature has 2 features, the .* model 3"):
            load(shelf, package)

    def test_a_release_that_answers_otherwise_is_told(self, shelf, version, library) -> None:
        """Golden rows of the push that come out differently are found before any traffic."""
        package = version(library)
        for row in package.manifest.parity["golden"]:
            if None not in row["inputs"]["input"]:
                row["outputs"]["probabilities"][0] += 0.01
        package.manifest.runtime["version"] = "0.1"
        drift = inspect(shelf, package).drift
        assert "golden row 1: probabilities is" in drift
        assert re.search(rf"; {library} is \d\S* here, was 0\.1$", drift)

    def test_it_runs_from_several_threads(self, shelf: Shelf, version, library) -> None:
        """Runs at the same time give each its own answer, alone and in batches."""
        package = version(library)
        servable = load(shelf, package)
        x = rows(200)
        (whole,) = servable.run(inputs_of(package, x), ["probabilities"])
        failures: list[int] = []

        def run(start: int) -> None:
            for at in range(start, 200, 4):
                size = 1 + at % 3
                (got,) = servable.run(inputs_of(package, x[at : at + size]), ["probabilities"])
                if not np.array_equal(got, whole[at : at + size]):
                    failures.append(at)

        threads = [threading.Thread(target=run, args=(start,)) for start in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []

    def test_a_missing_library_names_the_command(self, shelf, version, library, monkeypatch):
        """Where the extra is not installed, the load fails with what to type."""
        package = version(library)
        shared_library.cache_clear()
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(LoadFailed, match=rf"pip install 'ramrack\[{library}\]'"):
            load(shelf, package)
        with pytest.raises(LoadFailed, match=rf"pip install 'ramrack\[{library}\]'"):
            native.prepare(package.manifest.runtime)


class TestServable:
    def test_bad_inputs_are_refused_by_name(self, shelf: Shelf, version) -> None:
        """Each fault of the caller names the input or output."""
        package = version("lightgbm")
        servable = load(shelf, package)
        good = np.zeros((2, 3))
        for inputs, outputs, says in (
            ({}, None, "'input' is missing"),
            ({"input": good, "more": good}, None, "'more' is unknown"),
            ({"input": good.astype(np.float32)}, None, "float32, expected FP64"),
            ({"input": good[:, :2]}, None, r"shape \[2, 2\], expected \[-1, 3\]"),
            ({"input": good[0]}, None, r"shape \[3\]"),
            ({"input": good}, ["score"], "output 'score' is unknown"),
        ):
            with pytest.raises(InputRefused, match=says):
                servable.run(inputs, outputs)

    def test_no_rows_and_no_outputs(self, shelf: Shelf, version) -> None:
        """No rows give no rows, and no outputs nothing."""
        servable = load(shelf, version("lightgbm"))
        label, probabilities = servable.run({"input": np.zeros((0, 3))})
        assert (label.shape, probabilities.shape) == ((0,), (0, 2))
        assert servable.run({"input": np.zeros((2, 3))}, []) == []

    def test_a_terminated_run_says_so_and_later_ones_go_on(self, shelf: Shelf, version) -> None:
        """A run that was under way at the time of terminate raises; the next one answers."""

        class Slow:
            def predict(self, table: np.ndarray) -> np.ndarray:
                if not terminated:
                    terminated.append(True)
                    servable.terminate()
                return table[:, 0]

            def close(self) -> None:
                closed.append(True)

        terminated: list[bool] = []
        closed: list[bool] = []
        package = version("lightgbm")
        signature = parse_signature(package.manifest.signature)
        inputs = native.NativeInputs(signature, np.dtype(np.float64), takes_text=False)
        servable = native.NativeServable(Slow(), inputs, signature)
        with pytest.raises(RunTerminated):
            servable.run({"input": np.zeros((1, 3))})
        assert servable.run({"input": np.ones((1, 3))}, ["label"])[0].tolist() == [1]
        servable.close()
        servable.close()
        assert closed == [True]
        with pytest.raises(RunFailed, match="closed"):
            servable.run({"input": np.zeros((1, 3))})

    def test_manifests_that_no_push_makes_are_refused(self, shelf: Shelf, version) -> None:
        """An unknown runtime, library, output or input kind fails the load, named."""
        package = version("lightgbm")
        for changed, says in (
            (with_runtime(package, name="tensorrt"), "runtime 'tensorrt' is not known here"),
            (with_runtime(package, library="pickle"), "runtime.library 'pickle' is not known here"),
            (with_runtime(package, library=["x"]), "runtime.library"),
            (with_runtime(package, library="xgboost"), "neither XGBoost JSON nor UBJSON"),
        ):
            with pytest.raises(LoadFailed, match=says):
                load(shelf, changed)
            with pytest.raises(LoadFailed, match=says):
                inspect(shelf, changed)
        signature = package.manifest.signature
        signature["outputs"][1]["labels"] = ["no", "yes"]
        with pytest.raises(LoadFailed, match="labels do not fit"):
            load(shelf, package)
        signature["outputs"][0] |= {"datatype": "BYTES", "shape": [-1, 2]}
        with pytest.raises(LoadFailed, match="several labels a row must be INT64"):
            load(shelf, package)
        signature["outputs"].pop(0)
        with pytest.raises(LoadFailed, match=r"signature\.outputs"):
            load(shelf, package)
        signature["inputs"][0]["datatype"] = "BYTES"
        with pytest.raises(LoadFailed, match="one matrix or columns"):
            load(shelf, package)

    def test_an_object_that_is_gone_is_named(self, shelf: Shelf, version) -> None:
        """A version whose file is not in the store fails to load."""
        package = version("lightgbm")
        (shelf.objects_dir / digest_hex(package.manifest.graph)).unlink()
        with pytest.raises(LoadFailed, match="not in the store"):
            load(shelf, package)
