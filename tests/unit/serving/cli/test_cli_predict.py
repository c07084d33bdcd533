"""``ramrack predict``: files of every kind become requests, answers become a table."""

from __future__ import annotations

import importlib.util
import json
from datetime import date
from pathlib import Path

import pytest

from registry.errors import InvalidInput
from serving.cli import main
from serving.cli.predict import as_table
from serving.cli.rows import read_input
from tests.unit.serving.cli.conftest import FakeServer

COLUMNS = [
    {"name": "age", "datatype": "INT64", "shape": [-1, 1]},
    {"name": "fare", "datatype": "FP64", "shape": [-1, 1]},
    {"name": "city", "datatype": "BYTES", "shape": [-1, 1]},
    {"name": "vip", "datatype": "BOOL", "shape": [-1, 1]},
]


def rows_of(path: Path, text: str, inputs: list[dict] | None = None) -> list:
    path.write_text(text)
    return read_input(path, lambda: COLUMNS if inputs is None else inputs).rows


def test_csv_cells_get_the_type_of_their_input(tmp_path: Path):
    """Numbers stay exact, text stays text, an empty cell is a missing value."""
    rows = rows_of(
        tmp_path / "a.csv",
        'age,fare,city,vip,extra\n9007199254740993,1.5,"Wien, AT",true,007\n,,,,\n',
    )
    assert rows == [
        {"age": 9007199254740993, "fare": 1.5, "city": "Wien, AT", "vip": True, "extra": "007"},
        {"age": None, "fare": None, "city": None, "vip": None, "extra": None},
    ]


def test_csv_columns_of_a_matrix_are_numbers(tmp_path: Path):
    """A model with one matrix types each as its elements; without names they go by order."""
    matrix = [{"name": "X", "datatype": "FP32", "shape": [-1, 2]}]
    assert rows_of(tmp_path / "a.csv", "\ufeffa,b\n1,nan\n", matrix) == [[1.0, None]]
    named = [matrix[0] | {"columns": ["a"]}]
    assert rows_of(tmp_path / "a.csv", "a,b\n1,2\n", named) == [{"a": 1.0, "b": "2"}]


def test_csv_booleans_of_a_column_that_is_a_float(tmp_path: Path):
    """As pandas writes them; the model has learned 1 and 0."""
    rows = rows_of(tmp_path / "a.csv", "fare,vip\nTrue,False\nfalse,1\n")
    assert rows == [{"fare": 1.0, "vip": False}, {"fare": 0.0, "vip": True}]


def parquet(path: Path) -> Path:
    """Write a column of each kind that tables have."""
    polars = pytest.importorskip("polars")
    polars.DataFrame({
        "age": [2**60, 3], "fare": [1.5, float("nan")], "city": ["Wien", None],
        "vip": [True, False], "day": [date(2024, 1, 31), None],
    }).write_parquet(path)  # fmt: skip
    return path


@pytest.mark.parametrize("library", ["pyarrow", "polars"])
def test_parquet_is_read_by_either_library(tmp_path: Path, monkeypatch, library: str):
    """Numbers stay exact, what is missing is null, a date is text that the server refuses."""
    path = parquet(tmp_path / "a.parquet")
    pytest.importorskip(library)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == library or None)
    assert read_input(path, lambda: COLUMNS).rows == [
        {"age": 2**60, "fare": 1.5, "city": "Wien", "vip": True, "day": "2024-01-31"},
        {"age": 3, "fare": None, "city": None, "vip": False, "day": None},
    ]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InvalidInput, match=r"^a\.parquet: "):
        read_input(path, lambda: COLUMNS)


def test_parquet_without_a_reader_says_what_to_type(tmp_path: Path, monkeypatch):
    """Neither library comes with the base install."""
    path = parquet(tmp_path / "a.parquet")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match="type `pip install pyarrow`"):
        read_input(path, lambda: COLUMNS)


def test_parquet_cells_that_json_has_no_word_for(tmp_path: Path):
    """An infinity, and bytes, are refused by their column."""
    polars = pytest.importorskip("polars")
    path = tmp_path / "a.parquet"
    polars.DataFrame({"fare": [1.0, float("-inf")]}).write_parquet(path)
    with pytest.raises(InvalidInput, match=r"row 1, column 'fare': -inf cannot be sent"):
        read_input(path, lambda: COLUMNS)
    polars.DataFrame({"city": [b"\xff"]}).write_parquet(path)
    with pytest.raises(InvalidInput, match="column 'city' holds bytes values"):
        read_input(path, lambda: COLUMNS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("age\n1.5\n", "a.csv line 2, column 'age': '1.5' is no INT64"),
        ("age\n1,2\n", "line 2: 2 cells under 1 column"),
        ("age,age\n1,2\n", "column 'age' stands twice"),
        ("", "the first line must name every column"),
        ("vip\nperhaps\n", "'perhaps' is no BOOL"),
        ("fare\ninf\n", "'inf' cannot be sent as JSON"),
        ('age\n"1\n', "not CSV in UTF-8"),
    ],
)
def test_csv_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, expected: str):
    """The file, the line and the column are named."""
    with pytest.raises(InvalidInput) as caught:
        rows_of(tmp_path / "a.csv", text)
    assert expected in str(caught.value)


def test_json_is_a_list_of_rows_or_a_whole_body(tmp_path: Path):
    """A list is rows; an object must be a request of either protocol."""
    assert rows_of(tmp_path / "a.json", '[[1, 2], {"a": null}]') == [[1, 2], {"a": None}]
    path = tmp_path / "b.json"
    path.write_text('{"instances": [1]}')
    assert read_input(path, list).body == {"instances": [1]}
    for text in ("{}", "5", "[NaN]", "{", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(InvalidInput, match=r"b\.json|use null"):
            read_input(path, list)


def test_other_files_are_refused_by_name(tmp_path: Path):
    """What is read is said where something else is given."""
    with pytest.raises(InvalidInput, match=r"use \.json, \.csv or \.parquet"):
        read_input(tmp_path / "a.xls", list)


def test_predict_sends_rows_in_pieces_and_prints_them_in_order(
    server: FakeServer, tmp_path: Path, capsys
):
    """A long file is several requests; the answers stand in the file's order."""
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([[float(n)] for n in range(600)]))
    server.answers["POST", "/v1/models/m/versions/3:predict"] = [
        (200, {"predictions": [{"y": n} for n in range(500)]}),
        (200, {"predictions": [{"y": n} for n in range(500, 600)]}),
    ]
    arguments = ["predict", "m", "--input", str(path), "--version", "3", "--url", server.url]
    assert main([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["y"] for row in answer["predictions"]] == list(range(600))
    assert answer["model_versions"] == ["7"]


def test_predict_sends_the_routing_key(server: FakeServer, tmp_path: Path, capsys):
    """As a header with every request; with a version it is wrong usage, as is one no header has."""
    path = tmp_path / "rows.json"
    path.write_text("[[1.0]]")
    server.answers["POST", "/v1/models/m:predict"] = [(200, {"predictions": [1]})]
    arguments = ["predict", "m", "-i", str(path), "--url", server.url, "--routing-key"]
    assert main([*arguments, "customer-17"]) == 0
    assert server.headers[-1]["x-routing-key"] == "customer-17"
    sent = len(server.calls)
    for more in (["x", "--version", "3"], [""], ["x" * 257], ["é"]):
        capsys.readouterr()
        assert main([*arguments, *more]) == 2
        assert "--routing-key" in capsys.readouterr().err
    assert len(server.calls) == sent


def test_predict_sends_a_v2_body_as_it_stands(server: FakeServer, tmp_path: Path, capsys):
    """A body with datatypes goes to the V2 path, and the answer is printed as JSON."""
    path = tmp_path / "body.json"
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
    path.write_text(json.dumps(body))
    server.answers["POST", "/v2/models/m/versions/prod/infer"] = [(200, {"outputs": []})]
    arguments = ["predict", "m", "-i", str(path), "--version", "prod", "--url", server.url]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out) == {"outputs": []}


def test_answers_become_columns():
    """Objects give a column an output, lists a column a value, scalars one column."""
    assert as_table([{"label": "a", "p": [0.25, 0.75]}]) == (
        ["row", "label", "p"],
        [[0, "a", "0.25, 0.75"]],
    )
    assert as_table([[1.5, None]]) == (["row", "0", "1"], [[0, "1.5", None]])
    assert as_table([3]) == (["row", "prediction"], [[0, 3]])
    assert as_table([]) == (["row", "prediction"], [])
