"""A steady open-loop load in a process of its own, whose answers are each held to their request.

Started as ``python -m loadtest.faults.steady PORT RATE PATH SEED``; it ends when its input does,
and writes a line for every request that has ended. In the bench's own process it would wait for
what else that does.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
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
_END_S: Final = 60.0


class SteadyLoad:
    """Sends ``rate`` requests a second inside its block, at random moments, to one model.

    ``samples`` holds every request that has ended; all have when the block is left.
    """

    def __init__(self, port: int, rate: float, model: str = "echo", seed: int = 0) -> None:
        self._rate = rate
        self._arguments = (str(port), str(rate), f"/v2/models/{model}/infer", str(seed))
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._read, name="samples of the load")
        self.samples: list[Sample] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadtest.faults.steady", *self._arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return
        process.stdin.close()
        try:
            code = process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self._thread.join(_END_S)
        process.stdout.close()
        if code and kind is None:
            raise LabFailed(f"the load ended with code {code}")

    def wait_for(self, count: int) -> None:
        """Wait until so many more requests have ended."""
        end = len(self.samples) + count
        limit = time.monotonic() + _END_S + count / self._rate
        while len(self.samples) < end:
            if time.monotonic() > limit or not self._thread.is_alive():
                raise LabFailed(f"the load came to {len(self.samples)} of {end} requests")
            time.sleep(0.005)

    def _read(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            for line in self._process.stdout:
                self.samples.append(_from_line(line))


class _Sender:
    """The load inside its process."""

    def __init__(self, port: int, rate: float, path: str, seed: int) -> None:
        self._port = port
        self._rate = rate
        self._path = path
        self._random = random.Random(seed)
        self._idle: list[tuple[Connection, int]] = []

    async def run(self) -> None:
        """Send until the input ends, and until the last request has."""
        stop = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
        at_ns = time.monotonic_ns()
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                at_ns += int(self._random.expovariate(self._rate) * 1e9)
                left_s = (at_ns - time.monotonic_ns()) / 1e9
                # Also with a schedule that is behind, answers are read in between.
                await asyncio.sleep(max(0.0, left_s))
                group.create_task(self._one(at_ns))
        for connection, _ in self._idle:
            connection.close()
        # A close is carried out by the loop after this one.
        await asyncio.sleep(0)

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
        except (OSError, EOFError):
            sample.reason = CLOSED
        except (ValueError, KeyError, asyncio.LimitOverrunError) as error:
            sample.reason = f"no answer: {error!r}"
        sample.done_ns = time.monotonic_ns()
        sys.stdout.write(_to_line(sample))
        sys.stdout.flush()

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


def _to_line(sample: Sample) -> str:
    fields = (
        sample.intended_ns, sample.sent_ns, sample.done_ns, sample.status, int(sample.is_own),
        sample.port, sample.opened_ns, sample.watched, " ".join(sample.reason.split()),
    )  # fmt: skip
    return "\t".join(map(str, fields)) + "\n"


def _from_line(line: str) -> Sample:
    intended, sent, done, status, own, port, opened, version, reason = line[:-1].split("\t")
    return Sample(
        int(intended), int(sent), int(done), int(status), reason, version, own == "1", int(port),
        int(opened),
    )  # fmt: skip


if __name__ == "__main__":
    port, rate, path, seed = sys.argv[1:]
    asyncio.run(_Sender(int(port), float(rate), path, int(seed)).run())
