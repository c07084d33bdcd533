"""Damage that a library finds, or that crashes it: always a refusal with the reason."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from models.convert import ConvertOptions, convert
from models.convert.extras import ModulesMissing
from models.errors import ConversionRefused
from tests.text_models import write_folder

pytestmark = pytest.mark.extra
X = np.random.default_rng(1).normal(size=(80, 3))
Y = X[:, 0] - X[:, 1]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A small model in LightGBM's own form."""
    lightgbm = pytest.importorskip("lightgbm")
    path = tmp_path / "model.txt"
    quiet = {"verbosity": -1, "num_threads": 1}
    lightgbm.train(quiet, lightgbm.Dataset(X, Y), 3).save_model(path)
    return path


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    """A small model in CatBoost's own form."""
    catboost = pytest.importorskip("catboost")
    path = tmp_path / "model.cbm"
    model = catboost.CatBoostRegressor(
        iterations=3, depth=2, verbose=0, allow_writing_files=False, thread_count=1
    )
    model.fit(X, Y).save_model(str(path))
    return path


def damage(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


def refusal(path: Path, **options: object) -> str:
    """Return the reason, which must not tell of this machine."""
    with pytest.raises(ConversionRefused) as caught:
        convert("m", path, ConvertOptions(**options))  # type: ignore[arg-type]
    assert str(path.parent) not in str(caught.value)
    return str(caught.value)


@pytest.mark.slow
def test_a_file_that_crashes_its_library_ends_only_the_process_that_opened_it(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """LightGBM reads past the end of a model whose parameters are cut off."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    convert("m", text, ConvertOptions(is_apart=True))
    data = text.read_bytes()
    text.write_bytes(data[: data.index(b"\nend of parameters") - 20])
    assert refusal(text, is_apart=True).startswith(
        "'model.txt' cannot be converted: the library that opens it crashed (SIG"
    )
    assert list(scratch.iterdir()) == []


def test_what_is_missing_in_the_process_of_its_own_is_said_as_here(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The one command to type, not one for another Python."""
    nothing = tmp_path / "python"
    nothing.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'import json, sys; open(sys.argv[1] + "
        """"/answer.json", "w").write(json.dumps({"missing": ["lightgbm"]}))' "$4"\n"""
    )
    nothing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(nothing))
    with pytest.raises(ModulesMissing, match=r"type `pip install 'ramrack\[lightgbm\]'`"):
        convert("m", text, ConvertOptions(is_apart=True))


def test_categories_that_are_no_json(text: Path):
    """LightGBM's package reads them by itself, in words of its own."""
    damage(text, b"pandas_categorical:null", b"pandas_categorical:nu]l")
    assert "LightGBM" in refusal(text)


def test_parameters_of_catboost_that_are_damaged(binary: Path):
    """The trees are whole, and yet what the model is cannot be known."""
    damage(binary, b'"min_data_in_leaf"', b'"min_date_in_leaf"')
    assert "CatBoost cannot read the parameters in the model" in refusal(binary)


def test_a_model_of_catboost_that_is_no_utf8(binary: Path):
    """What stands in it beside the trees cannot be written as JSON."""
    damage(binary, b"train_finish_time", b"train_finish_ti\xe1e")
    assert "CatBoost" in refusal(binary)


def test_a_vocabulary_that_is_no_utf8(tmp_path: Path):
    """Of a tokenizer that has no tokenizer.json."""
    pytest.importorskip("tokenizers")
    folder = write_folder(tmp_path / "text")
    (folder / "vocab.txt").write_bytes(b"[UNK]\n[CLS]\n\xff\n")
    (folder / "tokenizer.json").unlink(missing_ok=True)
    assert refusal(folder) == "vocab.txt is not UTF-8 at byte 12"


def test_a_pickle_of_functions_that_are_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Notebooks define them; the file only names them, and is not damaged."""
    pytest.importorskip("joblib")
    notebook = ModuleType("__main__")
    exec("def to_logs(x): return x", notebook.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    (tmp_path / "m.pkl").write_bytes(pickle.dumps({"step": notebook.to_logs}))
    monkeypatch.undo()
    reason = refusal(tmp_path / "m.pkl")
    assert reason.startswith("'m.pkl' refers to 'to_logs', which is not there: a pickle names")


def test_a_pickle_of_catboost_with_texts(tmp_path: Path):
    """What CatBoost saves of one that was unpickled crashes it; its own file is whole."""
    catboost = pytest.importorskip("catboost")
    table = np.array([["red fox", 1.0], ["lazy dog", 2.0], ["red dog", 3.0]] * 20, dtype=object)
    model = catboost.CatBoostRegressor(
        iterations=3, depth=2, verbose=0, allow_writing_files=False, thread_count=1,
        text_features=[0],
    ).fit(table, np.arange(60.0))  # fmt: skip
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(model))
    assert "feature '0' is a text, which a pickle does not keep" in refusal(tmp_path / "m.pkl")
    model.save_model(str(tmp_path / "m.cbm"))
    assert convert("m", tmp_path / "m.cbm").manifest.runtime["name"] == "native"
