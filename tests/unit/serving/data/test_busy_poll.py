"""Busy polling: when a loop looks, how long, and what makes it stop."""

from __future__ import annotations

from collections.abc import Callable

from serving.data.busy_poll import (
    CROWDED_NS,
    FIRST_NS,
    LONGEST_REST_NS,
    PEACE_NS,
    REST,
    BusyPoll,
)

LONGEST_NS = 200_000
LOOK_NS = 1_000
SLEPT_NS = LONGEST_NS + 1


class Loop:
    """A clock, calls that wait for the next pass, and a core that others may want."""

    def __init__(self, longest_ns: int = LONGEST_NS) -> None:
        self.now_ns = 0
        self.calls: list[Callable[[], None]] = []
        self.given_way = 0
        self.others_take_ns = 0
        self.is_busy = False
        self.counted: list[tuple[bool, int]] = []
        self.poll = BusyPoll(
            longest_ns,
            is_busy=lambda: self.is_busy,
            polled=lambda has_found, ns: self.counted.append((has_found, ns)),
            call_soon=self.calls.append,
            clock=lambda: self.now_ns,
            give_way=self.give_way,
        )

    def give_way(self) -> None:
        self.given_way += 1
        self.now_ns += self.others_take_ns

    def pass_by(self) -> bool:
        """Go round once; return whether anything was called."""
        self.now_ns += LOOK_NS
        calls, self.calls[:] = list(self.calls), []
        for call in calls:
            call()
        return bool(calls)

    def polls_for_ns(self) -> int:
        """Let nothing come; return how long the loop stays awake."""
        start_ns = self.now_ns
        while self.pass_by():
            pass
        return self.now_ns - start_ns

    def answer(self, gap_ns: int) -> None:
        """Answer a request that comes after a gap; the run itself takes no time."""
        end_ns = self.now_ns + gap_ns
        while self.calls and self.now_ns + LOOK_NS < end_ns:
            self.pass_by()
        self.now_ns = end_ns
        self.is_busy = True
        self.pass_by()
        self.is_busy = False
        self.poll.idle(end_ns)

    def answers(self, count: int, gap_ns: int) -> None:
        for _ in range(count):
            self.answer(gap_ns)


def test_a_worker_that_is_asked_seldom_sleeps_at_once() -> None:
    """Requests that come later than the longest window cost nothing."""
    loop = Loop()
    loop.answers(20, 5_000_000)
    assert (loop.poll.window_ns, loop.calls, loop.given_way, loop.counted) == (0, [], 0, [])


def test_the_window_grows_while_requests_come_within_the_longest() -> None:
    """Each that came later than the window doubles it, up to the longest."""
    loop = Loop()
    windows = []
    for _ in range(5):
        loop.answer(150_000)
        windows.append(loop.poll.window_ns)
    assert windows == [FIRST_NS, 100_000, LONGEST_NS, LONGEST_NS, LONGEST_NS]


def test_a_window_that_is_long_enough_stays() -> None:
    """Requests that come sooner than the first window need no longer one."""
    loop = Loop()
    loop.answers(10, FIRST_NS // 2)
    assert loop.poll.window_ns == FIRST_NS


def test_a_request_that_came_too_late_shuts_the_window() -> None:
    """The loop stays awake for one window and then sleeps until requests come soon again."""
    loop = Loop()
    loop.answers(5, 150_000)
    assert LONGEST_NS <= loop.polls_for_ns() <= LONGEST_NS + 2 * LOOK_NS
    loop.answer(SLEPT_NS)
    assert loop.poll.window_ns == 0
    assert loop.polls_for_ns() == LOOK_NS


def test_what_is_polled_is_counted_by_what_came_of_it() -> None:
    """Until the request, or until the window was over; sleep is in neither."""
    loop = Loop()
    loop.answers(3, FIRST_NS // 2)
    loop.polls_for_ns()
    found = [ns for has_found, ns in loop.counted if has_found]
    vain = [ns for has_found, ns in loop.counted if not has_found]
    assert [round(ns / LOOK_NS) for ns in found] == [25, 25]
    assert [round(ns / LOOK_NS) for ns in vain] == [FIRST_NS // LOOK_NS]
    loop.answer(SLEPT_NS)
    assert len(loop.counted) == 3


def test_a_request_that_is_answered_while_it_is_read_is_one_that_was_found() -> None:
    """An answer from the cache needs no further pass; polling goes on from it."""
    loop = Loop()
    loop.answers(2, FIRST_NS // 2)
    loop.now_ns += 10_000
    loop.poll.idle(loop.now_ns)
    assert loop.counted[-1] == (True, 10_000)
    assert len(loop.calls) == 1
    assert loop.polls_for_ns() >= FIRST_NS


def test_nothing_is_polled_while_a_thread_works() -> None:
    """A run in a thread, a load or a large body has the core to itself."""
    loop = Loop()
    loop.answers(5, 150_000)
    loop.is_busy = True
    assert loop.pass_by()
    assert not loop.pass_by()


def test_each_look_lets_others_go_first() -> None:
    """Whoever shares the core is not kept waiting for the length of a window."""
    loop = Loop()
    loop.answers(5, 150_000)
    before = loop.given_way
    for _ in range(10):
        loop.pass_by()
    assert loop.given_way == before + 10


TAKEN_NS = CROWDED_NS + 10_000


def disturb(loop: Loop, peace_ns: int, taken_ns: int = TAKEN_NS) -> None:
    """Poll for a while, then let somebody else have the core at the next look."""
    loop.answers(3, 150_000)
    while peace_ns > 0:
        loop.answer(100_000)
        peace_ns -= 100_000
    loop.others_take_ns = taken_ns
    loop.pass_by()
    loop.others_take_ns = 0


def rests_for(loop: Loop, rest_ns: int) -> bool:
    """Whether nothing is polled before ``rest_ns`` are over, and something after."""
    end_ns = loop.now_ns + rest_ns
    loop.now_ns = end_ns - 1_000_000
    loop.answers(4, 100_000)
    has_rested = loop.calls == []
    loop.now_ns = end_ns
    loop.answers(4, 100_000)
    return has_rested and len(loop.calls) == 1


def test_polling_rests_where_others_want_the_core() -> None:
    """A core that is shared is not the worker's to keep awake: it rests 64 times what they took."""
    loop = Loop()
    disturb(loop, 2 * PEACE_NS)
    assert loop.calls == []
    assert rests_for(loop, REST * TAKEN_NS)


def test_what_takes_hardly_any_time_is_no_disturbance() -> None:
    """A kernel thread that looks at something does not end the polling."""
    loop = Loop()
    disturb(loop, 0, CROWDED_NS)
    assert len(loop.calls) == 1


def test_rests_double_for_who_wants_the_core_again_at_once() -> None:
    """Polling beside a busy neighbour happens less and less often, but is tried again."""
    loop = Loop()
    disturb(loop, 2 * PEACE_NS, 3_000_000)
    rest_ns = REST * 3_000_000
    for _ in range(10):
        assert rests_for(loop, rest_ns)
        disturb(loop, 0, 3_000_000)
        rest_ns = min(2 * rest_ns, LONGEST_REST_NS)
    assert rest_ns == LONGEST_REST_NS


def test_some_peace_makes_rests_short_again() -> None:
    """Who wants the core now and then is not one who always does."""
    loop = Loop()
    for _ in range(6):
        disturb(loop, 0)
        loop.now_ns += LONGEST_REST_NS
    disturb(loop, 2 * PEACE_NS)
    assert rests_for(loop, REST * TAKEN_NS)
