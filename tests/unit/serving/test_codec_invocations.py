"""Bodies of MLflow's scoring protocol: JSON and CSV in, predictions out."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from models.signature import Signature, TensorSpec
from registry.errors import InvalidInput
from serving.codec.invocations import decode_invocations, encode_invocations

PREDICTION = TensorSpec("prediction", "FP32", (-1,))
TABLE = Signature((TensorSpec("input", "FP32", (-1, 2), columns=("a", "b")),), (PREDICTION,))
MATRIX = Signature((TensorSpec("x", "FP32", (-1, 2)),), (PREDICTION,))
MIXED = Signature(
    (
        TensorSpec("n", "INT64", (-1, 1)),
        TensorSpec("city", "BYTES", (-1, 1), missing="?"),
        TensorSpec("is_new", "BOOL", (-1, 1)),
    ),
    (TensorSpec("label", "BYTES", (-1,)), TensorSpec("probabilities", "FP32", (-1, 2))),
)
TWO = Signature(
    (TensorSpec("x", "FP32", (-1, 2)),),
    (TensorSpec("p", "FP32", (-1,)), TensorSpec("q", "FP32", (-1, 2))),
)


def asked(document: object, signature: Signature = TABLE) -> Any:
    return decode_invocations(json.dumps(document).encode(), signature)


def csv(text: str, signature: Signature = TABLE) -> Any:
    return decode_invocations(text.encode(), signature, is_csv=True)


@pytest.mark.parametrize(
    "document",
    [
        {"dataframe_split": {"columns": ["b", "a"], "data": [[2, 1], [None, 3]]}},
        {"dataframe_records": [{"a": 1, "b": 2}, {"b": None, "a": 3}]},
        {"instances": [[1, 2], [3, None]]},
        {"inputs": [[1, 2], [3, None]]},
        {"inputs": {"a": [1, 3], "b": [2, None]}},
        {"inputs": [[1, 2], [3, None]], "params": {}},
    ],
)
def test_each_form_is_the_same_table_and_the_same_answer(document: object):
    """A DataFrame, rows and tensors are answered in one form."""
    call = asked(document)
    np.testing.assert_array_equal(call.inputs["input"], np.float32([[1, 2], [3, np.nan]]))
    answer = encode_invocations(call, [np.float32([0.5, 1.5])], TABLE)
    assert json.loads(answer) == {"predictions": [0.5, 1.5]}


def test_csv_goes_by_the_names_of_its_first_line():
    """Columns in another order, missing cells, a mark of UTF-8, quoted cells, Windows lines."""
    call = csv('\ufeff"b",a,extra\r\n2,1,x\r\n\r\n ,3e0,"y\nz"\r\n')
    np.testing.assert_array_equal(call.inputs["input"], np.float32([[1, 2], [3, np.nan]]))
    assert (call.rows, call.unknown_columns) == (2, 1)
    call = csv("0,1\n1,2\n")
    np.testing.assert_array_equal(call.inputs["input"], np.float32([[1, 2]]))
    call = csv("what,ever\n1,inf\n", MATRIX)
    np.testing.assert_array_equal(call.inputs["x"], np.float32([[1, math.inf]]))


def test_csv_cells_are_what_their_column_is():
    """Whole numbers stay exact, texts stay texts, true and false are flags."""
    call = csv("city,is_new,n\n007,true,9007199254740993\n,False,-1\n", MIXED)
    assert call.inputs["n"].tolist() == [[9007199254740993], [-1]]
    assert call.inputs["city"].tolist() == [["007"], ["?"]]
    assert call.inputs["is_new"].tolist() == [[True], [False]]


def test_csv_booleans_of_a_column_that_is_a_float():
    """As pandas writes them; the model has learned 1 and 0."""
    call = csv("a,b\nTrue,1\nfalse,2\n")
    np.testing.assert_array_equal(call.inputs["input"], np.float32([[1, 1], [0, 2]]))


@pytest.mark.parametrize(
    ("text", "signature", "words"),
    [
        ("", TABLE, "csv: the body is empty"),
        ("a,b\n1\n", TABLE, "csv line 2: 1 cells under 2 columns"),
        ("a,a\n1,2\n", TABLE, "'a' stands twice"),
        ("a,c\n1,2\n", TABLE, "csv[0]: column 'b' is missing"),
        ("a,b\n1,x\n", TABLE, "csv[0]['b']"),
        ("a,b\n1,1_0\n", TABLE, "csv[0]['b']"),
        ("a,b\n1,1e999\n", TABLE, "csv[0]['b']"),
        ('a,b\n1,"x\n', TABLE, "csv line 2"),
        ("n,city,is_new\n1.5,x,true\n", MIXED, "csv[0]['n']"),
        ("n,city,is_new\n,x,true\n", MIXED, "csv[0]['n']"),
        ("n,city,is_new\n1,x,maybe\n", MIXED, "csv[0]['is_new']"),
        ("a,b,c\n1,2,3\n", MATRIX, "csv"),
    ],
)
def test_a_csv_that_does_not_fit_is_refused_by_its_place(
    text: str, signature: Signature, words: str
):
    """Line, column and what was expected."""
    with pytest.raises(InvalidInput) as caught:
        csv(text, signature)
    assert words in str(caught.value)


def test_a_csv_that_is_not_utf8_is_refused():
    """With the place of the byte."""
    with pytest.raises(InvalidInput, match="not UTF-8 at byte 4"):
        decode_invocations(b"a,b\n\xff,1\n", TABLE, is_csv=True)


def test_a_classifier_answers_its_label_unless_another_output_is_named():
    """MLflow's predict gives labels; params may ask for the probabilities."""
    row = {"n": 1, "city": "Wien", "is_new": True}
    arrays = [np.array(["yes"], dtype=object), np.float32([[0.25, 0.75]])]
    answer = encode_invocations(asked({"dataframe_records": [row]}, MIXED), arrays, MIXED)
    assert json.loads(answer) == {"predictions": ["yes"]}
    params = {"output": "probabilities"}
    call = asked({"dataframe_records": [row], "params": params}, MIXED)
    answer = encode_invocations(call, arrays, MIXED)
    assert json.loads(answer) == {"predictions": [[0.25, 0.75]]}


def test_several_outputs_without_a_label_come_by_name():
    """As rows for rows, as tensors for tensors."""
    arrays = [np.float32([1]), np.float32([[2, 3]])]
    rows = encode_invocations(asked({"instances": [[1, 2]]}, TWO), arrays, TWO)
    assert json.loads(rows) == {"predictions": [{"p": 1, "q": [2, 3]}]}
    tensors = encode_invocations(asked({"inputs": [[1, 2]]}, TWO), arrays, TWO)
    assert json.loads(tensors) == {"predictions": {"p": [1], "q": [[2, 3]]}}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, '"dataframe_split"'),
        ([], "expected a JSON object"),
        ({"instances": [], "inputs": []}, "exactly one"),
        ({"inputs": [[1, 2]], "params": 5}, "params: expected an object"),
        ({"inputs": [[1, 2]], "params": {"top_k": 3}}, "'top_k' would change nothing"),
        ({"inputs": [[1, 2]], "params": {"output": "z"}}, "'z' is not one of prediction"),
        ({"inputs": [[1, 2]], "params": {"output": []}}, "is not one of prediction"),
    ],
)
def test_what_is_no_such_body_is_refused(document: object, words: str):
    """Each with the field."""
    with pytest.raises(InvalidInput) as caught:
        asked(document)
    assert words in str(caught.value)
