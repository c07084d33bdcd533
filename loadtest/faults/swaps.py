"""F13: the route goes to and fro between two versions while requests come."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Final

from loadtest.faults.echo import Answer, Connection, Question
from loadtest.faults.lab import Fault, Lab, judge_latency, judge_store, settled, watched
from loadtest.faults.outcome import Outcome
from loadtest.faults.server import FaultServer

_MOST_P99: Final = 1.5
_FIRST: Final = 10
# Enough that some wait for their turn, whatever runs at once.
_UNDER_WAY: Final = 24


def swap(lab: Lab, outcome: Outcome) -> None:
    """Change the route; no request may notice but by the version that answers."""
    with lab.serving() as server:

        def first() -> None:
            for turn in range(_FIRST):
                server.route("echo", 2 - turn % 2)

        with watched(lab, server, outcome, first=first) as watch:
            for turn in range(outcome.count):
                version = 2 - turn % 2
                watch.change(version, partial(server.route, "echo", version))
            last_ns = time.monotonic_ns()
        samples = watch.load.samples
        during = [each for each in samples if watch.began_ns <= each.intended_ns < last_ns]
        judge_latency(lab, outcome, watch.before, during, _MOST_P99)
        judge_store(server, outcome)


def unload_under_requests(server: FaultServer, outcome: Outcome, model: str, version: int) -> None:
    """Unload a version that requests are under way on, and judge B and D by their answers.

    They name the version, for a route would keep it from being unloaded, and its runs take long
    enough that none has ended before the unload begins.
    """
    answers = asyncio.run(_asked_until_unloaded(server, model, version))
    outcome.requests += len(answers)
    lost = [found for _, found in answers if not (isinstance(found, Answer) and _is_good(found))]
    outcome.failed += len(lost)
    outcome.judge(
        "B", not lost, f"{len(lost)} of {len(answers)} requests under way were lost: {lost[:1]}"
    )
    strangers = [
        found for question, found in answers
        if isinstance(found, Answer) and _is_good(found) and not question.is_answered_by(found)
    ]  # fmt: skip
    outcome.judge("D", not strangers, f"{len(strangers)} answers to others")


def _is_good(answer: Answer) -> bool:
    return answer.status == 200


async def _asked_until_unloaded(
    server: FaultServer, model: str, version: int
) -> list[tuple[Question, Answer | str]]:
    """Return what each request got, all of which are under way when the unload is asked for."""
    path = f"/v2/models/{model}/versions/{version}/infer"
    questions = [Question.new(path) for _ in range(_UNDER_WAY)]
    connections = [await Connection.open(server.port) for _ in questions]

    async def answer(connection: Connection) -> Answer | str:
        try:
            return await connection.answer()
        except (OSError, EOFError) as error:
            return type(error).__name__
        finally:
            connection.close()

    def seen() -> float:
        labels = {"model": model, "version": str(version)}
        return sum(
            server.metric(name, **labels)
            for name in ("ramrack_in_flight", "ramrack_requests_total")
        )

    before = await asyncio.to_thread(seen)
    for connection, question in zip(connections, questions, strict=True):
        connection.send(question.wire)
    answers = [asyncio.create_task(answer(connection)) for connection in connections]
    # One that the worker has not read yet may well be told that the version is gone.
    await asyncio.to_thread(settled, server, lambda: seen() >= before + _UNDER_WAY)
    await asyncio.to_thread(
        server.must, "POST", f"/models/{model}/versions/{version}:unload?wait=60"
    )
    return list(zip(questions, await asyncio.gather(*answers), strict=True))


FAULTS: Final = (Fault("F13", "swaps of the routed version", 1000, swap),)
