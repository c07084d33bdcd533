"""What the soak does to a server at once: each step again and again, by a thread of its own."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from loadtest.faults.bad_requests import ask_endless, waves
from loadtest.faults.crew import Mishap, Step
from loadtest.faults.echo import Connection, Question
from loadtest.faults.lab import PATIENCE_S, Lab, judge_recovery
from loadtest.faults.outcome import Outcome
from loadtest.faults.server import FaultServer, good
from loadtest.faults.worker_deaths import Death, end_worker
from loadtest.lab.processes import LabFailed
from loadtest.swap_under_load import Change

_INFER: Final = "/v2/models/echo/infer"
_PAGES: Final = (
    "/v2", "/v2/health/ready", "/v2/models", "/v2/models/echo", "/v2/models/echo/stats",
    "/v1/models/echo", "/openapi.json", "/docs",
)  # fmt: skip
# What a change may be answered with while a worker dies.
_LATER: Final = frozenset({503, 504})
_LEAVERS: Final = 10
_SLOW: Final = 6
_SLOW_S: Final = 1.0
_JSON: Final = {"content-type": "application/json"}
_BINARY: Final = "Inference-Header-Content-Length"
# The worker of slot 0 is never killed: what leaks needs somebody who lives.
SPARED_SLOT: Final = 0


def _raw(body: bytes, headers: str = "content-type: application/json\r\n") -> bytes:
    length = f"content-length: {len(body)}\r\n"
    return f"POST {_INFER} HTTP/1.1\r\nhost: x\r\n{headers}{length}\r\n".encode() + body


def _tensor(**changed: object) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]} | changed
    return json.dumps({"inputs": [tensor]}).encode()


# Each with whether the server may close the connection without a word.
MALFORMED: Final[tuple[tuple[bytes, bool], ...]] = (
    (_raw(b"{"), False),
    (_raw(b"[" * 5000), False),
    (_raw(b"\xff\x00" * 50), False),
    (_raw(_tensor(shape=[2, 4])), False),
    (_raw(_tensor(shape=[2**40, 2**40])), False),
    (_raw(_tensor(data=["a"] * 4)), False),
    (_raw(_tensor(name="nobody")), False),
    (_raw(_tensor(), f"{_BINARY}: 99999\r\n"), False),
    (_raw(_tensor(), "content-type: image/png\r\n"), False),
    (_raw(b"\x1f\x8b\x08" + b"\x00" * 40, "content-encoding: gzip\r\n"), False),
    (_raw(_tensor()).replace(b"/echo/", b"/nobody/"), False),
    (_raw(_tensor(), f"x-long: {'a' * 20_000}\r\n"), True),
    (_raw(_tensor(), "transfer-encoding: chunked\r\n"), True),
    (b"\x16\x03\x01\x02\x00\x01\x00" * 8 + b"\r\n\r\n", True),
)


@dataclass(slots=True)
class Soak:
    """What is done to one server, and what that came to."""

    lab: Lab
    server: FaultServer
    outcome: Outcome
    deaths: list[Death] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    put_off: Counter[str] = field(default_factory=Counter)
    published: int = 0
    _turns: Counter[str] = field(default_factory=Counter)

    def steps(self) -> dict[str, tuple[Step, float]]:
        """Return all steps with the seconds between two rounds of each."""
        return {
            "swaps": (self.swap, 0.5), "loads": (self.load, 1.0), "uploads": (self.upload, 1.5),
            "gc": (self.collect, 2.0), "forms": (self.ask_all_forms, 0.3),
            "malformed": (self.ask_wrongly, 0.3), "slow": (self.be_slow, 1.0),
            "leavers": (self.leave, 1.0), "stuck": (self.be_stuck, 20.0),
            "kills": (self.kill, 12.0),
        }  # fmt: skip

    def _turn(self, who: str) -> int:
        self._turns[who] += 1
        return self._turns[who] - 1

    def swap(self, _dice: random.Random) -> None:
        """Route to the other version; the change is done once it was answered."""
        version = 2 - self._turn("swap") % 2
        body = {"split": [{"version": version, "weight": 100}]}
        began_ns = time.monotonic_ns()
        self._insist("swaps", lambda: self.server.call("PUT", "/admin/v1/models/echo/route", body))
        self.changes.append(Change(str(version), began_ns, time.monotonic_ns()))
        self._insist("swaps", lambda: self.server.call(
            "PUT", "/admin/v1/models/echo/aliases/live", {"version": version}
        ))  # fmt: skip

    def load(self, _dice: random.Random) -> None:
        """Take a version out and in again."""
        verb = ("unload", "load")[self._turn("load") % 2]
        path = f"/admin/v1/models/storm/versions/2:{verb}?wait=60"
        self._insist("loads", lambda: self.server.call("POST", path))

    def upload(self, _dice: random.Random) -> None:
        """Publish a version, load it, ask it, and take it away; gc may be in between."""
        number = 1 + self._turn("upload") % (self.lab.packages.spares - 1)
        package = self.lab.packages.spare(number)
        for digest, file in package.objects.items():
            good(self.server.call("PUT", f"/admin/v1/blobs/{digest}", content=file.read_bytes()))
        answer = self.server.call(
            "POST", f"/admin/v1/models/{package.model}/versions", package.manifest
        )
        if 400 <= answer.status_code < 500:
            self.put_off["uploads"] += 1
            return
        version = int(good(answer)["version"])
        self.published += 1
        path = f"/admin/v1/models/spare/versions/{version}"
        self._insist("uploads", lambda: self.server.call("POST", f"{path}:load?wait=60"))
        try:
            self._ask_spare(version, number)
        finally:
            # A killed worker must not keep the version: the next round publishes it again.
            self._insist("uploads", lambda: self.server.call("POST", f"{path}:unload?wait=60"))
            self._insist("uploads", lambda: self.server.call("DELETE", path))

    def _ask_spare(self, version: int, number: int) -> None:
        tensor = {"name": "index", "datatype": "INT64", "shape": [1], "data": [3]}
        with self._client() as client:
            answer = _asked(
                client, "POST", f"/v2/models/spare/versions/{version}/infer",
                content=json.dumps({"inputs": [tensor]}), headers=_JSON,
            )  # fmt: skip
        _expect(answer.json()["outputs"][0]["data"][0] == number, "spare answers another number")

    def collect(self, _dice: random.Random) -> None:
        """Collect what no version uses."""
        self._insist("gc", lambda: self.server.call("POST", "/admin/v1/gc", {}))

    def ask_all_forms(self, _dice: random.Random) -> None:
        """Ask on one connection in every form there is; each answer must be to its question."""
        with self._client() as client:
            for path in (_INFER, "/v2/models/echo/versions/2/infer",
                         "/v2/models/echo/versions/live/infer"):  # fmt: skip
                row, body = _question()
                _same(_asked(client, "POST", path, content=body, headers=_JSON), row)
            row, body = _question()
            packed = {**_JSON, "content-encoding": "gzip", "accept-encoding": "gzip"}
            _same(_asked(client, "POST", _INFER, content=gzip.compress(body), headers=packed), row)
            self._ask_binary(client)
            row, _ = _question()
            body = json.dumps({"instances": [row]}).encode()
            answer = _asked(client, "POST", "/v1/models/echo:predict", content=body, headers=_JSON)
            _expect(answer.json()["predictions"][0]["y"] == list(row), "V1 answers another row")
            for path in _PAGES:
                _asked(client, "GET", path)
            _asked(client, "POST", "/v2/repository/index", content=b"{}", headers=_JSON)

    def _ask_binary(self, client: httpx.Client) -> None:
        row, _ = _question()
        data = struct.pack("<4f", *row)
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4],
                  "parameters": {"binary_data_size": len(data)}}  # fmt: skip
        head = json.dumps(
            {"inputs": [tensor], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
        ).encode()
        headers = {"content-type": "application/octet-stream", _BINARY: str(len(head))}
        answer = _asked(client, "POST", _INFER, content=head + data, headers=headers)
        _expect(answer.content.endswith(data), "a binary answer has another row")

    def ask_wrongly(self, dice: random.Random) -> None:
        """Send what is no request, on a connection of its own: a 4xx, or it is closed."""
        wire, may_close = dice.choice(MALFORMED)
        status = asyncio.run(_status(self.server.port, wire))
        if status == 503 or (not status and not may_close):
            raise Mishap(f"{status or 'closed'}: {wire[:60]!r}")
        _expect(not status or 400 <= status < 500, f"{status} for {wire[:60]!r}")

    def be_slow(self, dice: random.Random) -> None:
        """Begin requests, go on byte by byte, and give up."""
        asyncio.run(_dawdle(self.server.port, _SLOW_S * dice.random()))

    def leave(self, _dice: random.Random) -> None:
        """Let clients leave before their answer."""
        asyncio.run(waves(self.server, _LEAVERS))

    def be_stuck(self, _dice: random.Random) -> None:
        """Ask for a run without an end: a 504."""
        try:
            answer = ask_endless(self.server)
        except httpx.TransportError as error:
            raise Mishap(f"closed: {error}") from None
        if answer.status_code == 503:
            raise Mishap(answer.text)
        _expect(answer.status_code == 504, f"{answer.status_code} {answer.text[:200]}")

    def kill(self, _dice: random.Random) -> None:
        """Kill a worker while the other one serves, and wait until it is back."""
        server = self.server
        server.wait_until(server.is_whole, PATIENCE_S, "a worker that may die")
        pids = [each["pid"] for each in server.workers() if each["slot"] != SPARED_SLOT]
        if not pids:
            raise LabFailed("there is only one worker")
        self.deaths.append(end_worker(server, pids[0]))
        took_s = server.wait_until(
            lambda: server.is_whole() and pids[0] not in server.worker_pids(), PATIENCE_S,
            "all workers are back",
        )  # fmt: skip
        judge_recovery(self.lab, self.outcome, took_s)

    def _insist(self, who: str, call: Callable[[], httpx.Response]) -> None:
        """Make a change again until it is done; raises LabFailed for an answer that is a fault."""
        end = time.monotonic() + PATIENCE_S
        while not (answer := call()).is_success:
            if answer.status_code not in _LATER or time.monotonic() > end:
                good(answer)
            self.put_off[f"{who} {answer.status_code}"] += 1
            time.sleep(0.1)

    def _client(self) -> httpx.Client:
        url = f"http://127.0.0.1:{self.server.port}"
        return httpx.Client(base_url=url, trust_env=False, timeout=30)


def _question() -> tuple[tuple[float, ...], bytes]:
    """Return a row that nobody else sends, and the body that asks with it."""
    question = Question.new(_INFER)
    return question.row, question.wire.partition(b"\r\n\r\n")[2]


def _asked(client: httpx.Client, method: str, path: str, **options: Any) -> httpx.Response:
    try:
        answer = client.request(method, path, **options)
    except httpx.TransportError as error:
        raise Mishap(f"{path}: {type(error).__name__}") from None
    if answer.status_code == 503:
        raise Mishap(f"{path}: {answer.text[:200]}")
    _expect(answer.is_success, f"{path}: {answer.status_code} {answer.text[:200]}")
    return answer


def _same(answer: httpx.Response, row: tuple[float, ...]) -> None:
    outputs = {each["name"]: each["data"] for each in answer.json()["outputs"]}
    mark = [float(answer.headers["x-ramrack-version"])]
    _expect(outputs == {"y": list(row), "version": mark}, f"an answer is another's: {outputs}")


def _expect(is_right: bool, why: str) -> None:
    if not is_right:
        raise LabFailed(why)


async def _status(port: int, wire: bytes) -> int:
    """Return the status of an answer, 0 where the connection is closed without one."""
    connection = await Connection.open(port)
    connection.send(wire)
    try:
        async with asyncio.timeout(30):
            return (await connection.answer()).status
    except (OSError, EOFError):
        return 0
    finally:
        connection.close()
        await asyncio.sleep(0)


async def _dawdle(port: int, seconds: float) -> None:
    clients = [await Connection.open(port) for _ in range(_SLOW)]
    wire = Question.new(_INFER).wire
    half = len(wire) // 2
    for number, client in enumerate(clients):
        client.send(wire[: (20, half, len(wire) - 5)[number % 3]])
    await asyncio.sleep(seconds)
    for client in clients:
        client.send(b"1")
    await asyncio.sleep(seconds)
    for client in clients:
        client.close()
    await asyncio.sleep(0)
