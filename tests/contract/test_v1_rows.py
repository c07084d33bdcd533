"""Rows by column name, sent with curl, get what the native pipeline itself says of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest

from models.zoo.tables import churn_table
from tests.process.server import ROOT, RunningServer, running_server

CURL = shutil.which("curl")
pytestmark = [
    pytest.mark.process, pytest.mark.slow, pytest.mark.extra, pytest.mark.timeout(300),
    pytest.mark.skipif(CURL is None, reason="no curl on this machine"),
]  # fmt: skip

PREDICT = "/v1/models/churn:predict"
TOLERANCE = 1e-5
ROWS = 1500
# Nothing known but the column that has no imputer; texts never seen; numbers far outside.
EDGES: list[dict[str, Any]] = [
    {"age": None, "tenure_months": None, "monthly_charge": None, "tickets": 0, "city": None,
     "plan": None},
    {"age": 40, "tenure_months": 10, "monthly_charge": 50.5, "tickets": 2, "city": "Paris",
     "plan": "gold ★"},
    {"age": 40, "tenure_months": 10, "monthly_charge": 50.5, "tickets": 2, "city": "",
     "plan": "oslo"},
    {"age": 1e6, "tenure_months": -1, "monthly_charge": 1e-30, "tickets": 1000, "city": "Oslo",
     "plan": "basic"},
    {"age": 0, "tenure_months": -0.0, "monthly_charge": 16777217, "tickets": 7,
     "city": "Tromsø", "plan": "family"},
]  # fmt: skip


@dataclass(frozen=True)
class Churn:
    """A server with the pushed pipeline, the pipeline itself, and what the push printed."""

    server: RunningServer
    native: Any
    pushed: dict[str, Any]
    index: dict[str, Any]


@pytest.fixture(scope="module")
def churn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Churn]:
    folder = tmp_path_factory.mktemp("churn")
    zoo = folder / "zoo"
    run([sys.executable, "-m", "models.zoo", "--only", "churn", str(zoo)])
    index = json.loads((zoo / "index.json").read_text())["churn"]
    with running_server(folder, workers=2) as server:
        ramrack = Path(sys.executable).parent / "ramrack"
        printed = run(
            [str(ramrack), "push", "churn", index["path"], "--sample", index["sample"], "--load",
             "--json", "--admin-url", server.admin_url]
        )  # fmt: skip
        yield Churn(server, joblib.load(index["path"]), json.loads(printed), index)


def run(command: Sequence[str]) -> str:
    """Run a command from the repo; return what it printed, or fail with what it said."""
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def curl(url: str, body: Any, *options: str) -> tuple[int, dict[str, str], Any]:
    """Post a document with the real curl; return status, headers and the JSON of the answer."""
    assert CURL is not None
    done = subprocess.run(
        [
            CURL, "-q", "--silent", "--show-error", "--noproxy", "*", "--max-time", "60",
            "--dump-header", "/dev/stderr", "--data-binary", "@-", *options, url,
        ],
        input=json.dumps(body, ensure_ascii=False), capture_output=True, text=True, timeout=90,
        check=False, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # After a 100 Continue the real head follows.
    lines = done.stderr.strip().split("\n\n")[-1].splitlines()
    pairs = (line.partition(":")[::2] for line in lines[1:] if ":" in line)
    headers = {name.lower(): value.strip() for name, value in pairs}
    return int(lines[0].split()[1]), headers, json.loads(done.stdout)


def records_of(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows by column name, missing cells as null."""
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    return json.loads(json.dumps(rows, default=lambda number: number.item()))


def frame_of(rows: list[dict[str, Any]], like: pd.DataFrame) -> pd.DataFrame:
    """Return rows as a table with the column types that the pipeline was fitted on."""
    table = pd.DataFrame(rows, columns=list(like.columns))
    for column, kind in like.dtypes.items():
        # A column of whole numbers that has a missing one is a column of floats.
        is_whole = kind.kind == "i" and not table[column].isna().any()
        table[column] = table[column].astype(kind if is_whole or kind.kind not in "if" else float)
    return table


def largest_difference(found: Any, native: Any) -> float:
    """Return the largest difference, relative where the native number is over 1."""
    found, native = np.asarray(found, np.float64), np.asarray(native, np.float64)
    assert found.shape == native.shape
    assert np.isfinite(found).all()
    return float((np.abs(found - native) / np.maximum(1, np.abs(native))).max())


def test_the_push_proves_parity(churn: Churn) -> None:
    """The command line converts, compares with the native pipeline, and says how near it is."""
    assert churn.pushed["version"] == 1
    assert churn.pushed["parity"]["max_difference"] <= TOLERANCE
    assert churn.pushed["parity"]["rows"] >= ROWS


def test_the_example_of_the_zoo(churn: Churn) -> None:
    """The request that the index offers for copying gets the answer that it promises."""
    request = churn.index["example_request"]
    status, headers, found = curl(churn.server.url + request["path"], request["body"])
    assert status == 200, found
    assert headers["x-ramrack-version"] == "1"
    assert headers["x-ramrack-digest"].startswith("sha256:")
    rows = found["predictions"]
    assert [row["label"] for row in rows] == churn.index["expected"]["label"]
    expected = churn.index["expected"]["probabilities"]
    assert largest_difference([row["probabilities"] for row in rows], expected) <= TOLERANCE


def test_every_row_is_what_predict_proba_says(churn: Churn) -> None:
    """All training rows and the edges: strings, missing values, unseen texts, large numbers."""
    table, _ = churn_table(ROWS)
    rows = records_of(table) + EDGES
    assert sum(None in row.values() for row in rows) > 100
    native_table = frame_of(rows, table)
    native = churn.native.predict_proba(native_table)
    status, _, found = curl(
        churn.server.url + PREDICT,
        {"instances": rows},
        "--header",
        "Content-Type: application/json",
    )
    assert status == 200, found
    answers = found["predictions"]
    difference = largest_difference([row["probabilities"] for row in answers], native)
    assert difference <= TOLERANCE, worst_of(answers, native, rows)
    assert [row["label"] for row in answers] == churn.native.predict(native_table).tolist()


def worst_of(answers: list[Any], native: Any, rows: list[Any]) -> str:
    """Return the row that differs most, for the message of a failure."""
    found = np.array([row["probabilities"] for row in answers])
    worst = int(np.abs(found - native).max(axis=1).argmax())
    return f"row {worst} {rows[worst]}: {found[worst]} is not {native[worst]}"


def test_one_row_alone_is_what_it_is_among_others(churn: Churn) -> None:
    """Rows sent one by one, with their columns in another order, get the same answers."""
    table, _ = churn_table(20)
    rows = records_of(table)
    native = churn.native.predict_proba(table)
    for row, expected in zip(rows, native, strict=True):
        turned = dict(reversed(row.items()))
        status, _, found = curl(churn.server.url + PREDICT, {"instances": [turned]})
        assert status == 200, found
        assert largest_difference(found["predictions"][0]["probabilities"], expected) <= TOLERANCE


def test_columns_as_tensors(churn: Churn) -> None:
    """The same table by column, as ``inputs``, is answered by output."""
    table, _ = churn_table(50)
    rows = records_of(table)
    columns = {name: [row[name] for row in rows] for name in table.columns}
    status, _, found = curl(churn.server.url + PREDICT, {"inputs": columns})
    assert status == 200, found
    native = churn.native.predict_proba(table)
    assert largest_difference(found["outputs"]["probabilities"], native) <= TOLERANCE


def test_compressed_both_ways_and_by_label(churn: Churn, tmp_path: Path) -> None:
    """curl's own decompression understands the answer; an alias and a number name the version."""
    server = churn.server
    server.expect(server.admin("PUT", "/admin/v1/models/churn/aliases/best", json={"version": 1}))
    table, _ = churn_table(200)
    native = churn.native.predict_proba(table)
    body = {"instances": records_of(table)}
    for path in ("/v1/models/churn/versions/1:predict", "/v1/models/churn/labels/best:predict"):
        status, headers, found = curl(server.url + path, body, "--compressed")
        assert status == 200, found
        assert headers["content-encoding"] in ("gzip", "deflate")
        difference = largest_difference([r["probabilities"] for r in found["predictions"]], native)
        assert difference <= TOLERANCE


def test_classes_have_their_names(churn: Churn) -> None:
    """The classification extension says the labels of the pipeline, the most likely one first."""
    table, _ = churn_table(3)
    data = {name: [row[name] for row in records_of(table)] for name in table.columns}
    metadata = churn.server.data("GET", "/v2/models/churn").json()
    inputs = [
        {"name": i["name"], "datatype": i["datatype"], "shape": [3, 1], "data": data[i["name"]]}
        for i in metadata["inputs"]
    ]
    wish = [{"name": "probabilities", "parameters": {"classification": 2}}]
    status, _, found = curl(
        churn.server.url + "/v2/models/churn/infer", {"inputs": inputs, "outputs": wish}
    )
    assert status == 200, found
    (output,) = found["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [3, 2])
    classes = churn.native.classes_.tolist()
    for row, native in enumerate(churn.native.predict_proba(table)):
        for place, entry in enumerate(output["data"][2 * row : 2 * row + 2]):
            value, index, label = entry.split(":")
            assert int(index) == np.argsort(-native)[place]
            assert label == classes[int(index)]
            assert abs(float(value) - native[int(index)]) <= TOLERANCE


def test_columns_that_the_model_does_not_know_are_counted(churn: Churn) -> None:
    """A client may send a column before the version that needs it; it changes nothing."""
    table, _ = churn_table(2)
    rows = [row | {"shoe_size": 43, "colour": "red"} for row in records_of(table)]
    status, _, found = curl(churn.server.url + PREDICT, {"instances": rows})
    assert status == 200, found
    native = churn.native.predict_proba(table)
    assert largest_difference([r["probabilities"] for r in found["predictions"]], native) <= 1e-5
    page = churn.server.admin("GET", "/metrics").text
    count = re.search(
        r'^ramrack_unknown_columns_total{model="churn",version="1"} (\S+)$', page, re.MULTILINE
    )
    assert count is not None
    assert float(count[1]) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tickets": 1.5}, ["tickets", "1.5", "INT64"]),
        ({"tickets": None}, ["tickets", "null"]),
        ({"age": "old"}, ["age", "old"]),
        ({"age": "true"}, ["age", "true"]),
        ({"tickets": True}, ["tickets", "true", "INT64"]),
        ({"age": [1, 2]}, ["age"]),
        ({"city": 7}, ["city", "7"]),
        ({"city": ["Oslo"]}, ["city"]),
        ({"tenure_months": {}}, ["tenure_months"]),
    ],
)
def test_cells_of_the_wrong_kind(churn: Churn, change: dict[str, Any], words: list[str]) -> None:
    """The message names the column and the value; the version that refused it is named too."""
    good = records_of(churn_table(3)[0])
    rows = [*good[:2], good[2] | change]
    status, headers, found = curl(churn.server.url + PREDICT, {"instances": rows})
    assert status == 400, found
    assert headers["x-ramrack-version"] == "1"
    for word in words:
        assert word in found["error"], found


@pytest.mark.parametrize("column", ["age", "city", "tickets"])
def test_a_column_that_is_missing(churn: Churn, column: str) -> None:
    """Leaving a column out is not the same as null: the message names it."""
    rows = records_of(churn_table(2)[0])
    del rows[1][column]
    status, _, found = curl(churn.server.url + PREDICT, {"instances": rows})
    assert status == 400, found
    assert repr(column) in found["error"]
