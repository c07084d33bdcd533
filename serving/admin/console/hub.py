"""One sampler for everyone who looks: a look a second while somebody does, none otherwise.

There are no queues. A reader asks for what changed since what it has; one that reads slowly gets
fewer and larger messages, and one that reads nothing is cut by the server's write timeout.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

import orjson

from registry.errors import NotReady
from registry.manifest import Json
from serving.errors import QueueFull

MAX_READERS: Final = 32
EVERY_S: Final = 1.0
_log = logging.getLogger(__name__)


class ConsoleHub:
    """Holds the newest state of each section, and wakes whoever waits for the next.

    ``sample`` returns all sections; ``forget`` is called when nobody looks any more.
    """

    def __init__(
        self,
        sample: Callable[[], Awaitable[dict[str, Json]]],
        forget: Callable[[], None] = lambda: None,
        every_s: float = EVERY_S,
    ) -> None:
        self._sample = sample
        self._forget = forget
        self._every_s = every_s
        self._sections: dict[str, tuple[int, bytes]] = {}
        self._look = 0
        self._next = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        # Readers end with the looking that they began with.
        self._failures = 0
        self.readers = 0

    @property
    def is_sampling(self) -> bool:
        """Say whether looks are taken."""
        return self._task is not None

    def enter(self) -> None:
        """Count a reader in, or raise QueueFull or NotReady; each needs one ``leave``."""
        if self._is_closed:
            raise NotReady("the server is stopping")
        if self.readers >= MAX_READERS:
            raise QueueFull(
                f"{self.readers} of {MAX_READERS} live consoles are open: close one of them"
            )
        self.readers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="console")

    def leave(self) -> None:
        """Count a reader out; the last one ends the looking."""
        self.readers -= 1
        if not self.readers and self._task is not None:
            self._task.cancel()
            self._task = None
            self._sections.clear()
            self._forget()

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Yield JSON of what changed since the message before, the first of everything.

        Only for a reader that entered. Ends when the hub is closed or looking failed.
        """
        seen, failures = 0, self._failures
        while not self._is_closed and failures == self._failures:
            fresh = {name: body for name, (look, body) in self._sections.items() if look > seen}
            if self._look > seen and fresh:
                seen = self._look
                yield _joined(fresh)
                continue
            await self._next.wait()

    def close(self) -> None:
        """End every stream, and refuse new ones."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
        self._wake()

    async def _run(self) -> None:
        try:
            while True:
                began_s = time.monotonic()
                self._take(await self._sample())
                # A server that is slow to look at is looked at less often.
                taken_s = time.monotonic() - began_s
                await asyncio.sleep(max(self._every_s - taken_s, self._every_s / 2))
        except Exception:  # noqa: BLE001 - the boundary of a task; logged
            # The page connects again, and so tries again; what serves is not concerned.
            _log.exception("the console cannot be shown")
            self._failures += 1
            self._task = None
            self._wake()

    def _take(self, sections: dict[str, Json]) -> None:
        self._look += 1
        for name, document in sections.items():
            body = orjson.dumps(document)
            if name not in self._sections or self._sections[name][1] != body:
                self._sections[name] = (self._look, body)
        # Always new, so that every look is a sign of life.
        self._sections["look"] = (self._look, b"%d" % self._look)
        self._wake()

    def _wake(self) -> None:
        woken, self._next = self._next, asyncio.Event()
        woken.set()


def _joined(sections: dict[str, bytes]) -> bytes:
    parts = [orjson.dumps(name) + b":" + body for name, body in sections.items()]
    return b"{" + b",".join(parts) + b"}"
