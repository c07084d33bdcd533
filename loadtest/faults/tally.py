"""What clients know of their requests, to hold a server's counters to: exact, deaths included.

A counter must say what its clients were answered. It may miss or have on top only what was in
flight in a worker that died: a request whose connection broke may have been counted, and the last
answer on that connection may have been sent and not yet counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import httpx

from loadtest.faults.echo import Connection
from loadtest.faults.server import FaultServer
from loadtest.lab.processes import LabFailed, log_end

# A counter's name and its labels.
Series: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
MODEL: Final = "echo"
_COLUMNS: Final = 4
_RETRY_S: Final = 0.02
_SCRAPE_EVERY_S: Final = 0.1
_RECOVERY_S: Final = 90.0


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, the status that it must get, and what that adds to which counter."""

    wire: bytes
    status: int
    adds: Mapping[Series, int]


@dataclass(slots=True)
class Tally:
    """What all clients saw. ``deaths``: of workers; ``fallen``: counters that once went back."""

    answered: Counter[Series] = field(default_factory=Counter)
    lost: Counter[Series] = field(default_factory=Counter)
    uncertain: Counter[Series] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    broken: int = 0
    deaths: int = 0
    scrapes: int = 0
    fallen: list[str] = field(default_factory=list)

    def count(self, ask: Ask, status: int) -> None:
        """Take an answer; one that a worker gave before it had its versions back counts alone."""
        self.statuses[status] += 1
        self.answered.update(ask.adds if status == ask.status else {requests(status): 1})

    def lose(self, ask: Ask, last: Ask | None) -> None:
        """Take a broken connection, with the last request on it that was answered."""
        self.broken += 1
        self.lost.update(ask.adds)
        if last is not None:
            self.uncertain.update(last.adds)

    def problems(self, counted: Mapping[Series, float]) -> list[str]:
        """Return which counters say what no client saw, and which fell."""
        found = [f"{name} fell" for name in self.fallen]
        for series, total in counted.items():
            least = self.answered[series] - self.uncertain[series]
            most = self.answered[series] + self.lost[series]
            if not least <= total <= most:
                found.append(f"{shown(series)} is {total:g}, must be within {least} to {most}")
        return found


def requests(status: int) -> Series:
    """Return the counter of all requests that got a status, whatever they asked for."""
    return "ramrack_requests_total", (("code", str(status)),)


def shown(series: Series) -> str:
    """Return a series as it stands on the page."""
    name, labels = series
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in labels) + "}"


def asks(rng: random.Random) -> Ask:
    """Return a request of a random kind: three in four are good ones."""
    kind = rng.random()
    if kind < 0.75:
        return _good(rng.randint(1, 3), rng.randint(0, 2))
    if kind < 0.85:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
        return Ask(_wire(MODEL, body), 400, _of_model({"ramrack_requests_total": 1}, code="400")
                   | {requests(400): 1})  # fmt: skip
    if kind < 0.95:
        return Ask(_wire("nobody", {}), 404, {requests(404): 1})
    rejected = ("ramrack_rejected_total", (("reason", "unsupported_media"),))
    return Ask(_wire(MODEL, {}, "image/png"), 415, {requests(415): 1, rejected: 1})


def _good(rows: int, nulls: int) -> Ask:
    data: list[float | None] = [0.5] * (rows * _COLUMNS)
    data[:nulls] = [None] * nulls
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, _COLUMNS], "data": data}
    adds = _of_model({
        "ramrack_rows_total": rows,
        "ramrack_batch_rows_sum": rows,
        "ramrack_missing_values_total": nulls,
        "ramrack_request_duration_seconds_count": 1,
        "ramrack_queue_duration_seconds_count": 1,
    })  # fmt: skip
    adds |= _of_model({"ramrack_request_duration_seconds_bucket": 1}, le="+Inf")
    adds |= _of_model({"ramrack_requests_total": 1}, code="200")
    return Ask(_wire(MODEL, {"inputs": [tensor]}), 200, adds | {requests(200): 1})


def _of_model(adds: Mapping[str, int], **labels: str) -> dict[Series, int]:
    where = (*labels.items(), ("model", MODEL))
    return {(name, where): count for name, count in adds.items()}


def _wire(model: str, body: object, media: str = "application/json") -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: loopback\r\n"
        f"content-type: {media}\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def count_through_deaths(
    server: FaultServer, seconds: float, *, clients: int = 8, seed: int = 1
) -> Tally:
    """Send requests for some seconds while workers are killed at random; return what was seen.

    When this returns all workers serve, and nothing is under way. Raises LabFailed where the server
    itself is gone.
    """
    tally, stop = Tally(), asyncio.Event()
    rngs = [random.Random(f"{seed}-{number}") for number in range(clients + 1)]
    lost: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            for rng in rngs[1:]:
                group.create_task(_client(server.port, tally, rng, stop))
            group.create_task(_scrape(server, tally, stop))
            group.create_task(_kill(server, tally, rngs[0], stop))
            await asyncio.sleep(seconds)
            stop.set()
    except* httpx.TransportError as errors:
        lost = errors
    if lost is not None:
        raise LabFailed(f"the server is gone: {log_end(server.log)}") from lost
    server.wait_until(server.is_whole, _RECOVERY_S, "all workers are back")
    server.wait_until(lambda: not server.metric("ramrack_in_flight"), _RECOVERY_S, "all is over")
    return tally


async def _client(port: int, tally: Tally, rng: random.Random, stop: asyncio.Event) -> None:
    while not stop.is_set():
        try:
            connection = await Connection.open(port)
        except OSError:
            await asyncio.sleep(_RETRY_S)
            continue
        last: Ask | None = None
        while not (stop.is_set() or connection.is_closed):
            ask = asks(rng)
            connection.send(ask.wire)
            try:
                answer = await connection.answer()
            except (OSError, EOFError):
                tally.lose(ask, last)
                break
            tally.count(ask, answer.status)
            last = ask
            if answer.is_last:
                break
        connection.close()


async def _kill(server: FaultServer, tally: Tally, rng: random.Random, stop: asyncio.Event) -> None:
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), rng.uniform(0.3, 1.5))
        if stop.is_set():
            return
        pids = await asyncio.to_thread(server.worker_pids)
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(pids), signal.SIGKILL)
                tally.deaths += 1


async def _scrape(server: FaultServer, tally: Tally, stop: asyncio.Event) -> None:
    before: dict[str, float] = {}
    while not stop.is_set():
        page = (await asyncio.to_thread(server.call, "GET", "/metrics")).text
        now = _counters(page)
        tally.fallen += [name for name, value in before.items() if now.get(name, 0.0) < value]
        tally.scrapes += 1
        before = now
        await asyncio.sleep(_SCRAPE_EVERY_S)


def _counters(page: str) -> dict[str, float]:
    """Return each series of the server's own that may only rise."""
    found = {}
    for line in page.splitlines():
        series, _, value = line.rpartition(" ")
        name = series.partition("{")[0]
        if name.startswith("ramrack_") and name.endswith(("_total", "_bucket", "_count", "_sum")):
            found[series] = float(value)
    return found
