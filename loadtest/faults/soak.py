"""F22: everything at once, for minutes; nothing may be lost, and nothing may grow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from loadtest.faults.crew import Complaint, Crew
from loadtest.faults.echo import Sample
from loadtest.faults.footprint import ROUGH, STRICT, footprint, quiet_footprint
from loadtest.faults.lab import (
    PATIENCE_S,
    Fault,
    Lab,
    Watch,
    judge_answers,
    judge_footprint,
    judge_queues,
    judge_store,
    processes,
    queue_watched,
    queued,
    settled,
    warm,
)
from loadtest.faults.outcome import Outcome
from loadtest.faults.server import FaultServer
from loadtest.faults.slopes import Slope, slope_of
from loadtest.faults.soak_steps import SPARED_SLOT, Soak
from loadtest.faults.steady import SteadyLoad
from loadtest.faults.worker_deaths import Death, judge_collateral
from loadtest.histogram import Latencies
from loadtest.lab.memory import held_by

_MB: Final = 1_000_000
_MB_AN_HOUR: Final = 1.0
# Of the looks, for heaps and pools that still fill.
_WARM_UP: Final = 0.2
_ROUND_S: Final = 12.0
_SHORT_ROUND_S: Final = 1.5
_COUNTED: Final = ("files", "threads", "mappings")
_FEW: Final = 5
_OPERATIONS_KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class Who:
    """A process that lives through all of it."""

    name: str
    pid: int


@dataclass(slots=True)
class Growths:
    """Looks at processes in quiet moments, by process and measure, as ``(seconds, value)``."""

    who: Sequence[Who]
    points: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)

    def look(self) -> None:
        """Take down what each holds now: MB of memory, and numbers of all else."""
        now = time.monotonic()
        for each in self.who:
            found = footprint([each.pid])
            values = {
                "memory MB": found.memory_bytes / _MB,
                "PSS MB": held_by([each.pid]).pss_bytes / _MB,
                "files": found.files, "threads": found.threads, "mappings": found.mappings,
            }  # fmt: skip
            for name, value in values.items():
                self.points.setdefault((each.name, name), []).append((now, value))

    def slopes(self) -> dict[tuple[str, str], Slope]:
        """Return how fast each grew, its warm-up left out."""
        return {
            key: slope_of(points[int(len(points) * _WARM_UP) :])
            for key, points in self.points.items()
        }


def soak(lab: Lab, outcome: Outcome) -> None:
    """Do all of it for ``count`` seconds, with a quiet moment every now and then to look."""
    with lab.serving() as server:
        doing = Soak(lab, server, outcome)
        _serve(lab, server)
        if lab.is_timed:
            _fill_operations(server)
        warm(lab, server, lambda: _first(doing), lab.rate)
        before = quiet_footprint(lambda: processes(server), lab.rest_s)
        growths = Growths(_living(server))
        samples, deepest = _rounds(lab, server, doing, growths)
        judge_answers(outcome, samples, doing.changes, is_planned=False)
        judge_collateral(outcome, samples, doing.deaths)
        judge_queues(server, outcome, deepest)
        outcome.judge("C", _living(server) == growths.who, "a process ended that nobody has killed")
        judge_growths(lab, outcome, growths)
        judge_footprint(lab, server, outcome, before)
        judge_store(server, outcome, _routed_objects(lab))
        latencies = Latencies(each.latency_ns for each in samples if each.status == 200)
        outcome.figures |= {
            "kills": len(doing.deaths), "swaps": len(doing.changes), "uploads": doing.published,
            "p99 ms": latencies.quantile_ms(99) or 0.0,
        }  # fmt: skip


def _serve(lab: Lab, server: FaultServer) -> None:
    """Have all the models that somebody asks."""
    for model in ("storm", "slow", "endless"):
        for number in (1, 2) if model == "storm" else (1,):
            if number not in server.versions(model):
                server.serve(lab.packages.read(f"{model}-{number}"))
    if not server.versions("spare"):
        # The first version that is loaded gets the route, and a routed one cannot be unloaded.
        server.load("spare", server.publish_to_stay(lab.packages.spare(0)))
    server.must("PUT", "/models/echo/aliases/live", {"version": 1})


def _fill_operations(server: FaultServer) -> None:
    """Have the server remember as many operations that ended as it ever will.

    The soak itself makes two a second: its first minutes would look like a leak of megabytes an
    hour. A load of what is loaded has ended at once.
    """
    for _ in range(_OPERATIONS_KEPT):
        server.must("POST", "/models/echo/versions/1:load")


def _first(doing: Soak) -> None:
    """Do each thing once before anything is measured, but what kills."""
    with Crew({name: (step, 0.1) for name, (step, _) in doing.steps().items() if name != "kills"}):
        time.sleep(3.0)
    doing.server.route("echo", 1)
    doing.changes.clear()


def _living(server: FaultServer) -> list[Who]:
    worker = next(each["pid"] for each in server.workers() if each["slot"] == SPARED_SLOT)
    return [Who("parent", server.pid), Who("worker", worker)]


def _rounds(
    lab: Lab, server: FaultServer, doing: Soak, growths: Growths
) -> tuple[list[Sample], Watch]:
    """Return all samples of the load, and the deepest queue."""
    outcome, samples = doing.outcome, list[Sample]()
    round_s = _ROUND_S if lab.is_timed else _SHORT_ROUND_S
    end = time.monotonic() + outcome.count
    watch = Watch(SteadyLoad(server.port, lab.rate))
    with Crew(doing.steps()) as crew:
        turn = 0
        while not turn or time.monotonic() < end:
            with ExitStack() as rest:
                load = SteadyLoad(server.port, lab.rate, seed=turn)
                with queue_watched(server, watch), load:
                    load.wait_for(10)
                    time.sleep(min(round_s, max(0.0, end - time.monotonic())))
                    # What was begun ends beside the load.
                    rest.enter_context(crew.at_rest())
                samples += load.samples
                server.wait_until(server.is_whole, PATIENCE_S, "all workers are back")
                outcome.judge("F", settled(server, lambda: queued(server) == 0), "it is not empty")
                quiet_footprint(lambda: processes(server), lab.rest_s)
                growths.look()
            turn += 1
    judge_complaints(outcome, crew.complaints, doing.deaths)
    done = ", ".join(f"{name} {count}" for name, count in sorted(crew.done.items()))
    put_off = ", ".join(f"{name}: {count}" for name, count in sorted(doing.put_off.items()))
    outcome.notes.append(f"rounds of each: {done}")
    outcome.notes.append(f"asked again later: {put_off or 'nothing'}")
    outcome.judge("B", all(crew.done[name] for name in doing.steps()), f"not all was done: {done}")
    return samples, watch


def judge_complaints(
    outcome: Outcome, complaints: Sequence[Complaint], deaths: Sequence[Death]
) -> None:
    """Judge B and C: what the others were told must be right, or explained by a death."""
    odd = [
        each for each in complaints
        if not each.is_mishap or not any(
            each.began_ns <= death.ended_ns and each.ended_ns >= death.began_ns for death in deaths
        )
    ]  # fmt: skip
    for each in odd[:_FEW]:
        letter = "C" if each.is_mishap else "B"
        outcome.judge(letter, is_held=False, why=f"{each.who}: {each.text}")
    outcome.failed += len(complaints)
    outcome.judge("B", not odd, f"{len(odd)} complaints in all")


def judge_growths(lab: Lab, outcome: Outcome, growths: Growths) -> None:
    """Judge G: what grows for sure, by the lower end of its interval, grows too fast."""
    allowed = STRICT if lab.is_timed else ROUGH
    first = min(points[0][0] for points in growths.points.values())
    last = max(points[-1][0] for points in growths.points.values())
    hours = max(1e-9, (last - first) / 3600)
    most_mb = max(_MB_AN_HOUR, allowed.memory_bytes / _MB / hours)
    for (who, what), slope in growths.slopes().items():
        outcome.notes.append(f"{who} {what}: {slope}")
        if what == "memory MB":
            outcome.judge("G", slope.low <= most_mb, f"{who} {what}: {slope}")
        elif what in _COUNTED and lab.is_timed:
            outcome.judge("G", slope.low <= 0, f"{who} {what}: {slope}")


def _routed_objects(lab: Lab) -> list[str]:
    packages = [lab.packages.read(f"echo-{number}") for number in (1, 2)]
    return [digest for package in packages for digest in package.objects]


FAULTS: Final = (Fault("F22", "everything at once, for so many seconds", 600, soak),)
