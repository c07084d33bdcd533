"""What the case tests share: hostile versions made by hand, steady traffic, and a look around."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
from onnx import TensorProto, helper

from tests import graphs
from tests.process.server import ROOT, RunningServer, infer_body, wait_until

ROW = [1.0, 2.0, 3.0, 4.0]
WITNESS = "witness"
MIB = 1 << 20
TENSORS: tuple[Mapping[str, object], ...] = ()


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def upload(server: RunningServer, data: bytes) -> str:
    """Store one object; return its digest."""
    digest = digest_of(data)
    server.expect(server.admin("PUT", f"/admin/v1/blobs/{digest}", content=data))
    return digest


def manifest_of(
    name: str, graph: str, tensors: Sequence[Mapping[str, object]] = TENSORS
) -> dict[str, Any]:
    """Return a manifest that says of any graph that it is an identity of ``x``."""
    spec = {"datatype": "FP32", "shape": [-1, 4]}
    return {
        "format": 1,
        "model": name,
        "graph": graph,
        "tensors": list(tensors),
        "signature": {
            "inputs": [{"name": "x", **spec}],
            "outputs": [{"name": "y", **spec}],
        },
        "runtime": {"name": "onnx"},
    }


def publish(server: RunningServer, document: Mapping[str, Any]) -> httpx.Response:
    return server.admin("POST", f"/admin/v1/models/{document['model']}/versions", json=document)


def publish_graph(
    server: RunningServer,
    name: str,
    graph: bytes,
    tensors: Sequence[Mapping[str, object]] = TENSORS,
) -> int:
    """Publish the bytes of a graph past every check of the pusher's side; return the version."""
    document = manifest_of(name, upload(server, graph), tensors)
    version: int = server.expect(publish(server, document))["version"]
    return version


def load_refused(server: RunningServer, name: str, version: int) -> str:
    """Load a version that must be refused; return the reason, which is in its state as well."""
    answer = server.load(name, version)
    assert 400 <= answer.status_code < 500, f"{answer.status_code}: {answer.text}"
    reason: str = answer.json()["error"]
    assert state_of(server, name, version) == ("FAILED", reason)
    assert not says_too_much(reason), reason
    return reason


def state_of(server: RunningServer, name: str, version: int) -> tuple[str, str]:
    path = f"/admin/v1/models/{name}/versions/{version}"
    found = server.expect(server.admin("GET", path))
    return found["state"], found["reason"]


def unload(server: RunningServer, name: str, version: int) -> httpx.Response:
    path = f"/admin/v1/models/{name}/versions/{version}:unload"
    return server.admin("POST", path, params={"wait": 80})


def forget(server: RunningServer, name: str, version: int) -> None:
    """Remove a version and its objects, as the owner of the server would."""
    server.expect(server.admin("DELETE", f"/admin/v1/models/{name}/versions/{version}"))
    server.expect(server.admin("POST", "/admin/v1/gc"))


def says_too_much(text: str) -> bool:
    """Whether a message gives away a path of the machine or the code behind it."""
    return "Traceback" in text or str(ROOT) in text or "/tmp/" in text


def listing(server: RunningServer) -> set[str]:
    """Return every path of the store but for numbers.json, which remembers deleted versions."""
    return {
        str(path.relative_to(server.store))
        for path in server.store.rglob("*")
        if path.is_file() and path.name != "numbers.json"
    }


@dataclass
class Traffic:
    """What a steady client saw: how often it asked, and every answer that was not right."""

    asked: int = 0
    wrong: list[str] = field(default_factory=list)


@contextlib.contextmanager
def steady_traffic(server: RunningServer, name: str = WITNESS) -> Iterator[Traffic]:
    """Ask an identity without a pause for the block, and at least once at its end."""
    traffic, stop = Traffic(), threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=60, trust_env=False, verify=False) as client:
            is_over = False
            while not is_over:
                is_over = stop.is_set()
                answer = client.post(f"/v2/models/{name}/infer", json=infer_body([ROW]))
                traffic.asked += 1
                if answer.status_code != 200 or answer.json()["outputs"][0]["data"] != ROW:
                    traffic.wrong.append(answer.text)
                # Enough to notice a gap, and the two cores are left to what is tested.
                stop.wait(0.02)

    thread = threading.Thread(target=ask, name="steady traffic")
    thread.start()
    try:
        yield traffic
    finally:
        stop.set()
        thread.join(120)
    assert traffic.asked > 0
    assert traffic.wrong == []


@contextlib.contextmanager
def untouched(server: RunningServer) -> Iterator[None]:
    """Hold that the block leaves nothing behind and touches nothing that serves.

    The store has the same files, parent and workers are the same processes, and the witness
    answered rightly all the while.
    """
    before, pids = listing(server), server.worker_pids()
    with steady_traffic(server):
        yield
    # A half upload is cleared away when the server has noticed that its client is gone.
    wait_until(lambda: listing(server) <= before, 30, "nothing is left behind")
    assert listing(server) == before
    assert server.process.poll() is None
    assert server.worker_pids() == pids


def ramrack(server: RunningServer, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the real command against a server."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "serving.cli", *map(str, arguments)],
        cwd="/",
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "RAMRACK_URL": server.url,
            "RAMRACK_ADMIN_URL": server.admin_url,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def push_refused(server: RunningServer, *arguments: object) -> str:
    """Run a push that must be refused before anything is sent; return what it said."""
    before = listing(server)
    done = ramrack(server, "push", *arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr
    assert listing(server) == before
    return done.stderr


def tensor(
    name: str, datatype: str, shape: Sequence[int], data: Sequence[object]
) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": list(data)}


def outputs_of(answer: httpx.Response) -> dict[str, Any]:
    """Return the data of each output of a good answer, in their order."""
    assert answer.status_code == 200, f"{answer.status_code}: {answer.text}"
    return {output["name"]: output["data"] for output in answer.json()["outputs"]}


class Callers:
    """Many callers at once, each on a connection of its own that is kept.

    Plain sockets: a full HTTP client is slower than the server and would not keep it busy.
    """

    def __init__(self, url: str) -> None:
        self._host, self._port = url.removeprefix("http://").split(":")
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._open: list[asyncio.StreamWriter] = []

    async def post(self, path: str, json: Mapping[str, Any]) -> httpx.Response:
        """Send one request and return its whole answer."""
        async with asyncio.timeout(90):
            reader, writer = await self._connection()
            body = dumps(json).encode()
            head = (
                f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = [tuple(line.split(": ", 1)) for line in lines[1:] if line]
            answer = httpx.Response(int(lines[0].split()[1]), headers=headers)
            content = await reader.readexactly(int(answer.headers["content-length"]))
            if answer.headers.get("connection") != "close":
                self._idle.append((reader, writer))
        return httpx.Response(answer.status_code, headers=headers, content=content)

    def close(self) -> None:
        """Hang up."""
        for writer in self._open:
            writer.close()

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._idle:
            return self._idle.pop()
        reader, writer = await asyncio.open_connection(self._host, int(self._port))
        self._open.append(writer)
        return reader, writer


@contextlib.asynccontextmanager
async def callers(server: RunningServer) -> AsyncIterator[Callers]:
    """Callers of the data plane, hung up at the end."""
    found = Callers(server.url)
    try:
        yield found
    finally:
        found.close()


async def together(
    count: int, call: Callable[[int], Awaitable[httpx.Response]]
) -> list[httpx.Response]:
    """Make ``count`` calls, up to 64 of them at once; return their answers in order."""
    gate = asyncio.Semaphore(64)

    async def one(index: int) -> httpx.Response:
        async with gate:
            return await call(index)

    return list(await asyncio.gather(*(one(index) for index in range(count))))


def statistics(server: RunningServer, name: str, version: int = 1) -> dict[str, Any]:
    """Return the statistics of a version, summed over the workers."""
    answer = server.data("GET", f"/v2/models/{name}/versions/{version}/stats")
    found: dict[str, Any] = server.expect(answer)["model_stats"][0]
    return found


def metric(server: RunningServer, name: str, **labels: str) -> float:
    """Return the sum of the samples of a metric that carry these labels."""
    wanted = {f'{key}="{text}"' for key, text in labels.items()}
    total = 0.0
    for line in server.admin("GET", "/metrics").text.splitlines():
        series, _, number = line.rpartition(" ")
        given, _, rest = series.partition("{")
        if given == name and wanted <= set(rest.rstrip("}").split(",")):
            total += float(number)
    return total


def anonymous_bytes(pid: int) -> int:
    """Return the private memory of a process that no file backs."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no process {pid}")


def ballast(
    model: onnx.ModelProto, row_input: str, products: int = 24, width: int = 256
) -> onnx.ModelProto:
    """Make each run of a graph take some 20 ms, whatever its rows, and change no answer.

    What arrives while such a run is under way shares the next one, so merging is seen to happen.
    """
    first = [
        helper.make_node("Shape", [row_input], ["b_shape"], start=0, end=1),
        helper.make_node("Cast", ["b_shape"], ["b_rows"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["b_zeros", "b_rows"], ["b_0"]),
        *(
            helper.make_node("MatMul", [f"b_{i}", "b_zeros"], [f"b_{i + 1}"])
            for i in range(products)
        ),
        helper.make_node("ReduceMax", [f"b_{products}"], ["b_max"], keepdims=0),
    ]
    last = []
    for output in model.graph.output:
        name, kind = output.name, output.type.tensor_type.elem_type
        for node in model.graph.node:
            renamed = [f"{name}_plain" if text == name else text for text in node.output]
            node.output[:] = renamed
        last += [
            helper.make_node("Cast", ["b_max"], [f"{name}_zero"], to=kind),
            helper.make_node("Add", [f"{name}_plain", f"{name}_zero"], [name]),
        ]
    nodes = [*first, *model.graph.node, *last]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    zeros = np.zeros((width, width), np.float32)
    model.graph.initializer.append(graphs.weights("b_zeros", zeros))
    return model
