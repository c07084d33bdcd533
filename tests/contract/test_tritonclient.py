"""An unmodified ``tritonclient[http]`` works with the real server, and so does perf_analyzer."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests import graphs
from tests.process.server import RunningServer, running_server, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

SAMPLES: dict[str, tuple[int, list[Any], Any]] = {
    "BOOL": (TensorProto.BOOL, [True, False], np.bool_),
    "UINT8": (TensorProto.UINT8, [0, 255], np.uint8),
    "UINT16": (TensorProto.UINT16, [0, 2**16 - 1], np.uint16),
    "UINT32": (TensorProto.UINT32, [0, 2**32 - 1], np.uint32),
    "UINT64": (TensorProto.UINT64, [2**53 + 1, 2**64 - 1], np.uint64),
    "INT8": (TensorProto.INT8, [-128, 127], np.int8),
    "INT16": (TensorProto.INT16, [-(2**15), 2**15 - 1], np.int16),
    "INT32": (TensorProto.INT32, [-(2**31), 2**31 - 1], np.int32),
    "INT64": (TensorProto.INT64, [-(2**63), 2**53 + 1], np.int64),
    "FP16": (TensorProto.FLOAT16, [0.1, 65504.0], np.float16),
    "FP32": (TensorProto.FLOAT, [0.1, -3.4028235e38], np.float32),
    "FP64": (TensorProto.DOUBLE, [0.1, 5e-324], np.float64),
    "BYTES": (TensorProto.STRING, ["", "Tromsø 雪"], np.object_),
}
ROWS = np.array([[0.1, 0.9, 0.9, -2.0]], np.float32)
CONNECTIONS = 24


def all_types() -> Any:
    """Give back one tensor of each datatype: ``in_T`` to ``out_T``."""
    return graphs.build(
        [helper.make_node("Identity", [f"in_{name}"], [f"out_{name}"]) for name in SAMPLES],
        [graphs.value(f"in_{name}", kind, ("N",)) for name, (kind, _, _) in SAMPLES.items()],
        [graphs.value(f"out_{name}", kind, ("N",)) for name, (kind, _, _) in SAMPLES.items()],
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("triton")
    with running_server(folder, workers=2, settings={"max_run_s": 2}) as running:
        running.push("types", all_types())
        running.push("scores", graphs.id32())
        assert running.push("scores", graphs.identity(TensorProto.FLOAT, ("rows", 4))) == 2
        assert running.push("scores", graphs.gemm(), is_loading=False) == 3
        running.push("gather", graphs.gath())
        running.push("endless", graphs.endless())
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[triton.InferenceServerClient]:
    """A client of the data plane, with its defaults."""
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as client:
        yield client


@pytest.fixture
def admin(server: RunningServer) -> Iterator[triton.InferenceServerClient]:
    """A client of the admin plane, where models are loaded and unloaded."""
    with triton.InferenceServerClient(server.admin_url.removeprefix("http://")) as client:
        yield client


def tensor(name: str, array: Any, *, is_binary: bool = True) -> Any:
    """Return an input of an array."""
    made = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return made.set_data_from_numpy(array, binary_data=is_binary)


def scores(array: Any = ROWS, **options: Any) -> list[Any]:
    return [tensor("x", array, **options)]


def wanted(name: str, **options: Any) -> Any:
    return triton.InferRequestedOutput(name, **options)


def texts(array: Any) -> list[str]:
    """Return BYTES as text, whether they came in JSON or in binary."""
    return [item.decode() if isinstance(item, bytes) else item for item in array.ravel().tolist()]


# Health, metadata, configuration, index


def test_live_and_ready(client: Any, admin: Any) -> None:
    """The server is live and ready on both planes; a model is ready where it answers."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert admin.is_server_live()
    assert admin.is_server_ready()
    assert client.is_model_ready("scores")
    assert client.is_model_ready("scores", "2")
    assert not client.is_model_ready("scores", "3")
    assert not client.is_model_ready("scores", "9")
    assert not client.is_model_ready("nobody")


def test_server_metadata(client: Any) -> None:
    """Only extensions that work are named."""
    found = client.get_server_metadata()
    assert found["name"] == "ramrack"
    assert re.fullmatch(r"\d+(\.\d+)*\S*", found["version"])
    assert {"classification", "binary_tensor_data", "statistics"} <= set(found["extensions"])


def test_model_metadata(client: Any) -> None:
    """Inputs and outputs of every datatype have name, datatype and shape; versions are texts."""
    found = client.get_model_metadata("types")
    assert found["name"] == "types"
    assert found["versions"] == ["1"]
    assert found["platform"] == "onnxruntime_onnx"
    expected = [{"name": f"in_{n}", "datatype": n, "shape": [-1]} for n in SAMPLES]
    assert found["inputs"] == expected
    expected = [{"name": f"out_{n}", "datatype": n, "shape": [-1]} for n in SAMPLES]
    assert found["outputs"] == expected
    found = client.get_model_metadata("scores", "2")
    assert found["versions"] == ["1", "2"]
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]


def test_model_config(client: Any) -> None:
    """The configuration is Triton's, with whole shapes: max_batch_size is 0."""
    found = client.get_model_config("types")
    assert found["name"] == "types"
    assert found["max_batch_size"] == 0
    kinds = {item["name"]: item["data_type"] for item in found["input"]}
    assert kinds["in_FP16"] == "TYPE_FP16"
    assert kinds["in_BYTES"] == "TYPE_STRING"
    assert {tuple(item["dims"]) for item in found["output"]} == {(-1,)}
    assert client.get_model_config("scores", "2")["input"][0]["dims"] == [-1, 4]


def test_repository_index_on_both_planes(client: Any, admin: Any) -> None:
    """Each version is listed with its state and a reason."""
    found = {(i["name"], i["version"]): i for i in client.get_model_repository_index()}
    assert found["scores", "1"]["state"] == "READY"
    assert found["scores", "3"]["state"] == "UNAVAILABLE"
    assert found["scores", "3"]["reason"]
    again = {(i["name"], i["version"]): i for i in admin.get_model_repository_index()}
    states = {key: item["state"] for key, item in found.items()}
    assert states == {key: item["state"] for key, item in again.items()}


# Tensors


@pytest.mark.parametrize("is_binary_in", [True, False], ids=["binary-in", "json-in"])
@pytest.mark.parametrize("is_binary_out", [True, False], ids=["binary-out", "json-out"])
def test_every_datatype_comes_back_exactly(
    client: Any, is_binary_in: bool, is_binary_out: bool
) -> None:
    """All datatypes at once, at the ends of their ranges, JSON and binary both ways."""
    arrays = {name: np.array(items, kind) for name, (_, items, kind) in SAMPLES.items()}
    result = client.infer(
        "types",
        [tensor(f"in_{name}", array, is_binary=is_binary_in) for name, array in arrays.items()],
        outputs=[wanted(f"out_{name}", binary_data=is_binary_out) for name in arrays],
    )
    for name, sent in arrays.items():
        found = result.as_numpy(f"out_{name}")
        if name == "BYTES":
            assert texts(found) == sent.tolist()
        else:
            assert found.dtype == sent.dtype
            assert found.tobytes() == sent.tobytes(), name


def test_json_and_binary_mix_in_one_request(client: Any) -> None:
    """Every other input is binary and every third output is; each keeps its own bytes."""
    arrays = {name: np.array(items, kind) for name, (_, items, kind) in SAMPLES.items()}
    result = client.infer(
        "types",
        [
            tensor(f"in_{name}", array, is_binary=index % 2 == 0)
            for index, (name, array) in enumerate(arrays.items())
        ],
        outputs=[
            wanted(f"out_{name}", binary_data=index % 3 == 0)
            for index, name in enumerate(reversed(arrays))
        ],
    )
    for name, sent in arrays.items():
        found = result.as_numpy(f"out_{name}")
        assert texts(found) == sent.tolist() if name == "BYTES" else (found == sent).all(), name
    for index, name in enumerate(reversed(arrays)):
        output = result.get_output(f"out_{name}")
        assert ("parameters" in output) == (index % 3 == 0)
        assert ("data" in output) == (index % 3 != 0)


def test_integers_beyond_double_precision_stay_exact_in_json(client: Any) -> None:
    """INT64 beyond 2^53 and the highest UINT64 pass through JSON without rounding."""
    inputs = [
        tensor(f"in_{name}", np.array(items, kind), is_binary=False)
        for name, (_, items, kind) in SAMPLES.items()
    ]
    result = client.infer(
        "types", inputs,
        outputs=[wanted(f"out_{name}", binary_data=False) for name in ("INT64", "UINT64")],
    )  # fmt: skip
    assert result.get_output("out_INT64")["data"] == [-(2**63), 9007199254740993]
    assert result.get_output("out_UINT64")["data"] == [9007199254740993, 18446744073709551615]


def test_bytes_that_are_no_text_pass_in_binary(client: Any) -> None:
    """Empty, zero and non-UTF-8 elements are the same bytes afterwards."""
    sent = np.array([b"", b"\x00", b"\xff\xfe\x80", b"plain"], np.object_)
    arrays = {name: np.array(items * 2, kind) for name, (_, items, kind) in SAMPLES.items()}
    arrays["BYTES"] = sent
    result = client.infer("types", [tensor(f"in_{n}", array) for n, array in arrays.items()])
    assert result.as_numpy("out_BYTES").tolist() == sent.tolist()


def test_nan_and_infinity_pass_in_binary_and_are_null_in_json(client: Any) -> None:
    """Binary carries them bit for bit; JSON has no such numbers and says null."""
    sent = np.array([[np.nan, np.inf, -np.inf, -0.0]], np.float32)
    found = client.infer("scores", scores(sent)).as_numpy("y")
    assert found.tobytes() == sent.tobytes()
    result = client.infer("scores", scores(sent), outputs=[wanted("y", binary_data=False)])
    assert result.get_output("y")["data"] == [None, None, None, -0.0]


def test_no_rows_is_an_answer_of_no_rows(client: Any) -> None:
    """An empty batch keeps its shape."""
    result = client.infer("scores", scores(np.empty((0, 4), np.float32)))
    assert result.as_numpy("y").shape == (0, 4)


def test_only_the_outputs_that_are_asked_for_come_in_that_order(client: Any) -> None:
    """A subset in an order of its own."""
    inputs = [
        tensor(f"in_{name}", np.array(items, kind)) for name, (_, items, kind) in SAMPLES.items()
    ]
    names = ["out_INT64", "out_BOOL"]
    found = client.infer("types", inputs, outputs=[wanted(name) for name in names])
    assert [output["name"] for output in found.get_response()["outputs"]] == names


def test_classification(client: Any) -> None:
    """The best k classes of each row, best first, equal ones by index."""
    for is_binary in (True, False):
        result = client.infer(
            "scores", scores(np.repeat(ROWS, 2, axis=0)),
            outputs=[wanted("y", class_count=3, binary_data=is_binary)],
        )  # fmt: skip
        found = result.as_numpy("y")
        assert found.shape == (2, 3)
        assert texts(found) == ["0.9:1", "0.9:2", "0.1:0"] * 2


# The frame around the tensors


@pytest.mark.parametrize("request_encoding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_encoding", [None, "gzip", "deflate"])
def test_compression_both_ways(
    client: Any, request_encoding: str | None, response_encoding: str | None
) -> None:
    """Each pair of encodings carries the same tensors."""
    sent = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    result = client.infer(
        "scores", scores(sent),
        request_compression_algorithm=request_encoding,
        response_compression_algorithm=response_encoding,
    )  # fmt: skip
    assert (result.as_numpy("y") == sent).all()


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_the_answer_is_really_compressed(server: RunningServer, encoding: str) -> None:
    """A large answer comes smaller, and says how it is encoded."""
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1000, 4], "data": [0.5] * 4000}]}
    headers = {"accept-encoding": encoding}
    answer = server.data("POST", "/v2/models/scores/infer", json=body, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-encoding"] == encoding
    assert int(answer.headers["content-length"]) < 4000
    assert answer.json()["outputs"][0]["data"] == [0.5] * 4000


def test_id_version_and_route(client: Any) -> None:
    """The id comes back, and each answer names the version that computed it."""
    result = client.infer("scores", scores(), request_id="order 7 ø").get_response()
    assert (result["id"], result["model_name"]) == ("order 7 ø", "scores")
    # The first load is the route; the second did not move it.
    assert result["model_version"] == "1"
    assert "id" not in client.infer("scores", scores()).get_response()
    second = client.infer("scores", scores(), model_version="2").get_response()
    assert second["model_version"] == "2"


def test_an_alias_is_a_version(server: RunningServer, client: Any) -> None:
    """Clients may name an alias where they name a version."""
    server.expect(server.admin("PUT", "/admin/v1/models/scores/aliases/new", json={"version": 2}))
    found = client.infer("scores", scores(), model_version="new").get_response()
    assert found["model_version"] == "2"
    found = client.infer("scores", scores(), model_version="latest").get_response()
    assert found["model_version"] == "2"
    server.expect(server.admin("DELETE", "/admin/v1/models/scores/aliases/new"))


def test_priority_timeout_and_parameters_of_others_are_taken(client: Any) -> None:
    """What Triton knows and does not apply here does no harm."""
    result = client.infer(
        "scores", scores(), priority=1, timeout=5_000_000, sequence_id=3, sequence_start=True,
        parameters={"my_own": "x"}, headers={"X-Mine": "1"}, query_params={"a": "b"},
    )  # fmt: skip
    assert (result.as_numpy("y") == ROWS).all()


def test_async_infer(server: RunningServer) -> None:
    """Many requests at once over several connections: each gets its own answer."""
    url = server.url.removeprefix("http://")
    with triton.InferenceServerClient(url, concurrency=8, max_greenlets=8) as client:
        sent = [np.full((1, 4), i, np.float32) for i in range(100)]
        waiting = [client.async_infer("scores", scores(array)) for array in sent]
        for array, request in zip(sent, waiting, strict=True):
            assert (request.get_result(timeout=60).as_numpy("y") == array).all()
        failing = client.async_infer("nobody", scores())
        with pytest.raises(InferenceServerException, match="'nobody' is not known"):
            failing.get_result(timeout=60)


async def test_the_asyncio_client(server: RunningServer) -> None:
    """The same client over asyncio: tensors both ways, compression, and our errors."""
    async with triton_aio.InferenceServerClient(server.url.removeprefix("http://")) as client:
        assert await client.is_server_ready()
        assert (await client.get_model_metadata("scores"))["name"] == "scores"
        for encoding in (None, "gzip", "deflate"):
            result = await client.infer(
                "scores", scores(), request_id="7",
                request_compression_algorithm=encoding, response_compression_algorithm=encoding,
            )  # fmt: skip
            assert (result.as_numpy("y") == ROWS).all()
            assert result.get_response()["id"] == "7"
        with pytest.raises(InferenceServerException, match="'nobody' is not known"):
            await client.infer("nobody", scores())


# Errors


def refused(call: Any, status: int, *words: str) -> None:
    """The call ends with the client's exception, our status and our message."""
    with pytest.raises(InferenceServerException) as caught:
        call()
    assert caught.value.status() == str(status), caught.value
    # The client's own words would mean that it could not read our answer.
    assert "while decoding" not in caught.value.message()
    for word in words:
        assert word in caught.value.message(), caught.value


@pytest.mark.parametrize(
    ("model", "version", "status", "words"),
    [
        ("nobody", "", 404, ["model 'nobody' is not known"]),
        ("scores", "9", 404, ["scores", "9"]),
        ("scores", "nickname", 404, ["scores", "nickname"]),
        ("scores", "3", 503, ["scores", "3", "UNLOADED"]),
        ("-x", "", 400, ["-x"]),
    ],
)
def test_what_is_not_there(
    client: Any, model: str, version: str, status: int, words: list[str]
) -> None:
    """Unknown model, version or alias, and one that is not loaded, on every call that names it."""
    calls = [
        lambda: client.infer(model, scores(), model_version=version),
        lambda: client.get_model_metadata(model, version),
        lambda: client.get_model_config(model, version),
    ]
    if status != 503:
        calls.append(lambda: client.get_inference_statistics(model, version))
    for call in calls:
        refused(call, status, *words)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (lambda: scores(ROWS.astype(np.float64)), ["'x'", "FP64", "FP32"]),
        (lambda: scores(ROWS.astype(np.float64), is_binary=False), ["'x'", "FP64", "FP32"]),
        (lambda: scores(np.zeros((1, 5), np.float32)), ["'x'", "5", "4"]),
        (lambda: scores(np.zeros(4, np.float32)), ["'x'", "[4]"]),
        (lambda: scores(np.zeros((1,) * 9, np.float32)), ["9 dimensions", "8"]),
        (lambda: [tensor("z", ROWS)], ["'z' is unknown", "'x'"]),
        (lambda: [*scores(), *scores()], ["'x' stands twice"]),
        (list, ["'x' is missing"]),
        (lambda: [triton.InferInput("x", [1, 4], "FP32")], ["'x'", "data is missing"]),
        (
            lambda: [triton.InferInput("x", [1, 4], "FP32").set_shared_memory("region", 16)],
            ["shared memory is not supported"],
        ),
    ],
)  # fmt: skip
def test_wrong_inputs(client: Any, inputs: Any, words: list[str]) -> None:
    """The message names the input, what was sent and what is wanted."""
    refused(lambda: client.infer("scores", inputs()), 400, *words)


def test_wrong_outputs(client: Any) -> None:
    """Unknown outputs, one named twice, and classes of texts."""
    for outputs, words in (
        ([wanted("nothing")], ["'nothing'", "'y'"]),
        ([wanted("y"), wanted("y")], ["'y' stands twice"]),
    ):
        refused(lambda o=outputs: client.infer("scores", scores(), outputs=o), 400, *words)
    inputs = [tensor(f"in_{n}", np.array(items, kind)) for n, (_, items, kind) in SAMPLES.items()]
    outputs = [wanted("out_BYTES", class_count=1)]
    refused(lambda: client.infer("types", inputs, outputs=outputs), 400, "classification", "BYTES")


def test_what_the_graph_refuses_is_the_callers_fault(client: Any) -> None:
    """An index past the end of a table: 400 with what the graph says, and the next call is fine."""
    refused(lambda: client.infer("gather", [tensor("idx", np.array([999]))]), 400, "999")
    assert client.infer("gather", [tensor("idx", np.array([2]))]).as_numpy("y").shape == (1, 4)


def test_a_timeout_is_a_deadline(client: Any) -> None:
    """The parameter is in microseconds; past it the answer is 504."""
    inputs = [tensor("n", np.array([2**62]))]
    refused(lambda: client.infer("endless", inputs, timeout=20_000), 504, "endless")


def test_calls_that_this_server_does_not_have(client: Any, admin: Any) -> None:
    """Tracing, logging and shared memory answer 404 with a message, on both planes."""
    for one in (client, admin):
        refused(one.get_trace_settings, 404, "/v2/trace/setting")
        refused(one.get_log_settings, 404, "/v2/logging")
        refused(one.get_system_shared_memory_status, 404, "shared")
    refused(lambda: client.load_model("scores"), 404, "/v2/repository/models/scores/load")
    refused(lambda: admin.infer("scores", scores()), 404, "/v2/models/scores/infer")


# Loading


def test_load_and_unload(server: RunningServer, client: Any, admin: Any) -> None:
    """The highest version is loaded; what is routed is not unloaded; what is free is."""
    server.push("cycle", graphs.id64(), is_loading=False)
    assert server.push("cycle", graphs.identity(TensorProto.DOUBLE, ("rows", 4)),
                       is_loading=False) == 2  # fmt: skip
    assert not client.is_model_ready("cycle")
    admin.load_model("cycle")
    assert client.is_model_ready("cycle")
    rows = np.ones((1, 4))
    result = client.infer("cycle", [tensor("x", rows)])
    assert (result.as_numpy("y") == rows).all()
    assert result.get_response()["model_version"] == "2"
    refused(lambda: admin.unload_model("cycle"), 409, "cycle", "route")
    assert client.is_model_ready("cycle")
    server.expect(server.admin("DELETE", "/admin/v1/models/cycle/route"))
    admin.unload_model("cycle")
    assert not client.is_model_ready("cycle")
    assert not client.is_model_ready("cycle", "2")
    refused(lambda: client.infer("cycle", [tensor("x", rows)]), 503, "cycle")


def test_loads_that_cannot_be(server: RunningServer, admin: Any) -> None:
    """Unknown models, configurations from the client, and graphs that no runtime takes."""
    refused(lambda: admin.load_model("nobody"), 404, "'nobody'")
    refused(lambda: admin.unload_model("nobody"), 404, "'nobody'")
    refused(lambda: admin.load_model("scores", config="{}"), 400, "parameters.config")
    files = {"file:1/model.onnx": b"x"}
    refused(lambda: admin.load_model("scores", config="{}", files=files), 400, "parameters.")
    server.push("broken", graphs.unknown_operator(), is_loading=False)
    refused(lambda: admin.load_model("broken"), 400, "Nonsense")


# Statistics


def served_connections(server: RunningServer) -> list[int]:
    """Return how many connections of the data plane each worker holds now."""
    port = int(server.url.rpartition(":")[2])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if int(row[1].split(":")[1], 16) == port and row[3] == "01"}
    counts = []
    for pid in server.worker_pids():
        folder = Path(f"/proc/{pid}/fd")
        links = [str(path.readlink()) for path in folder.iterdir() if path.is_symlink()]
        counts.append(sum(f"socket:[{inode}]" in links for inode in inodes))
    return counts


def test_statistics_are_summed_over_the_workers(server: RunningServer) -> None:
    """Whichever worker answers, the counts are those of all; rows count as inferences."""
    server.push("counted", graphs.idi64())
    url = server.url.removeprefix("http://")
    clients = [triton.InferenceServerClient(url) for _ in range(CONNECTIONS)]
    try:
        for rows, client in enumerate(clients, start=1):
            client.infer("counted", [tensor("x", np.arange(rows))])
        for client in clients[:3]:
            refused(lambda c=client: c.infer("counted", scores()), 400, "FP32")
        assert min(served_connections(server)) > 0
        for client in clients:
            found = client.get_inference_statistics("counted")
            assert found == client.get_inference_statistics("counted", "1")
            (stats,) = found["model_stats"]
            assert (stats["name"], stats["version"]) == ("counted", "1")
            assert stats["inference_count"] == CONNECTIONS * (CONNECTIONS + 1) // 2
            assert stats["execution_count"] == CONNECTIONS
            assert stats["inference_stats"]["success"]["count"] == CONNECTIONS
            assert stats["inference_stats"]["fail"]["count"] == 3
            assert stats["last_inference"] > 0
    finally:
        for client in clients:
            client.close()


def test_statistics_outlive_a_worker(server: RunningServer, client: Any) -> None:
    """What a killed worker had counted is not forgotten."""
    client.infer("scores", scores(), model_version="2")
    before = client.get_inference_statistics("scores", "2")["model_stats"]
    assert before[0]["inference_count"] > 0
    victims = server.worker_pids()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not set(victims) & set(server.worker_pids()), 60, "they are replaced")
    server.wait_until_ready()
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as fresh:
        assert fresh.get_inference_statistics("scores", "2")["model_stats"] == before


def test_statistics_of_everything(client: Any) -> None:
    """Without a model all versions that answer are listed; with one, its own."""
    found = client.get_inference_statistics()["model_stats"]
    names = {(item["name"], item["version"]) for item in found}
    assert {("scores", "1"), ("scores", "2"), ("types", "1")} <= names
    assert ("scores", "3") not in names
    found = client.get_inference_statistics("scores")["model_stats"]
    assert [item["version"] for item in found] == ["1", "2"]


def test_what_perf_analyzer_reads_is_there(server: RunningServer) -> None:
    """It reads metadata, configuration, extensions and statistics without checks."""
    with httpx.Client(base_url=server.url, trust_env=False, timeout=30) as http:
        metadata = http.get("/v2/models/scores").json()
        config = http.get("/v2/models/scores/config").json()
        assert {"name", "versions", "platform", "inputs", "outputs"} <= set(metadata)
        assert config["max_batch_size"] == 0
        assert [item["name"] for item in config["input"]] == ["x"]
        assert "statistics" in http.get("/v2").json()["extensions"]
        http.post("/v2/models/scores/infer", json=perf_request()).raise_for_status()
        for path in ("/v2/models/scores/versions/1/stats", "/v2/models/scores/stats"):
            stats = http.get(path).json()["model_stats"][0]
            assert (stats["name"], stats["version"]) == ("scores", "1")
            numbers = [stats[key] for key in
                       ("last_inference", "inference_count", "execution_count")]  # fmt: skip
            for key in ("success", "fail", "queue", "compute_input", "compute_infer",
                        "compute_output", "cache_hit", "cache_miss"):  # fmt: skip
                numbers += [stats["inference_stats"][key][field] for field in ("count", "ns")]
            assert all(type(number) is int and number >= 0 for number in numbers), stats
            assert isinstance(stats["batch_stats"], list)


def perf_request() -> dict[str, Any]:
    return {"id": "", "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    ], "outputs": [{"name": "y"}]}  # fmt: skip


def test_perf_analyzer_s_requests_are_answered(server: RunningServer) -> None:
    """The length header on pure JSON, an empty id, an empty Expect, many on one connection."""
    content = httpx.Request("POST", "http://x", json=perf_request()).content
    headers = {"Expect": "", "Inference-Header-Content-Length": str(len(content))}
    with httpx.Client(base_url=server.url, trust_env=False, timeout=30) as http:
        for _ in range(3):
            answer = http.post("/v2/models/scores/infer", content=content, headers=headers)
            assert answer.status_code == 200, answer.text
            found = answer.json()
            assert found["id"] == ""
            assert found["outputs"] == [
                {"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}
            ]
            assert "inference-header-content-length" not in answer.headers


def test_a_raw_request_is_one_tensor(server: RunningServer) -> None:
    """Length header 0: the body is the tensor, the answer is binary."""
    answer = server.data(
        "POST", "/v2/models/scores/infer", content=ROWS.tobytes(),
        headers={"Inference-Header-Content-Length": "0"},
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    length = int(answer.headers["inference-header-content-length"])
    assert answer.content[length:] == ROWS.tobytes()
