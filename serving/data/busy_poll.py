"""Busy polling: an event loop that looks for the next request for a moment before it may sleep.

To wake a core that sleeps takes longer than to answer a small request, so where the next request
comes soon, looking for it is quicker, and where it does not, looking is wasted. As the kernel does
for idle virtual processors, the window is grown while requests come within the longest one and
shut by one that does not: a worker that is asked seldom sleeps as if this did not exist.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final

# The first window of a worker that slept; each request that comes later than its window, and within
# the longest, doubles it.
FIRST_NS: Final = 50_000
# Giving way on a core that nobody else wants takes about a microsecond.
CROWDED_NS: Final = 50_000
# After somebody else had the core nothing is polled for so many times as long: what runs now and
# then, as this server's own parent does, ends hardly any polling, and what it costs is bounded.
REST: Final = 64
# Who wants the core again within so much polling wants all of it: then rests double, up to this.
PEACE_NS: Final = 1_000_000
LONGEST_REST_NS: Final = 5_000_000_000
_MOST_REST: Final = LONGEST_REST_NS // CROWDED_NS


class BusyPoll:
    """Keeps one event loop awake after an answer. Event-loop thread only.

    Guarantees: nothing is polled later than ``longest_ns`` after the last answer, nor while
    ``is_busy``. Each look lets everyone else who wants the core go first; where someone did, the
    core is not the worker's own, and polling rests for a while.
    """

    def __init__(
        self,
        longest_ns: int,
        *,
        is_busy: Callable[[], bool],
        polled: Callable[[bool, int], None],
        call_soon: Callable[[Callable[[], None]], Any],
        clock: Callable[[], int] = time.monotonic_ns,
        give_way: Callable[[], object] = os.sched_yield,
    ) -> None:
        """``is_busy``: a request or a thread is at work, so that looking would be in its way.

        ``polled``: told whether the request came, and of the nanoseconds until it did or the window
        was over. ``call_soon``: of the loop, which looks at its sockets before each such call.
        """
        self._longest_ns = longest_ns
        self._is_busy = is_busy
        self._polled = polled
        self._call_soon = call_soon
        self._clock = clock
        self._give_way = give_way
        self._window_ns = 0
        self._idle_ns = clock()
        self._is_polling = False
        # Whether polling went on until the request that is under way now.
        self._has_found = False
        self._rest = REST
        self._rested_ns = self._idle_ns
        self._peace_ns = 0

    @property
    def window_ns(self) -> int:
        """How long the next idle moment may be polled for; 0: not at all."""
        return self._window_ns

    def idle(self, began_ns: int) -> None:
        """Take note that no request is under way any more, and look for the next one if it pays.

        ``began_ns``: when the first of those that are over now began.
        """
        gap_ns = began_ns - self._idle_ns
        if self._has_found or self._is_polling:
            self._has_found = False
            self._peace_ns += gap_ns
            self._polled(True, gap_ns)
        longest_ns = self._longest_ns
        if gap_ns > longest_ns:
            self._window_ns = 0
        elif gap_ns > self._window_ns:
            self._window_ns = min(max(2 * self._window_ns, FIRST_NS), longest_ns)
        self._idle_ns = now_ns = self._clock()
        if self._window_ns and not self._is_polling and now_ns >= self._rested_ns:
            self._is_polling = True
            self._call_soon(self._look)

    def _look(self) -> None:
        """Go on while nothing came: before this call the loop looked at its sockets."""
        now_ns = self._clock()
        if self._is_busy():
            self._is_polling = False
            self._has_found = True
        elif now_ns - self._idle_ns >= self._window_ns:
            self._stop(now_ns)
        else:
            self._give_way()
            back_ns = self._clock()
            if back_ns - now_ns > CROWDED_NS:
                self._give_up(now_ns, back_ns)
            else:
                self._call_soon(self._look)

    def _stop(self, now_ns: int) -> None:
        self._is_polling = False
        polled_ns = now_ns - self._idle_ns
        self._peace_ns += polled_ns
        self._polled(False, polled_ns)

    def _give_up(self, now_ns: int, back_ns: int) -> None:
        """Rest: somebody else had the core from ``now_ns`` to ``back_ns``."""
        self._stop(now_ns)
        self._rest = REST if self._peace_ns >= PEACE_NS else min(2 * self._rest, _MOST_REST)
        self._peace_ns = 0
        self._rested_ns = back_ns + min(self._rest * (back_ns - now_ns), LONGEST_REST_NS)
