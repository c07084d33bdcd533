"""F16 and F21: runs that never end, and clients that leave before their answer."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Final

import httpx

from loadtest.faults.echo import Connection, Question
from loadtest.faults.lab import Fault, Lab, judge_store, queued, settled, watched
from loadtest.faults.outcome import Outcome
from loadtest.faults.server import MAX_RUN_S, FaultServer

_FOREVER: Final = 1 << 40
# A run is told to end at max_run_s; a worker that is busy with others notices a little later.
_ENDED_S: Final = MAX_RUN_S + 3.0
_WAVE: Final = 100
# What so many leave at once fills heaps anew for some thousand clients; it levels off after that.
_FIRST: Final = 2000
_MOST_COMPUTED: Final = 0.25


def stuck(lab: Lab, outcome: Outcome) -> None:
    """Ask for runs without an end: each caller gets a 504, and nobody else notices."""
    with lab.serving() as server:
        if not server.versions("endless"):
            server.serve(lab.packages.read("endless-1"))
        ask_endless(server, 1)
        pids = server.worker_pids()
        with watched(lab, server, outcome, first=lambda: ask_endless(server)):
            for _ in range(outcome.count):
                began = time.monotonic()
                answer = ask_endless(server)
                took_s = time.monotonic() - began
                outcome.judge(
                    "C", answer.status_code == 504, f"{answer.status_code} {answer.text[:200]}"
                )
                if lab.is_timed:
                    outcome.judge("H", took_s <= _ENDED_S, f"it was ended after {took_s:.1f} s")
        outcome.judge("C", server.worker_pids() == pids, "a worker was replaced")
        judge_store(server, outcome)


def leave(lab: Lab, outcome: Outcome) -> None:
    """Let clients leave right after their request: nearly all of it is dropped uncomputed."""
    with lab.serving() as server:
        if not server.versions("slow"):
            server.serve(lab.packages.read("slow-1"))

        def first() -> None:
            asyncio.run(waves(server, min(_FIRST, outcome.count)))

        with watched(lab, server, outcome, first=first, rate=lab.rate / 4):
            settled(server, lambda: server.metric("ramrack_in_flight", model="slow") == 0)
            before = _computed(server)
            asyncio.run(waves(server, outcome.count))
            settled(server, lambda: server.metric("ramrack_in_flight", model="slow") == 0)
            computed = _computed(server) - before
        outcome.requests += outcome.count
        outcome.figures["computed"] = computed
        outcome.judge(
            "F", computed <= _MOST_COMPUTED * outcome.count,
            f"{computed:g} of {outcome.count} requests were computed for nobody",
        )  # fmt: skip
        outcome.judge("F", queued(server) == 0, "requests of clients that left are still there")


def ask_endless(
    server: FaultServer, turns: int = _FOREVER, timeout_ms: int = 60_000
) -> httpx.Response:
    """Ask for a run of so many turns with a deadline, and wait for how it ends."""
    tensor = {"name": "n", "datatype": "INT64", "shape": [1], "data": [turns]}
    return httpx.post(
        f"http://127.0.0.1:{server.port}/v2/models/endless/infer",
        timeout=90, trust_env=False, content=json.dumps({"inputs": [tensor]}),
        headers={"x-request-timeout-ms": str(timeout_ms)},
    )  # fmt: skip


def _computed(server: FaultServer) -> float:
    return server.metric("ramrack_rows_total", model="slow")


async def waves(server: FaultServer, count: int) -> None:
    """Let so many clients ask ``slow`` and leave, some without a good-bye."""
    while count > 0:
        async with asyncio.TaskGroup() as group:
            for number in range(min(count, _WAVE)):
                group.create_task(_leave(server, is_rude=number % 2 == 0))
        count -= _WAVE


async def _leave(server: FaultServer, *, is_rude: bool) -> None:
    connection = await Connection.open(server.port)
    connection.send(Question.new("/v2/models/slow/infer").wire)
    await asyncio.sleep(0.002)
    if is_rude:
        connection.reset()
    else:
        connection.close()


FAULTS: Final = (
    Fault("F16", "runs that never end", 10, stuck),
    Fault("F21", "clients that leave mid-request", 10_000, leave),
)
