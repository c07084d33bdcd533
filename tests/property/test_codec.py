"""The codec under generated tensors, hostile documents and random bytes."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from models.servable import Array, numpy_dtype
from models.signature import DATATYPES, Signature, TensorSpec
from registry.errors import InvalidInput
from serving.codec.binary import to_bytes
from serving.codec.encoding import Decompressor
from serving.codec.v1 import decode_predict, encode_predict
from serving.codec.v2 import InferCall, OutputWish, decode_infer, encode_infer
from serving.errors import PayloadTooLarge

# A shared machine may stall for longer than any deadline an example could have.
pytestmark = pytest.mark.slow
EXAMPLES = settings(max_examples=100, deadline=None)
NUMBERS = tuple(name for name in DATATYPES if name != "BYTES")
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def signature(datatype: str, rank: int, missing: str | None = None) -> Signature:
    shape = (-1,) * rank
    return Signature(
        (TensorSpec("x", datatype, shape, missing=missing),), (TensorSpec("x", datatype, shape),)
    )


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, Array]:
    """A tensor of any datatype; floats without infinity, which JSON cannot carry."""
    datatype = draw(st.sampled_from(DATATYPES))
    shape = draw(SHAPES)
    if datatype == "BYTES":
        return datatype, draw(hnp.arrays(object, shape, elements=TEXT))
    dtype = numpy_dtype(datatype)
    elements = (
        hnp.from_dtype(dtype, allow_infinity=False) if dtype.kind == "f" else hnp.from_dtype(dtype)
    )
    return datatype, draw(hnp.arrays(dtype, shape, elements=elements))


def same(left: Array, right: Array) -> bool:
    """Bit for bit, but for the payload of NaN, which JSON does not carry."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.kind == "f":
        numbers = ~np.isnan(left)
        return bool(
            (numbers == ~np.isnan(right)).all()
            and left[numbers].tobytes() == right[numbers].tobytes()
        )
    return bool((left == right).all())


def as_json(array: Array, *, is_nested: bool) -> Any:
    flat = array if is_nested else array.ravel()
    text = json.dumps(flat.tolist()).replace("NaN", "null")
    return json.loads(text) if array.dtype != object else flat.tolist()


def decoded(document: Any, spec: Signature, tail: bytes | None = None) -> InferCall:
    raw = json.dumps(document).encode()
    return decode_infer(raw + (tail or b""), None if tail is None else len(raw), spec)


@EXAMPLES
@given(tensors(), st.booleans())
def test_json_and_binary_give_the_same_tensor(case: tuple[str, Array], is_nested: bool) -> None:
    """Every tensor arrives the same in both forms, flat or nested."""
    datatype, array = case
    spec = signature(datatype, array.ndim)
    head = {"name": "x", "datatype": datatype, "shape": list(array.shape)}
    plain = decoded({"inputs": [head | {"data": as_json(array, is_nested=is_nested)}]}, spec)
    tail = to_bytes(array)
    mark = {"parameters": {"binary_data_size": len(tail)}}
    binary = decoded({"inputs": [head | mark]}, spec, tail)
    assert same(plain.inputs["x"], array)
    assert same(binary.inputs["x"], array)
    assert to_bytes(binary.inputs["x"]) == tail
    assert plain.rows == binary.rows == (array.shape[0] if array.ndim else 1)


@EXAMPLES
@given(tensors(), st.booleans())
def test_answers_read_back_as_requests(case: tuple[str, Array], is_binary: bool) -> None:
    """What is encoded as an output decodes, as an input, to the same tensor."""
    datatype, array = case
    spec = signature(datatype, array.ndim)
    call = InferCall("i", {}, 1, (OutputWish("x", is_binary),))
    body, length = encode_infer(call, "m", 1, [array], spec)
    assert (length is not None) is is_binary
    head = json.loads(body[: len(body) if length is None else length])
    assert head["id"] == "i"
    tail = None if length is None else body[length:]
    back = decoded({"inputs": head["outputs"]}, spec, tail)
    assert same(back.inputs["x"], array)


@EXAMPLES
@given(st.sampled_from(("FP16", "FP32", "FP64")), st.binary(min_size=8, max_size=64))
def test_binary_floats_keep_every_bit(datatype: str, raw: bytes) -> None:
    """NaN payloads, signalling NaN and subnormals pass through unchanged."""
    raw = raw[: len(raw) // 8 * 8]
    call = decode_infer(raw, 0, signature(datatype, 1))
    assert call.inputs["x"].tobytes() == raw
    body, length = encode_infer(
        InferCall(None, {}, 1, (OutputWish("x", is_binary=True),)),
        "m", 1, [call.inputs["x"]], signature(datatype, 1),
    )  # fmt: skip
    assert body[length:] == raw


@EXAMPLES
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5))
def test_floats_are_the_nearest_or_refused(values: list[float]) -> None:
    """Each number becomes the nearest FP32, as numpy rounds, or the request is refused."""
    with np.errstate(over="ignore"):
        expected = np.array(values, np.float64).astype(np.float32)
    document = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [len(values)], "data": values}]
    }
    if np.isinf(expected).any():
        with pytest.raises(InvalidInput, match=f"element {int(np.isinf(expected).argmax())}:"):
            decoded(document, signature("FP32", 1))
    else:
        found = decoded(document, signature("FP32", 1)).inputs["x"]
        assert found.tobytes() == expected.tobytes()


@EXAMPLES
@given(
    st.sampled_from([name for name in NUMBERS if "INT" in name]),
    st.one_of(st.integers(-(2**66), 2**66), st.floats()),
)
def test_integers_are_exact_or_refused(datatype: str, value: float) -> None:
    """An integer arrives as it was written, or the request is refused; nothing is rounded."""
    literal = json.dumps(value)
    body = (
        f'{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":[1],"data":[{literal}]}}]}}'
    ).encode()
    info = np.iinfo(numpy_dtype(datatype))
    is_whole = isinstance(value, int) or (math.isfinite(value) and value.is_integer())
    try:
        found = decode_infer(body, None, signature(datatype, 1)).inputs["x"].tolist()
    except InvalidInput:
        is_exact = isinstance(value, int) or abs(value) < 2**53
        assert not (is_whole and is_exact and info.min <= value <= info.max)
    else:
        assert is_whole
        assert found == [int(value)]


JSON_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False), TEXT,
        st.sampled_from(["x", "FP32", "BYTES", "inputs", "data", "age"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["name", "datatype", "shape", "data", "parameters", "inputs", "outputs", "id",
                 "binary_data_size", "classification", "instances", "x", "age", "fare", "b64"]
            ), inner, max_size=4,
        ),
    ),
    max_leaves=12,
)  # fmt: skip
SPECS = st.sampled_from(
    [
        signature("FP32", 1),
        signature("BYTES", 2, missing="?"),
        signature("INT64", 0),
        signature("BOOL", 3),
        Signature(
            (TensorSpec("x", "FP32", (-1, 2), columns=("age", "fare")),),
            (TensorSpec("y", "FP32", (-1,)),),
        ),
        Signature(
            (TensorSpec("age", "INT64", (-1, 1)), TensorSpec("fare", "FP64", (-1, 1))),
            (TensorSpec("y", "FP32", (-1,)), TensorSpec("z", "FP32", (2,))),
        ),
    ]
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A document that is nearly a request: right in most fields, anything in some."""

    def field(right: Any) -> Any:
        return draw(st.one_of(st.just(right), st.just(right), JSON_VALUES))

    inputs = [
        {
            "name": field(name), "datatype": field("FP32"), "shape": field([1, 2]),
            "data": field([1, 2]), "parameters": field({"binary_data_size": 4}),
        }
        for name in draw(st.lists(st.sampled_from(["x", "age", "fare"]), max_size=3))
    ]  # fmt: skip
    for item in inputs:
        for key in draw(st.lists(st.sampled_from(["data", "parameters", "name"]), max_size=2)):
            item.pop(key, None)
    return {
        "inputs": field(inputs), "outputs": field([{"name": "y"}]), "id": field("i"),
        "parameters": field({}), "instances": field([{"age": 1, "fare": 2}]),
    }  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(documents(), SPECS, st.integers(-2, 60), st.binary(max_size=8), st.booleans())
def test_hostile_documents_are_read_or_refused(
    document: dict[str, Any], spec: Signature, cut: int, tail: bytes, is_whole: bool
) -> None:
    """No document brings up anything but InvalidInput, and what is read fits the signature."""
    raw = json.dumps(document).encode()
    length = len(raw) if cut < 0 else cut
    with suppress(InvalidInput):
        check(decode_infer(raw + tail, None if is_whole else length, spec).inputs, spec)
    for key in ("inputs", "instances"):
        partial = json.dumps({key: document[key]}).encode()
        with suppress(InvalidInput):
            check(decode_predict(partial, spec).inputs, spec)


def check(inputs: dict[str, Array], spec: Signature) -> None:
    assert set(inputs) == {item.name for item in spec.inputs}
    for item in spec.inputs:
        array = inputs[item.name]
        assert array.dtype == numpy_dtype(item.datatype)
        assert len(array.shape) == len(item.shape)
        assert all(
            wanted in (-1, size) for size, wanted in zip(array.shape, item.shape, strict=True)
        )


@EXAMPLES
@given(st.binary(max_size=200), SPECS, st.one_of(st.none(), st.integers(-5, 205)))
def test_random_bytes_are_refused(body: bytes, spec: Signature, length: int | None) -> None:
    """Bytes that are no request end as InvalidInput, in both protocols."""
    with suppress(InvalidInput):
        check(decode_infer(body, length, spec).inputs, spec)
    with pytest.raises(InvalidInput):
        decode_predict(b"\xff" + body, spec)


@EXAMPLES
@given(
    st.lists(st.binary(max_size=300), max_size=4),
    st.sampled_from(["gzip", "deflate", "raw"]),
    st.integers(1, 50),
)
def test_compressed_pieces_are_the_body(parts: list[bytes], form: str, piece: int) -> None:
    """However a compressed body is cut and however many members it has, it is the same body."""
    if form == "gzip":
        body, data = b"".join(parts), b"".join(map(gzip.compress, parts or [b""]))
    else:
        stream = zlib.compressobj(wbits=-15 if form == "raw" else 15)
        body = b"".join(parts)
        data = stream.compress(body) + stream.flush()
    decoder = Decompressor("gzip" if form == "gzip" else "deflate", len(body))
    for start in range(0, len(data), piece):
        decoder.feed(data[start : start + piece])
    assert decoder.finish() == body


@EXAMPLES
@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate"]), st.integers(1, 50))
def test_random_bytes_do_not_decompress(data: bytes, encoding: str, piece: int) -> None:
    """Bytes that are no compressed body end as a planned error."""
    decoder = Decompressor(encoding, 100)
    with suppress(InvalidInput, PayloadTooLarge):
        for start in range(0, len(data), piece):
            decoder.feed(data[start : start + piece])
        assert len(decoder.finish()) <= 100


@EXAMPLES
@given(st.lists(TEXT, min_size=1, max_size=5), st.data())
def test_text_survives_v1_rows(texts: list[str], data: st.DataObject) -> None:
    """Text and numbers come back from V1 by rows as they went in."""
    spec = signature("BYTES", 1)
    call = decode_predict(json.dumps({"instances": texts}).encode(), spec)
    answer = json.loads(encode_predict(call, [call.inputs["x"]], spec))
    assert answer == {"predictions": texts}
    number = data.draw(st.integers(-(2**63), 2**63 - 1))
    whole = decode_predict(json.dumps({"instances": [number]}).encode(), signature("INT64", 1))
    assert json.loads(encode_predict(whole, [whole.inputs["x"]], signature("INT64", 1))) == {
        "predictions": [number]
    }


@EXAMPLES
@given(st.binary(max_size=40), st.integers(0, 4))
def test_lying_element_lengths_are_refused(raw: bytes, count: int) -> None:
    """BYTES tensors are used up exactly or refused; accepted ones encode to the same bytes."""
    spec = signature("BYTES", 1)
    head = {
        "name": "x", "datatype": "BYTES", "shape": [count],
        "parameters": {"binary_data_size": len(raw)},
    }  # fmt: skip
    try:
        call = decoded({"inputs": [head]}, spec, raw)
    except InvalidInput:
        return
    assert to_bytes(call.inputs["x"]) == raw
