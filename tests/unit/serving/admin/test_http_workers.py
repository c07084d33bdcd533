"""The workers through HTTP: restarted one by one, upgraded, and awaited."""

from __future__ import annotations

import asyncio
import logging
import os

import pytest

from serving.fleet import WorkerInfo
from tests.unit.serving.admin.http_calls import error_of

pytestmark = pytest.mark.timeout(30)


async def test_a_restart_of_the_workers_is_an_operation(world, client, caplog):
    """Slot after slot; it is recorded with who wanted it and why, and names no version.

    The log has its begin, each worker with the process before it, and its end.
    """
    caplog.set_level(logging.INFO, "serving.control.rolling")
    await world.control.restored()
    world.fleet.slots = tuple(WorkerInfo(n, 41 + n, "serving", 1, (n,), 0) for n in range(2))
    answer = await client.post("/admin/v1/workers:restart", params={"wait": 20, "reason": "leak"})

    assert answer.status_code == 200
    done = answer.json()
    assert (done["kind"], done["state"], done["model"], done["version"]) == (
        "restart", "succeeded", None, None,
    )  # fmt: skip
    assert world.fleet.replaced == [0, 1]
    event = (await client.get("/admin/v1/events")).json()["events"][-1]
    assert (event["kind"], event["reason"], event["after"]["workers"]) == ("restart", "leak", 2)
    pids = [(item["slot"], item["old_pid"], item["pid"]) for item in event["after"]["replaced"]]
    assert pids == [(0, 41, 141), (1, 42, 142)]
    begun, *each, over = _rolling_log(caplog)
    assert begun == "rolling restart of 2 workers begins"
    assert [text.partition(" in ")[0] for text in each] == [
        "worker of slot 0 is new: process 41 -> 141", "worker of slot 1 is new: process 42 -> 142",
    ]  # fmt: skip
    assert over.startswith("rolling restart is over: 2 workers are new after ")


def _rolling_log(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "serving.control.rolling"]


async def test_a_worker_that_cannot_be_replaced_ends_the_restart(world, client, caplog):
    """The answer, the log and the record say which and why; slots behind it are left alone."""
    caplog.set_level(logging.WARNING, "serving.control.rolling")
    await world.control.restored()
    world.fleet.slots = tuple(WorkerInfo(n, 41 + n, "serving", 1, (n,), 0) for n in range(3))
    world.fleet.refused_slots = {1}
    answer = await client.post("/admin/v1/workers:restart", params={"wait": 20})

    assert "slot 1 did not take over: no room" in await error_of(answer, 503)
    assert world.fleet.replaced == [0]
    (said,) = _rolling_log(caplog)
    assert said == (
        "rolling restart ends after 1 of 3 workers, the others serve on: the new worker of slot 1 "
        "did not take over: no room"
    )
    event = (await client.get("/admin/v1/events")).json()["events"][-1]
    assert (event["kind"], event["after"]["workers"]) == ("restart_failed", 3)
    assert "no room" in event["after"]["failed"]
    assert [item["pid"] for item in event["after"]["replaced"]] == [141]


async def test_a_restart_without_memory_for_one_more_worker_is_refused(world, client):
    """Figures and a way out are in the answer, and no worker was touched."""
    await world.control.restored()
    world.available_bytes = 1000
    answer = await client.post("/admin/v1/workers:restart", params={"wait": 20})

    assert "and 1000 are free: unload a version" in await error_of(answer, 507)
    assert world.fleet.replaced == []


async def test_a_restart_during_the_restore_is_refused(world, client):
    """Workers that are still loading are not replaced."""
    world.control.writer.is_restored = False
    answer = await client.post("/admin/v1/workers:restart")
    assert "still loading" in await error_of(answer, 409)


async def test_an_upgrade_is_begun_or_says_why_not(world, client):
    """The answer names the workers that will go; what cannot be upgraded says so."""
    answer = await client.post("/admin/v1/server:upgrade")
    assert "cannot be upgraded in place" in await error_of(answer, 409)
    begun = asyncio.Event()

    async def begin():
        begun.set()

    world.control.on_upgrade(begin)
    answer = await client.post("/admin/v1/server:upgrade", params={"reason": "0.2 is out"})
    assert (answer.status_code, answer.json()) == (200, {"pid": os.getpid(), "workers": [41]})
    assert begun.is_set()
    events = (await client.get("/admin/v1/events")).json()["events"]
    assert [(each["kind"], each["reason"]) for each in events] == [("upgrade", "0.2 is out")]


async def test_changes_wait_while_another_server_s_workers_serve(world):
    """Reading goes on; a change is a 503 that says why and when to come back."""
    why = ["the old ones serve"]
    async with world.client(why_held=lambda: why[0]) as asks:
        assert (await asks.get("/admin/v1/models")).status_code == 200
        answer = await asks.post("/admin/v1/gc", json={})
        assert await error_of(answer, 503) == why[0]
        why[0] = ""
        assert (await asks.post("/admin/v1/gc", json={})).status_code == 200
