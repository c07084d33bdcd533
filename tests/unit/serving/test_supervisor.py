"""Tests of the supervisor, with real processes that speak the wire and serve nothing."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from models.servable import Inspection
from models.signature import Signature, TensorSpec
from registry.manifest import Manifest
from serving.errors import WorkerLost
from serving.fleet import VersionKey
from serving.settings import Settings
from serving.target import Target, TargetVersion
from serving.web.sockets import close_all, open_listeners
from serving.workers.cores import WorkerPlan
from serving.workers.slot import Timings
from serving.workers.supervisor import Supervisor
from serving.workers.worker_process import worker_environment
from tests.process.server import process_exists

pytestmark = [pytest.mark.process, pytest.mark.slow]
QUICK = Timings(heartbeat_timeout_s=2.0, start_timeout_s=20.0, backoff_first_s=0.01)
SIGNATURE = Signature((TensorSpec("x", "FP32", (-1,)),), (TensorSpec("y", "FP32", (-1,)),))
NO_RESTARTS = {"hung": 0, "start": 0, "signal": 0, "exit": 0, "rolling": 0}
A1, B1 = ("a", 1), ("b", 1)


class FakeMemory:
    """Metrics memory of which only the descriptor is real."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("test")
        self.running: list[VersionKey] = []

    def suspects(self, slot: int) -> Sequence[VersionKey]:
        return self.running


def target(generation: int, *keys: VersionKey) -> Target:
    return Target(generation, tuple(version(key) for key in keys))


def version(key: VersionKey) -> TargetVersion:
    manifest = Manifest(key[0], "sha256:" + "0" * 64, (), SIGNATURE.to_json(), {"name": "onnx"})
    return TargetVersion(
        *key, manifest, Inspection(SIGNATURE, True, "", False, 0.0, 0.0, 0), is_serving=True
    )


class Fleet:
    """A started supervisor and what it told."""

    def __init__(self, supervisor: Supervisor, memory: FakeMemory) -> None:
        self.supervisor = supervisor
        self.memory = memory
        self.quarantined: list[tuple[str, int, str]] = []
        supervisor.on_quarantine(lambda *said: self.quarantined.append(said))

    def pids(self) -> list[int]:
        return [w.pid for w in self.supervisor.workers() if w.pid is not None]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - processes have no events
                await asyncio.sleep(0.01)

    async def until_serving(self) -> None:
        await self.until(lambda: all(w.state == "serving" for w in self.supervisor.workers()))


@contextlib.asynccontextmanager
async def fleet(
    behaviour: str = "good", *, workers: int = 2, timings: Timings = QUICK
) -> AsyncIterator[Fleet]:
    listeners = open_listeners("127.0.0.1", 0, workers, "data plane")
    memory = FakeMemory()
    supervisor = Supervisor(
        Settings(),
        plan=WorkerPlan(workers, 1, ((),) * workers),
        listeners=listeners,
        memory=memory,
        objects_dir=Path("objects"),
        worker_command=[sys.executable, "-m", "tests.process.scripted_worker", behaviour],
        timings=timings,
    )
    try:
        yield Fleet(supervisor, memory)
    finally:
        supervisor.kill()
        await supervisor.stop(0)
        close_all(listeners)
        os.close(memory.fd)


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
        it.supervisor.publish(target(1, A1))
        it.supervisor.start()
        await it.until_serving()
        it.supervisor.publish(target(2, A1))
        await it.supervisor.taken(2, 20)
    async with fleet("deaf") as it:
        it.supervisor.publish(target(1, A1))
        it.supervisor.start()
        await it.until_serving()
        it.supervisor.publish(target(2, A1))
        with pytest.raises(TimeoutError, match=r"slots \[0, 1\] did not get there within 0.05 s"):
            await it.supervisor.taken(2, 0.05)


async def test_a_killed_worker_comes_back_with_the_target(caplog: pytest.LogCaptureFixture) -> None:
    """Its sibling goes on; slot and log show the reason, the restart and the new process."""
    caplog.set_level(logging.INFO, "serving.workers")
    async with fleet() as it:
        it.supervisor.publish(target(3, A1))
        it.supervisor.start()
        await it.until_serving()
        first, second = it.pids()
        os.kill(first, signal.SIGKILL)
        await it.until(lambda: it.supervisor.workers()[0].restarts == 1)
        # A dead worker is not waited for.
        assert (await it.supervisor.settled(3, 0.5))[A1].state == "READY"
        await it.until_serving()
        info = it.supervisor.workers()[0]
        assert (info.generation, info.reason) == (3, "killed by SIGKILL")
        assert it.pids()[1] == second
        assert it.supervisor.restarts() == NO_RESTARTS | {"signal": 1}
        died, again = caplog.records
        assert (died.getMessage(), vars(died)["reason"]) == ("worker died", "killed by SIGKILL")
        assert (again.getMessage(), vars(again)["pid"]) == ("worker started again", it.pids()[0])


async def test_a_worker_that_comes_back_beside_another_accepts_with_all_it_is_to_hold() -> None:
    """Past some seconds it would answer 503 for what it still loads, and the other would not."""
    # Its workers end where they are told to take their time.
    async with fleet("bad-successor") as it:
        it.supervisor.publish(target(1, A1))
        it.supervisor.start()
        await it.until_serving()
        os.kill(it.pids()[0], signal.SIGKILL)
        await it.until(lambda: any("no room for two" in w.reason for w in it.supervisor.workers()))


async def test_a_worker_that_comes_back_alone_accepts_in_time() -> None:
    """Where nobody else answers an honest 503 is better than to wait for the last version."""
    async with fleet("bad-successor", workers=1) as it:
        it.supervisor.publish(target(1, A1))
        it.supervisor.start()
        await it.until_serving()
        os.kill(it.pids()[0], signal.SIGKILL)
        await it.until(lambda: it.supervisor.workers()[0].restarts == 1)
        await it.until_serving()


async def test_e13_a_stopped_worker_is_noticed_and_replaced() -> None:
    """A process that gives no sign of life is killed, however alive the kernel thinks it is."""
    async with fleet() as it:
        it.supervisor.publish(target(1))
        it.supervisor.start()
        await it.until_serving()
        stopped = it.pids()[0]
        os.kill(stopped, signal.SIGSTOP)
        await it.until(lambda: it.supervisor.workers()[0].restarts == 1)
        await it.until_serving()
        assert not process_exists(stopped)
        assert "no sign of life for 2 s" in it.supervisor.workers()[0].reason
        assert it.supervisor.restarts() == NO_RESTARTS | {"hung": 1}


@pytest.mark.parametrize(
    ("behaviour", "end"), [("kills=b/1", "killed by SIGKILL"), ("exits=b/1", "exited with code 7")]
)
async def test_a_version_that_kills_every_worker_is_quarantined(behaviour: str, end: str) -> None:
    """After three deaths it stands as FAILED, it is told once, and the others serve."""
    async with fleet(behaviour) as it:
        it.supervisor.publish(target(1, A1))
        it.supervisor.start()
        await it.until_serving()
        it.supervisor.publish(target(2, A1, B1))
        standing = await it.supervisor.settled(2, 20)
        assert standing[A1].state == "READY"
        assert standing[B1].state == "FAILED"
        assert standing[B1].reason.endswith(end)
        assert [(model, number) for model, number, _ in it.quarantined] == [B1]
        await it.until_serving()
        assert sum(w.restarts for w in it.supervisor.workers()) in (3, 4)


async def test_a_death_while_loading_keeps_the_settling_open() -> None:
    """The one worker that loaded it does not speak for the one that died of it."""
    async with fleet("kills-first=b/1", timings=Timings(backoff_first_s=5.0)) as it:
        it.supervisor.publish(target(1))
        it.supervisor.start()
        await it.until_serving()
        it.supervisor.publish(target(2, B1))
        await it.until(lambda: [w.restarts for w in it.supervisor.workers()] == [1, 0])
        await it.until(lambda: it.supervisor.workers()[1].generation == 2)
        with pytest.raises(TimeoutError, match=r"slots \[0\]"):
            await it.supervisor.settled(2, 0.2)


async def test_a_quarantined_version_that_was_away_gets_a_new_chance() -> None:
    """A target without it and a later one with it try it again."""
    async with fleet("kills=b/1", workers=1) as it:
        it.supervisor.publish(target(1, B1))
        it.supervisor.start()
        assert (await it.supervisor.settled(1, 20))[B1].state == "FAILED"
        it.supervisor.publish(target(2))
        await it.supervisor.settled(2, 20)
        restarts = it.supervisor.workers()[0].restarts
        it.supervisor.publish(target(3, B1))
        assert (await it.supervisor.settled(3, 20))[B1].state == "FAILED"
        assert it.supervisor.workers()[0].restarts > restarts
        assert len(it.quarantined) == 2


async def test_a_version_in_flight_at_three_crashes_is_quarantined() -> None:
    """Without a load, what ran is blamed; here each second target crashes the worker."""
    async with fleet("crash", workers=1) as it:
        it.memory.running = [A1]
        it.supervisor.publish(target(1, A1))
        it.supervisor.start()
        for generation in (2, 3, 4):
            await it.until_serving()
            restarts = it.supervisor.workers()[0].restarts
            it.supervisor.publish(target(generation, A1))
            await it.until(lambda seen=restarts: it.supervisor.workers()[0].restarts > seen)
        assert [said[:2] for said in it.quarantined] == [A1]
        assert "SIGSEGV" in it.quarantined[0][2]


async def test_kills_from_outside_blame_nobody() -> None:
    """A popular version is not quarantined because a person killed workers."""
    async with fleet(workers=1) as it:
        it.memory.running = [A1]
        it.supervisor.publish(target(1, A1))
        it.supervisor.start()
        for _ in range(4):
            await it.until_serving()
            restarts = it.supervisor.workers()[0].restarts
            os.kill(it.pids()[0], signal.SIGKILL)
            await it.until(lambda seen=restarts: it.supervisor.workers()[0].restarts > seen)
        assert it.quarantined == []


async def test_workers_that_never_start_end_the_server() -> None:
    """The reason is the last worker's own, and says how often it was tried."""
    async with fleet("stillborn", timings=Timings(backoff_first_s=0.01, max_failed_starts=2)) as it:
        it.supervisor.start()
        async with asyncio.timeout(20):
            reason = await it.supervisor.cannot_start()
        assert reason == (
            "no worker can start: 2 attempts in each slot, the last one no such library"
        )


async def test_workers_killed_from_outside_while_they_start_do_not_end_the_server() -> None:
    """Somebody who kills them shows nothing about whether one that is left alone could start."""
    timings = Timings(backoff_first_s=0.001, max_failed_starts=2)
    async with fleet("starting", workers=1, timings=timings) as it:
        it.supervisor.start()
        ending = asyncio.create_task(it.supervisor.cannot_start())
        for kills in range(1, 4):
            await it.until(lambda: bool(it.pids()))
            os.kill(it.pids()[0], signal.SIGKILL)
            await it.until(lambda seen=kills: it.supervisor.workers()[0].restarts == seen)
        assert not ending.done()
        assert it.supervisor.restarts() == NO_RESTARTS | {"start": 3}
        ending.cancel()


async def test_a_command_that_does_not_exist_ends_the_server() -> None:
    """A missing interpreter is a reason like any other."""
    listeners = open_listeners("127.0.0.1", 0, 1, "data plane")
    memory = FakeMemory()
    supervisor = Supervisor(
        Settings(),
        plan=WorkerPlan(1, 1, ((),)),
        listeners=listeners,
        memory=memory,
        objects_dir=Path("objects"),
        worker_command=["/nonexistent/python"],
        timings=Timings(backoff_first_s=0.01, max_failed_starts=2),
    )
    supervisor.start()
    async with asyncio.timeout(20):
        assert "cannot be started: No such file or directory" in await supervisor.cannot_start()
    await supervisor.stop(0)
    close_all(listeners)
    os.close(memory.fd)


async def test_a_worker_that_speaks_nonsense_is_replaced() -> None:
    """Bytes that are no frame end the worker, not the server."""
    async with fleet("nonsense", workers=1) as it:
        it.supervisor.start()
        await it.until(lambda: it.supervisor.workers()[0].restarts == 1)
        assert "nonsense on the wire" in it.supervisor.workers()[0].reason


async def test_a_worker_is_replaced_by_one_that_holds_the_target() -> None:
    """The old one ends by itself; slot, generation and count of restarts go on."""
    async with fleet() as it:
        it.supervisor.publish(target(1, A1))
        it.supervisor.start()
        await it.until_serving()
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
        it.supervisor.publish(target(1, A1))
        it.supervisor.start()
        await it.until_serving()
        before = it.pids()
        with pytest.raises(WorkerLost, match="slot 1 did not take over: no room for two"):
            await it.supervisor.replace(1)
        assert it.pids() == before
        assert it.supervisor.restarts() == NO_RESTARTS
        assert (await it.supervisor.settled(1, 20))[A1].state == "READY"


async def test_stop_ends_all_workers_in_order() -> None:
    """Each is told and goes by itself; nothing is started any more."""
    async with fleet() as it:
        it.supervisor.publish(target(1))
        it.supervisor.start()
        await it.until_serving()
        pids = it.pids()
        assert await it.supervisor.stop(10)
        assert not any(process_exists(pid) for pid in pids)
        assert [w.state for w in it.supervisor.workers()] == ["stopped", "stopped"]


async def test_a_worker_that_does_not_stop_is_killed() -> None:
    """A stop ends within its time and says that not all went in order."""
    async with fleet("stubborn", workers=1, timings=Timings(exit_grace_s=0.1)) as it:
        it.supervisor.publish(target(1))
        it.supervisor.start()
        await it.until_serving()
        pids = it.pids()
        assert not await it.supervisor.stop(0.1)
        assert not any(process_exists(pid) for pid in pids)


class FakeCheck:
    """Finds ``dubious`` versions doubtful; a check ends once ``gate`` is set, well or badly."""

    def __init__(self, *dubious: VersionKey, error: Exception | None = None) -> None:
        self.dubious = frozenset(dubious)
        self.error = error
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.suspects: list[frozenset[VersionKey]] = []

    async def doubtful(self, suspects: Collection[VersionKey]) -> frozenset[VersionKey]:
        return self.dubious | frozenset(suspects)

    async def before_respawn(self, suspects: Collection[VersionKey]) -> None:
        self.suspects.append(frozenset(suspects))
        self.begun.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error


async def test_a_worker_alone_serves_all_but_what_is_doubtful_until_it_is_checked() -> None:
    """Nobody else would; the doubtful version follows once it is found whole."""
    check = FakeCheck(A1)
    async with fleet(workers=1) as it:
        it.supervisor.before_respawn(check)
        it.supervisor.publish(target(1, A1, B1))
        it.supervisor.start()
        await it.until_serving()
        assert check.suspects == []  # a first worker maps what the start has checked
        os.kill(it.pids()[0], signal.SIGKILL)
        await check.begun.wait()
        await it.until_serving()
        with pytest.raises(TimeoutError, match=r"slots \[0\] did not get there within 0.05 s"):
            await it.supervisor.settled(1, 0.05)
        check.gate.set()
        assert set(await it.supervisor.settled(1, 20)) == {A1, B1}


async def test_a_worker_with_siblings_maps_nothing_before_all_is_checked() -> None:
    """They answer meanwhile, also for what is doubtful."""
    check = FakeCheck(A1)
    async with fleet(workers=2) as it:
        it.supervisor.before_respawn(check)
        it.supervisor.publish(target(1, A1, B1))
        it.supervisor.start()
        await it.until_serving()
        os.kill(it.pids()[0], signal.SIGKILL)
        await check.begun.wait()
        await it.until(lambda: len(it.pids()) == 2)
        assert [w.state for w in it.supervisor.workers()] == ["starting", "serving"]
        check.gate.set()
        await it.until_serving()


async def test_a_check_that_fails_is_no_obstacle() -> None:
    """The slot would stay empty for ever: the worker gets all of it."""
    check = FakeCheck(A1, error=RuntimeError("disk gone"))
    check.gate.set()
    async with fleet(workers=1) as it:
        it.supervisor.before_respawn(check)
        it.supervisor.publish(target(1, A1))
        it.supervisor.start()
        await it.until_serving()
        os.kill(it.pids()[0], signal.SIGKILL)
        await it.until(lambda: it.supervisor.workers()[0].restarts == 1)
        await it.until_serving()
        assert set(await it.supervisor.settled(1, 20)) == {A1}


@pytest.mark.parametrize(("number", "found"), [(signal.SIGBUS, {A1}), (signal.SIGSEGV, set())])
async def test_what_a_worker_was_at_when_it_could_not_read_is_suspect(number, found) -> None:
    """A disk that fails changes neither size nor time of a file: its bytes have to be read."""
    check = FakeCheck()
    check.gate.set()
    async with fleet(workers=1) as it:
        it.supervisor.before_respawn(check)
        it.supervisor.publish(target(1, A1, B1))
        it.supervisor.start()
        await it.until_serving()
        it.memory.running = [A1]
        os.kill(it.pids()[0], number)
        await check.begun.wait()
        await it.until_serving()
        assert check.suspects == [found]


async def test_each_worker_that_begins_to_serve_is_told_of() -> None:
    """Also one that replaces a dead one, and nothing else that a worker says."""
    arrivals: list[None] = []
    async with fleet(workers=1) as it:
        it.supervisor.on_arrival(lambda: arrivals.append(None))
        it.supervisor.publish(target(1))
        it.supervisor.start()
        await it.until_serving()
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
