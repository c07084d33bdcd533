"""V2 infer requests in JSON: what is read, and what is refused with which words."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from models.signature import Signature, TensorSpec
from registry.errors import InvalidInput
from serving.codec.limits import Limits
from serving.codec.v2 import InferCall, OutputWish, decode_infer


def signature(datatype: str = "FP32", *shape: int, **extra: Any) -> Signature:
    """An identity over one input ``x``."""
    spec = TensorSpec("x", datatype, shape or (-1,), **extra)
    return Signature((spec,), (TensorSpec("y", datatype, shape or (-1,)),))


PAIR = Signature(
    (TensorSpec("a", "FP32", (-1, 2)), TensorSpec("b", "INT64", (-1,))),
    (TensorSpec("label", "INT64", (-1,)), TensorSpec("proba", "FP32", (-1, 2))),
)
A = {"name": "a", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
B = {"name": "b", "datatype": "INT64", "shape": [1], "data": [7]}


def tensor(data: object, shape: object, datatype: object = "FP32", name: object = "x") -> Any:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def decode(body: object, spec: Signature | None = None, **keywords: Any) -> InferCall:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode_infer(raw, None, spec or signature(), **keywords)


def refusal(body: object, spec: Signature | None = None, **keywords: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        decode(body, spec, **keywords)
    return str(caught.value)


def read(data: object, datatype: str, shape: list[int] | None = None, **extra: Any) -> list[Any]:
    """Decode one JSON tensor and return its elements."""
    size = shape if shape is not None else [len(data)]  # type: ignore[arg-type]
    spec = signature(datatype, *([-1] * len(size)), **extra)
    values: list[Any] = (
        decode({"inputs": [tensor(data, size, datatype)]}, spec).inputs["x"].tolist()
    )
    return values


def read_raw(literal: bytes, datatype: str) -> list[Any]:
    """Decode one element that is written exactly as ``literal``."""
    body = b'{"inputs":[{"name":"x","shape":[1],"datatype":"%s","data":[%s]}]}' % (
        datatype.encode(),
        literal,
    )
    values: list[Any] = decode(body, signature(datatype)).inputs["x"].tolist()
    return values


def misread(literal: bytes, datatype: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        read_raw(literal, datatype)
    return str(caught.value)


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


def test_a_datatype_is_never_converted() -> None:
    """A tensor of another datatype than the model's is refused, also if it would fit."""
    message = refusal({"inputs": [tensor([1], [1], "FP64")]})
    assert message == "input 'x': datatype 'FP64' is not allowed: the model takes FP32"
    assert "datatype null" in refusal({"inputs": [tensor([1], [1], None)]})


def test_b11_strings_stay_apart() -> None:
    """B11: text elements keep their borders, empty ones and other scripts included."""
    assert read(["ab", "c", "", "vérité", "日本", "a\0b"], "BYTES") == [
        "ab", "c", "", "vérité", "日本", "a\0b",
    ]  # fmt: skip
    assert read([["a", "b"], ["c", "d"]], "BYTES", [2, 2]) == [["a", "b"], ["c", "d"]]


def test_missing_text_follows_the_signature() -> None:
    """``null`` in BYTES is what the signature says, or is refused with its place."""
    assert read(["a", None], "BYTES", missing="?") == ["a", "?"]
    assert "input 'x': element 1: null is not allowed: BYTES takes strings" in refusal(
        {"inputs": [tensor(["a", None], [2], "BYTES")]}, signature("BYTES")
    )
    assert "element 0: 5 is not allowed: BYTES takes strings" in refusal(
        {"inputs": [tensor([5], [1], "BYTES")]}, signature("BYTES", missing="?")
    )


def test_b13_booleans() -> None:
    """B13: BOOL takes true and false, and the integers 1 and 0; nothing else is guessed."""
    assert read([True, False, 1, 0], "BOOL") == [True, False, True, False]
    for literal in (b'"true"', b"2", b"1.0", b"null", b"-1", b"[]", b'"false"'):
        assert "BOOL takes true, false, 1 or 0" in misread(literal, "BOOL")


@pytest.mark.parametrize(
    ("datatype", "low", "high"),
    [
        ("INT8", -(2**7), 2**7 - 1), ("INT16", -(2**15), 2**15 - 1),
        ("INT32", -(2**31), 2**31 - 1), ("INT64", -(2**63), 2**63 - 1),
        ("UINT8", 0, 2**8 - 1), ("UINT16", 0, 2**16 - 1), ("UINT32", 0, 2**32 - 1),
        ("UINT64", 0, 2**64 - 1),
    ],
)  # fmt: skip
def test_b14_integers_are_exact_over_their_range(datatype: str, low: int, high: int) -> None:
    """B14: both ends of each range arrive exactly, one beyond either is refused with its index."""
    assert read([low, high], datatype) == [low, high]
    for outside in (low - 1, high + 1):
        body = b'{"inputs":[{"name":"x","shape":[2],"datatype":"%s","data":[0,%d]}]}'
        message = refusal(body % (datatype.encode(), outside), signature(datatype))
        assert message.startswith("input 'x': element 1: ")
        assert f"{low}..{high}" in message


def test_b14_integers_past_two_to_the_53() -> None:
    """B14: integers that a double cannot hold are not rounded."""
    assert read_raw(b"9007199254740993", "INT64") == [9007199254740993]
    assert read_raw(b"18446744073709551615", "UINT64") == [18446744073709551615]


def test_b14_whole_numbers_in_other_spellings() -> None:
    """B14: ``1e3`` and ``34.0`` are integers; past 2**53 only plain integers are exact."""
    assert read_raw(b"1e3", "INT64") == [1000]
    assert read([1.0, 2, -3.0], "INT8") == [1, 2, -3]
    assert read_raw(b"9007199254740991.0", "INT64") == [9007199254740991]
    assert "takes exactly" in misread(b"9007199254740993.0", "INT64")
    assert "takes exactly" in misread(b"1e300", "INT64")
    assert "300.0 is not allowed: UINT8 takes integers within 0..255" in misread(b"3e2", "UINT8")


@pytest.mark.parametrize("literal", [b"1.5", b"true", b"null", b'"1"', b"[]", b"{}", b"-0.5"])
def test_b14_what_is_no_integer(literal: bytes) -> None:
    """B14: fractions, booleans, null and text are no integers."""
    message = misread(literal, "INT64")
    assert message.startswith("input 'x': element 0: ")
    assert "INT64 takes integers within" in message


def test_null_is_nan_only_in_floats() -> None:
    """``null`` in a float input is a missing value."""
    for datatype in ("FP16", "FP32", "FP64"):
        array = decode(
            {"inputs": [tensor([1.5, None, -2], [3], datatype)]}, signature(datatype)
        ).inputs["x"]
        assert np.isnan(array[1])
        assert array[[0, 2]].tolist() == [1.5, -2.0]


@pytest.mark.parametrize("token", [b"NaN", b"Infinity", b"-Infinity", b"nan", b"-inf", b"-NaN"])
def test_bare_nan_says_to_use_null(token: bytes) -> None:
    """A token that is not JSON is refused with what to write instead."""
    assert "is not a JSON number: write null" in misread(token, "FP32")
    body = '{"id":"é日","inputs":[{"name":"x","data":['.encode() + token + b"]}]}"
    assert "write null" in refusal(body)


def test_other_syntax_errors_do_not_speak_of_null() -> None:
    """Only a token that means NaN or infinity gets that advice."""
    assert "write null" not in refusal(b'{"inputs":[x]}')
    assert "body: not JSON: " in refusal(b'{"inputs":[x]}')


@pytest.mark.parametrize(
    ("literal", "datatype"),
    [(b"1e39", "FP32"), (b"-3.5e38", "FP32"), (b"65520", "FP16"), (b"1e5", "FP16")],
)
def test_numbers_that_would_become_infinite_are_refused(literal: bytes, datatype: str) -> None:
    """A finite number is never turned into infinity."""
    message = misread(literal, datatype)
    assert message.startswith("input 'x': element 0: ")
    assert f"is too large for {datatype}, which ends at" in message


def test_the_overflowing_element_is_named_beside_missing_ones() -> None:
    """The index counts missing values too."""
    message = refusal({"inputs": [tensor([None, 1.0, 1e300], [3])]})
    assert message.startswith("input 'x': element 2: 1e+300 is too large for FP32")


def test_floats_are_rounded_to_nearest() -> None:
    """The largest finite values, the smallest and integers arrive as the nearest float."""
    assert read([3.4028234663852886e38, 1e-45, 16777217, -0.0], "FP32") == [
        3.4028234663852886e38, 1.401298464324817e-45, 16777216.0, -0.0,
    ]  # fmt: skip
    assert read([65504, 6e-8, 0.1], "FP16") == [65504.0, 5.960464477539063e-08, 0.0999755859375]
    assert read([5e-324, 2**64 - 1], "FP64") == [5e-324, float(2**64 - 1)]


@pytest.mark.parametrize("literal", [b"true", b'"1.5"', b'"NaN"', b"{}", b"[1]"])
def test_what_is_no_number(literal: bytes) -> None:
    """Text and booleans are no numbers, whatever they look like."""
    assert "FP32 takes numbers, and null for a missing one" in misread(literal, "FP32")


@pytest.mark.parametrize("date", ["2024-01-31", "2024-01-31T10:00:00Z", "31.1.24", "10:30"])
def test_dates_get_advice(date: str) -> None:
    """A date in a numeric input is refused with what to send instead."""
    message = refusal({"inputs": [tensor([date], [1])]})
    assert "send a date or time as the number that the model was trained with" in message


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
