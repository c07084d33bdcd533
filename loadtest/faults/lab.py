"""What all faults share: a server, a load beside it, and the looks that every fault ends with."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from loadtest.faults.echo import Sample, burst
from loadtest.faults.footprint import (
    RESTED_S,
    ROUGH,
    STEADY,
    STRICT,
    Footprint,
    Growth,
    quiet_footprint,
    settled_growth,
)
from loadtest.faults.outcome import Outcome
from loadtest.faults.packages import Packages
from loadtest.faults.server import QUEUE_ROWS, SERVE, WORKERS, FaultServer, fault_server
from loadtest.faults.steady import SteadyLoad, has_failed
from loadtest.histogram import Latencies
from loadtest.swap_under_load import Change, went_back

RECOVERED_S: Final = 5.0
# Without timing, a recovery only has to come at all.
PATIENCE_S: Final = 60.0
_WARM_REQUESTS: Final = 200
# As loadtest.open_loop judges itself, but on cores that servers are killed and started on.
_LATE_NS: Final = 5_000_000
_MOST_LATE: Final = 0.01
_FEW_REQUESTS: Final = 20
_BEFORE_REQUESTS: Final = 1000
_WARM_ROUNDS: Final = 12
_BURST: Final = 64
_BURSTS: Final = 8
_QUEUE_LOOK_S: Final = 0.2


@dataclass(slots=True)
class Lab:
    """Where faults are done. ``is_timed``: whether H and I are judged by the clock.

    ``command``: how a server is started. ``rate``: requests a second beside each fault.
    ``shared``: a server for all faults that it outlives; without one each has its own.
    """

    work: Path
    packages: Packages
    rate: float = 200.0
    is_timed: bool = True
    command: Sequence[str] = SERVE
    shared: FaultServer | None = None

    @property
    def growth(self) -> Growth:
        """How much more the processes may hold at the end."""
        return STRICT if self.is_timed else ROUGH

    @property
    def warm_requests(self) -> int:
        """How many requests make a new worker as warm as any."""
        return _WARM_REQUESTS if self.is_timed else _FEW_REQUESTS

    @property
    def rest_s(self) -> float:
        """How long memory may not have fallen before it is looked at."""
        return RESTED_S if self.is_timed else 0.0

    @contextmanager
    def serving(self) -> Iterator[FaultServer]:
        """Return a server that serves both versions of ``echo``, the first one routed."""
        if self.shared is None:
            with self.own_server() as server:
                yield server
        else:
            self.shared.route("echo", 1)
            yield self.shared

    @contextmanager
    def own_server(
        self,
        store: Path | None = None,
        versions: Sequence[int] = (1, 2),
        command: Sequence[str] = (),
    ) -> Iterator[FaultServer]:
        """Return a fresh one that the fault may end, with these versions of ``echo``.

        ``store``: where, instead of in the lab's folder. ``command``: instead of the lab's.
        """
        with (
            tempfile.TemporaryDirectory(dir=self.work) as folder,
            fault_server(Path(folder), command or self.command, store) as server,
        ):
            for version in versions:
                server.serve(self.packages.read(f"echo-{version}"))
            yield server


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to harm a server. ``full_count``: how often the bench does it."""

    name: str
    title: str
    full_count: int
    do: Callable[[Lab, Outcome], None]

    def run(self, lab: Lab, count: int) -> Outcome:
        """Do it ``count`` times and return what came of it."""
        outcome = Outcome(self.name, self.title, count)
        began = time.monotonic()
        self.do(lab, outcome)
        outcome.seconds = time.monotonic() - began
        return outcome


@dataclass(slots=True)
class Watch:
    """What was seen beside a fault, judged at the end of ``watched``."""

    load: SteadyLoad
    began_ns: int = 0
    changes: list[Change] = field(default_factory=list)
    deepest_queue: float = 0.0

    @property
    def before(self) -> list[Sample]:
        """What was meant to be sent before the fault."""
        return [each for each in self.load.samples if each.intended_ns < self.began_ns]

    def change(self, version: int, act: Callable[[], object]) -> None:
        """Move the route to ``version`` by ``act``, and keep when that was."""
        began_ns = time.monotonic_ns()
        act()
        self.changes.append(Change(str(version), began_ns, time.monotonic_ns()))


@contextmanager
def watched(
    lab: Lab,
    server: FaultServer,
    outcome: Outcome,
    *,
    first: Callable[[], object] = lambda: None,
    is_planned: bool = True,
    rate: float = 0.0,
) -> Iterator[Watch]:
    """Keep the load up inside, and judge B (if ``is_planned``), D, E, F and G after it.

    ``first``: a little of what is to come, before anything is measured: pools of threads and the
    like are filled by what needs them first.
    """
    warm(lab, server, first, rate or lab.rate)
    before = quiet_footprint(lambda: processes(server), lab.rest_s)
    with SteadyLoad(server.port, rate or lab.rate) as load:
        watch = Watch(load)
        with queue_watched(server, watch):
            load.wait_for(_BEFORE_REQUESTS if lab.is_timed else 10)
            watch.began_ns = time.monotonic_ns()
            yield watch
        load.wait_for(10)
    judge_answers(outcome, load.samples, watch.changes, is_planned=is_planned)
    judge_queues(server, outcome, watch)
    judge_footprint(lab, server, outcome, before)


def warm(lab: Lab, server: FaultServer, first: Callable[[], object], rate: float) -> None:
    """Ask and change until the server holds no more of anything than after the round before.

    Pools of threads and heaps grow to what was needed at once; that is no leak.
    """
    paths = [f"/v2/models/echo/versions/{version}/infer" for version in (1, 2)]
    last: Footprint | None = None
    for _ in range(_WARM_ROUNDS if lab.is_timed else 1):
        with SteadyLoad(server.port, rate, seed=1) as load, queue_watched(server, Watch(load)):
            if lab.is_timed:
                first()
                with ThreadPoolExecutor(_BURSTS) as callers:
                    list(callers.map(lambda _: server.must("POST", "/verify"), range(_BURSTS)))
            for _ in range(_BURSTS if lab.is_timed else 1):
                asyncio.run(burst(server.port, paths, _BURST))
            load.wait_for(lab.warm_requests)
        now = quiet_footprint(lambda: processes(server), lab.rest_s)
        if last is not None and not now.growth_over(last, STEADY):
            break
        last = now


def processes(server: FaultServer) -> list[int]:
    """Return the parent and its workers."""
    return [server.pid, *server.worker_pids()]


def judge_answers(
    outcome: Outcome, samples: Sequence[Sample], changes: Sequence[Change], *, is_planned: bool
) -> None:
    """Judge D and E on every answer, and B where nothing may fail."""
    failures = [each for each in samples if has_failed(each)]
    outcome.requests += len(samples)
    outcome.failed += len(failures)
    strangers = [each for each in samples if not each.is_own]
    outcome.judge("D", not strangers, f"{len(strangers)} answers were not to their request")
    back = went_back(samples, "1", changes)
    outcome.judge("E", not back, f"{back} answers came from a version that was replaced before")
    if is_planned:
        first = failures[0] if failures else None
        outcome.judge(
            "B", first is None,
            f"{len(failures)} requests failed, one of them with "
            f"{first.status if first else ''} {first.reason if first else ''}",
        )  # fmt: skip


def judge_queues(
    server: FaultServer, outcome: Outcome, watch: Watch, bound: int = QUEUE_ROWS * WORKERS
) -> None:
    """Judge F: within the bound all the while, and empty now."""
    outcome.judge(
        "F", watch.deepest_queue <= bound, f"{watch.deepest_queue:g} rows waited, bound {bound}"
    )
    left = settled(server, lambda: queued(server) == 0)
    outcome.judge("F", left, f"{queued(server):g} requests or rows are left")


def queued(server: FaultServer) -> float:
    """Return what is under way and what waits, as the metrics say it."""
    return server.metric("ramrack_in_flight") + server.metric("ramrack_queue_depth")


def settled(server: FaultServer, condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Return whether ``condition`` comes to hold."""
    try:
        server.wait_until(condition, timeout_s, "it is quiet")
    except Exception:  # noqa: BLE001 - whatever keeps it from holding, it does not hold
        return False
    return True


def judge_footprint(lab: Lab, server: FaultServer, outcome: Outcome, before: Footprint) -> None:
    """Judge G: nothing grew for good."""
    grown = settled_growth(before, lambda: processes(server), lab.growth)
    outcome.judge("G", not grown, f"for good: {grown}")


def judge_store(server: FaultServer, outcome: Outcome, said: Collection[str] = ()) -> None:
    """Judge A: every object has its digest, and the objects that were acknowledged are there."""
    damaged = server.must("POST", "/verify")["damaged"]
    outcome.judge("A", not damaged, f"damaged: {damaged[:3]}")
    lost = [
        each for each in said if server.call("HEAD", f"/admin/v1/blobs/{each}").status_code != 200
    ]
    outcome.judge("A", not lost, f"{len(lost)} objects of {len(said)} are lost")


def judge_recovery(lab: Lab, outcome: Outcome, seconds: float) -> None:
    """Judge H, and keep the longest one."""
    longest = max(seconds, outcome.figures.get("recovery s", 0.0))
    if lab.is_timed:
        outcome.figures["recovery s"] = longest
        outcome.judge("H", seconds <= RECOVERED_S, f"it took {seconds:.1f} s")
    else:
        outcome.judge("H", True, "")


def judge_latency(
    lab: Lab, outcome: Outcome, before: Sequence[Sample], during: Sequence[Sample], multiple: float
) -> None:
    """Judge I, where the clock counts and the load was sent when it was meant to."""
    if not (lab.is_timed and before and during):
        return
    was = Latencies(each.latency_ns for each in before).quantile_ms(99) or 0.0
    now = Latencies(each.latency_ns for each in during).quantile_ms(99) or 0.0
    late = sum(each.sent_ns - each.intended_ns > _LATE_NS for each in during) / len(during)
    outcome.figures |= {"p99 ms": now, "p99 before": was, "sent late %": 100 * late}
    if late <= _MOST_LATE:
        outcome.judge("I", now <= multiple * was, f"p99 {now} ms, before {was} ms, {multiple:g} x")


@contextmanager
def queue_watched(server: FaultServer, watch: Watch | None) -> Iterator[None]:
    """Look at the depth of the queues all the while, for ``judge_queues``.

    Without a ``watch`` the looks only cost the server what they cost it elsewhere.
    """
    stop = threading.Event()

    def look() -> None:
        # A server that is just being killed has no page.
        while not stop.wait(_QUEUE_LOOK_S):
            try:
                depth = server.metric("ramrack_queue_depth")
            except httpx.HTTPError:
                continue
            if watch is not None:
                watch.deepest_queue = max(watch.deepest_queue, depth)

    thread = threading.Thread(target=look, name="queue depth")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
