"""The way in: what a file is, and clear refusals that leave nothing behind."""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import io
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from models.convert import ConvertOptions, convert, detect_format
from models.errors import ConversionRefused
from registry.errors import InvalidInput


def identity() -> onnx.ModelProto:
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", 4]) for n in "XY"]
    graph = helper.make_graph([helper.make_node("Identity", ["X"], ["Y"])], "g", info[:1], info[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


class Canary:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_pickle_is_known_by_its_bytes(tmp_path, protocol, pack):
    """Whatever its name, a pickle is announced as one, packed or not, and is not opened for it."""
    canary = tmp_path / "canary"
    path = tmp_path / "model.onnx"
    path.write_bytes(pack(pickle.dumps(Canary(canary), protocol)))
    assert detect_format(path) == "pickle"
    assert not canary.exists()


def test_what_is_no_pickle_is_not_taken_for_one(tmp_path):
    """Text models and ONNX are known by their bytes, whatever they are called."""
    text, model = tmp_path / "m.pkl", tmp_path / "m.onnx"
    text.write_text("tree\nversion=v4\n")
    onnx.save(identity(), model)
    assert detect_format(text) == "lightgbm"
    assert detect_format(model) == "onnx"


def test_f08_a_pickle_is_not_opened_as_another_format(tmp_path):
    """A pickle that is pushed as ONNX is refused without being opened."""
    canary = tmp_path / "canary"
    path = tmp_path / "model.onnx"
    path.write_bytes(pickle.dumps(Canary(canary)))
    with pytest.raises(ConversionRefused, match="is pickle, not onnx"):
        convert("m", path, ConvertOptions(format="onnx"))
    assert not canary.exists()


@pytest.mark.parametrize("name", ["model.onnx", "model.ONNX", "model.txt", "model.npz"])
def test_f08_a_pickle_under_a_harmless_name_is_not_opened(tmp_path, name):
    """Nobody who pushes a file that is read without running code has its code run."""
    canary = tmp_path / "canary"
    path = tmp_path / name
    path.write_bytes(pickle.dumps(Canary(canary)))
    with pytest.raises(ConversionRefused, match="although its name says otherwise"):
        convert("m", path)
    assert not canary.exists()


def test_f08_a_pickle_under_a_harmless_name_is_opened_when_asked_for(tmp_path):
    """Naming the format of a pickle says that it is trusted."""
    path = tmp_path / "model.txt"
    path.write_bytes(pickle.dumps({}))
    with pytest.raises(ConversionRefused, match=r"holds a 'builtins\.dict'"):
        convert("m", path, ConvertOptions(format="sklearn"))


def test_an_onnx_file_passes_unchanged(tmp_path):
    """An ONNX file becomes a package of its own graph, with its name and digest as the source."""
    path = tmp_path / "m.onnx"
    onnx.save(identity(), path)
    manifest = convert("m", path, ConvertOptions(meta={"run": "7"})).manifest
    assert manifest.parity is None
    assert manifest.source["framework"] == "onnx"
    assert manifest.source["file"] == "m.onnx"
    assert manifest.source["file_digest"].startswith("sha256:")
    assert manifest.meta == {"run": "7"}


def zipped(*names):
    """Return an archive of empty members."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name in names:
            archive.writestr(name, b"")
    return held.getvalue()


NETWORK_FILES = {
    "m.pt2": ("pt2", zipped("m/models/model.json", "m/archive_format"), "torch"),
    "m.pth": ("torchscript", zipped("m/code/a.py", "m/constants.pkl", "m/data.pkl"), "torch"),
    "m.zip": ("keras", zipped("config.json", "metadata.json"), "tensorflow"),
    "m.h5": ("keras", b"\x89HDF\r\n\x1a\n....", "tensorflow"),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORK_FILES)
def test_networks_are_known_by_what_is_in_them(tmp_path, name, monkeypatch):
    """The archive says which library wrote it; without that, the one command to type is said."""
    found, content, extra = NETWORK_FILES[name]
    path = tmp_path / name
    path.write_bytes(content)
    assert detect_format(path) == found
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConversionRefused) as caught:
        convert("m", path, ConvertOptions(folder=tmp_path))
    modules = {"torch": "'torch', 'onnxscript'", "tensorflow": "'tensorflow', 'keras', 'tf2onnx'"}
    assert str(caught.value) == (
        f"the Python modules {modules[extra]} are missing: type `pip install 'ramrack[{extra}]'`"
    )
    assert list(tmp_path.iterdir()) == [path]


def test_a_saved_model_is_known_by_its_folder(tmp_path):
    """A folder is a model where TensorFlow wrote one."""
    (tmp_path / "saved_model.pb").write_bytes(b"")
    assert detect_format(tmp_path) == "savedmodel"
    with pytest.raises(ConversionRefused, match="is savedmodel, not torch"):
        convert("m", tmp_path, ConvertOptions(format="torch"))


def test_f08_a_program_under_a_harmless_name_is_not_opened(tmp_path):
    """TorchScript runs code too: under the name of another format it has to be asked for."""
    path = tmp_path / "m.onnx"
    path.write_bytes(NETWORK_FILES["m.pth"][1])
    with pytest.raises(ConversionRefused, match="a torchscript model although its name says other"):
        convert("m", path, ConvertOptions(folder=tmp_path))


def test_an_archive_that_lost_its_end_is_not_taken_for_one_of_its_members(tmp_path):
    """A cut archive may end with a whole one inside it, whose directory a reader then finds."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("m/models/model.json", b"{}")
        archive.writestr("m/inner.pt", zipped("data.pkl"))
        archive.writestr("m/last", b"." * 100)
    path = tmp_path / "m.pt2"
    path.write_bytes(held.getvalue()[: held.getvalue().index(b"m/last")])
    with pytest.raises(ConversionRefused, match="damaged or truncated"):
        detect_format(path)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("m.cbm", b"CBM1\x00\x00", "CatBoost refuses the model file"),
        ("m.json", b'{"learner":{}}', "XGBoost: the model file is damaged"),
        ("m.ubj", b"{L\x00\x00\x07learner", "XGBoost: the model file is damaged"),
        ("m.pt2", b"PK\x03\x04....", "zip archive that is damaged or truncated"),
        ("m.keras", b"PK\x03\x04....", "zip archive that is damaged or truncated"),
        ("m.npz", zipped("a.npy"), "a file of NumPy arrays, not a model"),
        ("m.pt", zipped("m/data.pkl", "m/data/0"), r"torch\.export\.save"),
        ("m.pt2", zipped("m/data/aotinductor/m/m.so"), "compiled for one kind of machine"),
        ("m.zip", zipped("readme.txt"), "but not a PyTorch, Keras or skops model"),
        ("m.json", b"{}", "JSON document"),
        ("m.onnx", b"", "is empty"),
        ("m.onnx", b"<html>", "not an ONNX model"),
        ("m.onnx", b"\xff\x00\xfe", "not an ONNX model, .*: push ONNX, a LightGBM text model"),
        ("m.txt", b"hello", "a text file, not a model: push ONNX, a LightGBM text model"),
        ("m.md", "# Größe\n".encode() * 1000, "a text file, not a model"),
        ("m.csv", b"a,b\n1,2\n", "a CSV table, not a model"),
        ("m.onnx", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("m.txt", b"tree\nversion=v4\n", "'end of trees' does not come"),
        ("m.txt", b"tree\n\xff\xfe", "not UTF-8"),
        ("m.pkl", pickle.dumps({"a": 1}), "holds a 'builtins.dict'"),
        ("m.pkl", pickle.dumps(list(range(1000)))[:500], "cannot be unpickled"),
        (
            "m.pkl",
            gzip.compress(pickle.dumps(list(range(1000))), mtime=0)[:200],
            "cannot be unpickled",
        ),
        ("m.pkl", b"\x80\x04cno_such_module_x\nThing\n.", "no_such_module_x"),
    ],
)
def test_foreign_and_damaged_files_are_refused_with_the_reason(tmp_path, name, content, reason):
    """Each refusal says what the file is, and nothing is left beside it."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConversionRefused, match=reason) as caught:
        convert("m", path)
    assert str(tmp_path) not in str(caught.value)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("marker", "reason"),
    [
        ("MLmodel", "MLmodel: expected an object"),
        ("x", "a folder without a model: push"),
    ],
)
def test_folders_are_refused_with_what_they_are(tmp_path, marker, reason):
    """A folder of another tool is named."""
    (tmp_path / marker).touch()
    with pytest.raises(ConversionRefused, match=reason):
        convert("m", tmp_path)


def test_wrong_names_and_formats_are_refused(tmp_path):
    """The model's name and the format are checked before the file is looked at."""
    with pytest.raises(InvalidInput):
        convert("../x", tmp_path / "m.onnx")
    with pytest.raises(ConversionRefused, match="no such file"):
        convert("m", tmp_path / "m.onnx")
    with pytest.raises(ConversionRefused, match="use one of auto, onnx, lightgbm, xgboost"):
        convert("m", tmp_path / "m.onnx", ConvertOptions(format="spark"))


def test_a_pickle_is_announced_just_before_it_is_opened(tmp_path):
    """The notice comes where the file's code will run, and never where it is refused unopened."""
    path, harmless = tmp_path / "m.pkl", tmp_path / "m.csv"
    path.write_bytes(pickle.dumps(Canary(tmp_path / "canary")))
    harmless.write_bytes(path.read_bytes())
    told: list[bool] = []

    def tell() -> None:
        told.append((tmp_path / "canary").exists())

    for refused, options in ((harmless, None), (path, ConvertOptions(format="onnx")),
                             (path, ConvertOptions(sample=tmp_path / "no-rows.csv"))):  # fmt: skip
        with pytest.raises(ConversionRefused):
            convert("m", refused, options, before_pickle=tell)
    assert told == []
    with pytest.raises(ConversionRefused):
        convert("m", path, before_pickle=tell)
    assert told == [False]


@pytest.mark.extra
@pytest.mark.slow
@pytest.mark.parametrize(("module", "name", "wanted"), [
    ("sklearn.linear_model", "LinearRegression", "lightgbm"),
    ("lightgbm", "LGBMRegressor", "sklearn"),
])  # fmt: skip
def test_a_format_that_the_pickle_is_not_is_refused(tmp_path, module, name, wanted):
    """Asking for one family and getting another is no surprise that a push may bring."""
    path = tmp_path / "m.pkl"
    path.write_bytes(pickle.dumps(getattr(importlib.import_module(module), name)()))
    with pytest.raises(ConversionRefused, match=f"holds a .*{name}.*not {wanted}: use --format"):
        convert("m", path, ConvertOptions(format=wanted))


@pytest.mark.parametrize(
    ("data", "extra"),
    [(b"tree\nversion=v4\n", "lightgbm"), (b'{"learner":{}}', "xgboost"), (b"CBM1", "catboost")],
)
def test_a_missing_library_is_named_with_the_command_to_type(tmp_path, monkeypatch, data, extra):
    """Without the extra, a push says which one to install."""
    path = tmp_path / "m.bin"
    path.write_bytes(data)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConversionRefused, match=rf"pip install 'ramrack\[{extra}\]'"):
        convert("m", path)
    path = tmp_path / "m.pkl"
    path.write_bytes(pickle.dumps({}))
    with pytest.raises(ConversionRefused, match=r"pip install 'ramrack\[sklearn\]'"):
        convert("m", path)


@pytest.mark.slow
def test_the_base_install_imports_the_converters():
    """Importing them imports no training framework."""
    code = (
        "import sys, models.convert, models.zoo, models.convert.lightgbm, models.convert.sklearn\n"
        "import models.convert.sklearn_graph, models.convert.xgboost, models.convert.catboost\n"
        "import models.runtime.loader, models.runtime.native, models.native_child\n"
        "heavy = {'lightgbm', 'xgboost', 'catboost', 'sklearn', 'pandas', 'skl2onnx', 'joblib',\n"
        "         'onnxruntime'}\n"
        "bad = heavy & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
