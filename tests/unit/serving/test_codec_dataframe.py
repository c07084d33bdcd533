"""DataFrame bodies, as MLflow's clients send them to a model of tables."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from models.signature import Signature, TensorSpec
from registry.errors import InvalidInput
from serving.codec.v1 import PredictCall, decode_predict, encode_predict

Y = (TensorSpec("y", "FP32", (-1,)),)
TABLE = Signature((TensorSpec("x", "FP32", (-1, 2), columns=("age", "fare")),), Y)
COLUMNS = Signature(
    (TensorSpec("age", "INT64", (-1, 1)), TensorSpec("city", "BYTES", (-1, 1), missing="?")), Y
)


def decode(body: object, spec: Signature = TABLE) -> PredictCall:
    return decode_predict(json.dumps(body).encode(), spec)


@pytest.mark.parametrize(
    "body",
    [
        {"dataframe_records": [{"age": 1, "fare": 2}, {"fare": 4, "age": 3}]},
        {"dataframe_split": {"columns": ["fare", "age"], "data": [[2, 1], [4, 3]]}},
        {"dataframe_split": {"index": [7, 8], "columns": ["age", "fare"],
                             "data": [[1, 2], [3, 4]]}},
        {"dataframe_split": {"columns": [0, 1], "data": [[1, 2], [3, 4]]}},
        {"dataframe_split": {"columns": ["z", "fare", "age"], "data": [[9, 2, 1], [9, 4, 3]]}},
    ],
)  # fmt: skip
def test_a_data_frame_in_all_its_forms(body: dict[str, Any]) -> None:
    """Records and split frames are the same rows, in any order of columns, with more columns."""
    call = decode(body)
    assert call.inputs["x"].tolist() == [[1, 2], [3, 4]]
    assert call.is_row_format
    answer = encode_predict(call, [np.array([5, 6], np.float32)], TABLE)
    assert json.loads(answer) == {"predictions": [5, 6]}


def test_a_data_frame_of_several_datatypes_with_missing_values() -> None:
    """Each column goes to its own input; null is missing where the signature knows the word."""
    frame = {"columns": ["city", "age"], "data": [["Wien", 1], [None, 2]]}
    inputs = decode({"dataframe_split": frame}, COLUMNS).inputs
    assert inputs["city"].tolist() == [["Wien"], ["?"]]
    assert inputs["age"].tolist() == [[1], [2]]


def test_a_data_frame_without_rows() -> None:
    """No rows are an answer without rows."""
    call = decode({"dataframe_split": {"columns": ["age", "fare"], "data": []}})
    assert call.inputs["x"].shape == (0, 2)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"dataframe_records": {}}, "dataframe_records: expected a list of rows, got an object"),
        ({"dataframe_records": [[1, 2]]}, "dataframe_records[0]: expected an object, got a list"),
        ({"dataframe_records": [{"age": 1}]}, "dataframe_records[0]: column 'fare' is missing"),
        (
            {"dataframe_records": [{"age": 1, "fare": "x"}]},
            "dataframe_records[0]['fare']: 'x' is not allowed",
        ),
        ({"dataframe_split": []}, "dataframe_split: expected an object, got a list"),
        ({"dataframe_split": {"data": []}}, "dataframe_split.columns: expected a list, got null"),
        ({"dataframe_split": {"columns": []}}, "dataframe_split.data: expected a list, got null"),
        (
            {"dataframe_split": {"columns": ["age", "age"], "data": []}},
            "dataframe_split.columns: the name 'age' stands twice",
        ),
        (
            {"dataframe_split": {"columns": ["age", True], "data": []}},
            "dataframe_split.columns[1]: expected a name, got a boolean",
        ),
        (
            {"dataframe_split": {"columns": ["age", "fare"], "data": [[1, 2], [3]]}},
            "dataframe_split.data[1]: 1 values under 2 columns",
        ),
        (
            {"dataframe_split": {"columns": ["age", "fare"], "data": [7]}},
            "dataframe_split.data[0]: a number under 2 columns",
        ),
        (
            {"dataframe_split": {"columns": [], "data": [], "rows": 1}},
            "dataframe_split: unknown field 'rows'",
        ),
        ({"dataframe_split": {}, "dataframe_records": []}, "body: exactly one of"),
        ({"dataframe_records": [], "instances": []}, "body: exactly one of"),
    ],
)
def test_errors_name_the_field_that_was_sent(body: dict[str, Any], text: str) -> None:
    """A message points into the caller's own body."""
    with pytest.raises(InvalidInput) as caught:
        decode(body)
    assert text in str(caught.value)
