"""Folders as MLflow writes them: the model in them, and everything that does not fit together."""

from __future__ import annotations

import importlib.util
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from models.convert import ConvertOptions, convert
from models.convert.mlflow import read_mlflow
from models.convert.mlflow_signature import fitted
from models.errors import ConversionRefused
from models.package import Package
from models.signature import Signature, TensorSpec
from tests.graphs import id32, identity

pytestmark = pytest.mark.extra
NAMES = ["age", "fare", "debt"]


def folder_of(
    root: Path,
    flavors: dict[str, Any],
    *,
    inputs: list[dict[str, Any]] | None = None,
    **more: Any,
) -> Path:
    """Write an MLmodel (JSON is YAML, too) that names these flavours."""
    root.mkdir(exist_ok=True)
    document: dict[str, Any] = {
        "artifact_path": "model", "flavors": flavors, "mlflow_version": "3.4.0",
        "model_uuid": "8d1c", "run_id": "5f0e", "utc_time_created": "2026-05-01 10:00:00.1",
    }  # fmt: skip
    if inputs is not None:
        document["signature"] = {"inputs": json.dumps(inputs), "outputs": "[]", "params": None}
    (root / "MLmodel").write_text(json.dumps(document | more))
    return root


def doubles(*names: str) -> list[dict[str, Any]]:
    return [{"type": "double", "name": name, "required": True} for name in names]


@pytest.fixture
def boosted(tmp_path: Path) -> Path:
    """A folder with a LightGBM model over three named columns."""
    lightgbm = pytest.importorskip("lightgbm")
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 3))
    data = lightgbm.Dataset(x, x[:, 0] * x[:, 1], feature_name=NAMES)
    booster = lightgbm.train(
        {"verbosity": -1, "num_threads": 1, "num_iterations": 5, "objective": "regression"}, data
    )
    root = folder_of(
        tmp_path / "boosted",
        {
            "lightgbm": {"data": "model.lgb", "lgb_version": lightgbm.__version__,
                         "model_class": "lightgbm.basic.Booster", "code": None},
            "python_function": {"loader_module": "mlflow.lightgbm", "data": "model.lgb"},
        },
        inputs=doubles(*NAMES),
        saved_input_example_info={"artifact_path": "input_example.json", "type": "dataframe",
                                  "pandas_orient": "split"},
    )  # fmt: skip
    booster.save_model(root / "model.lgb")
    example = {"columns": NAMES, "data": x[:7].tolist()}
    (root / "input_example.json").write_text(json.dumps(example))
    return root


def changed(root: Path, **changes: Any) -> Path:
    document = json.loads((root / "MLmodel").read_text()) | changes
    (root / "MLmodel").write_text(json.dumps(document))
    return root


def signed(root: Path, inputs: object) -> Path:
    return changed(root, signature={"inputs": json.dumps(inputs)})


def refusal(root: Path, **options: Any) -> str:
    with pytest.raises(ConversionRefused) as caught:
        convert("m", root, ConvertOptions(**options))
    return str(caught.value)


def columns(package: Package) -> object:
    (spec,) = package.manifest.signature["inputs"]  # type: ignore[misc]
    return spec["columns"]  # type: ignore[index,call-overload]


def test_a_folder_is_its_model_with_its_example_and_its_run(boosted: Path):
    """The file of the flavour is converted; example rows are compared; the run id stays."""
    package = convert("m", boosted, ConvertOptions(meta={"run_id": "mine"}))
    manifest = package.manifest
    assert manifest.meta == {
        "run_id": "mine", "model_uuid": "8d1c", "utc_time_created": "2026-05-01 10:00:00.1",
    }  # fmt: skip
    assert manifest.source["file"] == "model.lgb"
    assert manifest.source["mlflow"]["flavour"] == "lightgbm"  # type: ignore[index,call-overload]
    assert manifest.parity is not None
    assert manifest.parity["sample"] == "input_example.json"
    assert columns(package) == NAMES
    assert convert("m", boosted / "model.lgb").manifest.digest == manifest.digest


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (doubles("age", "fare"), "'debt', which the model takes, lacks"),
        (doubles(*NAMES, "zip"), "'zip' is none that the model takes"),
        ([*doubles("age", "fare"), {"type": "string", "name": "debt"}], "'debt' is 'string'"),
        ([{"type": "tensor", "tensor-spec": {"dtype": "float64", "shape": [-1, 4]}}],
         "4 columns, the model takes 3"),
        ([{"type": "tensor", "tensor-spec": {"shape": "big"}}], "tensor-spec.shape"),
        ([{"name": "age"}], "signature.inputs[0]"),
        ("text", "expected a list"),
    ],
)  # fmt: skip
def test_a_signature_that_does_not_fit_is_refused_by_column(
    boosted: Path, inputs: object, words: str
):
    """What the folder says it takes and what the model takes are the same, or the push fails."""
    assert words in refusal(signed(boosted, inputs))


class Unknown:
    """A type that would notice if it was made from a file."""

    made_again: list[object] = []  # noqa: RUF012

    def __setstate__(self, state: object) -> None:
        self.made_again.append(state)


def test_other_orders_and_whole_numbers_fit(boosted: Path):
    """Columns go by name, and a whole number is a number."""
    inputs = [{"type": "long", "name": name} for name in reversed(NAMES)]
    assert columns(convert("m", signed(boosted, inputs))) == NAMES


def test_a_table_without_names_gets_those_of_the_signature(tmp_path: Path):
    """A graph over a matrix is asked by the column names that MLflow's clients send."""
    root = folder_of(tmp_path / "f", {"onnx": {"data": "model.onnx"}}, inputs=doubles(*"abcd"))
    onnx.save(id32(), root / "model.onnx")
    assert columns(convert("m", root)) == list("abcd")
    assert "3 columns, the model takes 4" in refusal(signed(root, doubles(*"abc")))


def test_a_pickle_of_another_release_is_refused(tmp_path: Path):
    """The flavour says which scikit-learn saved it; requirements.txt does where it does not."""
    linear = pytest.importorskip("sklearn.linear_model")
    root = tmp_path / "f"
    about = {"pickled_model": "model.pkl", "serialization_format": "pickle"}
    folder_of(root, {"sklearn": about | {"sklearn_version": "1.2.3"}})
    model = linear.LinearRegression().fit(np.eye(3), [1.0, 2.0, 3.0])
    (root / "model.pkl").write_bytes(pickle.dumps(model))
    text = refusal(root)
    assert "scikit-learn 1.2.3 saved the model" in text
    assert "--python EXE" in text
    folder_of(root, {"sklearn": about})
    (root / "requirements.txt").write_text("mlflow==3.4.0\nscikit-learn==1.1.0\n")
    assert "scikit-learn 1.1.0" in refusal(root)
    (root / "requirements.txt").write_text("scikit-learn\n")
    opened = []
    package = convert("m", root, before_pickle=lambda: opened.append(1))
    assert (opened, package.manifest.source["framework"]) == ([1], "sklearn")


def test_what_mlflow_saves_by_default_is_taken_without_running_code(tmp_path: Path):
    """A skops file is no pickle, and a type in it that skops does not know is refused by name."""
    skops, linear = pytest.importorskip("skops.io"), pytest.importorskip("sklearn.linear_model")
    root = tmp_path / "f"
    about = {"pickled_model": "model.skops", "serialization_format": "skops"}
    folder_of(root, {"sklearn": about})
    skops.dump(linear.LinearRegression().fit(np.eye(3), [1.0, 2.0, 3.0]), root / "model.skops")
    opened = []
    package = convert("m", root, before_pickle=lambda: opened.append(1))
    assert (opened, package.manifest.source["framework"]) == ([], "sklearn")
    skops.dump(Unknown(), root / "model.skops")
    text = refusal(root)
    assert "Unknown" in text
    assert "joblib.dump" in text
    assert not Unknown.made_again
    whole = (root / "model.skops").read_bytes()
    (root / "model.skops").write_bytes(whole[: len(whole) // 2])
    assert "damaged or truncated" in refusal(root)


@pytest.mark.parametrize("name", ["../model.lgb", "/etc/passwd", "//proc/self/root/etc/passwd",
                                  "", 5, "no\0name", "link", "folder/../../x", "gone"])  # fmt: skip
def test_f04_what_leads_out_of_the_folder_is_refused(boosted: Path, name: object):
    """Every way to name a file elsewhere, before a byte of it is read."""
    outside = boosted.parent / "model.lgb"
    outside.write_bytes((boosted / "model.lgb").read_bytes())
    (boosted / "link").symlink_to(outside)
    (boosted / "folder").symlink_to(boosted.parent)
    text = refusal(changed(boosted, flavors={"lightgbm": {"data": name}}))
    assert "flavors.lightgbm.data" in text


@pytest.mark.parametrize(
    ("flavor", "field", "extra"),
    [("pytorch", "model_data", "torch"), ("tensorflow", "saved_model_dir", "tensorflow")],
)
def test_networks_point_at_their_file_or_name_their_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flavor: str, field: str, extra: str
):
    """The file inside is found; without the library the push says what to type."""
    root = folder_of(tmp_path / "f", {flavor: {field: "data"}})
    (root / "data").mkdir()
    assert "holds none of" in refusal(root)
    name = "model.pth" if flavor == "pytorch" else "model.keras"
    (root / "data" / name).write_bytes(b"PK\x03\x04")
    assert read_mlflow(root).file == (root / "data" / name).resolve()
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda module: None if module == extra else found(module)
    )
    assert f"type `pip install 'ramrack[{extra}]'`" in refusal(root)


def test_a_folder_that_names_itself_is_refused(boosted: Path):
    """Rather than read for ever."""
    for flavor in ("lightgbm", "onnx"):
        text = refusal(changed(boosted, flavors={flavor: {"data": "."}}))
        assert "is a folder of MLflow itself" in text


def test_f04_a_linked_document_or_example_is_refused(boosted: Path):
    """MLmodel itself and the example may be links inside the folder only."""
    info = {"type": "dataframe", "artifact_path": "../secret.json"}
    assert "artifact_path" in refusal(changed(boosted, saved_input_example_info=info))
    other = boosted.parent / "other"
    (boosted / "MLmodel").rename(other)
    (boosted / "MLmodel").symlink_to(other)
    assert "link that leads out" in refusal(boosted)


@pytest.mark.parametrize(
    ("flavors", "words"),
    [
        ({"python_function": {"loader_module": "mlflow.pyfunc.model"}}, "mlflow.pyfunc.model"),
        ({"spark": {}}, "none of them can be served"),
        ({"lightgbm": 5}, "flavors.lightgbm: expected an object"),
        ({}, "none of them"),
        ([], "flavors: expected an object"),
    ],
)
def test_what_nothing_here_serves_is_refused_by_name(tmp_path: Path, flavors: Any, words: str):
    """Code of one's own, other libraries and broken documents each get their reason."""
    pytest.importorskip("lightgbm")
    assert words in refusal(folder_of(tmp_path / "f", flavors))


@pytest.mark.parametrize(
    "text", ["{", "a: [", "- 5", "", "a: &x [*x", "\x00", "!!python/object:os.system x"]
)
def test_a_document_that_is_no_yaml_is_refused(tmp_path: Path, text: str):
    """Nor is a tag obeyed that would run code."""
    (tmp_path / "MLmodel").write_text(text)
    assert "MLmodel" in refusal(tmp_path)


def test_the_wanted_flavour_is_taken(boosted: Path):
    """--format names one of several flavours; one that is not there is refused."""
    document = json.loads((boosted / "MLmodel").read_text())
    both = document["flavors"] | {"onnx": {"data": "model.onnx"}}
    changed(boosted, flavors=both, saved_input_example_info=None)
    onnx.save(identity(onnx.TensorProto.FLOAT, ("N", 3)), boosted / "model.onnx")
    package = convert("m", boosted, ConvertOptions(format="onnx"))
    assert package.manifest.source["mlflow"] == {"flavour": "onnx"}
    assert "there is no 'catboost', but" in refusal(boosted, format="catboost")


def test_rows_of_the_example_that_do_not_fit_say_where_they_come_from(boosted: Path):
    """Who never named a sample is told which file it was."""
    (boosted / "input_example.json").write_text(json.dumps({"columns": ["x"], "data": [[1]]}))
    assert "input_example of 'boosted'" in refusal(boosted)


def test_whole_numbers_fit_where_the_library_takes_them_for_their_digits():
    """Categories of CatBoost that were numbers in training; a fraction fits nowhere."""
    output = TensorSpec("prediction", "FP32", (-1,))
    zone = TensorSpec("zone", "BYTES", (-1, 1), integers=True)
    saved = {"inputs": json.dumps([{"type": "long", "name": "zone"}])}
    signature = Signature((zone,), (output,)).to_json()
    assert fitted(signature, saved) == (signature, ())
    texts = Signature((replace(zone, integers=False),), (output,)).to_json()
    with pytest.raises(ConversionRefused, match="'zone' is 'long', the model takes BYTES"):
        fitted(texts, saved)
    saved = {"inputs": json.dumps([{"type": "double", "name": "zone"}])}
    with pytest.raises(ConversionRefused, match="'zone' is 'double'"):
        fitted(signature, saved)
