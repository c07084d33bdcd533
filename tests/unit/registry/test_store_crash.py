"""Every step at which the power can go, or a system call can fail, while the store changes."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from registry.errors import StoreFailed, StoreFormat, StoreFull
from registry.store import Store
from tests.disk_model import ModelDisk, PowerCut
from tests.store_driver import Step, StoreDriver

SCRIPT: Sequence[Step] = (
    lambda d: d.upload(0),
    lambda d: d.upload(1),
    lambda d: d.publish("m", 0, (1,)),
    lambda d: d.append_event(),
    lambda d: d.write_document(),
    lambda d: d.upload(2),
    lambda d: d.publish("m", 2, (1,)),
    lambda d: d.publish("other.model", 2, (1,)),
    lambda d: d.write_document(),
    lambda d: d.delete_newest("m"),
    lambda d: d.append_event(),
    lambda d: d.gc(is_later=True),
    lambda d: d.publish("m", 2, (1,)),
    lambda d: d.delete_newest("other.model"),
    lambda d: d.gc(is_later=True),
)
CHOICES = [None, 0, 1]


def run(driver: StoreDriver, steps: Sequence[Step]) -> None:
    for step in steps:
        step(driver)


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES)
def test_f03_a_power_cut_at_any_step_leaves_the_old_or_the_new(
    scratch: Path, choice: int | None
) -> None:
    """Whatever was acknowledged survives each crash point, whatever of the rest the disk kept."""
    die_at, was_cut = 1, True
    while was_cut:
        with StoreDriver(scratch / str(die_at)) as driver:
            driver.disk.die_in(die_at)
            was_cut = False
            try:
                run(driver, SCRIPT)
            except PowerCut:
                was_cut = True
            driver.power_cut(None if choice is None else random.Random(choice * 1000 + die_at))
        die_at += 1
    assert die_at > 60


@pytest.mark.slow
@pytest.mark.parametrize("is_tried_again", [False, True])
def test_f02_a_kill_at_any_step_then_a_power_cut_loses_nothing(
    scratch: Path, is_tried_again: bool
) -> None:
    """The next process builds on nothing that the killed one had not yet made durable."""
    die_at, was_killed = 1, True
    while was_killed:
        with StoreDriver(scratch / str(die_at)) as driver:
            driver.disk.die_in(die_at)
            was_killed = False
            for step in SCRIPT:
                try:
                    step(driver)
                except PowerCut:
                    was_killed = True
                    driver.restart()
                    if not is_tried_again:
                        break
                    with contextlib.suppress(ValueError):  # the delete was done before the kill
                        step(driver)
            driver.power_cut(None)
        die_at += 1
    assert die_at > 60


@pytest.mark.parametrize("lost", ["fsync", "fsync_dir"])
def test_f23_a_disk_that_syncs_nothing_is_caught(scratch: Path, lost: str) -> None:
    """The control: without the syncs the same checks find acknowledged writes missing."""
    lying = type("LyingDisk", (ModelDisk,), {lost: lambda disk, _: None})
    with StoreDriver(scratch / "disks", lying) as driver:
        driver.upload(0)
        driver.publish("m", 0)
        with pytest.raises((AssertionError, StoreFormat)):
            driver.power_cut(None)


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EINTR])
def test_f04_any_failing_call_is_told_and_can_be_tried_again(scratch: Path, error: int) -> None:
    """The n-th call fails: a planned error, nothing half made, and a second try holds for good."""
    expected = StoreFull if error in (errno.ENOSPC, errno.EDQUOT) else StoreFailed
    fail_at, messages = 1, []
    while True:
        with StoreDriver(scratch / str(fail_at)) as driver:
            driver.disk.fail_in(fail_at, error)
            for step in SCRIPT:
                try:
                    step(driver)
                except expected as told:
                    messages.append(str(told))
                    driver.may_be = None
                    step(driver)
            steps, is_over = driver.disk.steps, driver.disk.steps < fail_at
            driver.power_cut(None)
        if is_over:
            break
        fail_at += 1
    assert steps > 60
    assert len(messages) > 50
    assert not [text for text in messages if os.fspath(scratch) in text]


def test_f03_a_power_cut_while_a_store_is_made_is_made_good(scratch: Path) -> None:
    """A start cut short at any step leaves a folder that the next start can use."""
    for die_at in range(1, 100):
        for choice in (None, random.Random(die_at)):
            root = scratch / f"{die_at}-{choice is None}"
            disk = ModelDisk(root, die_at=die_at)
            root.mkdir()
            with contextlib.suppress(PowerCut):
                Store.open(root, files=disk).close()
            disk.release()
            left = scratch / f"{die_at}-{choice is None}-left"
            disk.cut(left, choice)
            Store.open(left).close()
        if not disk.is_off:
            return
    pytest.fail("the start never came to its end")


def test_f04_a_failing_call_while_opening_is_told_and_the_lock_let_go(scratch: Path) -> None:
    """An open that fails at any step raises a planned error, and the next one works."""
    for fail_at in range(1, 100):
        root = scratch / str(fail_at)
        disk = ModelDisk(root, fail_at=fail_at, error=errno.EIO)
        try:
            Store.open(root, files=disk).close()
        except StoreFailed:
            disk.release()
            Store.open(root).close()
        else:
            if disk.steps < fail_at:
                return
            Store.open(root).close()
    pytest.fail("the start never came to its end")
