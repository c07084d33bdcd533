"""Each extra is enough for its own family, and for the others the push says what to type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import joblib
import numpy as np
import onnx
import pytest

from tests import graphs, text_models

pytestmark = [pytest.mark.extra, pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[3]
_SKLEARN = {"sklearn", "scipy", "joblib"}
# What pip brings with each extra, of the modules that the base install lacks.
MODULES = {
    "lightgbm": {"lightgbm", *_SKLEARN},
    "xgboost": {"xgboost", *_SKLEARN},
    "catboost": {"catboost", "pandas", "matplotlib", "plotly", "scipy"},
    "sklearn": {"skl2onnx", "pandas", *_SKLEARN},
    "mlflow": {"yaml"},  # as good as none: a reader of YAML, and no library
    "text": {"tokenizers"},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One model file for each family, by the extra that it needs; "" needs none."""
    pytest.importorskip("tokenizers")
    lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
    catboost, linear = pytest.importorskip("catboost"), pytest.importorskip("sklearn.linear_model")
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(1)
    x = rng.normal(size=(80, 3))
    y = x[:, 0] - x[:, 1]
    found = {
        "": folder / "m.onnx", "lightgbm": folder / "m.txt", "xgboost": folder / "m.ubj",
        "catboost": folder / "m.cbm", "sklearn": folder / "m.joblib", "mlflow": folder / "mlflow",
    }  # fmt: skip
    onnx.save(graphs.id32(), found[""])
    quiet = {"verbosity": -1, "num_threads": 1, "num_iterations": 3}
    lightgbm.train(quiet, lightgbm.Dataset(x, y)).save_model(found["lightgbm"])
    xgboost.train({"nthread": 1}, xgboost.DMatrix(x, y), 3).save_model(found["xgboost"])
    model = catboost.CatBoostRegressor(
        iterations=3, verbose=0, allow_writing_files=False, thread_count=1
    )
    model.fit(x, y).save_model(str(found["catboost"]))
    joblib.dump(linear.LinearRegression().fit(x, y), found["sklearn"])
    found["mlflow"].mkdir()
    onnx.save(graphs.id32(), found["mlflow"] / "model.onnx")
    (found["mlflow"] / "MLmodel").write_text('{"flavors": {"onnx": {"data": "model.onnx"}}}')
    found |= {"text": text_models.write_folder(folder / "text"), **_networks(folder)}
    return {family: str(path) for family, path in found.items()}


def _networks(folder: Path) -> dict[str, Path]:
    """Return files that are told by their members: without the library nothing else is read."""
    members = {"torch": ["m/models/model.json"], "tensorflow": ["config.json", "metadata.json"]}
    for family, names in members.items():
        with zipfile.ZipFile(folder / family, "w") as archive:
            for name in names:
                archive.writestr(name, "{}")
    return {family: folder / family for family in members}


@pytest.mark.parametrize("extra", MODULES)
def test_an_extra_alone_converts_its_family_and_names_the_others(extra: str, files: dict[str, str]):
    """The one command to type is in each refusal; nothing else is imported behind its back."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.models.without", ",".join(MODULES[extra]),
         *files.values()],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=200, check=True,
    )  # fmt: skip
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["imported"] == []
    for family, file in files.items():
        refusal = answer["found"][file]
        if family in ("", extra):
            assert refusal == "", family
        else:
            assert f"type `pip install 'ramrack[{family}]'`" in refusal, family


def test_openvino_that_is_missing_is_named_at_the_push(files: dict[str, str]):
    """Asked for by --runtime, for a model that could be served without."""
    pytest.importorskip("tokenizers")
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.models.without", "tokenizers",
         f"openvino={files['text']}"],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    (refusal,) = json.loads(done.stdout.splitlines()[-1])["found"].values()
    assert refusal.endswith("type `pip install 'ramrack[openvino]'`")


def test_every_extra_that_a_refusal_names_is_there():
    """pyproject.toml has each of them."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(MODULES) <= set(document["project"]["optional-dependencies"])
