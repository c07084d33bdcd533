"""F10 and F11: too few files, and clients that take their time."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from loadtest.faults.echo import Connection, Question
from loadtest.faults.lab import Fault, Lab, judge_latency, judge_store, settled, watched
from loadtest.faults.outcome import Outcome
from loadtest.faults.server import FaultServer, fault_server

_INFER: Final = "/v2/models/echo/infer"
# Shorter than the defaults, so that two thousand clients do not take an hour.
_DEADLINES: Final = (
    "env", "RAMRACK_HEADER_TIMEOUT_S=1", "RAMRACK_BODY_TIMEOUT_S=2", "RAMRACK_KEEP_ALIVE_S=3",
)  # fmt: skip
_FILES: Final = 256
_CONNECTIONS: Final = 400
_AT_ONCE: Final = 100
_HUNG_UP_S: Final = 60.0


def few_files(lab: Lab, outcome: Outcome) -> None:
    """Open more connections than the server may have files: health answers, accepting resumes."""
    command = ("sh", "-c", f'ulimit -n {_FILES}; exec "$@"', "sh", *lab.command)
    with _server(lab, command) as server:
        pids = server.worker_pids()
        for _ in range(outcome.count):
            asyncio.run(_crowd(server, outcome))
        outcome.judge("C", server.worker_pids() == pids, "a worker was replaced")
        judge_store(server, outcome)


async def _crowd(server: FaultServer, outcome: Outcome) -> None:
    crowd = [await Connection.open(server.port) for _ in range(2 * _CONNECTIONS)]
    health = await asyncio.to_thread(server.call, "GET", "/v2/health/live")
    outcome.judge("C", health.status_code == 200, f"health says {health.status_code}")
    for connection in crowd:
        connection.close()
    await asyncio.sleep(0)
    began = time.monotonic()
    is_right = False
    while not is_right and time.monotonic() - began < _HUNG_UP_S:
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(5):
                connection = await Connection.open(server.port)
                question = Question.new(_INFER)
                connection.send(question.wire)
                is_right = question.is_answered_by(await connection.answer())
                connection.close()
    outcome.requests += 1
    outcome.failed += not is_right
    outcome.judge("H", is_right, "nothing is accepted any more once the crowd is gone")
    outcome.figures["accepts again s"] = time.monotonic() - began


def slow_clients(lab: Lab, outcome: Outcome) -> None:
    """Let clients begin and not go on: each is hung up on at its deadline, nobody else notices."""
    with _server(lab, (*_DEADLINES, *lab.command)) as server:
        left = 0
        with watched(lab, server, outcome) as watch:
            for start in range(0, outcome.count, _AT_ONCE):
                count = min(_AT_ONCE, outcome.count - start)
                left += asyncio.run(_wave(server, count))
        outcome.requests += outcome.count
        outcome.judge("F", not left, f"{left} slow clients still have their connection")
        during = [s for s in watch.load.samples if s.intended_ns >= watch.began_ns]
        judge_latency(lab, outcome, watch.before, during, 1.5)
        quiet = settled(server, lambda: server.metric("ramrack_in_flight") == 0)
        outcome.judge("F", quiet, "requests of slow clients are still in flight")
        judge_store(server, outcome)


async def _wave(server: FaultServer, count: int) -> int:
    """Send half a head, half a body or a line end; return how many were not hung up on."""
    clients = [await Connection.open(server.port) for _ in range(count)]
    for number, client in enumerate(clients):
        wire = Question.new(_INFER).wire
        head, _, _ = wire.partition(b"\r\n\r\n")
        client.send((head[:-5], head + b"\r\n\r\n{", b"\r\n")[number % 3])

    async def is_left(client: Connection) -> bool:
        try:
            async with asyncio.timeout(_HUNG_UP_S):
                await client.end()
        except TimeoutError:
            return True
        except OSError:
            return False
        finally:
            client.close()
        return False

    return sum(await asyncio.gather(*map(is_left, clients)))


@contextmanager
def _server(lab: Lab, command: Sequence[str]) -> Iterator[FaultServer]:
    """Return a server of its own, started by another command, with both versions of ``echo``."""
    with (
        tempfile.TemporaryDirectory(dir=lab.work) as folder,
        fault_server(Path(folder), command) as server,
    ):
        for version in (1, 2):
            server.serve(lab.packages.read(f"echo-{version}"))
        yield server


FAULTS: Final = (
    Fault("F10", "more connections than files", 5, few_files),
    Fault("F11", "clients that take their time", 2000, slow_clients),
)
