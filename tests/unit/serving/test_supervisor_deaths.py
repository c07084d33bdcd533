"""Workers that die under the supervisor: replaced, blamed, or the end of the server."""

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest

from serving.settings import Settings
from serving.web.sockets import close_all, open_listeners
from serving.workers.cores import WorkerPlan
from serving.workers.slot import Timings
from serving.workers.supervisor import Supervisor
from tests.process.server import process_exists
from tests.unit.serving.fleet_rig import A1, B1, NO_RESTARTS, FakeMemory, fleet, target

pytestmark = [pytest.mark.process, pytest.mark.slow]


async def test_a_killed_worker_comes_back_with_the_target(caplog: pytest.LogCaptureFixture) -> None:
    """Its sibling goes on; slot and log show the reason, the restart and the new process."""
    caplog.set_level(logging.INFO, "serving.workers")
    async with fleet() as it:
        await it.serve(target(3, A1))
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
        await it.serve(target(1, A1))
        os.kill(it.pids()[0], signal.SIGKILL)
        await it.until(lambda: any("no room for two" in w.reason for w in it.supervisor.workers()))


async def test_a_worker_that_comes_back_alone_accepts_in_time() -> None:
    """Where nobody else answers an honest 503 is better than to wait for the last version."""
    async with fleet("bad-successor", workers=1) as it:
        await it.serve(target(1, A1))
        os.kill(it.pids()[0], signal.SIGKILL)
        await it.until(lambda: it.supervisor.workers()[0].restarts == 1)
        await it.until_serving()


async def test_e13_a_stopped_worker_is_noticed_and_replaced() -> None:
    """A process that gives no sign of life is killed, however alive the kernel thinks it is."""
    async with fleet() as it:
        await it.serve(target(1))
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
        await it.serve(target(1, A1))
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
        await it.serve(target(1))
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
