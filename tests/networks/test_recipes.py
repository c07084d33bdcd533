"""The recipes of networks: made rows, a search in processes, a program that can be pushed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="runs in .venv-torch: scripts/test-frameworks torch")
pl = pytest.importorskip("polars", reason="runs in .venv-torch")
pytest.importorskip("optuna", reason="runs in .venv-torch")

from models.zoo.recipes import gru, tabnet, two_towers
from models.zoo.recipes.nets import run
from tests.parity.conftest import Served, worst

pytestmark = [
    pytest.mark.extra,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # PyTorch warns of itself
    pytest.mark.timeout(300),
]
SETTINGS = {"width": 8, "steps": 2, "gamma": 1.3, "rate": 0.02}


def test_a_recipe_searches_and_saves_what_a_push_takes(
    tmp_path: Path, serve: Callable[..., Served], capsys: pytest.CaptureFixture[str]
) -> None:
    """From nothing to a program, its sample, and the command that pushes it as a candidate."""
    arguments = ["--rows", "2000", "--trials", "2", "--no-push", "--folder", str(tmp_path)]
    code = run(two_towers.RECIPE, arguments)
    out = capsys.readouterr().out
    assert code == 0
    assert f"ramrack push two-towers {tmp_path}/two_towers.pt2 --sample" in out
    assert "--alias candidate --meta rows=2000 --meta width=" in out
    sample = tmp_path / "two_towers.json"
    served = serve(tmp_path / "two_towers.pt2", sample=sample)
    columns = json.loads(sample.read_text())
    scores = served({name: np.array(cells) for name, cells in columns.items()})["output"]
    assert ((scores >= 0) & (scores <= 1)).all()
    assert scores.std() > 0.1


@pytest.mark.parametrize("recipe", [tabnet.RECIPE, gru.RECIPE], ids=lambda recipe: recipe.name)
def test_what_a_recipe_trains_is_better_than_a_guess(recipe, tmp_path: Path) -> None:
    """A coin's loss is 0.69; missing values and short histories are filled up."""
    frame = recipe.make(3000)
    number = next(name for name in frame.columns if frame[name].dtype.is_float())
    holes = pl.when(pl.int_range(pl.len()) % 50 == 7).then(None).otherwise(pl.col(number))
    data = tmp_path / "rows.parquet"
    frame.with_columns(holes.alias(number)).slice(5).write_parquet(data)
    trained = recipe.train(data, SETTINGS)
    assert trained.loss < 0.6
    rows = next(iter(trained.sample.values()))
    with torch.no_grad():
        answers = trained.model(rows[:64])
        one = trained.model(rows[3:4])
    assert torch.isfinite(answers).all()
    assert worst(one[0].numpy()[None], answers[3].numpy()[None]) <= 1e-5
