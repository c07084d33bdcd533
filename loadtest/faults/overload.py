"""F15: requests come faster than they can be answered, whether or not earlier ones are."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from loadtest.faults.echo import Connection, Question, Sample, burst
from loadtest.faults.footprint import STEADY, Footprint, quiet_footprint, settled_growth
from loadtest.faults.lab import (
    Fault,
    Lab,
    Watch,
    judge_footprint,
    judge_queues,
    judge_store,
    processes,
    queue_watched,
    queued,
    settled,
)
from loadtest.faults.outcome import Outcome
from loadtest.faults.server import FaultServer
from loadtest.faults.steady import SteadyLoad
from loadtest.histogram import Latencies
from loadtest.lab.overload import answered_rate, recovery_s
from loadtest.lab.processes import LabFailed, on_cores

_MODEL: Final = "busy"
_PATH: Final = f"/v2/models/{_MODEL}/infer"
_LEAST_RUN_MS: Final = 2.0
_STEPS: Final = (0.5, 1.0, 1.5, 2.0, 3.0)
_MOST: Final = 3.0
_LEAST_GOODPUT: Final = 0.9
_REFUSED_MS: Final = 5.0
_AS_BEFORE_S: Final = 2.0
_CLOSED_CONNECTIONS: Final = 16
_CAPACITY_LOOKS: Final = 3
# The server's own; what bounds the queue then is queue_ms.
_DEFAULT_ROWS: Final = 4096
# A second of too many requests is enough to fill it on any machine.
_FEW_ROWS: Final = 32
_LEAST_OVERLOAD: Final = 400.0
_PROBE_RATE: Final = 20.0
_CROWD: Final = 768
_MOST_CROWDS: Final = 12
# What may be said to a request that is too many.
_ANSWERS: Final = frozenset({200, 429})


@dataclass(frozen=True, slots=True)
class _Overload:
    """A server that gets too much. ``rows``: how many may wait. ``cores``: those of its clients."""

    lab: Lab
    server: FaultServer
    outcome: Outcome
    rows: int
    cores: Collection[int]


def overload(lab: Lab, outcome: Outcome) -> None:
    """Climb from half of what one worker can answer to three times that, ``count`` times."""
    with _serving(lab, outcome, _DEFAULT_ROWS if lab.is_timed else _FEW_ROWS) as doing:
        capacity = _capacity(doing)
        if not lab.is_timed:
            capacity = max(capacity, _LEAST_OVERLOAD / _MOST)
        _at(doing, _MOST * capacity)
        before = _filled(doing)
        for _ in range(outcome.count):
            _climb(doing, capacity)
        server = doing.server
        if settled_growth(before, lambda: processes(server), lab.growth):
            # The greatest crowd so far leaves its heap behind, a leak does so with every climb.
            before = _filled(doing)
            _climb(doing, capacity)
        judge_footprint(lab, server, outcome, before)
        judge_store(server, outcome)


@contextmanager
def _serving(lab: Lab, outcome: Outcome, rows: int) -> Iterator[_Overload]:
    """Return a server of one worker and the model, with cores of its own."""
    server_cores, client_cores = _halves()
    settings = ("RAMRACK_WORKERS=1", f"RAMRACK_QUEUE_ROWS={rows}")
    with ExitStack() as stack:
        with on_cores(server_cores):
            server = stack.enter_context(
                lab.own_server(versions=(1,), command=("env", *settings, *lab.command))
            )
        server.serve(lab.packages.read(f"{_MODEL}-1"))
        yield _Overload(lab, server, outcome, rows, client_cores)


def _filled(doing: _Overload) -> Footprint:
    """Return what the processes hold after crowds that a load with a stall makes as well.

    Batches and answers of a size that was not there before make the heap grow, once.
    """
    server = doing.server
    last: Footprint | None = None
    for _ in range(_MOST_CROWDS):
        asyncio.run(burst(server.port, [_PATH], _CROWD))
        settled(server, lambda: queued(server) == 0)
        now = quiet_footprint(lambda: processes(server), doing.lab.rest_s)
        if last is not None and not now.growth_over(last, STEADY):
            break
        last = now
    return now


def _halves() -> tuple[list[int], list[int]]:
    """Return cores for the server and for the clients; the same where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    half = max(1, len(cores) // 2)
    return cores[:half], cores[half:] or cores


def _capacity(doing: _Overload) -> float:
    """Return answers a second to callers who wait; raises LabFailed where a run is too quick."""
    is_timed, port = doing.lab.is_timed, doing.server.port
    seconds = 3.0 if is_timed else 0.5
    with on_cores(doing.cores):
        alone = asyncio.run(_closed(port, 1, seconds / 3))
        if is_timed and 1000 / alone < _LEAST_RUN_MS:
            raise LabFailed(f"a run takes {1000 / alone:.1f} ms, {_LEAST_RUN_MS:g} at least needed")
        # What else runs on the machine makes it less, nothing makes it more.
        return max(
            asyncio.run(_closed(port, _CLOSED_CONNECTIONS, seconds))
            for _ in range(_CAPACITY_LOOKS if is_timed else 1)
        )


async def _closed(port: int, connections: int, seconds: float) -> float:
    """Keep so many requests under way; return good answers a second."""
    answered = 0
    end = time.monotonic() + seconds

    async def caller() -> None:
        nonlocal answered
        connection = await Connection.open(port)
        while time.monotonic() < end:
            connection.send(Question.new(_PATH).wire)
            # Read before the await, the sum would lose what others add meanwhile.
            is_good = (await connection.answer()).status == 200
            answered += is_good
        connection.close()

    await asyncio.gather(*(caller() for _ in range(connections)))
    await asyncio.sleep(0)
    if not answered:
        raise LabFailed("not one request was answered before the overload")
    return answered / seconds


def _climb(doing: _Overload, capacity: float) -> None:
    lab, server, outcome = doing.lab, doing.server, doing.outcome
    # Beside all that looks on at every step, which takes a share of the server's core.
    with _probed(doing), queue_watched(server, None):
        goodputs = {0.0: _capacity(doing) if lab.is_timed else capacity}
    for step in _STEPS if lab.is_timed else (_STEPS[0], _MOST):
        with _probed(doing) as probes:
            samples = _at(doing, step * capacity)
            ended_ns = max(each.intended_ns for each in samples)
        goodputs[step] = answered_rate(samples)
        if step != _MOST:
            continue
        refused = [each for each in samples if each.status == 429]
        outcome.judge("F", bool(refused), "nothing was refused at three times the capacity")
        settled(server, lambda: queued(server) == 0)
        if lab.is_timed:
            began_ns = min(each.intended_ns for each in samples)
            _judge_times(outcome, goodputs, refused, recovery_s(probes, began_ns, ended_ns))


@contextmanager
def _probed(doing: _Overload) -> Iterator[list[Sample]]:
    """Send a few requests before, beside and after what is inside; all are there at the end."""
    found: list[Sample] = []
    if not doing.lab.is_timed:
        yield found
        return
    with on_cores(doing.cores):
        load = SteadyLoad(doing.server.port, _PROBE_RATE, _MODEL, seed=2)
        with load:
            load.wait_for(int(_PROBE_RATE))
            yield found
            time.sleep(2 * _AS_BEFORE_S)
    found += load.samples


def _at(doing: _Overload, rate: float) -> list[Sample]:
    """Send at a rate for some seconds, and judge every answer and the queue."""
    server, outcome = doing.server, doing.outcome
    load = SteadyLoad(server.port, rate, _MODEL, seed=int(rate))
    watch = Watch(load)
    with on_cores(doing.cores), queue_watched(server, watch), load:
        load.wait_for(1)
        if doing.lab.is_timed:
            time.sleep(4.0)
        else:
            # A second's requests, however late a busy machine lets them be sent.
            load.wait_for(int(rate))
    samples = load.samples
    if not samples:
        raise LabFailed("the overload came to nothing")
    outcome.requests += len(samples)
    outcome.failed += sum(each.status not in _ANSWERS for each in samples)
    odd = Counter(
        f"{each.status} {each.reason[:80]}" for each in samples if each.status not in _ANSWERS
    )
    outcome.judge("B", not odd, f"{rate:.0f} requests a second: {odd.most_common(3)}")
    strangers = sum(not each.is_own for each in samples)
    outcome.judge("D", not strangers, f"{strangers} answers were not to their request")
    judge_queues(server, outcome, watch, doing.rows)
    return samples


def _judge_times(
    outcome: Outcome, goodputs: dict[float, float], refused: list[Sample], recovered_s: float
) -> None:
    """Judge H and I, and keep the worst of each."""
    share = goodputs[_MOST] / max(goodputs.values())
    answers = Latencies(each.done_ns - each.sent_ns for each in refused)
    refused_ms = answers.quantile_ms(99) or 0.0
    figures = outcome.figures
    figures["peak/s"] = max(goodputs.values())
    figures["goodput at 3x %"] = min(100 * share, figures.get("goodput at 3x %", 1e9))
    figures["429 p99 ms"] = max(refused_ms, figures.get("429 p99 ms", 0.0))
    figures["as before s"] = max(recovered_s, figures.get("as before s", 0.0))
    outcome.judge("I", share >= _LEAST_GOODPUT, f"goodput at 3 x is {share:.0%} of the peak")
    outcome.judge("I", refused_ms <= _REFUSED_MS, f"p99 of the refusals {refused_ms:.1f} ms")
    outcome.judge("H", recovered_s <= _AS_BEFORE_S, f"as before after {recovered_s:.1f} s")


FAULTS: Final = (Fault("F15", "more requests than can be answered", 3, overload),)
