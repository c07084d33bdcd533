"""Answers in JSON: exact numbers, valid tokens, the right shapes; and the classification wish."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import numpy as np
import pytest

from models.servable import Array
from models.signature import Signature, TensorSpec
from serving.codec.classification import best_classes
from serving.codec.output import v2_datatype
from serving.codec.v2 import InferCall, OutputWish, encode_infer

SPEC = Signature((), (TensorSpec("y", "FP32", (-1,)),))


def refuse_token(token: str) -> NoReturn:
    raise AssertionError(f"{token} is not JSON")


def answer(*arrays: Array, wishes: tuple[OutputWish, ...] = (), call_id: str | None = None) -> Any:
    wishes = wishes or tuple(OutputWish(f"y{i}") for i in range(len(arrays)))
    spec = Signature((), tuple(TensorSpec(wish.name, "FP32", (-1,)) for wish in wishes))
    body, length = encode_infer(InferCall(call_id, {}, 1, wishes), "m", 12, arrays, spec)
    assert length is None
    return json.loads(body, parse_constant=refuse_token)


def data(array: Array) -> Any:
    return answer(array)["outputs"][0]["data"]


def test_an_answer_names_model_version_and_outputs() -> None:
    """The version is text, the id is there only if it was sent, outputs carry no empty marks."""
    assert answer(np.ones((2, 1), np.float32)) == {
        "model_name": "m",
        "model_version": "12",
        "outputs": [{"name": "y0", "datatype": "FP32", "shape": [2, 1], "data": [1.0, 1.0]}],
    }
    assert answer(np.ones(1), call_id="")["id"] == ""


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_b01_nan_and_infinity_are_null(dtype: type[np.generic]) -> None:
    """B01, B02: a strict JSON reader takes every answer; what is no number is null."""
    assert data(np.array([0, -np.inf, np.nan, np.inf], dtype)) == [0.0, None, None, None]


def test_b10_b11_text() -> None:
    """B10, B11: text is exact in JSON, whatever numpy kind it has."""
    texts = ["setosa", "vérité", "日本", "", 'a"\\\n', "\0"]
    assert data(np.array(texts, object)) == texts
    assert data(np.array(["setosa", "vérité", "日本"])) == ["setosa", "vérité", "日本"]


def test_b11_bytes_that_are_not_text() -> None:
    """B11: in JSON each byte that is not UTF-8 becomes U+FFFD; lone surrogates become "?"."""
    assert data(np.array([b"a\xffb", "a\ud800b"], object)) == ["a\ufffdb", "a?b"]


def test_b13_booleans_are_true_and_false() -> None:
    """B13: BOOL outputs are JSON booleans."""
    values = data(np.array([True, False]))
    assert values == [True, False]
    assert all(type(value) is bool for value in values)


def test_b14_integers_are_exact_numbers() -> None:
    """B14: 64-bit integers are JSON numbers with all their digits."""
    assert data(np.array([2**63 - 1, -(2**63), 2**53 + 1])) == [2**63 - 1, -(2**63), 2**53 + 1]
    assert data(np.array([2**64 - 1], np.uint64)) == [2**64 - 1]


def test_b19_floats_read_back_bit_equal() -> None:
    """B19: each float is written with enough digits of its own datatype, and not many more."""
    for dtype in (np.float16, np.float32, np.float64):
        info = np.finfo(dtype)
        array = np.array(
            [0.1, 1 / 3, info.max, info.min, info.tiny, info.smallest_subnormal, -0.0, 1e-3], dtype
        )
        back = np.array(data(array), np.float64).astype(dtype)
        assert back.tobytes() == array.tobytes()
    assert data(np.array([0.1], np.float32)) == [0.1]


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (2, 0), (2, 3), (1, 1, 1)])
def test_shapes_of_any_kind(shape: tuple[int, ...]) -> None:
    """The shape comes from the result, and the data is flat."""
    output = answer(np.ones(shape, np.float32))["outputs"][0]
    assert output["shape"] == list(shape)
    assert output["data"] == [1.0] * int(np.prod(shape))


def test_arrays_in_any_memory_order() -> None:
    """Data is row-major whatever the array's layout is."""
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert data(table.T) == [0, 3, 1, 4, 2, 5]
    assert data(table[:, 1]) == [1, 4]


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("?", "BOOL"), ("u1", "UINT8"), ("u2", "UINT16"), ("u4", "UINT32"), ("u8", "UINT64"),
     ("i1", "INT8"), ("i2", "INT16"), ("i4", "INT32"), ("i8", "INT64"), ("f2", "FP16"),
     ("f4", "FP32"), ("f8", "FP64"), ("O", "BYTES"), ("U3", "BYTES"), ("S3", "BYTES")],
)  # fmt: skip
def test_datatypes_of_results(dtype: str, name: str) -> None:
    """Each numpy type has its V2 name."""
    assert v2_datatype(np.empty(1, dtype)) == name


def classes(array: Any, count: int, labels: Any = None, shape: tuple[int, ...] = (-1, 3)) -> Any:
    spec = TensorSpec("y", "FP32", shape, labels=labels)
    return best_classes(np.array(array, np.float32), spec, count).tolist()


def test_classification_gives_the_best_first() -> None:
    """Each row's k highest values as value:index:label, best first."""
    assert classes([[0.1, 0.7, 0.2], [0.5, 0.25, 0.25]], 2, ("a", "b", "c")) == [
        ["0.7:1:b", "0.2:2:c"],
        ["0.5:0:a", "0.25:1:b"],
    ]
    assert classes([[1, 2, 3]], 1) == [["3.0:2"]]
    assert classes([[1, 2, 3]], 1, (5, 2, 9)) == [["3.0:2:9"]]


def test_classification_of_more_classes_than_there_are() -> None:
    """A k beyond the classes gives all of them."""
    assert classes([[1, 3, 2]], 99) == [["3.0:1", "2.0:2", "1.0:0"]]


def test_classification_of_ties_and_of_what_is_no_number() -> None:
    """Equal values stand in index order, NaN last."""
    assert classes([[1, 1, 1]], 3) == [["1.0:0", "1.0:1", "1.0:2"]]
    assert classes([[np.nan, 1, np.inf]], 3) == [["inf:2", "1.0:1", "nan:0"]]
    assert classes([[np.nan, -np.inf, 0]], 1) == [["0.0:2"]]


def test_classification_of_other_shapes() -> None:
    """A fixed vector is one row of classes; a batch of numbers has one class each; none is none."""
    assert classes([3, 1, 2], 2, shape=(3,)) == ["3.0:0", "2.0:2"]
    assert classes([3, 1], 2, shape=(-1,)) == [["3.0:0"], ["1.0:0"]]
    assert classes(np.empty((0, 3)), 2).__len__() == 0
    assert classes([[[1, 2], [3, 4]]], 1, shape=(-1, 2, 2)) == [["4.0:3"]]


def test_classification_of_integers() -> None:
    """Integers are ranked exactly, unsigned ones too."""
    spec = TensorSpec("y", "UINT64", (-1, 3))
    array = np.array([[2**64 - 1, 0, 2**64 - 2]], np.uint64)
    assert best_classes(array, spec, 2).tolist() == [[f"{2**64 - 1}:0", f"{2**64 - 2}:2"]]


def test_a_classification_answer_is_text() -> None:
    """The output of a classification wish is BYTES of shape rows times k."""
    spec = Signature((), (TensorSpec("y", "FP32", (-1, 3), labels=("a", "b", "c")),))
    call = InferCall(None, {}, 1, (OutputWish("y", classification=2),))
    body, _ = encode_infer(call, "m", 1, [np.array([[0.1, 0.7, 0.2]], np.float32)], spec)
    assert json.loads(body)["outputs"] == [
        {"name": "y", "datatype": "BYTES", "shape": [1, 2], "data": ["0.7:1:b", "0.2:2:c"]}
    ]
