"""Batching cases through real sockets: whatever shares a run, each caller gets its own.

One worker, so that callers who come together meet in one queue; ``ballast`` makes its runs long
enough for them to be seen to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import graphs
from tests.cases.rig import (
    ROW,
    Callers,
    ballast,
    callers,
    metric,
    outputs_of,
    statistics,
    tensor,
    together,
)
from tests.process.server import RunningServer, infer_body, running_server, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
MAX_BATCH_ROWS = 32
QUEUE_ROWS = 1024


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {
        "max_batch_rows": MAX_BATCH_ROWS,
        "queue_rows": QUEUE_ROWS,
        "timeout_ms": 60_000,
    }
    with running_server(tmp_path_factory.mktemp("g"), workers=1, settings=settings) as running:
        running.push("echo", ballast(graphs.id32(), "x"))
        yield running


@pytest.fixture
def server(running: RunningServer) -> Iterator[RunningServer]:
    """The one server of this file: no worker dies in any test, and nothing is left waiting."""
    pids = running.worker_pids()
    yield running
    assert running.process.poll() is None
    assert running.worker_pids() == pids
    wait_until(lambda: metric(running, "ramrack_queue_depth") == 0, 60, "nothing waits")
    wait_until(lambda: metric(running, "ramrack_in_flight") == 0, 60, "nothing is under way")
    assert outputs_of(running.infer("echo", [ROW]))["y"] == ROW


def own_row(index: int) -> list[float]:
    return [float(index), index + 0.25, index + 0.5, index + 0.75]


def ask(client: Callers, name: str, *inputs: dict[str, Any], **more: Any) -> Any:
    return client.post(f"/v2/models/{name}/infer", json={"inputs": list(inputs), **more})


def runs_of(server: RunningServer, name: str) -> tuple[int, int]:
    """Return the rows that a version computed, and the runs it took."""
    found = statistics(server, name)
    return found["inference_count"], found["execution_count"]


def is_batched(server: RunningServer, name: str) -> tuple[bool, str]:
    found = server.expect(server.admin("GET", f"/admin/v1/models/{name}/versions/1"))
    return found["batching"]["allowed"], found["batching"]["reason"]


# G01: rows in are rows out.


def one_row_for_any() -> onnx.ModelProto:
    """Return a graph that answers the largest of all rows, as one row."""
    return graphs.build(
        [helper.make_node("ReduceMax", ["x"], ["y"], axes=[0], keepdims=1)],
        [graphs.value("x", TensorProto.FLOAT, ("N", 4))],
        [graphs.value("y", TensorProto.FLOAT, ("N", 4))],
    )


async def test_g01_each_caller_gets_exactly_its_rows(server: RunningServer) -> None:
    """Callers that share runs get their own values, also of a graph that answers one row only."""
    server.push("one-row", ballast(one_row_for_any(), "x"))
    rows, runs = runs_of(server, "echo")
    async with callers(server) as client:
        for name in ("echo", "one-row"):
            for _ in range(3):
                answers = await together(
                    24, lambda i, n=name: ask(client, n, tensor("x", "FP32", [1, 4], own_row(i)))
                )
                assert [outputs_of(a)["y"] for a in answers] == [own_row(i) for i in range(24)]
    rows, runs = (now - old for now, old in zip(runs_of(server, "echo"), (rows, runs), strict=True))
    assert rows == 72
    assert runs < rows
    assert not is_batched(server, "one-row")[0]
    assert len(set(runs_of(server, "one-row"))) == 1


# G02 and G04: what belongs to one request.


def label_and_proba() -> onnx.ModelProto:
    """Return two outputs of one row: itself, and the place of its largest value."""
    model = graphs.build(
        [
            helper.make_node("ArgMax", ["x"], ["label"], axis=1, keepdims=0),
            helper.make_node("Identity", ["x"], ["proba"]),
        ],
        [graphs.value("x", TensorProto.FLOAT, ("N", 4))],
        [
            graphs.value("label", TensorProto.INT64, ("N",)),
            graphs.value("proba", TensorProto.FLOAT, ("N", 4)),
        ],
    )
    return ballast(model, "x")


async def test_g02_each_caller_gets_the_outputs_it_asked_for(server: RunningServer) -> None:
    """One, the other, both, or both the other way round, in one batch."""
    server.push("two-outputs", label_and_proba())
    wishes = [["proba"], ["label"], [], ["proba", "label"], ["label", "proba"]]

    async with callers(server) as client:

        def call(index: int) -> Any:
            wish = wishes[index % len(wishes)]
            more = {"outputs": [{"name": name} for name in wish]} if wish else {}
            row = tensor("x", "FP32", [1, 4], own_row(index))
            return ask(client, "two-outputs", row, **more)

        answers = await together(40, call)
    for index, answer in enumerate(answers):
        wish = wishes[index % len(wishes)] or ["label", "proba"]
        expected = {"label": [3], "proba": own_row(index)}
        found = outputs_of(answer)
        assert list(found) == wish
        assert found == {name: expected[name] for name in wish}
    rows, runs = runs_of(server, "two-outputs")
    assert runs < rows


async def test_g04_each_of_500_gets_its_own_id(server: RunningServer) -> None:
    """Ids and values of callers who share runs never cross; who sent no id gets none."""
    async with callers(server) as client:

        def call(index: int) -> Any:
            more = {"id": f"caller-{index}"} if index % 5 else {}
            more["parameters"] = {"priority": index % 2}
            return ask(client, "echo", tensor("x", "FP32", [1, 4], own_row(index)), **more)

        answers = await together(500, call)
    for index, answer in enumerate(answers):
        assert outputs_of(answer)["y"] == own_row(index)
        assert answer.json().get("id") == (f"caller-{index}" if index % 5 else None)
    assert len({answer.headers["x-request-id"] for answer in answers}) == 500


# G05: one bad member.


async def test_g05_one_bad_member_fails_alone(server: RunningServer) -> None:
    """Fifteen good callers and one whose index is out of range, again and again."""
    server.push("table", ballast(graphs.gath(), "idx"))
    async with callers(server) as client:
        for turn in range(12):
            bad = {turn % 16} if turn < 10 else set(range(16))
            indices = [999 if i in bad else i % 10 for i in range(16)]
            answers = await together(
                16, lambda i, x=indices: ask(client, "table", tensor("idx", "INT64", [1], [x[i]]))
            )
            for index, answer in zip(indices, answers, strict=True):
                if index == 999:
                    assert answer.status_code == 400, answer.text
                    assert answer.json()["error"]
                else:
                    row = [float(4 * index + column) for column in range(4)]
                    assert outputs_of(answer)["y"] == row
    rows, runs = runs_of(server, "table")
    assert runs < rows


# G07: callers who leave.


def head_of(server: RunningServer, name: str, length: int) -> bytes:
    return (
        f"POST /v2/models/{name}/infer HTTP/1.1\r\nhost: localhost\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


async def leave(server: RunningServer, name: str, body: bytes, sent: int, after_s: float) -> None:
    """Send the first ``sent`` bytes of a request's body, and hang up."""
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(head_of(server, name, len(body)) + body[:sent])
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    # Part of the case: it is about callers who give up a moment later, at no given point.
    await asyncio.sleep(after_s)
    writer.transport.abort()


async def test_g07_callers_who_leave_wedge_nothing(server: RunningServer) -> None:
    """After a wave of callers who hang up at any point, the patient ones are all answered."""
    body = json.dumps(infer_body([ROW])).encode()
    choice = random.Random(7)
    async with asyncio.TaskGroup() as group:
        for _ in range(200):
            sent = choice.choice([0, len(body) // 2, len(body), len(body)])
            delay_s = choice.uniform(0.005, 0.05)
            group.create_task(leave(server, "echo", body, sent, delay_s))
    async with callers(server) as client:
        answers = await together(
            100, lambda i: ask(client, "echo", tensor("x", "FP32", [1, 4], own_row(i)))
        )
    assert [outputs_of(a)["y"] for a in answers] == [own_row(i) for i in range(100)]


async def test_g07_what_nobody_waits_for_is_not_computed(server: RunningServer) -> None:
    """Requests whose callers leave while they are queued never run."""
    server.push("long", graphs.endless())
    turns = tensor("n", "INT64", [1], [3_000_000])
    body = json.dumps({"inputs": [turns]}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    async with callers(server) as client:
        first = asyncio.create_task(ask(client, "long", turns), name="first")
        # A run has begun, and no other of this version can until it ends.
        await asyncio.to_thread(
            wait_until, lambda: metric(server, "ramrack_in_flight") >= 1, 60, "it is in"
        )
        leaving = []
        for _ in range(10):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(head_of(server, "long", len(body)) + body)
            leaving.append(writer)
        await asyncio.to_thread(
            wait_until,
            lambda: metric(server, "ramrack_queue_depth", model="long") == 10 or first.done(),
            60,
            "they wait",
        )
        assert not first.done()
        for writer in leaving:
            writer.transport.abort()
        await asyncio.to_thread(
            wait_until,
            lambda: metric(server, "ramrack_queue_depth", model="long") == 0,
            60,
            "they are dropped",
        )
        assert not first.done()
        assert outputs_of(await first)["y"] == [3_000_000.0]
        last = await ask(client, "long", tensor("n", "INT64", [1], [3]))
    assert outputs_of(last)["y"] == [3.0]
    assert runs_of(server, "long") == (2, 2)


# G08: rows are counted, not requests.


async def test_g08_no_run_holds_more_rows_than_allowed(server: RunningServer) -> None:
    """Requests of 1, 20 and 100 rows: only the one that is larger by itself runs larger, alone."""
    server.push("sizes", ballast(graphs.id32(), "x"))
    sizes = [1, 20, 1, 100, 20, 1, 20, 1] * 4

    async with callers(server) as client:

        def call(index: int) -> Any:
            data = own_row(index) * sizes[index]
            return ask(client, "sizes", tensor("x", "FP32", [sizes[index], 4], data))

        answers = await together(len(sizes), call)
    for index, answer in enumerate(answers):
        assert outputs_of(answer)["y"] == own_row(index) * sizes[index]
    runs = {entry["batch_size"] for entry in statistics(server, "sizes")["batch_stats"]}
    assert max(runs - {100}) <= MAX_BATCH_ROWS
    rows, count = runs_of(server, "sizes")
    assert rows == sum(sizes)
    assert count < len(sizes)


# G10: busy answers.


async def test_g10_batching_refuses_nobody_until_the_queue_is_full(server: RunningServer) -> None:
    """One after the other is always a 200; past the bound it is a 429 at once, and counted."""
    # A run of some 200 ms: all callers are there before the second one begins.
    server.push("busy", ballast(graphs.id32(), "x", products=240))
    async with callers(server) as client:
        for index in range(20):
            row = tensor("x", "FP32", [1, 4], own_row(index))
            assert outputs_of(await ask(client, "echo", row))["y"] == own_row(index)
        refused = metric(server, "ramrack_rejected_total", reason="queue_full")
        rows = QUEUE_ROWS // 2
        large = tensor("x", "FP32", [rows, 4], ROW * rows)
        answers = await together(12, lambda _: ask(client, "busy", large))
    codes = [answer.status_code for answer in answers]
    assert set(codes) == {200, 429}
    for answer in answers:
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) >= 1
            assert f"of {QUEUE_ROWS} rows" in answer.json()["error"]
        else:
            assert outputs_of(answer)["y"] == ROW * rows
    now = metric(server, "ramrack_rejected_total", reason="queue_full")
    assert now - refused == codes.count(429)


# G11: mixed shapes.


async def test_g11_other_widths_are_answered_as_if_alone(server: RunningServer) -> None:
    """Rows of 16 and of 20 values at once: each as it is, nothing padded, the rare one as well."""
    model = graphs.identity(TensorProto.FLOAT, ("N", "width"))
    server.push("widths", ballast(model, "x"))

    async with callers(server) as client:

        def call(index: int) -> Any:
            width = 20 if index % 8 == 0 else 16
            data = [index + column / 64 for column in range(width)]
            return ask(client, "widths", tensor("x", "FP32", [1, width], data))

        answers = await together(40, call)
    for index, answer in enumerate(answers):
        width = 20 if index % 8 == 0 else 16
        assert answer.json()["outputs"][0]["shape"] == [1, width]
        assert outputs_of(answer)["y"] == [index + column / 64 for column in range(width)]
    rows, runs = runs_of(server, "widths")
    assert runs < rows


# G13, G14, G16: graphs whose batch is none.


def columns_first() -> onnx.ModelProto:
    """Return a graph that answers its rows as columns."""
    return graphs.build(
        [helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])],
        [graphs.value("x", TensorProto.FLOAT, ("N", 4))],
        [graphs.value("y", TensorProto.FLOAT, (4, "N"))],
    )


def flat_output() -> onnx.ModelProto:
    """Return a graph that answers all rows as one of any width."""
    return graphs.build(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [graphs.value("x", TensorProto.FLOAT, ("N", 4))],
        [graphs.value("y", TensorProto.FLOAT, (1, "width"))],
        [graphs.weights("shape", np.array([1, -1], np.int64))],
    )


@pytest.mark.parametrize("graph", [graphs.fix1, columns_first, flat_output])
async def test_g13_graphs_without_a_batch_run_one_by_one(server: RunningServer, graph: Any) -> None:
    """Seen at load; 64 callers at once still get their own answers."""
    name = graph.__name__
    server.push(name, graph())
    assert not is_batched(server, name)[0]
    assert is_batched(server, name)[1]
    async with callers(server) as client:
        answers = await together(
            64, lambda i: ask(client, name, tensor("x", "FP32", [1, 4], own_row(i)))
        )
    assert [outputs_of(a)["y"] for a in answers] == [own_row(i) for i in range(64)]
    two = server.infer(name, [own_row(1), own_row(2)])
    if graph is graphs.fix1:
        assert two.status_code == 400
        assert "shape" in two.json()["error"]
    elif graph is columns_first:
        rows = np.array([own_row(1), own_row(2)])
        assert outputs_of(two)["y"] == rows.T.reshape(-1).tolist()
    else:
        assert outputs_of(two)["y"] == own_row(1) + own_row(2)


async def test_g14_a_graph_that_only_takes_one_row_is_never_given_two(
    server: RunningServer,
) -> None:
    """It declares any number of rows; under load no caller pays for that with a 500."""
    server.push("baked", graphs.resh())
    assert not is_batched(server, "baked")[0]
    async with callers(server) as client:
        answers = await together(
            48, lambda i: ask(client, "baked", tensor("X", "FP32", [1, 4], own_row(i)))
        )
        two = await ask(client, "baked", tensor("X", "FP32", [2, 4], own_row(1) * 2))
    weights = np.arange(8, dtype=np.float32).reshape(4, 2)
    for index, answer in enumerate(answers):
        expected = np.array(own_row(index), np.float32) @ weights
        assert outputs_of(answer)["Y"] == pytest.approx(expected.tolist(), rel=1e-6)
    assert two.status_code == 400


async def test_g16_outputs_without_a_batch_axis_are_delivered_whole(
    server: RunningServer,
) -> None:
    """The constant pair, as long as two merged rows, stays whole; a sum is of one's own rows."""
    server.push("scalars", ballast(graphs.scal(), "X"))
    assert not is_batched(server, "scalars")[0]
    async with callers(server) as client:
        for count in (2, 2, 16):
            answers = await together(
                count, lambda i: ask(client, "scalars", tensor("X", "FP32", [1], [i + 0.5]))
            )
            for index, answer in enumerate(answers):
                found = outputs_of(answer)
                assert found["total"] == [index + 0.5]
                assert found["constant"] == [1.0, 2.0]
                assert found["rows"] == [index + 0.5]
                assert answer.json()["outputs"][0]["shape"] == []


def recurrent() -> onnx.ModelProto:
    """Return a state that has its batch on the second axis, as recurrent layers have."""
    return graphs.build(
        [
            helper.make_node("Unsqueeze", ["x", "axis"], ["once"]),
            helper.make_node("Concat", ["once", "once", "once"], ["state"], axis=0),
            helper.make_node("Identity", ["x"], ["y"]),
        ],
        [graphs.value("x", TensorProto.FLOAT, ("N", 4))],
        [
            graphs.value("y", TensorProto.FLOAT, ("N", 4)),
            graphs.value("state", TensorProto.FLOAT, (3, "N", 4)),
        ],
        [graphs.weights("axis", np.array([0], np.int64))],
    )


async def test_g16_a_state_with_its_batch_elsewhere_never_crosses(server: RunningServer) -> None:
    """Three layers, three callers: each gets the three layers of its own row."""
    server.push("state", ballast(recurrent(), "x"))
    assert not is_batched(server, "state")[0]
    async with callers(server) as client:
        answers = await together(
            3, lambda i: ask(client, "state", tensor("x", "FP32", [1, 4], own_row(i)))
        )
    for index, answer in enumerate(answers):
        assert outputs_of(answer) == {"y": own_row(index), "state": own_row(index) * 3}
