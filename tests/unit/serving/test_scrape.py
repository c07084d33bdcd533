"""A scrape never waits for what takes long to count, but for the first time."""

from __future__ import annotations

import asyncio

import pytest

from serving.scrape import Lasting


class Count:
    """Counts up; each count ends when the test says so."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        number = self.begun
        await self.may_end.wait()
        return number


async def test_the_first_result_is_waited_for() -> None:
    """There is nothing else to show."""
    count = Count()
    asking = asyncio.create_task(Lasting(count).get())
    done, _ = await asyncio.wait((asking,), timeout=0.05)
    assert not done
    count.may_end.set()
    assert await asking == 1


async def test_later_the_last_result_is_shown_while_the_next_is_counted() -> None:
    """One count at a time, and what it gave is there from the next look on."""
    count = Count()
    count.may_end.set()
    lasting = Lasting(count)
    assert [await lasting.get(), await lasting.get()] == [1, 2]
    count.may_end.clear()
    assert [await lasting.get() for _ in range(3)] == [2, 2, 2]
    assert count.begun == 3
    count.may_end.set()
    await asyncio.sleep(0)
    assert await lasting.get() == 3
    assert await lasting.get() == 4


async def test_two_scrapes_share_a_count() -> None:
    """What both wait for is counted once."""
    count = Count()
    lasting = Lasting(count)
    asking = [asyncio.create_task(lasting.get()) for _ in range(2)]
    await asyncio.wait(asking, timeout=0.05)
    count.may_end.set()
    assert await asyncio.gather(*asking) == [1, 1]
    assert await lasting.get() == 2


async def test_what_fails_is_said_and_tried_again() -> None:
    """A disk that cannot be asked fails this scrape, not all that follow."""
    results = iter([1, OSError("no"), 3])

    async def work() -> int:
        result = next(results)
        if isinstance(result, OSError):
            raise result
        return result

    lasting = Lasting(work)
    assert await lasting.get() == 1
    with pytest.raises(OSError, match="no"):
        await lasting.get()
    assert await lasting.get() == 3
