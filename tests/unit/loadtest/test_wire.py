"""Requests made from metadata fit what it says; answers that do not fit are told apart."""

from __future__ import annotations

import json
import random
import struct
from collections import Counter

import pytest

from loadtest.wire.answers import fault
from loadtest.wire.discover import NoServer, Server, choose, parse_models
from loadtest.wire.forms import HEAD_LENGTH, binary, v1, v2
from loadtest.wire.signature import NotMadeUp, Spec, Style, specs, styles, tensors
from tests.http_server import answer, http_server

MATRIX = {"name": "input", "datatype": "FP32", "shape": [-1, 2], "columns": ["age", "fare"]}
CITY = {"name": "city", "datatype": "BYTES", "shape": [-1, 1], "categories": ["Graz", "Wien"]}
VARIED = Style("varied", 8)
OUT = [Spec("p", "FP32", (-1, 2))]


def made(*inputs: dict, rows: int = 3, style: Style = VARIED):
    return tensors(specs({"inputs": list(inputs)}, "inputs"), style, rows, 1)


def test_rows_go_by_column_name_and_texts_come_from_the_categories():
    """A table's V1 rows name the columns of a matrix and the inputs beside it."""
    request = v1("m", made(MATRIX, CITY))
    rows = json.loads(request.body)["instances"]
    assert request.path == "/v1/models/m:predict"
    assert (len(rows), request.rows) == (3, 3)
    assert all(set(row) == {"age", "fare", "city"} for row in rows)
    assert {row["city"][0] for row in rows} <= {"Graz", "Wien"}
    assert all(-1 <= row["age"] <= 1 for row in rows)


def test_what_cannot_be_split_into_rows_is_sent_whole():
    """A fixed first dimension, or an output without rows, has no instances."""
    fixed = {"name": "x", "datatype": "INT64", "shape": [1, 2]}
    assert json.loads(v1("m", made(fixed)).body)["inputs"].keys() == {"x"}
    assert "inputs" in json.loads(v1("m", made(MATRIX), is_rows=False).body)


def test_json_and_binary_carry_the_same_values():
    """The same seed gives the same numbers and texts in both forms of V2."""
    ids = {"name": "ids", "datatype": "INT64", "shape": [-1, -1]}
    inputs = made(ids, CITY, rows=2)
    body = json.loads(v2("a/b", inputs).body)
    assert v2("a/b", inputs).path == "/v2/models/a%2Fb/infer"
    assert [item["shape"] for item in body["inputs"]] == [[2, 8], [2, 1]]
    request = binary("m", inputs)
    head = int(request.headers[HEAD_LENGTH])
    sizes = [i["parameters"]["binary_data_size"] for i in json.loads(request.body[:head])["inputs"]]
    blob = request.body[head:]
    assert sum(sizes) == len(blob)
    assert list(struct.unpack("<16q", blob[: sizes[0]])) == body["inputs"][0]["data"]
    (length,) = struct.unpack_from("<I", blob, sizes[0])
    assert blob[sizes[0] + 4 : sizes[0] + 4 + length].decode() == body["inputs"][1]["data"][0]


@pytest.mark.parametrize(
    "datatype", ["BOOL", "UINT8", "INT8", "UINT64", "INT64", "FP16", "FP32", "FP64", "BYTES"]
)
@pytest.mark.parametrize("values", ["varied", "binary", "ones", "zeros"])
def test_every_datatype_can_be_sent_in_every_style(datatype: str, values: str):
    """Values fit the datatype's range, as JSON and as bytes."""
    item = {"name": "x", "datatype": datatype, "shape": [-1, 4]}
    inputs = made(item, style=Style(values, 8))
    kind = {"BOOL": bool, "BYTES": str}.get(datatype, float if datatype[0] == "F" else int)
    assert {type(value) for value in json.loads(v2("m", inputs).body)["inputs"][0]["data"]} == {
        kind
    }
    assert len(binary("m", inputs).body) > 12


def test_open_sizes_are_tried_only_where_there_are_any():
    """A plain table needs four styles at most, a sequence model all lengths."""
    assert len(styles(specs({"inputs": [MATRIX]}, "inputs"))) == 4
    assert len(styles([Spec("ids", "INT64", (-1, -1))])) == 36


def test_more_values_than_any_request_carries_are_refused():
    """The limit is named before memory is spent."""
    with pytest.raises(NotMadeUp, match=r"'input': 20000000 values .* at most 8000000"):
        made(MATRIX, rows=10_000_000)


def reply(outputs: list, *, version: str = "3", said: str = "3", status: int = 200) -> tuple:
    body = {"model_version": said, "outputs": outputs}
    return status, {"x-ramrack-version": version}, json.dumps(body).encode()


GOOD = {"name": "p", "shape": [3, 2], "data": [0.0] * 6}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (reply([GOOD]), ""),
        (reply([GOOD], version=""), "no version"),
        (reply([GOOD], said="2"), "not the version in the header"),
        (reply([]), "'p' is missing"),
        (reply([GOOD | {"shape": [2, 2]}]), "has shape [2, 2] for 3 rows"),
        (reply([GOOD | {"data": [0.0]}]), "other values"),
        ((200, {"x-ramrack-version": "1"}, b"oops"), "not an answer"),
        ((429, {}, b'{"error": "queue full"}'), "429: queue full"),
        ((502, {}, b"<html>"), "502: <html>"),
        ((0, {}, b""), "no answer"),
    ],
)
def test_a_v2_answer_is_held_to_its_request(found: tuple, words: str):
    """Status, version, names and shapes; the words say what is wrong."""
    said = fault("v2", 3, OUT, *found)
    assert (said == "") if not words else (words in said)


def test_a_v1_answer_has_as_many_predictions_as_rows():
    """One row too few is a failure."""
    headers = {"x-ramrack-version": "1"}
    assert fault("v1", 2, OUT, 200, headers, b'{"predictions": [1, 2]}') == ""
    assert "1 predictions for 2 rows" in fault("v1", 2, OUT, 200, headers, b'{"predictions": [1]}')
    assert "no list" in fault("v1", 2, OUT, 200, headers, b"{}")


def test_a_binary_answer_is_as_long_as_it_says():
    """A part that is cut off is found."""
    item = {"name": "p", "shape": [3, 2], "parameters": {"binary_data_size": 24}}
    head = json.dumps({"model_version": "3", "outputs": [item]}).encode()
    headers = {"x-ramrack-version": "3", HEAD_LENGTH.lower(): str(len(head))}
    assert fault("binary", 3, OUT, 200, headers, head + bytes(24)) == ""
    assert "has 20 bytes, 24" in fault("binary", 3, OUT, 200, headers, head + bytes(20))


def test_models_are_chosen_by_their_weights():
    """Three to one, and a name alone weighs one."""
    assert parse_models("a=3, b") == {"a": 3.0, "b": 1.0}
    pick = choose({"a": 3.0, "b": 1.0}, random.Random(5))
    seen = Counter(pick() for _ in range(2000))
    assert 2.5 < seen["a"] / seen["b"] < 3.6


@pytest.mark.parametrize("text", ["a=0", "a=x", "=1", "a=-1", "a=nan", "a=inf"])
def test_a_weight_that_is_none_is_refused(text: str):
    """Weights are above 0 and finite."""
    with pytest.raises(ValueError, match="above 0"):
        parse_models(text)


def test_nobody_there_is_said_with_the_address():
    """Neither a traceback nor an empty run."""
    with http_server(lambda _: None) as url:
        port = url.split("/")[2]
    with pytest.raises(NoServer, match=f"no server answers at http://{port}"):
        Server(f"http://{port}").model_names()


def test_another_server_is_told_from_ours():
    """An answer that is no JSON, and an address that is none."""
    with http_server(lambda _: answer(200, body=b"<html>")) as url:
        # The tiny server reads requests with a body only.
        with pytest.raises(NoServer, match="no address"):
            Server("ftp://x")
        assert url
