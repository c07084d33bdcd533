"""The values of V2 infer requests in JSON: numbers, texts, booleans, and what is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from registry.errors import InvalidInput
from tests.unit.serving.v2_bodies import decode, read, refusal, signature, tensor


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
