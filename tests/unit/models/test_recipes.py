"""The recipes: each trains, writes a file that can be pushed, and says how to push it."""

from __future__ import annotations

import importlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from models.convert import ConvertOptions, convert

pytestmark = [pytest.mark.extra, pytest.mark.slow, pytest.mark.timeout(300)]
RECIPES = {
    "boost_lightgbm": ("lightgbm", "lightgbm.txt"),
    "boost_xgboost": ("xgboost", "xgboost.ubj"),
    "boost_catboost": ("catboost", "catboost.cbm"),
    "forest": ("skl2onnx", "forest.joblib"),
    "grid_search": ("skl2onnx", "grid.joblib"),
}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch):
    """A recipe sets this for itself; here it must not outlive it."""
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))


def recipe(name: str) -> Any:
    for module in ("polars", "optuna", RECIPES[name][0]):
        pytest.importorskip(module)
    return importlib.import_module(f"models.zoo.recipes.{name}")


@pytest.mark.parametrize("name", RECIPES)
def test_what_a_recipe_writes_can_be_pushed(name: str, tmp_path: Path, capsys):
    """Its file is converted at parity on its own sample."""
    arguments = ["--rows", "400", "--trials", "1", "--jobs", "1", "--no-push"]
    assert recipe(name).main([*arguments, "--folder", str(tmp_path)]) == 0
    file = tmp_path / RECIPES[name][1]
    assert f"wrote {file}; to push it: ramrack push loans-" in capsys.readouterr().out
    if name == "grid_search":  # its pipeline is the forest's
        return
    package = convert("m", file, ConvertOptions(sample=tmp_path / "sample.csv"))
    parity = package.manifest.parity
    assert parity is not None
    assert parity["label_disagreements"] == 0
    assert parity["sample"] == "sample.csv"


def test_a_recipe_pushes_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Under its name, with its sample, as the candidate; its exit code is that of the push.

    The rows are those of ``--data``, and trials run in processes of their own.
    """
    commands: list[list[str]] = []

    def run(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    module = recipe("boost_lightgbm")
    mine = importlib.import_module("models.zoo.recipes.loans").write_table(
        tmp_path / "mine.parquet", 300
    )
    arguments = ["--data", str(mine), "--trials", "1", "--jobs", "2", "--model", "mine"]
    assert module.main([*arguments, "--folder", str(tmp_path), "--admin-url", "http://x:1"]) == 1
    (command,) = commands
    assert command[-2:] == ["--admin-url", "http://x:1"]
    assert command[command.index("--meta") + 1] == "rows=mine.parquet"
    assert not (tmp_path / "loans.parquet").exists()
    assert command[1:4] == ["push", "mine", str(tmp_path / "lightgbm.txt")]
    assert command[command.index("--alias") + 1] == "candidate"
    assert command[command.index("--sample") + 1] == str(tmp_path / "sample.csv")
