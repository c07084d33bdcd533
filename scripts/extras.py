"""Train the smallest model of an extra, push it to a server of the same environment, ask it.

``python scripts/extras.py EXTRA FOLDER``, with the interpreter of an environment that has only that
extra; everything it writes is in FOLDER.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import onnx
from onnx import TensorProto, helper

from loadtest.lab.ramrack import ramrack

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


def mlflow(folder: Path) -> Path:
    node = helper.make_node("MatMul", ["input", "weights"], ["prediction"])
    weights = helper.make_tensor("weights", TensorProto.FLOAT, [3, 1], [1.0, -1.0, 0.5])
    graph = helper.make_graph(
        [node], "linear",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("prediction", TensorProto.FLOAT, ["N", 1])],
        [weights],
    )  # fmt: skip
    root = folder / "mlflow"
    root.mkdir()
    opset = helper.make_opsetid("", 18)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), root / "model.onnx")
    (root / "MLmodel").write_text(json.dumps({"flavors": {"onnx": {"data": "model.onnx"}}}))
    return root


MAKERS: dict[str, Callable[[Path], Path]] = {
    maker.__name__: maker for maker in (lightgbm, xgboost, catboost, sklearn, mlflow)
}


def main() -> int:
    extra, folder = sys.argv[1], Path(sys.argv[2])
    if extra not in MAKERS:
        print(f"{extra} is not one of {', '.join(MAKERS)}", file=sys.stderr)
        return 2
    path = MAKERS[extra](folder)
    with ramrack(os.sched_getaffinity(0), folder, "--workers", "1") as server:
        pushed = server.command("push", "m", str(path), "--load")
        answer = httpx.post(
            f"{server.url}/v1/models/m:predict", json={"instances": X[:5].tolist()},
            trust_env=False, timeout=30,
        )  # fmt: skip
    print(f"{extra}: version {pushed['version']}, parity {pushed.get('parity') is not None}, "
          f"{answer.status_code} {answer.text[:60]}")  # fmt: skip
    return 0 if answer.status_code == httpx.codes.OK else 1


if __name__ == "__main__":
    sys.exit(main())
