"""Lifecycle cases through real sockets: loads, unloads, damage, and what callers see of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import graphs
from tests.cases.rig import (
    MIB,
    ROW,
    WITNESS,
    Callers,
    anonymous_bytes,
    callers,
    forget,
    load_refused,
    metric,
    outputs_of,
    publish_graph,
    push_refused,
    ramrack,
    state_of,
    steady_traffic,
    tensor,
    together,
    unload,
)
from tests.process.server import RunningServer, infer_body, running_server, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
BUDGET_MB = 64


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {
        "memory_budget": f"{BUDGET_MB}MiB",
        "inspect_memory": "256MiB",
        "timeout_ms": 60_000,
    }
    with running_server(tmp_path_factory.mktemp("c"), workers=2, settings=settings) as running:
        running.push(WITNESS, graphs.id32())
        yield running


@pytest.fixture
def server(running: RunningServer) -> Iterator[RunningServer]:
    """The one server of this file; its parent and the witness outlive every test."""
    running.wait_until_ready()
    with steady_traffic(running):
        yield running
    assert running.process.poll() is None


def table(mb: int, seed: int = 0) -> np.ndarray:
    """Return the table that ``graphs.big`` gathers from."""
    return np.random.default_rng(seed).standard_normal((mb * 4096, 64), dtype=np.float32)


def gathered(
    server: RunningServer, name: str, index: int, selector: str = "", **options: Any
) -> httpx.Response:
    body = {"inputs": [tensor("idx", "INT64", [1], [index])]}
    return server.data("POST", f"/v2/models/{name}{selector}/infer", json=body, **options)


def is_row(answer: httpx.Response, expected: np.ndarray) -> bool:
    return np.array_equal(np.array(outputs_of(answer)["y"], np.float32), expected)


def from_every_worker(ask: Callable[[], bool], times: int = 24) -> bool:
    """Ask on so many connections that each worker gets some."""
    return all(ask() for _ in range(times))


def infer_v(server: RunningServer, name: str, version: int | str) -> httpx.Response:
    path = f"/v2/models/{name}/versions/{version}/infer"
    return server.data("POST", path, json=infer_body([ROW]))


def version_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["model_version"]
    return found


# C01: memory.


def test_c01_memory_comes_back_after_each_unload(server: RunningServer) -> None:
    """Loads and unloads, alone and over one another, leave less than a MiB each behind."""
    server.push("cycle", graphs.id32())
    mapped = [server.push("cycle", graphs.big(8, seed), is_loading=False) for seed in (1, 2)]
    private = server.push("cycle", graphs.slow(4, 512), is_loading=False)
    pids = server.worker_pids()
    warm, cycles = [0] * len(pids), 4
    for cycle in range(cycles):
        for version in mapped:
            server.expect(server.load("cycle", version))
            assert gathered(server, "cycle", 9, f"/versions/{version}").status_code == 200
        server.expect(server.load("cycle", private))
        for version in (*mapped, private):
            server.expect(unload(server, "cycle", version))
        if cycle == 1:
            warm = [anonymous_bytes(pid) for pid in pids]
    grown = [anonymous_bytes(pid) - old for pid, old in zip(pids, warm, strict=True)]
    assert max(grown) < (cycles - 2) * MIB
    assert server.worker_pids() == pids
    for pid in pids:
        large = {entry.name for entry in objects_over(server, MIB)}
        assert not [name for name in large if name in Path(f"/proc/{pid}/maps").read_text()]
    memory = server.expect(server.admin("GET", "/admin/v1/memory"))
    assert memory["free_bytes"] == memory["budget_bytes"] - memory["committed_bytes"]


def objects_over(server: RunningServer, size_bytes: int) -> list[Path]:
    folder = server.store / "objects"
    return [path for path in folder.iterdir() if path.stat().st_size >= size_bytes]


# C02: a load that fails.


def fails_at_warm_up() -> onnx.ModelProto:
    """Return a graph that opens, and fails on whatever it is asked."""
    return graphs.build(
        [
            helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
            helper.make_node("Cast", ["sum"], ["number"], to=TensorProto.INT64),
            helper.make_node("Mul", ["number", "zero"], ["none"]),
            helper.make_node("Add", ["none", "past"], ["index"]),
            helper.make_node("Gather", ["pair", "index"], ["picked"]),
            helper.make_node("Add", ["x", "picked"], ["y"]),
        ],
        [graphs.value("x", TensorProto.FLOAT, ("N", 4))],
        [graphs.value("y", TensorProto.FLOAT, ("N", 4))],
        [
            graphs.weights("zero", np.array(0, np.int64)),
            graphs.weights("past", np.array(99, np.int64)),
            graphs.weights("pair", np.array([1.0, 2.0], np.float32)),
        ],
    )


def of_the_future() -> onnx.ModelProto:
    model = graphs.id32()
    model.opset_import[0].version = 99
    return model


def without_its_data() -> onnx.ModelProto:
    fields = {"location": "ab" * 32, "offset": "0", "length": "16"}
    model = graphs.id32()
    model.graph.initializer.append(graphs.external_tensor("t", (4,), fields))
    model.graph.node[0].CopyFrom(helper.make_node("Add", ["x", "t"], ["y"]))
    return model


BAD = {
    "truncated": (lambda: graphs.id32().SerializeToString()[:-9], "damaged or truncated"),
    "opset": (lambda: of_the_future().SerializeToString(), "opset 99"),
    "no data": (lambda: without_its_data().SerializeToString(), "external location"),
    "warm-up": (lambda: fails_at_warm_up().SerializeToString(), "fails on every input"),
}


@pytest.mark.parametrize(("graph", "reason"), BAD.values(), ids=BAD.keys())
def test_c02_a_failed_load_leaves_the_serving_version_alone(
    server: RunningServer, graph: Callable[[], bytes], reason: str
) -> None:
    """The new version is FAILED with its reason; no request of the old one notices."""
    version = publish_graph(server, WITNESS, graph())
    assert reason in load_refused(server, WITNESS, version)
    assert version_of(server.infer(WITNESS, [ROW])) == "1"
    assert infer_v(server, WITNESS, version).status_code == 503
    assert server.admin("GET", "/v2/health/ready").status_code == 200
    forget(server, WITNESS, version)


def test_c02_too_big_for_the_budget_is_refused_with_the_plan(server: RunningServer) -> None:
    """A 507 says what it needs and what is free; a good version loads right after it."""
    version = server.push(WITNESS, graphs.big(BUDGET_MB + 8), is_loading=False)
    answer = server.load(WITNESS, version)
    assert answer.status_code == 507
    plan = answer.json()["plan"]
    assert plan["needs_bytes"] > plan["free_bytes"]
    assert state_of(server, WITNESS, version)[0] == "FAILED"
    assert version_of(server.infer(WITNESS, [ROW])) == "1"
    forget(server, WITNESS, version)
    good = server.push(WITNESS, graphs.identity(TensorProto.FLOAT, ("rows", 4)))
    assert version_of(infer_v(server, WITNESS, good)) == str(good)
    assert version_of(server.infer(WITNESS, [ROW])) == "1"
    server.expect(unload(server, WITNESS, good))
    forget(server, WITNESS, good)


# C04: files that change under a version.


def overwrite(path: Path, data: bytes) -> None:
    """Change a file in place, as a careless copy does: the same inode, other bytes."""
    mode = path.stat().st_mode
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.truncate(len(data))
        file.write(data)
    path.chmod(mode)


def object_of(server: RunningServer, name: str) -> Path:
    """Return the file of a version's only tensor."""
    path = next((server.store / "models" / name / "versions").glob("1.json"))
    (digest,) = {word for word in path.read_text().split('"') if word.startswith("sha256:")} & {
        f"sha256:{entry.name}" for entry in objects_over(server, MIB)
    }
    return server.store / "objects" / digest.removeprefix("sha256:")


def test_c04_the_pushed_files_may_change_afterwards(server: RunningServer, tmp_path: Path) -> None:
    """A version is what was pushed, whatever becomes of the files, also in a new worker."""
    path = graphs.ext(tmp_path, mb=2, seed=3)
    done = ramrack(server, "push", "copied", path, "--load")
    assert done.returncode == 0, done.stderr
    row = table(2, 3)[5000]
    assert is_row(gathered(server, "copied", 5000), row)
    overwrite(tmp_path / "weights.bin", table(2, 4).tobytes())
    assert is_row(gathered(server, "copied", 5000), row)
    overwrite(tmp_path / "weights.bin", b"")
    assert is_row(gathered(server, "copied", 5000), row)


def killed(server: RunningServer, slot: int) -> None:
    """Kill a worker between two requests, and wait until its slot serves again."""
    before = server.workers()[slot]["restarts"]
    os.kill(server.worker_pids()[slot], signal.SIGKILL)
    wait_until(lambda: server.workers()[slot]["restarts"] > before, 60, "the death is noticed")
    server.wait_until_ready()


@pytest.fixture
def unwatched(running: RunningServer) -> Iterator[RunningServer]:
    """The server for tests that kill workers, which costs what is in flight in them."""
    running.wait_until_ready()
    yield running
    running.wait_until_ready()
    assert running.process.poll() is None
    assert from_every_worker(lambda: running.infer(WITNESS, [ROW]).status_code == 200)


def test_c04_a_replaced_worker_serves_what_its_sibling_serves(unwatched: RunningServer) -> None:
    """After a kill both answer with the same weights."""
    server = unwatched
    server.push("twins", graphs.big(2, seed=5))
    row = table(2, 5)[7000]
    killed(server, 0)
    assert from_every_worker(lambda: is_row(gathered(server, "twins", 7000), row))


def test_c04_an_object_that_was_overwritten_is_found_by_its_digest(
    unwatched: RunningServer,
) -> None:
    """No new worker maps other weights than its sibling: the version is FAILED, others serve."""
    server = unwatched
    server.push("overwritten", graphs.big(2, seed=6))
    path = object_of(server, "overwritten")
    overwrite(path, table(2, 7).tobytes())
    killed(server, 1)
    wait_until(lambda: state_of(server, "overwritten", 1)[0] == "FAILED", 60, "it is found")
    assert path.name in state_of(server, "overwritten", 1)[1]
    wait_until(
        lambda: from_every_worker(lambda: gathered(server, "overwritten", 1).status_code == 503),
        60,
        "no worker serves it any more",
    )
    assert from_every_worker(lambda: server.infer(WITNESS, [ROW]).status_code == 200)


def test_c04_an_object_that_was_truncated_costs_its_own_version_only(
    unwatched: RunningServer,
) -> None:
    """Who reads it dies; the next worker is started without it; good bytes make it whole again."""
    server = unwatched
    model = graphs.big(2, seed=8)
    server.push("truncated", model)
    overwrite(object_of(server, "truncated"), b"")
    with contextlib.suppress(httpx.TransportError):
        assert gathered(server, "truncated", 8000).status_code >= 500
    wait_until(lambda: state_of(server, "truncated", 1)[0] == "FAILED", 60, "it is found")
    server.wait_until_ready()
    assert from_every_worker(lambda: server.infer(WITNESS, [ROW]).status_code == 200)
    assert gathered(server, "truncated", 8000).status_code == 503
    assert server.push("truncated", graphs.big(2, seed=8)) == 1
    row = table(2, 8)[8000]
    assert from_every_worker(lambda: is_row(gathered(server, "truncated", 8000), row))


# C05 and C07: version numbers.


def test_c05_versions_are_ordered_as_numbers(server: RunningServer) -> None:
    """10 comes after 9, and the latest is 10, not 9."""
    numbers = [
        server.push("order", graphs.identity(TensorProto.FLOAT, (f"n{i}", 4)), is_loading=False)
        for i in range(10)
    ]
    assert numbers == list(range(1, 11))
    for version in (9, 10):
        server.expect(server.load("order", version))
    found = server.expect(server.admin("GET", "/admin/v1/models/order"))
    assert [entry["version"] for entry in found["versions"]] == numbers
    index = server.data("POST", "/v2/repository/index").json()
    ready = [e["version"] for e in index if e["name"] == "order" and e["state"] == "READY"]
    assert ready == ["9", "10"]
    assert version_of(infer_v(server, "order", "latest")) == "10"
    assert version_of(server.infer("order", [ROW])) == "9"
    server.expect(server.admin("PUT", "/admin/v1/models/order/route", json={"latest": True}))
    wait_until(lambda: version_of(server.infer("order", [ROW])) == "10", 30, "it is routed")


@pytest.mark.parametrize(
    "text", ["010", "01", "1.0", "+1", "-1", "3.bak", ".tmp", "0", "1e0", "\u0661"]
)
def test_c05_what_is_no_canonical_number_is_refused(server: RunningServer, text: str) -> None:
    """``010`` is not another name of 10, on either plane."""
    answer = infer_v(server, WITNESS, text)
    assert answer.status_code == 400
    assert "version" in answer.json()["error"]
    for method, end in (("GET", ""), ("POST", ":load"), ("DELETE", "")):
        answer = server.admin(method, f"/admin/v1/models/{WITNESS}/versions/{text}{end}")
        assert answer.status_code == 400, answer.text


def test_c07_a_number_is_never_given_twice(server: RunningServer) -> None:
    """A deleted version's number stays gone, also for the same bytes, and caches never mix."""
    models = [graphs.gath(10 + i) for i in range(3)]
    for expected, model in enumerate(models[:2], start=1):
        assert server.push("numbers", model, is_loading=False) == expected
    forget(server, "numbers", 2)
    assert server.push("numbers", models[2], is_loading=False) == 3
    forget(server, "numbers", 3)
    assert server.push("numbers", graphs.gath(11)) == 4
    path = "/admin/v1/models/numbers/versions/{}"
    assert server.admin("GET", path.format(2)).status_code == 404
    assert infer_v(server, "numbers", 2).status_code == 404
    assert server.load("numbers", 3).status_code == 404
    assert outputs_of(gathered(server, "numbers", 10))["y"] == [40.0, 41.0, 42.0, 43.0]


# C08: many callers at once.


def test_c08_parallel_loads_are_one(server: RunningServer) -> None:
    """Eight callers who load the same version get one load, and each a good answer."""
    version = server.push("parallel", graphs.gath(20), is_loading=False)
    before = metric(server, "ramrack_loads_total")
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: server.load("parallel", version), range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8
    assert metric(server, "ramrack_loads_total") - before == 1


async def test_c08_loads_and_unloads_under_traffic_end_as_the_last_one_said(
    server: RunningServer,
) -> None:
    """Callers get right answers or a 503, never a 500; each admin call gets a definite answer."""
    server.push("hammered", graphs.id32())
    version = server.push("hammered", graphs.identity(TensorProto.FLOAT, ("rows", 4)))
    path = f"/v2/models/hammered/versions/{version}/infer"
    is_over, codes = asyncio.Event(), set()

    async def ask(client: Callers) -> None:
        while not is_over.is_set():
            answer = await client.post(path, json=infer_body([ROW]))
            codes.add(answer.status_code)
            if answer.status_code == 200:
                assert outputs_of(answer)["y"] == ROW

    def change(caller: int) -> list[int]:
        choice = random.Random(caller)
        calls = (server.load, lambda n, v: unload(server, n, v))
        return [choice.choice(calls)("hammered", version).status_code for _ in range(5)]

    async with callers(server) as client, asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(ask(client))
        changes = await asyncio.gather(*(asyncio.to_thread(change, i) for i in range(4)))
        # A load that another caller unloaded meanwhile says so, as a conflict.
        assert {code for answers in changes for code in answers} <= {200, 409}
        server.expect(await asyncio.to_thread(unload, server, "hammered", version))
        assert (await client.post(path, json=infer_body([ROW]))).status_code == 503
        server.expect(await asyncio.to_thread(server.load, "hammered", version))
        assert version_of(await client.post(path, json=infer_body([ROW]))) == str(version)
        is_over.set()
    assert codes <= {200, 503}
    assert codes >= {200}


# C10 and C11: unloads.


def test_c10_what_an_unload_gave_back_can_be_taken_at_once(server: RunningServer) -> None:
    """Two versions that do not fit together follow each other without a refusal."""
    size = BUDGET_MB * 6 // 10
    server.push("turns", graphs.id32())
    versions = [server.push("turns", graphs.big(size, seed), is_loading=False) for seed in (1, 2)]
    server.expect(server.load("turns", versions[0]))
    assert server.load("turns", versions[1]).status_code == 507
    server.expect(unload(server, "turns", versions[0]))
    for version in (versions[1], versions[0], versions[1]):
        server.expect(server.load("turns", version))
        server.expect(unload(server, "turns", version))
    for version in versions:
        forget(server, "turns", version)


async def test_c11_an_unload_waits_for_what_is_under_way(server: RunningServer) -> None:
    """Running and queued requests get their answers first; later ones are a 503 with the reason."""
    server.push("used", graphs.id32())
    version = server.push("used", graphs.slow(120, 192))
    path = f"/v2/models/used/versions/{version}/infer"
    ended: list[int] = []

    async with callers(server) as client:

        async def ask(index: int) -> httpx.Response:
            body = {"inputs": [tensor("X", "FP32", [1, 1], [float(index)])]}
            answer = await client.post(path, json=body)
            ended.append(index)
            return answer

        asked = asyncio.create_task(together(70, ask), name="callers")
        await asyncio.to_thread(
            wait_until,
            lambda: metric(server, "ramrack_queue_depth", model="used") > 0,
            60,
            "some wait",
        )
        gone = await asyncio.to_thread(unload, server, "used", version)
        ended_before = len(ended)
        answers = await asked
        late = await ask(0)
    server.expect(gone)
    good = [i for i, answer in enumerate(answers) if answer.status_code == 200]
    assert len(good) >= 2
    assert all(outputs_of(answers[i])["Y"] == [float(i)] for i in good)
    assert {answer.status_code for answer in answers} <= {200, 503}
    # The session went after the last of them; only their last bytes may still be on the way.
    assert ended_before >= len(good) - 2
    assert late.status_code == 503
    assert "UNLOADED" in late.json()["error"]


# C13: external data.


def test_c13_external_data_is_found_beside_its_model(server: RunningServer, tmp_path: Path) -> None:
    """From another folder, after a move, and beside one of equal name: each its own weights."""
    for seed in (1, 2):
        folder = tmp_path / f"first{seed}"
        folder.mkdir()
        graphs.ext(folder, mb=1, seed=seed)
        folder.rename(tmp_path / f"moved{seed}")
        done = ramrack(
            server, "push", f"ext{seed}", tmp_path / f"moved{seed}" / "model.onnx", "--load"
        )
        assert done.returncode == 0, done.stderr
        shutil.rmtree(tmp_path / f"moved{seed}")
    for seed in (1, 2):
        row = table(1, seed)[4000]
        assert from_every_worker(lambda s=seed, r=row: is_row(gathered(server, f"ext{s}", 4000), r))


def test_c13_a_model_without_its_weights_is_refused(server: RunningServer, tmp_path: Path) -> None:
    """The file that is missing is named, and nothing is sent."""
    path = graphs.ext(tmp_path, mb=1)
    (tmp_path / "weights.bin").unlink()
    assert "weights.bin" in push_refused(server, "lonely", path)
    assert server.admin("GET", "/admin/v1/models/lonely").status_code == 404


def test_c13_a_graph_without_its_tensor_object_is_refused(server: RunningServer) -> None:
    """A graph uploaded alone, whose weights stayed behind, fails at its load."""
    model = without_its_data()
    version = publish_graph(server, "lonely", model.SerializeToString())
    assert "no tensor of the manifest" in load_refused(server, "lonely", version)
    forget(server, "lonely", version)


# C14: corrupt files.


def untyped() -> onnx.ModelProto:
    model = graphs.id32()
    model.graph.input[0].ClearField("type")
    return model


def corrupt() -> dict[str, bytes]:
    good = graphs.gemm(4, 4).SerializeToString()
    return {
        "10 %": good[: len(good) // 10],
        "50 %": good[: len(good) // 2],
        "99 %": good[: len(good) * 99 // 100],
        "empty": b"",
        "LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        "HTML": b"<!DOCTYPE html><html>not found</html>",
        "untyped": untyped().SerializeToString(),
    }


def test_c14_a_corrupt_graph_is_refused_and_a_good_one_loads_next(server: RunningServer) -> None:
    """Each is FAILED with a reason, no process notices, and the model's next version is good."""
    pids = server.worker_pids()
    for kind, data in corrupt().items():
        version = publish_graph(server, "corrupt", data)
        assert load_refused(server, "corrupt", version), kind
    good = server.push("corrupt", graphs.id32())
    assert outputs_of(server.infer("corrupt", [ROW]))["y"] == ROW
    assert version_of(server.infer("corrupt", [ROW])) == str(good)
    assert server.worker_pids() == pids


def test_c14_flipped_bytes_are_refused_or_harmless(server: RunningServer) -> None:
    """A graph with one byte changed loads or is refused; it takes no process with it."""
    pids = server.worker_pids()
    server.push("flipped", graphs.id32())
    good = graphs.gemm(4, 4).SerializeToString()
    choice = random.Random(14)
    for _ in range(6):
        data = bytearray(good)
        data[choice.randrange(len(data))] ^= choice.randrange(1, 256)
        version = publish_graph(server, "flipped", bytes(data))
        answer = server.load("flipped", version)
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
        server.expect(unload(server, "flipped", version))
    assert server.worker_pids() == pids


def test_c14_a_corrupt_file_is_refused_by_a_push(server: RunningServer, tmp_path: Path) -> None:
    """What it looks like is said, and nothing is sent; a folder is no model either."""
    words = {"empty": "empty", "LFS": "LFS", "HTML": "web page", "50 %": "truncated"}
    files = corrupt()
    for kind, word in words.items():
        path = tmp_path / "model.onnx"
        path.write_bytes(files[kind])
        assert word in push_refused(server, "corrupt", path)
    (tmp_path / "folder.onnx").mkdir()
    assert "folder" in push_refused(server, "corrupt", tmp_path / "folder.onnx")
