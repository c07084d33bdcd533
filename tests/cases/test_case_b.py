"""Input cases through real sockets: what callers send, and what they get back, on one server."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from onnx import TensorProto, helper

from tests import graphs
from tests.cases.rig import ROW, WITNESS, callers, outputs_of, tensor, together
from tests.process.server import RunningServer, infer_body, running_server

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = {
        WITNESS: graphs.id32(),
        "log": graphs.log(),
        "idi64": graphs.idi64(),
        "idu64": graphs.idu64(),
        "idu8": graphs.identity(TensorProto.UINT8, ("N",)),
        "idstr": graphs.idstr(),
        "idbool": graphs.idbool(),
        "two": graphs.two_inputs(),
        "gemm": graphs.gemm(),
        "column": graphs.identity(TensorProto.FLOAT, ("N", 1)),
        "labels": labels(),
        "scaled": scaled(),
        "conv": convolution(),
        "trees": graphs.forest(trees=3, depth=3),
    }
    with running_server(tmp_path_factory.mktemp("b"), workers=1) as running:
        for name, model in models.items():
            running.push(name, model)
        yield running


@pytest.fixture
def server(running: RunningServer) -> Iterator[RunningServer]:
    """The one server of this file, alive after every test with the same worker."""
    pids = running.worker_pids()
    yield running
    assert running.worker_pids() == pids
    answer = running.infer(WITNESS, [ROW])
    assert outputs_of(answer) == {"y": ROW}


def labels() -> Any:
    """Return a graph that looks text labels up: INT64 ``[N]`` to text ``[N]``."""
    words = ["setosa", "vérité", "日本"]
    node = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_int64s=[0, 1, 2],
        values_strings=words, default_string="",
    )  # fmt: skip
    return graphs.build(
        [node],
        [graphs.value("x", TensorProto.INT64, ("N",))],
        [graphs.value("y", TensorProto.STRING, ("N",))],
        domains=[("ai.onnx.ml", 2)],
    )


def scaled() -> Any:
    """Return a graph with side inputs: rows times a number, plus a vector of the rows' width."""
    return graphs.build(
        [
            helper.make_node("Mul", ["x", "k"], ["xk"]),
            helper.make_node("Add", ["xk", "w"], ["y"]),
        ],
        [
            graphs.value("x", TensorProto.FLOAT, ("N", 3)),
            graphs.value("k", TensorProto.FLOAT, ()),
            graphs.value("w", TensorProto.FLOAT, (3,)),
        ],
        [graphs.value("y", TensorProto.FLOAT, ("N", 3))],
    )


def convolution() -> Any:
    """Return one filter of ones over ``[N, 1, 3, 3]`` images."""
    ones = graphs.weights("ones", np.ones((1, 1, 3, 3), np.float32))
    return graphs.build(
        [helper.make_node("Conv", ["x", "ones"], ["y"])],
        [graphs.value("x", TensorProto.FLOAT, ("N", 1, 3, 3))],
        [graphs.value("y", TensorProto.FLOAT, ("N", 1, 1, 1))],
        [ones],
    )


def infer(server: RunningServer, name: str, *tensors: Any, **more: Any) -> httpx.Response:
    body = {"inputs": list(tensors), **more}
    return server.data("POST", f"/v2/models/{name}/infer", json=body)


def raw(server: RunningServer, name: str, body: bytes, **headers: str) -> httpx.Response:
    return server.data("POST", f"/v2/models/{name}/infer", content=body, headers=headers)


def strict(answer: httpx.Response) -> Any:
    """Return a good answer's JSON, read by a parser that takes no NaN or Infinity."""

    def refuse(token: str) -> Any:
        raise AssertionError(f"bare {token}")

    assert answer.status_code == 200, answer.text
    return json.loads(answer.content, parse_constant=refuse)


def refused(answer: httpx.Response, *words: str) -> str:
    """Hold that an answer is a client error whose message says these words."""
    assert 400 <= answer.status_code < 500, f"{answer.status_code}: {answer.text}"
    message: str = answer.json()["error"]
    assert all(word in message for word in words), message
    return message


def test_b01_b02_nan_and_infinity_in_outputs(server: RunningServer) -> None:
    """JSON says null, strictly parsed, over V2 and V1; binary keeps the exact bits."""
    name = "log"
    metadata = server.expect(server.data("GET", f"/v2/models/{name}"))
    source, target = metadata["inputs"][0]["name"], metadata["outputs"][0]["name"]
    sent = tensor(source, "FP32", [3], [1, 0, -1])
    assert strict(infer(server, name, sent))["outputs"][0]["data"] == [0, None, None]
    predicted = server.data("POST", f"/v1/models/{name}:predict", json={"instances": [1, 0, -1]})
    assert strict(predicted) == {"predictions": [0, None, None]}
    wanted = {"name": target, "parameters": {"binary_data": True}}
    answer = infer(server, name, sent, outputs=[wanted])
    size = int(answer.headers["inference-header-content-length"])
    numbers = struct.unpack("<3f", answer.content[size:])
    assert numbers[0] == 0
    assert math.isinf(numbers[1])
    assert math.isnan(numbers[2])


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ([1, 4], list(range(7))),
        ([1, 4], [1, 2, 3]),
        ([2, -1], [1, 2]),
        ([], [1]),
        ([4], [[1, 2], [3, 4]]),
        ([2**40, 2**40], [1]),
    ],
)
def test_b04_shape_and_elements_disagree(server: RunningServer, shape: Any, data: Any) -> None:
    """The wrong one is refused before the queue; the one beside it gets its own values only."""

    async def both() -> list[httpx.Response]:
        async with callers(server) as crowd:
            path = f"/v2/models/{WITNESS}/infer"
            wrong = {"inputs": [tensor("x", "FP32", shape, data)]}
            right = infer_body([[100.0, 101.0, 102.0, 103.0]])
            return await together(
                8, lambda index: crowd.post(path, json=right if index % 2 else wrong)
            )

    answers = asyncio.run(both())
    for index, answer in enumerate(answers):
        if index % 2:
            assert outputs_of(answer) == {"y": [100.0, 101.0, 102.0, 103.0]}
        else:
            refused(answer)


@pytest.mark.parametrize("count", [7, 3])
def test_b04_bytes_of_another_size(server: RunningServer, count: int) -> None:
    """More or fewer bytes than the shape has: refused, and no byte of it reaches a neighbour."""
    data = np.arange(count, dtype=np.float32).tobytes()
    spec = {"name": "x", "datatype": "FP32", "shape": [1, 4],
            "parameters": {"binary_data_size": len(data)}}  # fmt: skip
    head = json.dumps({"inputs": [spec]}).encode()
    length = {"inference-header-content-length": str(len(head))}
    refused(raw(server, WITNESS, head + data, **length), "x")
    answer = infer(server, WITNESS, tensor("x", "FP32", [1, 4], [100, 101, 102, 103]))
    assert outputs_of(answer) == {"y": [100, 101, 102, 103]}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"5", b"\xff\xfe", b"[" * 100_000, b'{"inputs": {}}', b'{"inputs": "x"}',
        b'{"inputs": null}', b'{"inputs": []}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": "-1", "data": [1]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [true], "data": [1]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1.5], "data": [1]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": -1, "data": [1]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": {"b64": "x"}}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": '
        + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
    ],
    ids=range(15),
)  # fmt: skip
def test_b05_malformed_bodies(server: RunningServer, body: bytes) -> None:
    """Each is the caller's error, over both protocols, and the process lives."""
    headers = {"content-type": "application/json"}
    refused(raw(server, WITNESS, body, **headers))
    if body == b'{"inputs": []}':  # a table without rows, in the words of V1
        return
    predict = f"/v1/models/{WITNESS}:predict"
    refused(server.data("POST", predict, content=body, headers=headers))


def test_b05_a_content_type_that_is_none_of_ours(server: RunningServer) -> None:
    """It is named, with nothing of the body read as something else."""
    body = json.dumps(infer_body([ROW])).encode()
    for path in (f"/v2/models/{WITNESS}/infer", f"/v1/models/{WITNESS}:predict"):
        headers = {"content-type": "image/png"}
        answer = server.data("POST", path, content=body, headers=headers)
        assert answer.status_code == 415
        refused(answer, "image/png")


def test_b07_outputs_by_name(server: RunningServer) -> None:
    """An unknown output is named; an empty list is all of them."""
    sent = tensor("x", "FP32", [1, 4], ROW)
    refused(infer(server, WITNESS, sent, outputs=[{"name": "nowhere"}]), "nowhere")
    assert outputs_of(infer(server, WITNESS, sent, outputs=[])) == {"y": ROW}


def test_b08_inputs_by_name(server: RunningServer) -> None:
    """Twice, unknown and missing are refused by name; another order is no difference."""
    found = server.expect(server.data("GET", "/v2/models/two"))["inputs"]
    sent = [
        tensor(
            spec["name"], spec["datatype"], [2, *spec["shape"][1:]],
            list(range(2 * math.prod(spec["shape"][1:]))),
        )
        for spec in found
    ]  # fmt: skip
    straight = outputs_of(infer(server, "two", *sent))
    assert outputs_of(infer(server, "two", *reversed(sent))) == straight
    refused(infer(server, "two", *sent, sent[0]), found[0]["name"])
    refused(infer(server, "two", *sent, {**sent[0], "name": "foo"}), "foo")
    refused(infer(server, "two", sent[0]), found[1]["name"])


def test_b10_text_labels(server: RunningServer) -> None:
    """Labels of any script come back exactly, as JSON and in binary."""
    words = ["setosa", "vérité", "日本"]
    sent = tensor("x", "INT64", [3], [0, 1, 2])
    (output,) = strict(infer(server, "labels", sent))["outputs"]
    assert (output["datatype"], output["shape"], output["data"]) == ("BYTES", [3], words)
    wanted = {"name": "y", "parameters": {"binary_data": True}}
    answer = infer(server, "labels", sent, outputs=[wanted])
    size = int(answer.headers["inference-header-content-length"])
    coded = [word.encode() for word in words]
    assert answer.content[size:] == b"".join(struct.pack("<I", len(c)) + c for c in coded)
    rows = server.data("POST", "/v1/models/labels:predict", json={"instances": [0, 1, 2]})
    assert strict(rows) == {"predictions": words}


def test_b11_text_elements_stay_apart(server: RunningServer) -> None:
    """Three elements go in and three come out; bytes that are no UTF-8 pass in binary."""
    sent = tensor("x", "BYTES", [3], ["ab", "c", ""])
    (output,) = strict(infer(server, "idstr", sent))["outputs"]
    assert (output["shape"], output["data"]) == ([3], ["ab", "c", ""])
    data = struct.pack("<I", 2) + b"\xff\x00"
    head = json.dumps(
        {
            "inputs": [
                {"name": "x", "datatype": "BYTES", "shape": [1],
                 "parameters": {"binary_data_size": len(data)}}
            ],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
    ).encode()  # fmt: skip
    answer = raw(
        server, "idstr", head + data, **{"inference-header-content-length": str(len(head))}
    )
    assert answer.status_code == 200, answer.text
    size = int(answer.headers["inference-header-content-length"])
    assert answer.content[size:] == data


def test_b13_booleans(server: RunningServer) -> None:
    """true, false, 1 and 0 are taken; text and other numbers are not."""
    for data in ([True, False], [1, 0]):
        answer = infer(server, "idbool", tensor("x", "BOOL", [2], data))
        assert strict(answer)["outputs"][0]["data"] == [True, False]
    for wrong in ("true", 2):
        refused(infer(server, "idbool", tensor("x", "BOOL", [1], [wrong])), "BOOL")


def test_b14_integers_past_two_to_the_53(server: RunningServer) -> None:
    """Every integer of the range is exact in both directions; beyond it is the caller's error."""
    signed = [9007199254740993, -9223372036854775808]
    answer = infer(server, "idi64", tensor("x", "INT64", [2], signed))
    assert strict(answer)["outputs"][0]["data"] == signed
    largest = [18446744073709551615]
    answer = infer(server, "idu64", tensor("x", "UINT64", [1], largest))
    assert strict(answer)["outputs"][0]["data"] == largest
    for wrong in (2**63, 1.5, True):
        refused(infer(server, "idi64", tensor("x", "INT64", [1], [wrong])), "INT64")
    refused(infer(server, "idu64", tensor("x", "UINT64", [1], [-1])), "UINT64")
    refused(infer(server, "idu8", tensor("x", "UINT8", [1], [300])), "UINT8", "300", "0..255")
    body = b'{"inputs": [{"name": "x", "datatype": "INT64", "shape": [2], "data": [1e3, -0.0]}]}'
    assert strict(raw(server, "idi64", body))["outputs"][0]["data"] == [1000, 0]


def test_b16_columns_for_a_matrix_without_column_names(server: RunningServer) -> None:
    """Four columns sent to one input of four are refused with what is expected."""
    columns = [tensor(f"c{i}", "FP32", [1, 1], [1]) for i in range(4)]
    refused(infer(server, WITNESS, *columns), "c0")
    refused(infer(server, "two", tensor("x", "FP32", [1, 4], ROW)))


def test_b16_side_inputs_need_not_have_as_many_rows(server: RunningServer) -> None:
    """A number and a vector beside two rows, alone and while others ask with theirs."""

    def body(factor: float) -> dict[str, Any]:
        return {"inputs": [
            tensor("x", "FP32", [2, 3], [1, 2, 3, 4, 5, 6]), tensor("k", "FP32", [], [factor]),
            tensor("w", "FP32", [3], [10, 20, 30]),
        ]}  # fmt: skip

    async def crowd() -> list[httpx.Response]:
        async with callers(server) as many:
            path = "/v2/models/scaled/infer"
            return await together(8, lambda index: many.post(path, json=body(index)))

    for index, answer in enumerate(asyncio.run(crowd())):
        rows = [10 + index, 20 + 2 * index, 30 + 3 * index, 10 + 4 * index, 20 + 5 * index,
                30 + 6 * index]  # fmt: skip
        assert outputs_of(answer) == {"y": rows}


def test_b17_empty_batches(server: RunningServer) -> None:
    """No rows in are no rows out, alone and while others ask."""
    for name in (WITNESS, "gemm", "conv", "trees"):
        source = server.expect(server.data("GET", f"/v2/models/{name}"))["inputs"][0]
        sent = tensor(source["name"], "FP32", [0, *source["shape"][1:]], [])
        (output,) = strict(infer(server, name, sent))["outputs"]
        assert output["shape"][0] == 0
        assert output["data"] == []

    async def crowd() -> list[httpx.Response]:
        async with callers(server) as many:
            path = f"/v2/models/{WITNESS}/infer"
            empty = {"inputs": [tensor("x", "FP32", [0, 4], [])]}
            return await together(
                16, lambda index: many.post(path, json=infer_body([ROW]) if index % 2 else empty)
            )

    for index, answer in enumerate(asyncio.run(crowd())):
        assert outputs_of(answer) == {"y": ROW if index % 2 else []}


def test_b19_float32_is_written_with_enough_digits(server: RunningServer) -> None:
    """Every float32 reads back bit for bit from JSON."""
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2**32, size=(500, 4), dtype=np.uint64).astype(np.uint32)
    rows = bits.view(np.float32)
    rows = rows[np.isfinite(rows).all(axis=1)]
    answer = infer(
        server, WITNESS, tensor("x", "FP32", list(rows.shape), rows.astype(float).ravel().tolist())
    )
    back = np.array(strict(answer)["outputs"][0]["data"], np.float64).astype(np.float32)
    assert back.tobytes() == rows.tobytes()


def test_b19_a_large_tensor_is_the_same_as_json_and_as_bytes(server: RunningServer) -> None:
    """As many numbers as a picture of 640 by 640 has: nothing is lost either way."""
    image = np.random.default_rng(4).random((3 * 640 * 640 // 4, 4), dtype=np.float32)
    shape = list(image.shape)
    answer = infer(
        server, WITNESS, tensor("x", "FP32", shape, image.astype(float).ravel().tolist())
    )
    back = np.array(strict(answer)["outputs"][0]["data"], np.float64).astype(np.float32)
    assert back.tobytes() == image.tobytes()
    spec = {"name": "x", "datatype": "FP32", "shape": shape,
            "parameters": {"binary_data_size": image.nbytes}}  # fmt: skip
    head = json.dumps(
        {"inputs": [spec], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    ).encode()
    length = {"inference-header-content-length": str(len(head))}
    answer = raw(server, WITNESS, head + image.tobytes(), **length)
    size = int(answer.headers["inference-header-content-length"])
    assert answer.content[size:] == image.tobytes()


def test_b20_a_vector_for_a_single_column(server: RunningServer) -> None:
    """``[N]`` stands for ``[N, 1]``; no other rank is guessed at."""
    assert outputs_of(infer(server, "column", tensor("x", "FP32", [3], [1, 2, 3]))) == {
        "y": [1, 2, 3]
    }
    refused(infer(server, "column", tensor("x", "FP32", [1, 3], [1, 2, 3])), "[1, 3]", "[-1, 1]")


def test_a_data_frame_over_http(server: RunningServer) -> None:
    """A split frame without column names is rows of a matrix."""
    frame = {"columns": [0, 1, 2, 3], "data": [ROW, ROW]}
    answer = server.data("POST", f"/v1/models/{WITNESS}:predict", json={"dataframe_split": frame})
    assert strict(answer) == {"predictions": [ROW, ROW]}
