"""V1 requests by rows and by columns, and their answers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from models.servable import Array
from models.signature import Signature, TensorSpec
from registry.errors import InvalidInput
from serving.codec.limits import Limits
from serving.codec.v1 import PredictCall, decode_predict, encode_predict

Y = (TensorSpec("y", "FP32", (-1,)),)
TABLE = Signature((TensorSpec("x", "FP32", (-1, 2), columns=("age", "fare")),), Y)
MATRIX = Signature((TensorSpec("x", "FP32", (-1, 2)),), Y)
VECTOR = Signature((TensorSpec("x", "FP32", (-1,)),), Y)
COLUMNS = Signature(
    (TensorSpec("age", "INT64", (-1, 1)), TensorSpec("city", "BYTES", (-1, 1), missing="?"),
     TensorSpec("fare", "FP32", (-1, 1))),
    (TensorSpec("label", "BYTES", (-1,)), TensorSpec("proba", "FP32", (-1, 2))),
)  # fmt: skip


def decode(body: object, spec: Signature = TABLE, **keywords: Any) -> PredictCall:
    return decode_predict(json.dumps(body).encode(), spec, **keywords)


def refusal(body: object, spec: Signature = TABLE, **keywords: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        decode(body, spec, **keywords)
    return str(caught.value)


def x(body: object, spec: Signature = TABLE) -> Any:
    return decode(body, spec).inputs["x"].tolist()


@pytest.mark.parametrize(
    "body",
    [
        {"instances": [[1, 2], [3, 4]]},
        {"instances": [{"age": 1, "fare": 2}, {"fare": 4, "age": 3}]},
        {"instances": [{"x": [1, 2]}, {"x": [3, 4]}]},
        {"inputs": [[1, 2], [3, 4]]},
        {"inputs": {"age": [1, 3], "fare": [2, 4]}},
        {"inputs": {"fare": [[2], [4]], "age": [[1], [3]]}},
        {"inputs": {"x": [[1, 2], [3, 4]]}},
        {"instances": [[1, 2], [3, 4]], "signature_name": "serving_default", "more": 1},
    ],
)
def test_a_table_in_all_its_forms(body: dict[str, Any]) -> None:
    """Rows, named rows, whole tensors and columns are the same table."""
    call = decode(body)
    assert call.inputs["x"].tolist() == [[1, 2], [3, 4]]
    assert call.inputs["x"].dtype == np.float32
    assert call.rows == 2
    assert call.is_row_format is ("instances" in body)
    assert call.unknown_columns == 0


@pytest.mark.parametrize(
    "body",
    [
        {"instances": [[1, "a", 2.5], [3, None, None]]},
        {"instances": [{"age": 1, "city": "a", "fare": 2.5},
                       {"age": 3.0, "city": None, "fare": None}]},
        {"inputs": {"age": [1, 3], "city": ["a", None], "fare": [[2.5], [None]]}},
    ],
)  # fmt: skip
def test_b16_one_input_for_each_column(body: dict[str, Any]) -> None:
    """B16: columns of several datatypes, by name or in order, with missing values."""
    inputs = decode(body, COLUMNS).inputs
    assert inputs["age"].tolist() == [[1], [3]]
    assert inputs["city"].tolist() == [["a"], ["?"]]
    assert inputs["fare"][0, 0] == 2.5
    assert np.isnan(inputs["fare"][1, 0])


def test_booleans_of_a_column_that_is_a_float() -> None:
    """true and false are 1 and 0, as the library took them that was trained on such a column."""
    assert x({"instances": [{"age": True, "fare": 2}, {"age": False, "fare": None}]})[0] == [1, 2]
    assert x({"inputs": {"age": [True, False], "fare": [2, 3.5]}}) == [[1, 2], [0, 3.5]]
    assert x({"instances": [[True, 2]]}, MATRIX) == [[1, 2]]
    rows = [{"age": 1, "city": "a", "fare": True}]
    assert decode({"instances": rows}, COLUMNS).inputs["fare"].tolist() == [[1]]


def test_rows_by_the_numbers_of_columns_without_names() -> None:
    """A DataFrame without names for its columns has "0", "1", ... in its JSON by rows."""
    assert x({"instances": [{"1": 2, "0": 1}, {"0": 3, "1": 4}]}, MATRIX) == [[1, 2], [3, 4]]
    assert "shape [1, 3] does not fit" in refusal({"instances": [{"0": 1, "1": 2, "2": 3}]}, MATRIX)
    assert "instances[1]: column '1' is missing" in refusal(
        {"instances": [{"0": 1, "1": 2}, {"0": 1}]}, MATRIX
    )
    assert refusal({"instances": [{"age": 1, "fare": 2}]}, MATRIX) == (
        "instances[0]: column 'x' is missing: its columns have no names: "
        "send each row as a list of its values"
    )


def test_rows_that_are_values() -> None:
    """A model of one value a row takes scalars."""
    assert x({"instances": [1, 2.5, None][:2]}, VECTOR) == [1, 2.5]
    assert x({"instances": [[1], [2]]}, VECTOR) == [1, 2]


def test_unknown_columns_are_ignored_and_counted() -> None:
    """A column that the version does not know does no harm; each name counts once a request."""
    rows = [{"age": 1, "fare": 2, "new": 9}, {"age": 3, "fare": 4, "new": 8, "newer": "x"}]
    call = decode({"instances": rows})
    assert call.inputs["x"].tolist() == [[1, 2], [3, 4]]
    assert call.unknown_columns == 2
    assert decode({"inputs": {"age": [1], "fare": [2], "new": [{}]}}).unknown_columns == 1
    named = [{"age": 1, "city": "a", "fare": 2, "new": 9}]
    assert decode({"instances": named}, COLUMNS).unknown_columns == 1


def test_missing_columns_are_named_with_their_row() -> None:
    """A column that the version needs must be there in every row."""
    rows = [{"age": 1, "fare": 2}, {"age": 1}]
    assert refusal({"instances": rows}) == (
        "instances[1]: column 'fare' is missing: the model needs it "
        "(null stands for a missing value)"
    )
    assert "instances[0]: column 'city' is missing" in refusal(
        {"instances": [{"age": 1, "fare": 2}]}, COLUMNS
    )
    assert "instances[0]: column 'age' is missing" in refusal({"instances": [{"fare": 1}]})
    assert "'fare' is missing" in refusal({"inputs": {"age": [1]}})


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([{"age": 1, "fare": "2"}], "instances[0]['fare']: '2' is not allowed: FP32 takes numbers"),
        ([{"age": True, "fare": 2}, {"age": "true", "fare": 2}], "instances[1]['age']: 'true' is"),
        ([{"age": True, "fare": 1e39}], "instances[0]['fare']: 1e+39 is too large for FP32"),
        ([[1, 2], [3, "x"]], "instances[1][1]: 'x' is not allowed"),
        ([[1, 2], [3, 4, 5]], "instances: entry 1 at depth 1 is 3 entries"),
        ([[1, 2, 3]], "instances: shape [1, 3] does not fit [-1, 2]"),
        ([1, 2], "instances: shape [2] does not fit [-1, 2]"),
        ([[1, 2], 5], "instances: entry 1 at depth 1 is a number"),
        ([{"age": 1, "fare": 2}, [1, 2]], "instances[1]: expected an object as the rows before"),
        ([[1, 2], {"age": 1}], "instances[1]: expected no object as the rows before"),
        ([{"age": 1, "fare": "2024-01-31"}], "days since 1970-01-01"),
        ([{"age": 1, "fare": 1e39}], "instances[0]['fare']: 1e+39 is too large for FP32"),
        ([{"age": [1], "fare": 2}], "instances[0]['age']: a list is not allowed"),
        ([{}], "column 'age' is missing"),
    ],
)
def test_errors_name_row_column_and_value(rows: list[Any], text: str) -> None:
    """A person finds the one wrong cell of a table by its message."""
    assert text in refusal({"instances": rows})


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"instances": [{"age": 1.5, "city": "a", "fare": 1}]}, "instances[0]['age']: 1.5 is not"),
        ({"instances": [{"age": True, "city": "a", "fare": 1}]}, "true is not allowed: INT64"),
        ({"instances": [{"age": 1, "city": 5, "fare": 1}]}, "instances[0]['city']: 5 is not"),
        ({"instances": [{"age": None, "city": "a", "fare": 1}]}, "null is not allowed: INT64"),
        ({"instances": [[1, "a"]]}, "instances[0]: 2 values, but the model takes 3 inputs"),
        ({"instances": [1]}, "instances[0]: a number, but the model takes 3 inputs"),
        ({"inputs": [[1]]}, "inputs: expected an object by name, for the model takes 3 inputs"),
        ({"inputs": {"age": [1], "city": ["a", "b"], "fare": [1]}}, "input 'city': 2 rows"),
        ({"inputs": {"age": [1, 2.5], "city": ["a"], "fare": [1]}}, "inputs['age'][1]: 2.5 is not"),
        ({"inputs": {"age": 1, "city": ["a"], "fare": [1]}}, "inputs['age']: shape [] does not"),
    ],
)
def test_errors_of_separate_columns(body: dict[str, Any], text: str) -> None:
    """The same holds where each column is an input."""
    assert text in refusal(body, COLUMNS)


@pytest.mark.parametrize(
    "body",
    [
        {}, {"instances": [], "inputs": {}}, {"instances": {}}, {"instances": None},
        {"instances": "x"}, {"instances": 5}, {"inputs": None}, {"inputs": "x"}, {"inputs": {}},
        {"instances": [None]}, {"instances": [[[1, 2]]]}, {"instances": [[]]},
        {"instances": [[1, 2]], "signature_name": 5}, [], 5, None, "x",
    ],
)  # fmt: skip
def test_bodies_that_are_no_request(body: object) -> None:
    """Exactly one of instances and inputs, in one of their forms."""
    assert refusal(body)


def test_nan_says_to_use_null() -> None:
    """A bare NaN is refused with advice here too."""
    with pytest.raises(InvalidInput, match="write null"):
        decode_predict(b'{"instances":[[NaN,1]]}', TABLE)


def test_b17_no_rows() -> None:
    """B17: an empty list of rows is a batch without rows, for each kind of model."""
    for spec, shapes in ((TABLE, [(0, 2)]), (COLUMNS, [(0, 1)] * 3), (VECTOR, [(0,)])):
        call = decode({"instances": []}, spec)
        assert [array.shape for array in call.inputs.values()] == shapes
        assert call.rows == 0


def test_deep_nesting_and_absurd_sizes_are_refused() -> None:
    """The bounds of V2 hold here."""
    deep: Any = 1
    for _ in range(9):
        deep = [deep]
    assert "nested deeper than 8" in refusal({"instances": deep}, MATRIX)
    small = Limits(max_tensor_bytes=8)
    assert "at most 8 are allowed" in refusal({"instances": [[1, 2, 3, 4][:2]] * 3}, limits=small)
    assert "at most 8 are allowed" in refusal(
        {"instances": [{"age": 1, "fare": 1}] * 3}, limits=small
    )


def test_a_column_that_is_called_like_the_table() -> None:
    """All columns together are columns, the one name alone is the table."""
    spec = Signature((TensorSpec("x", "FP32", (-1, 2), columns=("x", "y")),), Y)
    assert x({"instances": [{"x": 1, "y": 2}]}, spec) == [[1, 2]]
    assert x({"instances": [{"x": [1, 2]}]}, spec) == [[1, 2]]
    assert x({"inputs": {"x": [1], "y": [2]}}, spec) == [[1, 2]]


def test_a_model_without_rows() -> None:
    """B20: a model for exactly four values takes them as its instances, one piece of work."""
    spec = Signature((TensorSpec("x", "FP32", (4,)),), (TensorSpec("y", "FP32", (4,)),))
    call = decode({"instances": [1, 2, 3, 4]}, spec)
    assert (call.rows, call.instances) == (1, 4)
    assert answered(call, spec, np.arange(4, dtype=np.float32)) == {
        "predictions": [0.0, 1.0, 2.0, 3.0]
    }


def answered(call: PredictCall, spec: Signature, *arrays: Array) -> Any:
    return json.loads(encode_predict(call, arrays, spec))


def test_answers_by_rows() -> None:
    """One output gives its rows, several an object for each row; NaN is null."""
    call = decode({"instances": [[1, 2], [3, 4]]})
    one = answered(call, TABLE, np.array([0.1, np.nan], np.float32))
    assert one == {"predictions": [0.1, None]}
    matrix = answered(call, TABLE, np.array([[0.1, 0.9], [1, 0]], np.float32))
    assert matrix == {"predictions": [[0.1, 0.9], [1.0, 0.0]]}
    two = decode({"instances": [[1, "a", 2], [3, "b", 4]]}, COLUMNS)
    labels, proba = np.array(["no", "é"], object), np.array([[0.1, 0.9], [np.inf, 0]], np.float32)
    assert answered(two, COLUMNS, labels, proba) == {
        "predictions": [
            {"label": "no", "proba": [0.1, 0.9]},
            {"label": "é", "proba": [None, 0.0]},
        ]
    }


def test_answers_of_every_datatype_by_rows() -> None:
    """Numbers keep their exact form where rows are taken apart."""
    spec = Signature(
        VECTOR.inputs, tuple(TensorSpec(name, "FP32", (-1,)) for name in ("i", "u", "h", "b", "s"))
    )
    arrays = (
        np.array([2**63 - 1]), np.array([2**64 - 1], np.uint64), np.array([65504], np.float16),
        np.array([True]), np.array(["s"]),
    )  # fmt: skip
    assert answered(decode({"instances": [1]}, spec), spec, *arrays) == {
        "predictions": [{"i": 2**63 - 1, "u": 2**64 - 1, "h": 65504.0, "b": True, "s": "s"}]
    }


def test_answers_by_columns() -> None:
    """One output is the value, several are an object; a scalar stays one."""
    call = decode({"inputs": [[1, 2]]})
    assert answered(call, TABLE, np.float32([[0.1]])) == {"outputs": [[0.1]]}
    assert answered(call, TABLE, np.array(0.1, np.float32)) == {"outputs": 0.1}
    assert answered(call, TABLE, np.array("a", object)) == {"outputs": "a"}
    two = decode({"inputs": {"age": [1], "city": ["a"], "fare": [1]}}, COLUMNS)
    assert answered(two, COLUMNS, np.array(["no"], object), np.float32([[0.5, 0.5]]).T.T) == {
        "outputs": {"label": ["no"], "proba": [[0.5, 0.5]]}
    }


def test_no_rows_are_answered_with_none() -> None:
    """B17: no instances, no predictions."""
    call = decode({"instances": []})
    assert answered(call, TABLE, np.empty((0, 2), np.float32)) == {"predictions": []}
    both = decode({"instances": []}, COLUMNS)
    arrays = (np.empty(0, object), np.empty((0, 2), np.float32))
    assert answered(both, COLUMNS, *arrays) == {"predictions": []}


def test_g16_outputs_without_rows_are_not_split() -> None:
    """G16: a constant as long as the batch by chance is not dealt out to its rows."""
    spec = Signature(MATRIX.inputs, (TensorSpec("sum", "FP32", ()), TensorSpec("c", "FP32", (2,))))
    call = decode({"instances": [[1, 2], [3, 4]]}, spec)
    arrays = (np.float32(10).reshape(()), np.array([1, 2], np.float32))
    with pytest.raises(InvalidInput, match="output 'sum' has shape"):
        encode_predict(call, arrays, spec)
    constant = Signature(MATRIX.inputs, (TensorSpec("c", "FP32", (2,)),))
    with pytest.raises(InvalidInput, match='send "inputs" instead'):
        encode_predict(call, arrays[1:], constant)
    whole = decode({"inputs": [[1, 2], [3, 4]]}, spec)
    assert answered(whole, spec, *arrays) == {"outputs": {"sum": 10.0, "c": [1.0, 2.0]}}


def test_of_a_name_that_stands_twice_the_last_counts() -> None:
    """As most parsers of JSON have it, at any depth."""
    body = b'{"instances": [[1, 2]], "instances": [{"age": 1, "fare": 2, "age": 3}]}'
    assert decode_predict(body, TABLE).inputs["x"].tolist() == [[3, 2]]


CODED = Signature(
    (TensorSpec("n", "FP32", (-1, 1)), TensorSpec("zone", "BYTES", (-1, 1), integers=True)), Y
)


@pytest.mark.parametrize(
    "body",
    [
        {"instances": [{"n": 1, "zone": 7}, {"n": 2, "zone": "Rome"}, {"n": 3, "zone": True}]},
        {"instances": [[1, 7], [2, "Rome"], [3, True]]},
        {"inputs": {"n": [1, 2, 3], "zone": [7, "Rome", True]}},
        {"inputs": {"n": [[1], [2], [3]], "zone": [["7"], ["Rome"], ["1"]]}},
        {"dataframe_split": {"columns": ["n", "zone"], "data": [[1, 7], [2, "Rome"], [3, True]]}},
    ],
)
def test_whole_numbers_stand_for_their_digits_where_the_library_takes_them_so(
    body: dict[str, Any],
) -> None:
    """A category that was a number in training is the same as a text; true was 1."""
    assert decode(body, CODED).inputs["zone"].tolist() == [["7"], ["Rome"], ["1"]]


def test_whole_numbers_as_texts_are_exact() -> None:
    """The whole range of INT64 comes through digit by digit."""
    numbers = [-(2**63), 2**53 + 1, 2**63 - 1, 0]
    call = decode({"inputs": {"n": [0] * 4, "zone": numbers}}, CODED)
    assert call.inputs["zone"].ravel().tolist() == [str(number) for number in numbers]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (3.0, "instances[0]['zone']: 3.0 is not allowed: this column takes strings and whole "),
        (2**63, "instances[0]['zone']: 9223372036854775808 is not allowed: whole numbers within "),
        (None, "instances[0]['zone']: null is not allowed: BYTES takes strings, and this input"),
    ],
)
def test_what_the_library_itself_refuses_as_a_category(value: object, said: str) -> None:
    """A number with a fraction or point, one that is too long, and none at all."""
    assert refusal({"instances": [{"n": 1, "zone": value}]}, CODED).startswith(said)


def test_a_column_of_texts_takes_no_numbers() -> None:
    """Where the signature does not say so, 7 is not "7"."""
    body = {"instances": [{"age": 1, "city": 7, "fare": 2}]}
    assert refusal(body, COLUMNS) == "instances[0]['city']: 7 is not allowed: BYTES takes strings"
