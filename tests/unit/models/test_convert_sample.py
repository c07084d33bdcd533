"""Sample files become inputs of a signature, or a clear refusal."""

from __future__ import annotations

import json

import numpy as np
import pytest

from models.convert.sample import read_sample
from models.errors import ConversionRefused
from models.signature import Signature, TensorSpec

COLUMNS = Signature(
    (
        TensorSpec("n", "FP64", (-1, 1)),
        TensorSpec("k", "INT64", (-1, 1)),
        TensorSpec("t", "BYTES", (-1, 1), missing="__missing__"),
    ),
    (),
)
MATRIX = Signature((TensorSpec("input", "FP32", (-1, 2), columns=("a", "b")),), ())
PLAIN = Signature((TensorSpec("input", "FP32", (-1, 2)),), ())


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_with_texts_and_missing_cells(tmp_path):
    """Empty cells are missing: NaN in numbers, the signature's own text in texts."""
    path = write(tmp_path, "s.csv", "t,k,n,more\n007,1,1.5,x\n,2,,y\nä,3,NaN,z\n")
    sample = read_sample(path)
    inputs = sample.inputs(COLUMNS)
    assert inputs["t"].tolist() == [["007"], ["__missing__"], ["ä"]]
    assert inputs["k"].dtype == np.int64
    assert inputs["n"][0, 0] == 1.5
    assert np.isnan(inputs["n"][1:]).all()
    assert [sample.kind(c) for c in ("t", "k", "n", "none")] == ["text", "int", "float", None]


@pytest.mark.parametrize(
    "document",
    [
        [{"a": 1, "b": None}, {"b": 2.5, "a": 3}],
        {"instances": [{"a": 1, "b": None}, {"b": 2.5, "a": 3}]},
        {"inputs": {"a": [1, 3], "b": [None, 2.5]}},
        {"a": [[1], [3]], "b": [[None], [2.5]]},
        [[1, None], [3, 2.5]],
    ],
)
def test_json_in_every_form(tmp_path, document):
    """Rows as objects or lists, or columns, give the same matrix."""
    path = write(tmp_path, "s.json", json.dumps(document))
    got = read_sample(path).inputs(MATRIX)["input"]
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.array([[1, np.nan], [3, 2.5]], dtype=np.float32))


def test_numpy_matrix(tmp_path):
    """A matrix of numbers needs no names."""
    np.save(tmp_path / "s.npy", np.array([[1.0, 2.0], [3.0, 4.0]]))
    got = read_sample(tmp_path / "s.npy").inputs(PLAIN)["input"]
    assert got.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_booleans_of_a_column_that_is_a_float(tmp_path):
    """As pandas writes them in CSV, and as JSON has them."""
    two = Signature((TensorSpec("input", "FP32", (-1, 2), columns=("a", "b")),), ())
    for name, text in (
        ("s.csv", "a,b\nTrue,1\nFalse,0\n"),
        ("s.json", '{"a":[true,false],"b":[1,0]}'),
    ):
        found = read_sample(write(tmp_path, name, text)).inputs(two)["input"]
        assert found.tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_parquet(tmp_path):
    """Columns by name, with what is missing, by whichever library is there."""
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"t": ["a", None], "k": [1, 2**60], "n": [0.5, None]})
    frame.write_parquet(tmp_path / "s.parquet")
    sample = read_sample(tmp_path / "s.parquet")
    assert sample.columns == {"t": ["a", None], "k": [1, 2**60], "n": [0.5, None]}
    assert sample.kind("k") == "int"
    (tmp_path / "s.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(ConversionRefused, match=r"s\.parquet cannot be read"):
        read_sample(tmp_path / "s.parquet")


def test_f08_numpy_file_with_objects_is_not_opened(tmp_path):
    """A .npy file that holds a pickle is refused."""
    np.save(tmp_path / "s.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(ConversionRefused, match="cannot be read"):
        read_sample(tmp_path / "s.npy")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("s.txt", "a", r"ends in \.csv, \.json, \.npy, \.parquet"),
        ("s.csv", "", "no rows"),
        ("s.csv", "a,b\n", "no rows"),
        ("s.csv", "a,b\n1\n", "line 2 has 1 cells, the header has 2"),
        ("s.json", "{", "cannot be read"),
        ("s.json", "5", "expected a list of rows"),
        ("s.json", "[[1],[1,2]]", "different lengths"),
        ("s.npy", "nothing", "cannot be read"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, text, reason):
    """The message names the file and what is wrong."""
    with pytest.raises(ConversionRefused, match=reason):
        read_sample(write(tmp_path, name, text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("k,n\n1,1\n", "'t' is missing"),
        ("t,k,n\na,x,1\n", "'k'.*INT64"),
        ("t,k,n\na,,1\n", "'k'.*missing"),
        ("t,k,n\na,1,b\n", "'n'.*FP64"),
    ],
)
def test_cells_that_do_not_fit_name_their_column(tmp_path, text, reason):
    """A cell of the wrong kind is refused by its column."""
    sample = read_sample(write(tmp_path, "s.csv", text))
    with pytest.raises(ConversionRefused, match=reason):
        sample.inputs(COLUMNS)
