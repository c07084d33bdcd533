"""V2 infer requests in JSON: what is read, and what is refused with which words."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from models.signature import Signature, TensorSpec
from serving.codec.limits import Limits
from serving.codec.v2 import OutputWish, decode_infer
from tests.unit.serving.v2_bodies import decode, read, refusal, signature, tensor

PAIR = Signature(
    (TensorSpec("a", "FP32", (-1, 2)), TensorSpec("b", "INT64", (-1,))),
    (TensorSpec("label", "INT64", (-1,)), TensorSpec("proba", "FP32", (-1, 2))),
)
A = {"name": "a", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
B = {"name": "b", "datatype": "INT64", "shape": [1], "data": [7]}


def test_a_request_with_everything_is_read() -> None:
    """All known fields of a request reach the call, in the caller's order of outputs."""
    call = decode(
        {
            "id": "r1",
            "parameters": {"timeout": 5000, "priority": 1, "unknown": [1]},
            "inputs": [A, B],
            "outputs": [
                {"name": "proba", "parameters": {"binary_data": True}},
                {"name": "label", "parameters": {"classification": 2}},
            ],
        },
        PAIR,
    )
    assert call.id == "r1"
    assert call.timeout_us == 5000
    assert call.priority == 1
    assert call.rows == 1
    assert call.output_names == ("proba", "label")
    assert call.outputs == (OutputWish("proba", is_binary=True), OutputWish("label", False, 2))
    assert call.inputs["a"].tolist() == [[1.0, 2.0]]
    assert call.inputs["a"].dtype == np.float32
    assert call.inputs["b"].tolist() == [7]


def test_what_was_not_sent_is_told_from_what_is_empty() -> None:
    """An id "" is echoed, a missing one is not; no timeout and timeout 0 both mean the default."""
    bare = decode({"inputs": [tensor([1], [1])]})
    empty = decode({"id": "", "parameters": {"timeout": 0}, "inputs": [tensor([1], [1])]})
    assert (bare.id, bare.timeout_us, bare.priority) == (None, None, 0)
    assert (empty.id, empty.timeout_us) == ("", None)


@pytest.mark.parametrize(
    ("data", "shape"),
    [([1, 2, 3, 4, 5, 6], [2, 3]), ([[1, 2, 3], [4, 5, 6]], [2, 3])],
)
def test_data_may_be_flat_or_nested(data: list[Any], shape: list[int]) -> None:
    """Flat and nested data give the same row-major tensor."""
    assert read(data, "FP32", shape) == [[1, 2, 3], [4, 5, 6]]


def test_b04_shape_and_elements_disagree() -> None:
    """B04: every disagreement of shape and data is refused before anything runs."""
    assert refusal({"inputs": [tensor(list(range(7)), [1, 5])]}, signature("FP32", -1, 5)) == (
        "input 'x': 7 elements in data, but shape [1, 5] takes 5"
    )
    assert "3 elements in data" in refusal(
        {"inputs": [tensor([1, 2, 3], [1, 5])]}, signature("FP32", -1, 5)
    )
    assert "shape [] does not fit [-1]" in refusal({"inputs": [tensor([1], [])]})
    assert "only integers from 0" in refusal({"inputs": [tensor([1, 2], [2, -1])]})
    assert "shape [4] does not fit [-1, 4]" in refusal(
        {"inputs": [tensor([[1, 2], [3, 4]], [4])]}, signature("FP32", -1, 4)
    )
    assert "a list is not allowed: FP32 takes numbers" in refusal(
        {"inputs": [tensor([[1, 2], [3, 4]], [2])]}
    )
    huge = refusal({"inputs": [tensor([1], [2**40, 2**40])]}, signature("FP32", -1, -1))
    assert f"takes {2**82} bytes, at most" in huge


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([[1, 2], [3]], "entry 1 at depth 1 is 1 entries, but shape [2, 2] says a list of 2"),
        ([[1, 2], 3], "entry 1 at depth 1 is a number"),
        ([[1, 2]], "1 entries, but shape [2, 2] says 2"),
        ([1, [2, 3], 4, 5], "element 1: a list is not allowed"),
        ([[[1], [2]], [[3], [4]]], "element 0: a list is not allowed"),
    ],
)
def test_ragged_and_too_deep_data_are_refused(data: list[Any], text: str) -> None:
    """Nested data must have the depth and the lengths that the shape says."""
    assert text in refusal({"inputs": [tensor(data, [2, 2])]}, signature("FP32", -1, 2))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"5", b'"x"', b"[]", b"{}", b"\xff\xfe", b"{", b'{"inputs":[1,]}',
        b"[" * 100_000, b'{"inputs":' * 2000, b'\xef\xbb\xbf{"inputs":[]}', b'{"inputs":[]} x',
    ],
)  # fmt: skip
def test_b05_bodies_that_are_no_request(body: bytes) -> None:
    """B05: whatever the bytes are, the answer is a refusal and never another error."""
    assert refusal(body)


@pytest.mark.parametrize("inputs", [{}, "x", None, 5, True, [5], [None], ["x"], [[]], [{}]])
def test_b05_inputs_of_the_wrong_kind(inputs: object) -> None:
    """B05: ``inputs`` must be a list of objects with names."""
    assert refusal({"inputs": inputs}).startswith("input")


@pytest.mark.parametrize(
    "shape", ["-1", -1, [1.5], [True], None, {}, [-1], [[1]], ["1"], [2**63], [2**64], [1] * 9]
)
def test_b05_shapes_of_the_wrong_kind(shape: object) -> None:
    """B05: a shape is a list of at most eight integers from 0 that memory can hold."""
    assert refusal({"inputs": [tensor([1], shape)]}).startswith("input 'x':")


@pytest.mark.parametrize("data", [{"b64": "x"}, "x", 5, None, True])
def test_b05_data_of_the_wrong_kind(data: object) -> None:
    """B05: data is a list."""
    assert "data: expected a list" in refusal({"inputs": [tensor(data, [1])]})


def test_data_nested_deeper_than_allowed_is_refused() -> None:
    """The nesting bound holds by itself, whatever the dimension bound is."""
    message = refusal(
        {"inputs": [tensor([[[1]]], [1, 1, 1])]},
        signature("FP32", -1, 1, 1),
        limits=Limits(max_nesting=2),
    )
    assert "nested 3 deep, at most 2" in message


def test_b07_unknown_outputs() -> None:
    """B07: an output that is not there is named; none listed means all of them."""
    message = refusal({"inputs": [A, B], "outputs": [{"name": "nope"}]}, PAIR)
    assert message == "outputs[0]: output 'nope' is unknown: the model has 'label', 'proba'"
    assert decode({"inputs": [A, B], "outputs": []}, PAIR).output_names == ("label", "proba")
    assert decode({"inputs": [A, B], "outputs": None}, PAIR).output_names == ("label", "proba")
    twice = [{"name": "label"}, {"name": "label"}]
    assert refusal({"inputs": [A, B], "outputs": twice}, PAIR) == "output 'label' stands twice"


@pytest.mark.parametrize(
    "outputs",
    [{}, "label", 5, [5], [None], [{}], [{"name": 5}], [{"name": "label", "parameters": 5}]],
)
def test_outputs_of_the_wrong_kind(outputs: object) -> None:
    """``outputs`` is a list of objects with known names."""
    assert refusal({"inputs": [A, B], "outputs": outputs}, PAIR).startswith("output")


def test_b08_inputs_by_name() -> None:
    """B08: duplicate, unknown and missing inputs are named; their order does not matter."""
    assert refusal({"inputs": [A, A, B]}, PAIR) == "input 'a' stands twice"
    foo = tensor([1], [1], name="foo")
    assert refusal({"inputs": [A, B, foo]}, PAIR) == (
        "input 'foo' is unknown: the model takes 'a', 'b'"
    )
    assert refusal({"inputs": [A]}, PAIR) == "input 'b' is missing: the model needs it"
    straight, reverse = decode({"inputs": [A, B]}, PAIR), decode({"inputs": [B, A]}, PAIR)
    for name in ("a", "b"):
        assert straight.inputs[name].tolist() == reverse.inputs[name].tolist()


def test_b16_columns_for_a_table() -> None:
    """B16: a table may be sent as its columns, ``[N]`` or ``[N, 1]``, in any order."""
    spec = signature("FP32", -1, 2, columns=("age", "fare"))
    call = decode(
        {
            "inputs": [
                tensor([[3], [4]], [2, 1], name="fare"),
                tensor([1, 2], [2], name="age"),
            ]
        },
        spec,
    )
    assert call.inputs["x"].tolist() == [[1, 3], [2, 4]]
    assert call.rows == 2
    assert decode({"inputs": [tensor([1, 3, 2, 4], [2, 2])]}, spec).inputs["x"].tolist() == [
        [1, 3], [2, 4],
    ]  # fmt: skip
    age = tensor([1, 2], [2], name="age")
    assert refusal({"inputs": [age]}, spec) == "input 'fare' is missing: it is a column of 'x'"
    assert "input 'fare': 1 rows, but 'age' has 2" in refusal(
        {"inputs": [age, tensor([3], [1], name="fare")]}, spec
    )
    assert "input 'other' is unknown" in refusal(
        {"inputs": [age, tensor([1, 2], [2], name="other")]}, spec
    )


def test_b16_columns_where_none_are_declared() -> None:
    """B16: without column names in the signature, four columns are four unknown inputs."""
    columns = [tensor([1], [1, 1], name=f"c{i}") for i in range(4)]
    assert refusal({"inputs": columns}, signature("FP32", -1, 4)) == (
        "input 'c0' is unknown: the model takes 'x'"
    )


def test_b16_rows_of_several_inputs() -> None:
    """B16: batched inputs agree in rows; an input without a free first dimension is left alone."""
    spec = Signature(
        (TensorSpec("a", "FP32", (-1, 3)), TensorSpec("b", "FP32", (-1,)),
         TensorSpec("k", "INT64", ()), TensorSpec("w", "FP32", (5,))),
        (TensorSpec("y", "FP32", (-1,)),),
    )  # fmt: skip
    a = tensor([1] * 6, [2, 3], name="a")
    rest = [tensor([3], [], "INT64", name="k"), tensor([1] * 5, [5], name="w")]
    call = decode({"inputs": [a, tensor([1, 2], [2], name="b"), *rest]}, spec)
    assert call.rows == 2
    assert call.inputs["k"].shape == ()
    odd = {"inputs": [a, tensor([1, 2, 3], [3], name="b"), *rest]}
    assert "input 'b': 3 rows, but input 'a' has 2" in refusal(odd, spec)
    assert decode(odd, spec, is_batchable=False).rows == 2


def test_a_bare_value_is_a_scalar() -> None:
    """A tensor without dimensions takes its value with or without a list."""
    for data in (3, [3]):
        array = decode({"inputs": [tensor(data, [], "INT64")]}, _scalar()).inputs["x"]
        assert (array.shape, array.tolist()) == ((), 3)


def _scalar() -> Signature:
    return Signature((TensorSpec("x", "INT64", ()),), (TensorSpec("y", "INT64", ()),))


@pytest.mark.parametrize(("data", "shape"), [([], [0, 4]), ([[], []], [2, 0]), ([], [2, 0])])
def test_b17_empty_tensors(data: list[Any], shape: list[int]) -> None:
    """B17: a batch without rows is a batch of shape ``[0, ...]``."""
    call = decode({"inputs": [tensor(data, shape)]}, signature("FP32", -1, -1))
    assert list(call.inputs["x"].shape) == shape
    assert call.rows == shape[0]


def test_an_empty_tensor_of_absurd_shape_is_refused() -> None:
    """A zero does not hide a size that no array can have."""
    message = refusal({"inputs": [tensor([], [0, 2**62])]}, signature("FP32", -1, -1))
    assert "at most" in message


def test_b20_a_vector_and_a_single_column() -> None:
    """B20: ``[N]`` and ``[N, 1]`` stand for each other and for nothing else."""
    column = decode({"inputs": [tensor([1, 2, 3], [3])]}, signature("FP32", -1, 1))
    assert column.inputs["x"].shape == (3, 1)
    vector = decode({"inputs": [tensor([[1], [2]], [2, 1])]}, signature("FP32", -1))
    assert vector.inputs["x"].shape == (2,)
    assert "shape [3] does not fit [-1, 2]" in refusal(
        {"inputs": [tensor([1, 2, 3], [3])]}, signature("FP32", -1, 2)
    )
    assert "shape [3, 1, 1] does not fit [-1]" in refusal(
        {"inputs": [tensor([1, 2, 3], [3, 1, 1])]}, signature("FP32", -1)
    )


def test_b20_fixed_dimensions_hold() -> None:
    """B20: a model for exactly four values takes four, and its one piece of work is one row."""
    assert decode({"inputs": [tensor([1, 2, 3, 4], [4])]}, signature("FP32", 4)).rows == 1
    assert "shape [3] does not fit [4]" in refusal(
        {"inputs": [tensor([1, 2, 3], [3])]}, signature("FP32", 4)
    )


@pytest.mark.parametrize(
    "extra",
    [
        {"id": 5}, {"id": ["a"]}, {"parameters": []}, {"parameters": "x"},
        {"parameters": {"timeout": -1}}, {"parameters": {"timeout": "1"}},
        {"parameters": {"timeout": 1.5}}, {"parameters": {"timeout": True}},
        {"parameters": {"timeout": 2**63}}, {"parameters": {"priority": None}},
        {"parameters": {"binary_data_output": 1}},
        {"outputs": [{"name": "y", "parameters": {"binary_data": "yes"}}]},
        {"outputs": [{"name": "y", "parameters": {"classification": -1}}]},
        {"outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]},
    ],
)  # fmt: skip
def test_known_fields_and_parameters_must_be_right(extra: dict[str, Any]) -> None:
    """What the server acts on is checked; the message names it."""
    assert refusal({"inputs": [tensor([1], [1])], **extra})


def test_shared_memory_is_refused_by_name() -> None:
    """A client that asks for shared memory learns that it is not there."""
    item = {**tensor([1], [1]), "parameters": {"shared_memory_region": "r"}}
    assert "shared memory is not supported" in refusal({"inputs": [item]})


def test_classification_of_text_is_refused() -> None:
    """Classes are the highest numbers, and text has none."""
    message = refusal(
        {
            "inputs": [tensor(["a"], [1], "BYTES")],
            "outputs": [{"name": "y", "parameters": {"classification": 1}}],
        },
        signature("BYTES"),
    )
    assert "classification needs numbers" in message


def test_bounds_on_names_and_bytes() -> None:
    """The number of tensors and their bytes together are bounded."""
    small = Limits(max_tensors=1, max_tensor_bytes=16)
    assert "2 entries, at most 1" in refusal({"inputs": [A, B]}, PAIR, limits=small)
    two = Limits(max_tensors=2, max_tensor_bytes=8)
    assert "all inputs together take 16 bytes" in refusal({"inputs": [A, B]}, PAIR, limits=two)
    outputs = [{"name": "label"}, {"name": "proba"}, {"name": "label"}]
    assert "outputs: 3 entries, at most 2" in refusal(
        {"inputs": [A, B], "outputs": outputs}, PAIR, limits=Limits(max_tensors=2)
    )


def test_long_lists_of_names_stay_readable() -> None:
    """A message about a model with hundreds of inputs names ten."""
    specs = tuple(TensorSpec(f"c{i}", "FP32", (-1,)) for i in range(300))
    wide = Signature(specs, (TensorSpec("y", "FP32", (-1,)),))
    message = refusal({"inputs": [tensor([1], [1])]}, wide)
    assert message.endswith("'c9' and 290 more")


@pytest.mark.parametrize("datatype", ["INT64", "INT32", "UINT8"])
def test_whole_numbers_in_place_of_their_digits(datatype: str) -> None:
    """A tensor of whole numbers is one of texts, in JSON and as bytes."""
    spec = signature("BYTES", -1, 1, integers=True)
    body = {"inputs": [tensor([7, 12], [2, 1], datatype)]}
    assert decode(body, spec).inputs["x"].tolist() == [["7"], ["12"]]
    data = np.array([7, 12], np.dtype(datatype.lower())).tobytes()
    head = {"name": "x", "datatype": datatype, "shape": [2],
            "parameters": {"binary_data_size": len(data)}}  # fmt: skip
    raw = json.dumps({"inputs": [head]}).encode()
    for _ in range(2):  # what is known of a request is no other way
        call = decode_infer(raw + data, len(raw), spec)
        assert call.inputs["x"].tolist() == [["7"], ["12"]]


def test_numbers_that_are_no_digits_are_refused() -> None:
    """A fraction, a tensor typed as text that holds numbers, and one that takes texts only."""
    spec = signature("BYTES", integers=True)
    assert refusal({"inputs": [tensor([7.5], [1], "FP32")]}, spec) == (
        "input 'x': datatype 'FP32' is not allowed: the model takes BYTES and INT64"
    )
    assert "BYTES takes strings" in refusal({"inputs": [tensor([7], [1], "BYTES")]}, spec)
    for odd in ([], {}, None, 7):
        body = {"inputs": [tensor([7], [1], "INT64") | {"datatype": odd}]}
        said = refusal(body, spec)
        assert said.startswith("input 'x': datatype ")
        assert said.endswith(" is not allowed: the model takes BYTES and INT64")
    assert refusal({"inputs": [tensor([7], [1], "INT64")]}, signature("BYTES")) == (
        "input 'x': datatype 'INT64' is not allowed: the model takes BYTES"
    )
