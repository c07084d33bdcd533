"""F10: too few files; and a server of its own for whoever needs one that is started otherwise."""

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
from loadtest.faults.lab import Fault, Lab, judge_store
from loadtest.faults.outcome import Outcome
from loadtest.faults.server import FaultServer, fault_server

_INFER: Final = "/v2/models/echo/infer"
_FILES: Final = 256
_CONNECTIONS: Final = 400
_HUNG_UP_S: Final = 60.0


def few_files(lab: Lab, outcome: Outcome) -> None:
    """Open more connections than the server may have files: health answers, accepting resumes."""
    command = ("sh", "-c", f'ulimit -n {_FILES}; exec "$@"', "sh", *lab.command)
    with server_of(lab, command) as server:
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


@contextmanager
def server_of(lab: Lab, command: Sequence[str]) -> Iterator[FaultServer]:
    """Return a server of its own, started by another command, with both versions of ``echo``."""
    with (
        tempfile.TemporaryDirectory(dir=lab.work) as folder,
        fault_server(Path(folder), command) as server,
    ):
        for version in (1, 2):
            server.serve(lab.packages.read(f"echo-{version}"))
        yield server


FAULTS: Final = (Fault("F10", "more connections than files", 5, few_files),)
