"""F17: stops in order, and workers replaced one by one, under every kind of open connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from loadtest.faults.echo import Connection, Question
from loadtest.faults.lab import Fault, Lab, judge_store, watched
from loadtest.faults.outcome import Outcome
from loadtest.faults.server import STOP_TIMEOUT_S, FaultServer

_PATH: Final = "/v2/models/echo/infer"
_EACH: Final = 6
_PIPELINED: Final = 8
# Nobody has requests under way for longer than moments, so nothing keeps the server.
_SLACK_S: Final = 5.0
_CLIENT_S: Final = STOP_TIMEOUT_S + _SLACK_S
_UNDER_WAY_S: Final = 0.2


@dataclass(slots=True)
class Clients:
    """What all clients of one stop see together. ``stopped_ns``: when it was asked for, or 0.

    ``is_over``: those that would go on for ever end.
    """

    port: int
    stopped_ns: int = 0
    told: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0
    lost: list[str] = field(default_factory=list)
    strangers: int = 0
    is_over: bool = False

    async def keep_alive(self) -> None:
        """Ask again and again on one connection, as long as the server keeps it open."""
        while not self.is_over:
            try:
                connection = await Connection.open(self.port)
            except ConnectionRefusedError:
                return
            is_open = True
            while is_open and not self.is_over:
                is_open = await self._ask(connection, 1, "keep-alive")
            connection.close()
            # Who comes in time for the last breath is answered, who comes later is refused.

    async def pipelined(self) -> None:
        """Send several requests at once; where the server says that it closes, the rest is void."""
        connection = await Connection.open(self.port)
        while not self.is_over and await self._ask(connection, _PIPELINED, "pipelined"):
            pass
        connection.close()

    async def silent(self) -> None:
        """Connect and say nothing: the connection ends in order, and keeps nobody waiting."""
        connection = await Connection.open(self.port)
        try:
            left = await connection.end()
        except OSError as error:
            self.lost.append(f"a silent connection was broken: {error}")
        else:
            if left:
                self.lost.append(f"a silent connection got {left[:60]!r}")
        connection.close()

    async def half(self) -> None:
        """Send half of a request before the stop and half after it."""
        connection = await Connection.open(self.port)
        question = Question.new(_PATH)
        connection.send(question.wire[:-20])
        self.sent += 1
        await self.told.wait()
        connection.send(question.wire[-20:])
        await self._answered(connection, question, "half a request")
        connection.close()

    async def _ask(self, connection: Connection, count: int, who: str) -> bool:
        """Return whether the connection is still open after these requests."""
        questions = [Question.new(_PATH) for _ in range(count)]
        connection.send(b"".join(question.wire for question in questions))
        is_before = not self.stopped_ns
        for index, question in enumerate(questions):
            self.sent += 1
            is_last = await self._answered(connection, question, who)
            if is_last:
                if is_before and index + 1 < count and not self.stopped_ns:
                    self.lost.append(f"{who}: closed with {count - index - 1} requests unanswered")
                return False
        return True

    async def _answered(self, connection: Connection, question: Question, who: str) -> bool:
        """Return whether the answer was the last one of its connection."""
        try:
            answer = await connection.answer()
        except (OSError, EOFError) as error:
            self.lost.append(f"{who}: {type(error).__name__}")
            return True
        if answer.status == 200:
            self.strangers += not question.is_answered_by(answer)
        elif answer.status != 503:
            self.lost.append(f"{who}: {answer.status} {answer.body[:100]!r}")
        return answer.is_last


async def stop_once(server: FaultServer, outcome: Outcome) -> None:
    """Stop a server under clients of all kinds, and hold it to each of them."""
    clients = Clients(server.port)
    tasks = _begun(clients.keep_alive, clients.pipelined, clients.silent, clients.half)
    await asyncio.sleep(_UNDER_WAY_S)
    clients.stopped_ns = time.monotonic_ns()
    server.terminate()
    clients.told.set()
    began = time.monotonic()
    code = await asyncio.to_thread(server.exit_code, _CLIENT_S)
    took_s = time.monotonic() - began
    await _judge(clients, tasks, outcome)
    outcome.judge("B", code == 0, f"the exit code was {code}")
    outcome.figures["stop s"] = max(took_s, outcome.figures.get("stop s", 0.0))


async def roll_once(server: FaultServer, outcome: Outcome) -> None:
    """Replace all workers under clients of all kinds; connections are handed on or end in order."""
    clients = Clients(server.port)
    tasks = _begun(clients.keep_alive, clients.pipelined, clients.half)
    await asyncio.sleep(_UNDER_WAY_S)
    clients.stopped_ns = time.monotonic_ns()
    rolling = asyncio.create_task(
        asyncio.to_thread(server.must, "POST", "/workers:restart?wait=90", {})
    )
    clients.told.set()
    await rolling
    clients.is_over = True
    await _judge(clients, tasks, outcome)
    # A close is carried out by the loop after this one.
    await asyncio.sleep(0)


def _begun(*kinds: Callable[[], Awaitable[None]]) -> list[asyncio.Future[None]]:
    return [asyncio.ensure_future(kind()) for kind in kinds for _ in range(_EACH)]


async def _judge(clients: Clients, tasks: list[asyncio.Future[None]], outcome: Outcome) -> None:
    """Judge B and D by what the clients saw, once all of ``tasks`` have ended."""
    _, late = await asyncio.wait(tasks, timeout=_SLACK_S)
    for task in late:
        task.cancel()
    errors = [task.exception() for task in tasks if task not in late]
    clients.lost += [f"{type(error).__name__}: {error}" for error in errors if error is not None]
    outcome.requests += clients.sent
    outcome.failed += len(clients.lost)
    outcome.judge("B", not late, f"{len(late)} clients still wait for the end")
    outcome.judge(
        "B", not clients.lost,
        f"{len(clients.lost)} of {clients.sent} requests were lost: {clients.lost[:1]}",
    )  # fmt: skip
    outcome.judge("D", not clients.strangers, f"{clients.strangers} answers to others")


def stop(lab: Lab, outcome: Outcome) -> None:
    """Stop a server and start it again, over and over."""
    with lab.own_server(versions=(1,)) as server:
        for turn in range(outcome.count):
            if turn:
                server.start()
            asyncio.run(stop_once(server, outcome))
        server.start()
        judge_store(server, outcome)


def roll(lab: Lab, outcome: Outcome) -> None:
    """Replace all workers, over and over, while requests come."""
    with lab.serving() as server:
        with watched(lab, server, outcome) as watch:
            for _ in range(outcome.count):
                before = set(server.worker_pids())
                asyncio.run(roll_once(server, outcome))
                after = set(server.worker_pids())
                outcome.judge("B", not before & after, "a worker was not replaced")
            watch.load.wait_for(lab.warm_requests)
        judge_store(server, outcome)


FAULTS: Final = (
    Fault("F17", "SIGTERM under open connections of all kinds", 50, stop),
    Fault("rolling", "workers replaced one by one", 10, roll),
)
