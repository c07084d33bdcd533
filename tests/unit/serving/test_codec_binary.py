"""Binary tensors in V2 requests and answers."""

from __future__ import annotations

import struct
import time
from typing import Any

import numpy as np
import orjson
import pytest

from models.servable import Array, numpy_dtype
from models.signature import DATATYPES, Signature, TensorSpec
from registry.errors import InvalidInput
from serving.codec.binary import from_bytes, to_bytes
from serving.codec.v2 import InferCall, decode_infer, encode_infer
from serving.data.deadline import json_length


def signature(datatype: str, *shape: int) -> Signature:
    return Signature(
        (TensorSpec("x", datatype, shape),),
        (TensorSpec("y", datatype, shape), TensorSpec("z", datatype, shape)),
    )


def packed(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(raw)) + raw for raw in elements)


def head(size: int, shape: list[int], datatype: str, name: str = "x") -> dict[str, Any]:
    return {
        "name": name, "shape": shape, "datatype": datatype,
        "parameters": {"binary_data_size": size},
    }  # fmt: skip


def decode(document: dict[str, Any], tail: bytes, spec: Signature) -> InferCall:
    raw = orjson.dumps(document)
    return decode_infer(raw + tail, len(raw), spec)


def refusal(document: dict[str, Any], tail: bytes, spec: Signature) -> str:
    with pytest.raises(InvalidInput) as caught:
        decode(document, tail, spec)
    return str(caught.value)


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name not in ("BOOL", "BYTES")])
def test_numbers_arrive_bit_for_bit(datatype: str) -> None:
    """Every bit pattern of a number goes in and comes out unchanged, NaN payloads included."""
    dtype = numpy_dtype(datatype)
    raw = bytes(range(256))[: dtype.itemsize * 6] + b"\xff" * dtype.itemsize * 2
    spec = signature(datatype, -1, 2)
    call = decode({"inputs": [head(len(raw), [4, 2], datatype)]}, raw, spec)
    assert call.inputs["x"].dtype == dtype
    assert call.inputs["x"].shape == (4, 2)
    assert call.inputs["x"].tobytes() == raw
    assert to_bytes(call.inputs["x"]) == raw


def test_a_tensor_shares_the_memory_of_the_body() -> None:
    """Aligned numbers are not copied; others are, so that no runtime reads them askew."""
    body = memoryview(bytes(64))
    shared = from_bytes(body[8:24], "FP32", 4, "x")
    askew = from_bytes(body[9:25], "FP32", 4, "x")
    assert np.shares_memory(shared, np.frombuffer(body, np.uint8))
    assert not np.shares_memory(askew, np.frombuffer(body, np.uint8))
    assert askew.flags.aligned


def test_several_inputs_follow_each_other() -> None:
    """Binary parts stand in the order of the inputs; JSON inputs may stand between them."""
    spec = Signature(
        (TensorSpec("a", "INT16", (-1,)), TensorSpec("b", "FP32", (-1,)),
         TensorSpec("c", "UINT8", (-1,))),
        (TensorSpec("y", "FP32", (-1,)),),
    )  # fmt: skip
    document = {
        "inputs": [
            head(2, [2], "UINT8", "c"),
            {"name": "b", "shape": [2], "datatype": "FP32", "data": [1.5, None]},
            head(4, [2], "INT16", "a"),
        ]
    }
    call = decode(document, b"\x01\x02" + struct.pack("<2h", -1, 300), spec)
    assert call.inputs["c"].tolist() == [1, 2]
    assert call.inputs["a"].tolist() == [-1, 300]
    assert call.inputs["b"][0] == 1.5


def test_b11_elements_of_bytes() -> None:
    """B11: text is text, other bytes stay as they are, empty elements are kept."""
    raw = packed(b"ab", b"c", b"", "日本".encode(), b"\xff\xfe\x00")
    call = decode({"inputs": [head(len(raw), [5], "BYTES")]}, raw, signature("BYTES", -1))
    assert call.inputs["x"].tolist() == ["ab", "c", "", "日本", b"\xff\xfe\x00"]
    assert to_bytes(call.inputs["x"]) == raw


@pytest.mark.parametrize(
    ("raw", "count", "text"),
    [
        (packed(b"ab"), 2, "2 BYTES elements take at least 8"),
        (packed(b"ab", b"c"), 1, "5 bytes are left after its 1 elements"),
        (packed(b"ab")[:-1], 1, "element 0 ends at byte 6, but there are only 5"),
        (struct.pack("<I", 2**32 - 1), 1, f"element 0 ends at byte {2**32 + 3}"),
        (packed(b"a") + b"\x01\x00\x00", 1, "3 bytes are left"),
        (packed(b"abcd") + b"\x01", 2, "element 1 ends at byte 12"),
        (b"", 1, "take at least 4"),
    ],
)
def test_elements_that_do_not_fill_their_bytes(raw: bytes, count: int, text: str) -> None:
    """Lengths that lie, in either direction, are refused."""
    document = {"inputs": [head(len(raw), [count], "BYTES")]}
    assert text in refusal(document, raw, signature("BYTES", -1))


def test_a_count_without_bytes_allocates_nothing() -> None:
    """The elements of BYTES are bounded by the bytes that are there."""
    document = {"inputs": [head(0, [60_000_000], "BYTES")]}
    assert "take at least 240000000" in refusal(document, b"", signature("BYTES", -1))


def test_b13_booleans_are_zero_or_one() -> None:
    """B13: BOOL is one byte, and only 0 and 1 are one."""
    spec = signature("BOOL", -1)
    call = decode({"inputs": [head(3, [3], "BOOL")]}, b"\x01\x00\x01", spec)
    assert call.inputs["x"].tolist() == [True, False, True]
    assert call.inputs["x"].dtype == np.bool_
    assert "element 2 is the byte 255: BOOL takes 0 or 1" in refusal(
        {"inputs": [head(3, [3], "BOOL")]}, b"\x01\x00\xff", spec
    )


def test_b04_sizes_must_use_the_body_up() -> None:
    """B04: too few bytes, too many, and a size that is not that of the shape are refused."""
    spec = signature("FP32", -1)
    one = {"inputs": [head(4, [1], "FP32")]}
    assert "binary_data_size is 4, but only 3 bytes are left" in refusal(one, b"\0" * 3, spec)
    assert "body: 1 bytes are left after the binary inputs" in refusal(one, b"\0" * 5, spec)
    assert "8 bytes, but its shape takes 1 x 4 bytes" in refusal(
        {"inputs": [head(8, [1], "FP32")]}, b"\0" * 8, spec
    )
    plain = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    assert "body: 2 bytes are left" in refusal(plain, b"\0\0", spec)


@pytest.mark.parametrize("size", [-1, 1.5, "4", None, True, 2**63])
def test_sizes_of_the_wrong_kind(size: Any) -> None:
    """binary_data_size is an integer from 0."""
    assert "binary_data_size" in refusal(
        {"inputs": [head(size, [1], "FP32")]}, b"\0" * 4, signature("FP32", -1)
    )


def test_data_and_binary_data_exclude_each_other() -> None:
    """A tensor comes in one form."""
    item = head(4, [1], "FP32") | {"data": [1]}
    assert "exclude each other" in refusal({"inputs": [item]}, b"\0" * 4, signature("FP32", -1))
    del item["data"], item["parameters"]
    assert "data is missing" in refusal({"inputs": [item]}, b"", signature("FP32", -1))


def test_pure_json_with_the_length_header() -> None:
    """Clients that always send the length header are served, whether or not a tensor is binary."""
    document = {"id": "", "inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    call = decode(document, b"", signature("FP32", -1))
    assert (call.id, call.inputs["x"].tolist()) == ("", [1.0])


@pytest.mark.parametrize("length", [-1, 100, 2**70])
def test_json_lengths_outside_the_body(length: int) -> None:
    """The length header lies within the body."""
    with pytest.raises(InvalidInput, match="Inference-Header-Content-Length"):
        decode_infer(b"{}", length, signature("FP32", -1))


@pytest.mark.parametrize("text", ["-1", "+1", "1.0", "", " 1", "0x1", "9" * 30, "²", "1,1"])
def test_length_headers_of_the_wrong_kind(text: str) -> None:
    """The length header is a whole number; a request without one is all JSON."""
    with pytest.raises(InvalidInput, match="Inference-Header-Content-Length"):
        json_length(text)
    assert [json_length("10"), json_length("0"), json_length(None)] == [10, 0, None]


@pytest.mark.parametrize(
    ("shape", "size_bytes", "expected"),
    [((-1, 3), 12, (1, 3)), ((-1, 3), 24, (2, 3)), ((-1, -1), 8, (1, 2)), ((2, 2), 16, (2, 2)),
     ((-1,), 8, (2,)), ((), 4, ()), ((2, -1), 24, (2, 3))],
)  # fmt: skip
def test_raw_requests(shape: tuple[int, ...], size_bytes: int, expected: tuple[int, ...]) -> None:
    """With length 0 the body is the one tensor, and every output comes back in binary."""
    raw = np.arange(size_bytes // 4, dtype="<f4").tobytes()
    call = decode_infer(raw, 0, signature("FP32", *shape))
    assert call.inputs["x"].shape == expected
    assert call.inputs["x"].tobytes() == raw
    assert [wish.is_binary for wish in call.outputs] == [True, True]
    assert call.id is None


def test_raw_requests_of_text() -> None:
    """The whole body of a raw request for BYTES is one element."""
    for shape in ((1,), (-1,), (-1, 1)):
        call = decode_infer("été".encode(), 0, signature("BYTES", *shape))
        assert call.inputs["x"].ravel().tolist() == ["été"]
    with pytest.raises(InvalidInput, match="one BYTES element"):
        decode_infer(b"a", 0, signature("BYTES", 2))


def test_raw_requests_that_cannot_be() -> None:
    """A raw request needs one input, at most one unknown size, and the exact bytes."""
    three = signature("FP32", -1, -1, -1)
    with pytest.raises(InvalidInput, match="one free dimension"):
        decode_infer(bytes(8), 0, three)
    with pytest.raises(InvalidInput, match="13 bytes, but its shape takes 3 x 4 bytes"):
        decode_infer(bytes(13), 0, signature("FP32", -1, 3))
    with pytest.raises(InvalidInput, match="4 bytes, but its shape takes 0 x 4"):
        decode_infer(bytes(4), 0, signature("FP32", -1, 0))
    two = Signature((*three.inputs, TensorSpec("b", "FP32", (1,))), three.outputs)
    with pytest.raises(InvalidInput, match="the model takes 2 inputs"):
        decode_infer(bytes(8), 0, two)


def answered(call: InferCall, arrays: list[Array], spec: Signature) -> tuple[Any, bytes]:
    body, length = encode_infer(call, "m", 3, arrays, spec)
    assert length is not None
    return orjson.loads(body[:length]), body[length:]


def test_binary_answers() -> None:
    """Binary outputs follow the JSON in order, each with its size; JSON outputs have no mark."""
    spec = signature("FP32", -1)
    document = {
        "id": "q",
        "inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}],
        "outputs": [{"name": "z", "parameters": {"binary_data": True}}, {"name": "y"}],
    }
    call = decode(document, b"", spec)
    z, y = np.array([np.nan, 1], np.float32), np.array([2], np.float32)
    answer, tail = answered(call, [z, y], spec)
    assert answer == {
        "model_name": "m",
        "model_version": "3",
        "id": "q",
        "outputs": [
            {"name": "z", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}},
            {"name": "y", "datatype": "FP32", "shape": [1], "data": [2.0]},
        ],
    }
    assert tail == z.tobytes()


def test_binary_for_all_outputs_unless_one_says_no() -> None:
    """The request's wish holds for outputs that name none of their own."""
    spec = signature("FP32", -1)
    inputs = [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]
    wish = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    assert [w.is_binary for w in decode(wish, b"", spec).outputs] == [True, True]
    wish["outputs"] = [{"name": "y", "parameters": {"binary_data": False}}, {"name": "z"}]
    assert [w.is_binary for w in decode(wish, b"", spec).outputs] == [False, True]


def test_answers_of_empty_binary_outputs() -> None:
    """An output without rows is binary too, with size 0."""
    spec = signature("BYTES", -1)
    call = decode_infer(b"a", 0, spec)
    answer, tail = answered(call, [np.empty(0, object), np.array(["b"], object)], spec)
    assert [o["parameters"]["binary_data_size"] for o in answer["outputs"]] == [0, 5]
    assert tail == packed(b"b")


def test_b10_text_of_any_numpy_kind_is_bytes() -> None:
    """B10: arrays of numpy's own text and byte kinds are BYTES like any other."""
    labels = np.array(["setosa", "vérité", "日本"])
    assert to_bytes(labels.astype(object)) == packed(*(x.encode() for x in labels.tolist()))
    assert to_bytes(labels) == packed(*(x.encode() for x in labels.tolist()))
    assert to_bytes(np.array([b"a", b"\xff"])) == packed(b"a", b"\xff")


def test_arrays_in_any_memory_order_are_row_major_on_the_wire() -> None:
    """Transposed, sliced and big-endian arrays give little-endian row-major bytes."""
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert to_bytes(table.T) == struct.pack("<6f", 0, 3, 1, 4, 2, 5)
    assert to_bytes(table[:, ::2]) == struct.pack("<4f", 0, 2, 3, 5)
    assert to_bytes(table.astype(">f4")) == table.tobytes()


@pytest.mark.slow
def test_b19_binary_is_far_cheaper_than_json() -> None:
    """B19: an image of 1.2 million numbers arrives ten times as fast in binary, and the same."""
    spec = signature("FP32", -1, 3, 640, 640)
    image = np.random.default_rng(0).random((1, 3, 640, 640), np.float32)
    item = {"name": "x", "shape": list(image.shape), "datatype": "FP32"}
    plain = orjson.dumps({"inputs": [item | {"data": image.ravel().tolist()}]})
    head_bytes = orjson.dumps({"inputs": [head(image.nbytes, list(image.shape), "FP32")]})
    binary = head_bytes + image.tobytes()
    start = time.thread_time()
    from_json = decode_infer(plain, None, spec)
    middle = time.thread_time()
    from_binary = decode_infer(binary, len(head_bytes), spec)
    end = time.thread_time()
    assert from_json.inputs["x"].tobytes() == from_binary.inputs["x"].tobytes() == image.tobytes()
    assert middle - start > 10 * (end - middle)
