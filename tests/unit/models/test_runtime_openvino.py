"""Graphs computed by OpenVINO, behind the same protocol as all others."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from models.convert import ConvertOptions, convert
from models.convert.graph import Graph
from models.convert.onnx_file import package_onnx
from models.convert.opened import opened
from models.convert.variants import smaller, unpacked, with_openvino
from models.errors import ConversionRefused, InputRefused, LoadFailed, RunTerminated
from models.inspect import Limits, inspect_version
from models.package import Package
from models.runtime import openvino
from models.runtime.openvino import OpenvinoLoader, OpenvinoServable
from models.servable import Inspection, LoadSpec
from models.signature import Signature, TensorSpec, parse_signature
from tests import text_models

pytest.importorskip("tokenizers")
pytest.importorskip("openvino")
pytestmark = pytest.mark.extra
WIDTH = 512


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return convert("tiny", text_models.write_folder(tmp_path_factory.mktemp("text") / "tiny"))


def layers(count: int, *, datatype: str = "FP32") -> Package:
    """Return a graph of that many multiplications with one matrix."""
    graph = Graph()
    weight = graph.constant(np.eye(WIDTH, dtype=np.float32))
    name = "x"
    for _ in range(count):
        name = graph.add("MatMul", name, weight)
    graph.add("Identity", name, output="y")
    signature = Signature(
        (TensorSpec("x", datatype, (-1, WIDTH)),), (TensorSpec("y", "FP32", (-1, WIDTH)),)
    )
    return package_onnx("layers", graph.model(signature))


@contextmanager
def computed(package: Package, folder: Path, precision: str = "f32") -> Iterator[OpenvinoServable]:
    """Open a graph by OpenVINO's own loader."""
    unpacked(package, folder)
    signature = parse_signature(package.manifest.signature)
    manifest = dataclasses.replace(
        package.manifest, runtime={"name": "openvino", "precision": precision}
    )
    inspection = Inspection(signature, False, "", False, 0.0, 0.0, 0)
    spec = LoadSpec("test", 1, manifest, folder, 1, inspection)
    servable = OpenvinoLoader(1).load(spec)
    try:
        yield servable
    finally:
        servable.close()


def test_it_answers_and_refuses_as_the_protocol_says(tmp_path: Path):
    """Chosen outputs, no rows, and inputs that do not fit."""
    rows = np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)
    with computed(layers(2), tmp_path) as servable:
        assert servable.run({"x": rows})[0].tolist() == rows.tolist()
        assert servable.run({"x": rows}, []) == []
        assert servable.run({"x": rows[:0]})[0].shape == (0, WIDTH)
        for inputs, reason in (
            ({}, "input 'x' is missing"),
            ({"x": rows.astype(np.float64)}, "got float64, expected FP32"),
            ({"x": rows[0]}, r"got shape \[512\]"),
            ({"x": rows, "z": rows}, "input 'z' is unknown"),
        ):
            with pytest.raises(InputRefused, match=reason):
                servable.run(inputs)


def test_a_run_that_is_ended_answers_nothing(tmp_path: Path):
    """terminate lets the run under way raise once it ends; later ones are not affected."""
    rows = np.ones((1024, WIDTH), np.float32)
    ended: list[BaseException] = []

    with computed(layers(100), tmp_path) as servable:

        def run() -> None:
            try:
                servable.run({"x": rows})
            except RunTerminated as error:
                ended.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        while thread.is_alive():
            servable.terminate()
            thread.join(0.01)
        assert len(ended) == 1
        assert servable.run({"x": rows[:1]})[0].tolist() == rows[:1].tolist()


def test_sizes_that_do_not_fit_are_refused_and_show_nobody_elses_rows(tmp_path: Path):
    """The library would read past the end of the smaller one: it never gets to see them."""
    graph = Graph()
    matrix = graph.constant(np.eye(WIDTH, dtype=np.float32))
    product = graph.add("MatMul", "x", matrix)
    graph.add("MatMul", graph.add("Add", product, "z"), matrix, output="y")
    specs = (TensorSpec("x", "FP32", (-1, WIDTH)), TensorSpec("z", "FP32", (-1, WIDTH)))
    signature = Signature(specs, (TensorSpec("y", "FP32", (-1, WIDTH)),))
    package = package_onnx("two", graph.model(signature))

    def rows(count: int, value: float) -> np.ndarray:
        return np.full((count, WIDTH), value, np.float32)

    with computed(package, tmp_path) as servable:
        for count in (4, 5, 4):
            secret = servable.run({"x": rows(count, 7), "z": rows(count, 1)})[0]
            assert secret.tolist() == rows(count, 8).tolist()
            for left, right in ((3, 2), (count, count - 1), (3, 2), (2, count)):
                with pytest.raises(InputRefused, match="sizes of the inputs do not fit"):
                    servable.run({"x": rows(left, 1), "z": rows(right, 1)})
            answer = servable.run({"x": rows(2, 1), "z": rows(2, 2)})[0]
            assert answer.tolist() == rows(2, 3).tolist()


def test_threads_get_their_own_answers(tmp_path: Path):
    """Runs at once do not write into each other's memory."""
    with computed(layers(3), tmp_path) as servable:
        wrong: list[int] = []

        def ask(number: int) -> None:
            rows = np.full((1 + number % 3, WIDTH), number, np.float32)
            for _ in range(20):
                if not np.array_equal(servable.run({"x": rows})[0], rows):
                    wrong.append(number)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_what_it_cannot_compute_is_refused(base: Package, tmp_path: Path):
    """Unknown precision, texts, and any version that is not a text model: with the reason."""
    with (
        pytest.raises(LoadFailed, match=r"runtime.precision 'int3' must be one of f32, bf16, int8"),
        computed(layers(1), tmp_path, "int3"),
    ):
        pass
    with pytest.raises(LoadFailed, match="BYTES"), computed(base, tmp_path):
        pass
    with pytest.raises(ConversionRefused, match="text models only"):
        with_openvino(layers(1), "f32")
    manifest = dataclasses.replace(
        layers(1).manifest, runtime={"name": "openvino", "precision": "f32"}
    )
    with pytest.raises(LoadFailed, match="text models only"):
        inspect_version(manifest, tmp_path, Limits(1 << 30, 90, 1))


def test_inspection_asks_the_golden_rows_and_measures_private_memory(base: Package, tmp_path: Path):
    """A version that answers otherwise here is said to; its rows may share a run."""
    package = with_openvino(base, "f32")
    unpacked(package, tmp_path)
    golden = json.loads(json.dumps(base.manifest.parity))
    manifest = dataclasses.replace(package.manifest, parity=golden)
    found = inspect_version(manifest, tmp_path, Limits(1 << 30, 90, 1))
    assert (found.is_batchable, found.drift) == (True, "")
    assert found.private_bytes > 0
    golden["golden"][0]["outputs"]["embedding"][3] += 0.5
    drifted = inspect_version(manifest, tmp_path, Limits(1 << 30, 90, 1))
    assert "golden row 1: embedding" in drifted.drift


def test_a_missing_library_is_named_with_what_to_type(monkeypatch: pytest.MonkeyPatch):
    """The reason of the FAILED version is the command that mends it."""
    monkeypatch.setattr(openvino, "_core", None)
    monkeypatch.setattr(openvino.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(LoadFailed, match=r"pip install 'ramrack\[openvino\]'"):
        openvino.prepare()


def test_openvino_computes_what_was_pushed_for_it(base: Package, tmp_path: Path):
    """--runtime openvino: within 1e-5 it is float32; with more room it may be bfloat16."""
    folder = text_models.write_folder(tmp_path / "tiny")
    package = convert("tiny", folder, ConvertOptions(runtime="openvino"))
    assert package.manifest.runtime["engine"]["precision"] == "f32"
    array = np.empty(3, dtype=object)
    array[:] = ["the fox", "a lazy dog", "fox"]
    with opened(base) as one, opened(package) as other:
        np.testing.assert_allclose(
            other.run({"text": array})[0], one.run({"text": array})[0], atol=1e-5
        )
        assert other.run({"text": array[:0]})[0].shape == (0, text_models.WIDTH)
    free = convert("tiny", folder, ConvertOptions(runtime="openvino", tolerance=0.2))
    precision = "bf16" if openvino.has_bf16() else "f32"
    assert free.manifest.runtime["engine"]["precision"] == precision


def test_rounded_inputs_of_one_text_never_touch_another(base: Package, tmp_path: Path):
    """8-bit weights: a text answers alike alone and beside others, and near its original."""
    (tmp_path / "graph").mkdir()
    graph = unpacked(base, tmp_path / "graph")
    small = smaller(base, "int8-weights", graph, tmp_path)[0]
    texts = np.array(["the fox", "a dog", "good day", "lazy fox"], dtype=object)
    with opened(base) as original, opened(with_openvino(small, "int8")) as servable:
        wanted = original.run({"text": texts})[0]
        together = servable.run({"text": texts})[0]
        alone = np.concatenate([servable.run({"text": texts[[at]]})[0] for at in range(4)])
    assert np.abs(together - alone).max() <= 1e-6
    cosines = (together * wanted).sum(axis=1)
    assert cosines.min() > 0.99
    assert np.abs(together - wanted).max() > 1e-5  # it is the rounded form that was computed
