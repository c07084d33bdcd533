"""Models of counted terms over HTTP: pushed by the command, asked in every form that there is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.process.server import RunningServer, running_server

pytest.importorskip("skl2onnx")
pytestmark = [
    pytest.mark.process, pytest.mark.slow, pytest.mark.extra, pytest.mark.timeout(240),
]  # fmt: skip
WORDS = [
    "good",
    "bad",
    "film",
    "plot",
    "great",
    "dull",
    "story",
    "İyi",
    "ΦΩΣ",
    "東京",
    "naïve",
    "x_1",
]
ODD = ["", "GOOD, bad!", "I", "İYİ ΦΩΣ", "naive NAÏVE", "\N{GRINNING FACE}", "a\nb\tgood",
       "film " * 2000]  # fmt: skip


def texts_of(rows: int) -> list[str]:
    rng = np.random.default_rng(4)
    made = [" ".join(rng.choice(WORDS, size=rng.integers(0, 30))) for _ in range(rows)]
    return [*made[: rows - len(ODD)], *ODD]


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts = texts_of(300)
    label = np.array(["pos" if text.count("o") % 2 else "neg" for text in texts])
    mood = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression())
    frame = pd.DataFrame({"review": texts, "age": np.arange(300.0) / 100})
    columns = ColumnTransformer([("w", TfidfVectorizer(), "review"), ("a", "passthrough", ["age"])])
    return {
        "mood": mood.fit(texts, label),
        "both": make_pipeline(columns, LogisticRegression()).fit(frame, label),
    }


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, models: dict[str, Any]
) -> Iterator[RunningServer]:
    import joblib

    with running_server(tmp_path_factory.mktemp("server")) as running:
        for name, model in models.items():
            path = tmp_path_factory.mktemp("models") / f"{name}.joblib"
            joblib.dump(model, path)
            ramrack(running, "push", name, str(path), "--promote")
        yield running


def ramrack(server: RunningServer, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "serving.cli", *arguments, "--json"],
        env=os.environ | {"RAMRACK_ADMIN_URL": server.admin_url},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def post(server: RunningServer, path: str, body: dict[str, Any], status: int = 200) -> Any:
    answer = server.data("POST", path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_two_thousand_texts_are_answered_as_scikit_learn_answers_them(
    server: RunningServer, models: dict[str, Any]
):
    """V1 rows of plain strings and V2 tensors: the same numbers, the same labels."""
    texts = texts_of(2048)
    wanted = models["mood"].predict_proba(texts)
    found = []
    for start in range(0, len(texts), 512):
        part = texts[start : start + 512]
        tensor = {"name": "text", "datatype": "BYTES", "shape": [len(part)], "data": part}
        outputs = post(server, "/v2/models/mood/infer", {"inputs": [tensor]})["outputs"]
        found.append({output["name"]: output["data"] for output in outputs})
    numbers = np.concatenate([np.reshape(part["probabilities"], (-1, 2)) for part in found])
    np.testing.assert_allclose(numbers, wanted, atol=1e-5)
    labels = np.concatenate([part["label"] for part in found])
    is_clear = np.abs(wanted[:, 0] - 0.5) > 1e-5
    assert (labels == models["mood"].predict(texts))[is_clear].all()
    for rows in (texts[:40], [{"text": text} for text in texts[:40]]):
        plain = post(server, "/v1/models/mood:predict", {"instances": rows})["predictions"]
        np.testing.assert_allclose([row["probabilities"] for row in plain], wanted[:40], atol=1e-5)


def test_a_column_of_texts_beside_a_number(server: RunningServer, models: dict[str, Any]):
    """Rows by name, as tables are sent."""
    import pandas as pd

    frame = pd.DataFrame({"age": [1.5, 2.0, 0.0], "review": ["good film", "İYİ dull", ""]})
    rows = frame.to_dict("records")
    answer = post(server, "/v1/models/both:predict", {"instances": rows})["predictions"]
    wanted = models["both"].predict_proba(frame)
    np.testing.assert_allclose([row["probabilities"] for row in answer], wanted, atol=1e-5)


def test_what_is_no_text_is_a_400_that_names_it(server: RunningServer):
    """A number, a null, a book and a column that is missing are the caller's fault."""
    path = "/v1/models/mood:predict"
    for bad, reason in ((3, "instances[1]"), (None, "instances[1]"), ("x" * 300_000, "262,144")):
        message = post(server, path, {"instances": ["good", bad]}, 400)["error"]
        assert reason in message, message
    rows = {"instances": [{"age": 1.0}]}
    assert "review" in post(server, "/v1/models/both:predict", rows, 400)["error"]


def test_the_signature_says_what_goes_in(server: RunningServer):
    """Texts, not what is counted of them; its memory is known."""
    shown = server.expect(server.data("GET", "/v2/models/mood"))
    assert [(i["name"], i["datatype"], i["shape"]) for i in shown["inputs"]] == [
        ("text", "BYTES", [-1])
    ]
    shown = server.expect(server.data("GET", "/v2/models/both"))
    assert {i["name"]: i["datatype"] for i in shown["inputs"]} == {"age": "FP64", "review": "BYTES"}
