"""The supervisor: targets, replacements and stops, with real processes that serve nothing."""

import asyncio
import os
import signal
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from serving.errors import WorkerLost
from serving.workers.slot import Timings
from serving.workers.wire import Wire
from serving.workers.worker_process import worker_environment
from tests.process.server import process_exists
from tests.unit.serving.fleet_rig import A1, B1, NO_RESTARTS, fleet, target

pytestmark = [pytest.mark.process, pytest.mark.slow]


def oom_score(pid: int | str) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


async def test_the_kernel_finds_a_worker_before_the_parent_from_its_first_moment() -> None:
    """A worker that still imports, or comes back, is ended for memory before the parent is."""
    async with fleet() as it:
        it.supervisor.publish(target(1))
        it.supervisor.start()
        await it.until(lambda: len(it.pids()) == 2)
        first = it.pids()
        os.kill(first[0], signal.SIGKILL)
        await it.until(lambda: len({*it.pids()} - {*first}) == 1 and len(it.pids()) == 2)
        assert {oom_score(pid) for pid in it.pids()} == {min(1000, oom_score("self") + 900)}


async def test_a_target_settles_in_every_worker() -> None:
    """Versions stand as the workers reported; each slot shows its generation."""
    async with fleet() as it:
        it.supervisor.publish(target(1, A1))
        it.supervisor.start()
        standing = await it.supervisor.settled(1, 20)
        assert {key: (r.state, r.load_s, r.private_bytes) for key, r in standing.items()} == {
            A1: ("READY", 0.5, 100)
        }
        await it.until_serving()
        it.supervisor.publish(target(2))
        assert await it.supervisor.settled(2, 20) == {}
        assert [w.generation for w in it.supervisor.workers()] == [2, 2]
        assert len(set(it.pids())) == 2


async def test_a_failure_in_a_worker_is_the_fleet_s() -> None:
    """The reason comes along; the other versions stand."""
    async with fleet("fails=b/1") as it:
        it.supervisor.publish(target(1, A1, B1))
        it.supervisor.start()
        standing = await it.supervisor.settled(1, 20)
        assert (standing[B1].state, standing[B1].reason) == ("FAILED", "bad graph")
        assert standing[A1].state == "READY"


async def test_nothing_settles_while_no_worker_listens() -> None:
    """A wait ends with TimeoutError that names the slots."""
    async with fleet() as it:
        it.supervisor.publish(target(1))
        with pytest.raises(TimeoutError, match=r"slots \[0, 1\] did not get there within 0.05 s"):
            await it.supervisor.settled(1, 0.05)


async def test_every_reason_of_a_restart_is_counted_from_the_start() -> None:
    """A series that appears with its first event looks to a rate as if nothing had happened."""
    async with fleet() as it:
        assert it.supervisor.restarts() == NO_RESTARTS


async def test_a_worker_that_accepts_during_a_restore_is_waited_for() -> None:
    """It has not said that it listens, but its clients come at once: what it lacks, they miss."""
    async with fleet("late-second") as it:
        it.supervisor.publish(replace(target(1, A1), is_restored=False))
        it.supervisor.start()
        await it.until(lambda: it.supervisor.workers()[0].state == "serving")
        await it.until(lambda: it.supervisor.workers()[1].memory_bytes > 0)  # it beats: it is up
        with pytest.raises(TimeoutError, match=r"slots \[1\] did not get there within 0.05 s"):
            await it.supervisor.settled(1, 0.05)
        it.supervisor.publish(target(2, A1))
        assert (await it.supervisor.settled(2, 20))[A1].state == "READY"


async def test_a_generation_is_taken_when_every_listening_worker_routes_by_it() -> None:
    """It returns once all said so, and raises TimeoutError naming the slots that did not."""
    async with fleet() as it:
        await it.serve(target(1, A1))
        it.supervisor.publish(target(2, A1))
        await it.supervisor.taken(2, 20)
    async with fleet("deaf") as it:
        await it.serve(target(1, A1))
        it.supervisor.publish(target(2, A1))
        with pytest.raises(TimeoutError, match=r"slots \[0, 1\] did not get there within 0.05 s"):
            await it.supervisor.taken(2, 0.05)


async def test_a_worker_is_replaced_by_one_that_holds_the_target() -> None:
    """The old one ends by itself; slot, generation and count of restarts go on."""
    async with fleet() as it:
        await it.serve(target(1, A1))
        first, second = it.pids()
        await it.supervisor.replace(0)
        info = it.supervisor.workers()[0]
        assert (info.state, info.generation, info.restarts) == ("serving", 1, 1)
        assert not process_exists(first)
        assert it.pids() == [info.pid, second]
        assert it.supervisor.restarts() == NO_RESTARTS | {"rolling": 1}
        # The next one counts where the first one did, and is supervised as any other.
        assert info.region != it.supervisor.workers()[1].region
        os.kill(it.pids()[0], signal.SIGKILL)
        await it.until(lambda: it.supervisor.workers()[0].restarts == 2)
        await it.until_serving()


async def test_a_replacement_that_fails_changes_nothing() -> None:
    """The reason is its own, the old worker serves on, and nobody counts a restart."""
    async with fleet("bad-successor") as it:
        await it.serve(target(1, A1))
        before = it.pids()
        with pytest.raises(WorkerLost, match="slot 1 did not take over: no room for two"):
            await it.supervisor.replace(1)
        assert it.pids() == before
        assert it.supervisor.restarts() == NO_RESTARTS
        assert (await it.supervisor.settled(1, 20))[A1].state == "READY"


async def test_stop_ends_all_workers_in_order() -> None:
    """Each is told and goes by itself; nothing is started any more."""
    async with fleet() as it:
        await it.serve(target(1))
        pids = it.pids()
        assert await it.supervisor.stop(10)
        assert not any(process_exists(pid) for pid in pids)
        assert [w.state for w in it.supervisor.workers()] == ["stopped", "stopped"]


async def test_a_worker_that_does_not_stop_is_killed() -> None:
    """A stop ends within its time and says that not all went in order."""
    async with fleet("stubborn", workers=1, timings=Timings(exit_grace_s=0.1)) as it:
        await it.serve(target(1))
        pids = it.pids()
        assert not await it.supervisor.stop(0.1)
        assert not any(process_exists(pid) for pid in pids)


async def test_a_stop_while_a_worker_is_being_started_leaves_no_process(monkeypatch) -> None:
    """Between its start and its wire nobody but the start itself knows of it."""
    processes: list[subprocess.Popen[bytes]] = []
    opening = asyncio.Event()

    class Noted(subprocess.Popen):
        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            processes.append(self)

    async def never(sock: socket.socket) -> Wire:
        with sock:
            opening.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(subprocess, "Popen", Noted)
    monkeypatch.setattr(Wire, "open", never)
    async with fleet(workers=1) as it:
        it.supervisor.start()
        await opening.wait()
        assert await it.supervisor.stop(0)
        assert [process.returncode for process in processes] == [-signal.SIGKILL]


async def test_each_worker_that_begins_to_serve_is_told_of() -> None:
    """Also one that replaces a dead one, and nothing else that a worker says."""
    arrivals: list[None] = []
    async with fleet(workers=1) as it:
        it.supervisor.on_arrival(lambda: arrivals.append(None))
        await it.serve(target(1))
        it.supervisor.publish(target(2))
        await it.supervisor.settled(2, 20)
        assert len(arrivals) == 1
        os.kill(it.pids()[0], signal.SIGKILL)
        await it.until(lambda: it.supervisor.workers()[0].restarts == 1)
        await it.until_serving()
        assert len(arrivals) == 2


def test_d07_the_environment_bounds_threads_before_the_interpreter_starts() -> None:
    """Pools beside the session's threads are off, and no model chooses its own options."""
    made = worker_environment(
        {"OMP_NUM_THREADS": "64", "ORT_LOAD_CONFIG_FROM_MODEL": "1", "HOME": "/h",
         "RAMRACK_ADMIN_TOKEN": "secret", "PYTHONPATH": "/mine"}
    )  # fmt: skip
    assert made["OMP_NUM_THREADS"] == "1"
    assert made["HOME"] == "/h"
    assert made["PYTHONPATH"].endswith(":/mine")
    assert "ORT_LOAD_CONFIG_FROM_MODEL" not in made
    assert "secret" not in made.values()
