"""What a new worker of the supervisor may map before damage was looked for."""

import os
import signal

import pytest

from tests.unit.serving.fleet_rig import A1, B1, FakeCheck, fleet, target

pytestmark = [pytest.mark.process, pytest.mark.slow]


async def test_a_worker_alone_serves_all_but_what_is_doubtful_until_it_is_checked() -> None:
    """Nobody else would; the doubtful version follows once it is found whole."""
    check = FakeCheck(A1)
    async with fleet(workers=1, check=check) as it:
        await it.serve(target(1, A1, B1))
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
    async with fleet(workers=2, check=check) as it:
        await it.serve(target(1, A1, B1))
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
    async with fleet(workers=1, check=check) as it:
        await it.serve(target(1, A1))
        os.kill(it.pids()[0], signal.SIGKILL)
        await it.until(lambda: it.supervisor.workers()[0].restarts == 1)
        await it.until_serving()
        assert set(await it.supervisor.settled(1, 20)) == {A1}


@pytest.mark.parametrize(("number", "found"), [(signal.SIGBUS, {A1}), (signal.SIGSEGV, set())])
async def test_what_a_worker_was_at_when_it_could_not_read_is_suspect(number, found) -> None:
    """A disk that fails changes neither size nor time of a file: its bytes have to be read."""
    check = FakeCheck()
    check.gate.set()
    async with fleet(workers=1, check=check) as it:
        await it.serve(target(1, A1, B1))
        it.memory.running = [A1]
        os.kill(it.pids()[0], number)
        await check.begun.wait()
        await it.until_serving()
        assert check.suspects == [found]
