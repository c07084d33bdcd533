"""A steady open-loop load in a thread, whose every answer is held to its own request."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from types import TracebackType
from typing import Final, Self

from loadtest.exchange import NO_ANSWER
from loadtest.faults.echo import Connection, Question, Sample
from loadtest.lab.processes import LabFailed

TIMEOUT_S: Final = 15.0
CLOSED: Final = "closed"
REFUSED: Final = "refused"
TIMED_OUT: Final = "timed out"
_JOIN_S: Final = 60.0


class SteadyLoad:
    """Sends ``rate`` requests a second inside its block, at random moments, to one model.

    ``samples`` holds every request that has ended; all have when the block is left.
    """

    def __init__(self, port: int, rate: float, model: str = "echo", seed: int = 0) -> None:
        self._port = port
        self._rate = rate
        self._path = f"/v2/models/{model}/infer"
        self._random = random.Random(seed)
        self._idle: list[tuple[Connection, int]] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load")
        self._stop = threading.Event()
        self._is_over = False
        self.samples: list[Sample] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(_JOIN_S)
        if not self._is_over and kind is None:
            raise LabFailed("the load did not end in order")

    def wait_for(self, count: int) -> None:
        """Wait until so many more requests have ended."""
        end = len(self.samples) + count
        limit = time.monotonic() + _JOIN_S + count / self._rate
        while len(self.samples) < end:
            if time.monotonic() > limit or not self._thread.is_alive():
                raise LabFailed(f"the load came to {len(self.samples)} of {end} requests")
            time.sleep(0.005)

    async def _run(self) -> None:
        at_ns = time.monotonic_ns()
        async with asyncio.TaskGroup() as group:
            while not self._stop.is_set():
                at_ns += int(self._random.expovariate(self._rate) * 1e9)
                left_s = (at_ns - time.monotonic_ns()) / 1e9
                # Also with a schedule that is behind, answers are read in between.
                await asyncio.sleep(max(0.0, left_s))
                group.create_task(self._one(at_ns))
        for connection, _ in self._idle:
            connection.close()
        # A close is carried out by the loop after this one.
        await asyncio.sleep(0)
        self._is_over = True

    async def _one(self, intended_ns: int) -> None:
        sample = Sample(intended_ns, sent_ns=time.monotonic_ns())
        question = Question.new(self._path)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._exchange(question, sample)
        except TimeoutError:
            sample.reason = TIMED_OUT
        except ConnectionRefusedError:
            sample.reason = REFUSED
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            sample.reason = CLOSED if isinstance(error, OSError | EOFError) else repr(error)
        sample.done_ns = time.monotonic_ns()
        self.samples.append(sample)

    async def _exchange(self, question: Question, sample: Sample) -> None:
        while self._idle and self._idle[-1][0].is_closed:
            self._idle.pop()[0].close()
        if self._idle:
            connection, sample.opened_ns = self._idle.pop()
        else:
            connection = await Connection.open(self._port)
            sample.opened_ns = time.monotonic_ns()
        sample.port, sample.sent_ns = connection.port, time.monotonic_ns()
        try:
            connection.send(question.wire)
            answer = await connection.answer()
        except BaseException:
            connection.close()
            raise
        sample.status, sample.watched = answer.status, answer.version
        if answer.status == 200:
            sample.is_own = question.is_answered_by(answer)
        else:
            sample.reason = answer.body[:200].decode(errors="replace")
        if answer.is_last:
            connection.close()
        else:
            self._idle.append((connection, sample.opened_ns))


def has_failed(sample: Sample) -> bool:
    """Whether a request got no good answer."""
    return sample.status != 200


def is_clean(sample: Sample) -> bool:
    """Whether a failure is one that an accident may cause: a 503, or a closed connection."""
    return sample.status == 503 or (sample.status == NO_ANSWER and sample.reason == CLOSED)
