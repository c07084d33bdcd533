"""Train the smallest model of an extra, push it to a server of the same environment, ask it.

``python scripts/extras.py EXTRA FOLDER``, with the interpreter of an environment that has only that
extra (or those, as in ``text,openvino``); everything it writes is in FOLDER.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import onnx
from onnx import TensorProto, helper

from loadtest.lab.ramrack import RAMRACK, Ramrack, ramrack

# Last: what the environment has comes first, and only the makers of files for tests are here.
sys.path.append(str(Path(__file__).resolve().parents[1]))
X = np.random.default_rng(1).normal(size=(80, 3))
Y = X[:, 0] - X[:, 1]


def lightgbm(folder: Path) -> Path:
    import lightgbm

    path = folder / "model.txt"
    quiet = {"verbosity": -1, "num_threads": 1, "num_iterations": 5}
    lightgbm.train(quiet, lightgbm.Dataset(X, Y)).save_model(path)
    return path


def xgboost(folder: Path) -> Path:
    import xgboost

    path = folder / "model.ubj"
    xgboost.train({"nthread": 1}, xgboost.DMatrix(X, Y), 5).save_model(path)
    return path


def catboost(folder: Path) -> Path:
    import catboost

    path = folder / "model.cbm"
    model = catboost.CatBoostRegressor(
        iterations=5, verbose=0, allow_writing_files=False, thread_count=1
    )
    model.fit(X, Y).save_model(str(path))
    return path


def sklearn(folder: Path) -> Path:
    from sklearn.linear_model import LinearRegression

    path = folder / "model.pkl"
    path.write_bytes(pickle.dumps(LinearRegression().fit(X, Y)))
    return path


def graph(folder: Path) -> Path:
    node = helper.make_node("MatMul", ["input", "weights"], ["prediction"])
    weights = helper.make_tensor("weights", TensorProto.FLOAT, [3, 1], [1.0, -1.0, 0.5])
    linear = helper.make_graph(
        [node], "linear",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("prediction", TensorProto.FLOAT, ["N", 1])],
        [weights],
    )  # fmt: skip
    path = folder / "model.onnx"
    opset = helper.make_opsetid("", 18)
    onnx.save(helper.make_model(linear, opset_imports=[opset], ir_version=9), path)
    return path


def mlflow(folder: Path) -> Path:
    root = folder / "mlflow"
    root.mkdir()
    graph(root)
    (root / "MLmodel").write_text(json.dumps({"flavors": {"onnx": {"data": "model.onnx"}}}))
    return root


def torch(folder: Path) -> Path:
    import torch

    from models.zoo.networks import save_program

    rows = torch.from_numpy(X.astype(np.float32))
    return save_program(torch.nn.Linear(3, 1), [rows[:2]], folder / "model.pt2")


def tensorflow(folder: Path) -> Path:
    import keras

    path = folder / "model.keras"
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]).save(path)
    return path


def text(folder: Path) -> Path:
    from tests.text_models import write_folder

    return write_folder(folder / "text")


def recipe(server: Ramrack, folder: Path) -> None:
    """Run one; it pushes by itself."""
    command = [sys.executable, "-m", "models.zoo.recipes.boost_lightgbm", "--rows", "400",
               "--trials", "2", "--folder", str(folder / "recipe"), "--model", "m",
               "--admin-url", server.admin_url]  # fmt: skip
    subprocess.run(command, check=True, timeout=600, cwd=folder)


# What is made, what the push is told beside it, and a row to ask.
ROW: list[object] = X[0].tolist()
MAKERS: dict[str, tuple[Callable[[Path], Path] | None, tuple[str, ...], object]] = {
    "lightgbm": (lightgbm, (), ROW), "xgboost": (xgboost, (), ROW), "catboost": (catboost, (), ROW),
    "sklearn": (sklearn, (), ROW), "mlflow": (mlflow, (), ROW), "torch": (torch, (), ROW),
    "tensorflow": (tensorflow, (), ROW), "text": (text, (), "the fox"),
    "text,openvino": (text, ("--runtime", "openvino"), "the fox"),
    "loadtest": (graph, (), ROW), "lightgbm,recipes": (None, (), [30.0, 2e4, 3e3, 12.0, 1.0]),
}  # fmt: skip


def main() -> int:
    extra, folder = sys.argv[1], Path(sys.argv[2])
    if extra not in MAKERS:
        print(f"{extra} is not one of {', '.join(MAKERS)}", file=sys.stderr)
        return 2
    make, options, row = MAKERS[extra]
    path = None if make is None else make(folder)
    with ramrack(os.sched_getaffinity(0), folder, "--workers", "1") as server:
        if path is None:
            recipe(server, folder)
        else:
            server.command("push", "m", str(path), "--load", *options)
        if extra == "loadtest":
            # Whether the run is valid is the machine's affair: code 1 says that it was busy.
            done = subprocess.run(
                [RAMRACK, "bench", "m", "--rate", "20", "--seconds", "2", "--url", server.url],
                capture_output=True, text=True, timeout=200, check=False,
            )  # fmt: skip
            print(done.stdout)
            if done.returncode and "not valid" not in done.stderr:
                print(done.stderr, file=sys.stderr)
                return 1
        answer = httpx.post(
            f"{server.url}/v1/models/m:predict", json={"instances": [row]},
            trust_env=False, timeout=30,
        )  # fmt: skip
    print(f"{extra}: {answer.status_code} {answer.text[:60]}")
    return 0 if answer.status_code == httpx.codes.OK else 1


if __name__ == "__main__":
    sys.exit(main())
