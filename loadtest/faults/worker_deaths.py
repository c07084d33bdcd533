"""F1 and F19: a worker is killed, or stopped for ten seconds, while requests come."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from loadtest.faults.echo import Sample
from loadtest.faults.lab import (
    PATIENCE_S,
    Fault,
    Lab,
    judge_latency,
    judge_recovery,
    judge_store,
    settled,
    watched,
)
from loadtest.faults.outcome import Outcome
from loadtest.faults.server import FaultServer, is_alive, send_signal
from loadtest.faults.steady import has_failed, is_clean

_MEAN_GAP_S: Final = 3.0
_STOPPED_S: Final = 10.0
_LOOK_S: Final = 0.02
_MOST_P99: Final = 2.0
# Outside of this time after a death the p99 is that of any other time.
_WINDOW_NS: Final = 1_000_000_000
# A process that is killed holds its connections until the kernel has taken it apart.
_HUNG: Final = "no sign of life"
_DYING_NS: Final = 500_000_000


class Accident(Protocol):
    """Something that may cost requests."""

    def explains(self, failure: Sample) -> bool:
        """Whether a failure is of what was in flight in a worker that died of it."""
        ...


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a worker. ``ports``: the clients' ends of the connections that it had."""

    pid: int
    ports: frozenset[int]
    began_ns: int
    ended_ns: int

    def explains(self, failure: Sample) -> bool:
        """Whether a failure is of what was in flight in this worker."""
        was_there = failure.port in self.ports
        is_then = failure.sent_ns <= self.ended_ns and failure.done_ns >= self.began_ns
        return was_there and is_then and is_clean(failure)

    def is_near(self, sample: Sample) -> bool:
        """Whether a request was under way at this death or within a second of it."""
        until_ns = self.ended_ns - _DYING_NS + _WINDOW_NS
        return sample.done_ns >= self.began_ns and sample.intended_ns <= until_ns


def connections_of(pid: int) -> frozenset[int]:
    """Return the far ends of the connections that a process holds, as ports of loopback."""
    inodes = {
        target[8:-1] for target in _open_files(Path(f"/proc/{pid}/fd"))
        if target.startswith("socket:[")
    }  # fmt: skip
    ports = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[9] in inodes:
            ports.add(int(fields[2].rpartition(":")[2], 16))
    return frozenset(ports)


def _open_files(folder: Path) -> Iterator[str]:
    """Yield what the descriptors lead to; one may be closed, and the process gone, meanwhile."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                yield str(entry.readlink())


def kill(server: FaultServer, pid: int) -> None:
    """Kill a worker and wait until it is gone."""
    send_signal(pid, signal.SIGKILL)
    server.wait_until(lambda: not is_alive(pid), PATIENCE_S, "a killed worker is gone")


def end_worker(
    server: FaultServer, pid: int, end: Callable[[FaultServer, int], None] = kill
) -> Death:
    """End a worker by ``end``; return which connections it had."""
    began_ns = time.monotonic_ns()
    # It stands still meanwhile, for it must not accept another one after the look.
    send_signal(pid, signal.SIGSTOP)
    server.wait_until(lambda: _stands_still(pid), PATIENCE_S, "it is stopped")
    ports = connections_of(pid)
    end(server, pid)
    return Death(pid, ports, began_ns, time.monotonic_ns() + _DYING_NS)


def kill_workers(lab: Lab, outcome: Outcome) -> None:
    """Kill one worker after another, at random moments."""
    choice = random.Random(1)

    def gap() -> float:
        return choice.expovariate(1 / _MEAN_GAP_S) if lab.is_timed else 0.05

    _workers_die(lab, outcome, kill, gap, choice)


def stop_workers(lab: Lab, outcome: Outcome) -> None:
    """Let a worker stand still; it wakes up late, if it still is there."""

    def end(server: FaultServer, pid: int) -> None:
        began = time.monotonic()
        send_signal(pid, signal.SIGSTOP)
        server.wait_until(
            lambda: (
                not is_alive(pid) or (lab.is_timed and time.monotonic() - began > _STOPPED_S)
            ),
            PATIENCE_S, "a stopped worker is noticed",
        )  # fmt: skip
        outcome.judge("H", not is_alive(pid), "a worker that stands still was not noticed")
        outcome.figures["noticed s"] = time.monotonic() - began
        send_signal(pid, signal.SIGCONT)
        is_told = settled(
            server, lambda: any(_HUNG in worker["reason"] for worker in server.workers())
        )
        outcome.judge("H", is_told, "no worker is said to have hung")

    _workers_die(lab, outcome, end, lambda: 0.0, random.Random(2))


def _workers_die(
    lab: Lab,
    outcome: Outcome,
    end: Callable[[FaultServer, int], None],
    gap: Callable[[], float],
    choice: random.Random,
) -> None:
    deaths: list[Death] = []
    with lab.serving() as server:
        with watched(lab, server, outcome, is_planned=False) as watch:
            for _ in range(outcome.count):
                # Where nobody is left all requests wait, which says nothing of the p99.
                least = 2 if lab.is_timed else 1
                server.wait_until(
                    lambda least=least: len(_serving(server)) >= least,  # type: ignore[misc]
                    PATIENCE_S, "a worker that may die",
                )  # fmt: skip
                pid = choice.choice(_serving(server) or server.worker_pids())
                deaths.append(end_worker(server, pid, end))
                _recover(lab, outcome, server, gap())
            took_s = server.wait_until(server.is_whole, PATIENCE_S, "all workers are back")
            judge_recovery(lab, outcome, took_s)
            # Their first requests warm the new ones up as those before them were.
            watch.load.wait_for(lab.warm_requests)
        samples = watch.load.samples
        judge_collateral(outcome, samples, deaths)
        calm = [
            each for each in samples
            if each.status == 200 and each.intended_ns >= watch.began_ns
            and not any(death.is_near(each) for death in deaths)
        ]  # fmt: skip
        judge_latency(lab, outcome, watch.before, calm, _MOST_P99)
        judge_store(server, outcome)


def _stands_still(pid: int) -> bool:
    """Whether a process is stopped, or gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "TZX"


def _serving(server: FaultServer) -> list[int]:
    workers = server.workers()
    return [w["pid"] for w in workers if w["state"] == "serving" and is_alive(w["pid"])]


def _recover(lab: Lab, outcome: Outcome, server: FaultServer, most_s: float) -> None:
    """Wait ``most_s``, and judge H if all workers are back by then."""
    began = time.monotonic()
    is_back = False
    while (took_s := time.monotonic() - began) < most_s:
        if not is_back and server.is_whole():
            is_back = True
            judge_recovery(lab, outcome, took_s)
        time.sleep(_LOOK_S)


def judge_collateral(
    outcome: Outcome, samples: Sequence[Sample], deaths: Sequence[Accident]
) -> None:
    """Judge C: each failure is of a request that a dead worker had."""
    unexplained = [
        each for each in samples
        if has_failed(each) and not any(death.explains(each) for death in deaths)
    ]  # fmt: skip
    first = unexplained[0] if unexplained else None
    outcome.judge(
        "C", first is None,
        f"{len(unexplained)} requests failed that no dead worker had, one of them with "
        f"{first.status if first else ''} {first.reason if first else ''}",
    )  # fmt: skip


FAULTS: Final = (
    Fault("F1", "kill -9 a worker", 100, kill_workers),
    Fault("F19", "SIGSTOP a worker", 1, stop_workers),
)
