"""F9: memory runs out, by what is asked of the server and by what its neighbours take."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import httpx

from loadtest.faults.echo import Sample
from loadtest.faults.lab import PATIENCE_S, Fault, Lab, judge_recovery, judge_store, watched
from loadtest.faults.memory_group import MemoryGroup, NoMemoryGroup, memory_group
from loadtest.faults.outcome import Outcome
from loadtest.faults.packages import Packages
from loadtest.faults.server import FaultServer, ended_of
from loadtest.faults.steady import has_failed, is_clean
from loadtest.lab.bed import ROOT
from loadtest.lab.processes import LabFailed

_MIB: Final = 1 << 20
# Three quarters of the group less what a parent takes are the budget: the fourth table is too much.
TABLES: Final = 4
_EATER_TIMEOUT_S: Final = 60.0
# A process that is killed holds its connections until the kernel has taken it apart, and a client
# hears of that a little later.
_DYING_S: Final = 5.0
_LATE_NS: Final = 500_000_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """``limit_mib``: of the whole server; ``table_mib``: of one version."""

    limit_mib: int
    table_mib: int


FULL: Final = Sizes(1024, 200)
SMALL: Final = Sizes(640, 112)


def memory_pressure(lab: Lab, outcome: Outcome) -> None:
    """Load until there is no room, then let a neighbour take what is left, over and over."""
    sizes = FULL if lab.is_timed else SMALL
    try:
        with memory_group(sizes.limit_mib * _MIB) as group:
            tables = Packages.make(lab.work / "tables", 0, tables=TABLES, table_mib=sizes.table_mib)
            with lab.own_server(command=group.command(lab.command)) as server:
                _under_pressure(lab, server, outcome, group, tables)
    except NoMemoryGroup as error:
        outcome.skipped = str(error)


def _under_pressure(
    lab: Lab, server: FaultServer, outcome: Outcome, group: MemoryGroup, tables: Packages
) -> None:
    pids = server.worker_pids()
    loaded = fill(server, outcome, tables)
    outcome.figures["loaded"] = len(loaded)
    kills = group.kills()
    outcome.judge("A", not kills, f"the kernel ended {kills} processes before a load was refused")
    outcome.judge("C", server.worker_pids() == pids, "a worker was replaced during the loads")
    with watched(lab, server, outcome, is_planned=False) as watch:
        deaths = [_starve(lab, server, outcome, group) for _ in range(outcome.count)]
        watch.load.wait_for(lab.warm_requests)
    _judge_failures(outcome, watch.load.samples, deaths)
    for version, number in loaded.items():
        found = _first_value(server, version)
        outcome.judge("A", found == number, f"table/{version} answers {found}, not {number}")
    judge_store(server, outcome)


def fill(server: FaultServer, outcome: Outcome, tables: Packages) -> dict[int, float]:
    """Load tables until one is refused with the plan; return the number in each by its version."""
    loaded: dict[int, float] = {}
    for number in range(TABLES):
        version = int(server.publish(tables.read(f"table-{number}"))["version"])
        answer = server.call("POST", f"/admin/v1/models/table/versions/{version}:load?wait=90")
        if answer.status_code == 202:
            raise LabFailed(f"table/{version} was not loaded in 90 s")
        if answer.is_success:
            loaded[version] = float(number)
            continue
        outcome.judge(
            "A", _is_plan(answer), f"a load too many: {answer.status_code} {answer.text[:200]}"
        )
        break
    else:
        outcome.judge("A", is_held=False, why=f"none of {TABLES} loads was refused")
    outcome.judge("A", bool(loaded), "not even one table was loaded")
    return loaded


def _is_plan(answer: httpx.Response) -> bool:
    """Whether it is a 507 that says what is needed and what is there."""
    if answer.status_code != 507:
        return False
    plan = answer.json().get("plan", {})
    return bool(plan.get("needs_bytes", 0) > plan.get("free_bytes", 0) and not plan.get("fits"))


def _starve(lab: Lab, server: FaultServer, outcome: Outcome, group: MemoryGroup) -> tuple[int, int]:
    """Let a neighbour take memory until the kernel ends somebody: a worker, never the parent.

    Returns from when to when requests may have failed for it.
    """
    parent, workers, kills = server.pid, server.worker_pids(), group.kills()
    began_ns = time.monotonic_ns()
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.faults.eater", str(group.folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=_EATER_TIMEOUT_S, check=False,
    )  # fmt: skip
    killed = time.monotonic()
    if done.returncode:
        raise LabFailed(f"the neighbour ended with {done.returncode}: {done.stderr[-300:]}")
    kills = group.kills() - kills
    gone = ended_of([parent, *workers], kills, _DYING_S)
    ended_ns = time.monotonic_ns() + _LATE_NS
    if parent in gone:
        raise LabFailed(f"the kernel ended the parent, and {len(gone) - 1} of its workers")
    outcome.judge("C", bool(gone), f"the kernel ended {kills} processes, and none was a worker")
    server.wait_until(
        lambda: server.is_whole() and not set(gone) & set(server.worker_pids()),
        PATIENCE_S, "all workers are back",
    )  # fmt: skip
    judge_recovery(lab, outcome, time.monotonic() - killed)
    eaten = float(done.stdout or 0)
    outcome.figures["MiB eaten"] = max(eaten, outcome.figures.get("MiB eaten", 0.0))
    outcome.figures["workers ended"] = outcome.figures.get("workers ended", 0.0) + len(gone)
    return began_ns, ended_ns


def _judge_failures(
    outcome: Outcome, samples: Sequence[Sample], deaths: Sequence[tuple[int, int]]
) -> None:
    """Judge C: what failed was under way when a worker was ended, and failed in good order."""
    odd = [
        each for each in samples
        if has_failed(each) and not (
            is_clean(each)
            and any(each.sent_ns <= end and each.done_ns >= begin for begin, end in deaths)
        )
    ]  # fmt: skip
    why = f"{odd[0].status} {odd[0].reason}" if odd else ""
    outcome.judge("C", not odd, f"{len(odd)} requests failed otherwise, one of them with {why}")


def _first_value(server: FaultServer, version: int) -> float:
    """Return what a table answers for its first row."""
    tensor = {"name": "index", "datatype": "INT64", "shape": [1], "data": [0]}
    answer = httpx.post(
        f"http://127.0.0.1:{server.port}/v2/models/table/versions/{version}/infer",
        json={"inputs": [tensor]}, trust_env=False, timeout=30,
    )  # fmt: skip
    if not answer.is_success:
        return -1.0
    return float(answer.json()["outputs"][0]["data"][0])


FAULTS: Final = (Fault("F9", "memory runs out", 5, memory_pressure),)
