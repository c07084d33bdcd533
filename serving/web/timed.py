"""What becomes of a connection whose time is over: in its head, its body, idle, or not reading."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from serving.errors import RequestTooSlow
from serving.web import departure
from serving.web.cycle import Flow
from serving.web.deadlines import Deadlines
from serving.web.exchange import Exchange
from serving.web.parsing import RequestParser

# How long an idle connection is listened to after a stop began: a request may be on its way.
STOP_GRACE_S: Final = 0.2


class TimedConnection(RequestParser):
    """A connection with absolute deadlines; what they find is answered or closed.

    A subclass starts the requests and writes their answers.
    """

    pipeline: deque[Exchange]  # type: ignore[assignment]  # not only cycles wait here
    _flow: Flow

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._active: Exchange | None = None
        self._is_stopping = False
        # The client has ended its side; the first bytes of the next answer are out already.
        self._has_ended = False
        self._is_ahead = False
        self._is_probed = False
        self._look_s = departure.LOOK_S
        self._unflushed_bytes = 0
        self._deadlines = Deadlines(self.loop, self._on_due)
        self._is_head_due = False
        self._idle_from_s = 0.0

    # What a subclass says

    def _refuse(self, error: Exception) -> None:
        """Answer what is no request, and close."""
        raise NotImplementedError

    # Inside

    def _is_idle(self) -> bool:
        return self._active is None and not self.pipeline and not self._is_message_open

    def _await_head(self) -> None:
        if not self._is_head_due:
            self._is_head_due = True
            self._deadlines.set("head", self.limits.header_timeout_s)

    def _forget_head(self) -> None:
        self._is_head_due = False
        self._deadlines.clear("head")

    def _body_came(self) -> None:
        self._is_body_due = False
        self._deadlines.clear("body")

    def _on_due(self, name: str) -> None:
        if name == "head":
            self._on_head_due()
        elif name == "body":
            self._is_body_due = False
            if self._active is not None:
                self._active.late()
        elif name == "idle":
            self._on_idle_due()
        elif name == "stall":
            self._on_stall()
        elif name == "probe":
            self._on_probe()
        else:
            self._close()

    def _on_idle_due(self) -> None:
        """Close what was idle all the time; this one deadline is never cleared, only renewed."""
        wait_s = STOP_GRACE_S if self._is_stopping else self.limits.keep_alive_s
        idle_s = self.loop.time() - self._idle_from_s if self._is_idle() else 0.0
        # The loop's clock is read in steps of a millisecond.
        if idle_s + 0.001 >= wait_s:
            self._close()
        else:
            self._deadlines.set("idle", wait_s - idle_s)

    def _on_head_due(self) -> None:
        self._is_head_due = False
        if self._is_head_open and self._flow.read_paused:
            # It cannot come while nothing is read.
            self._await_head()
        elif self._is_head_open:
            limit = f"header_timeout_s {self.limits.header_timeout_s:g}"
            self._refuse(RequestTooSlow(f"request head: not complete within {limit}"))
        elif self._is_idle():
            # Nothing was ever sent, or only line ends: there is no request to answer.
            self._close()

    def _on_probe(self) -> None:
        """Where the client ended its side, send the first bytes ahead; see how they are taken."""
        active = self._active
        if active is None:
            return
        peer = departure.peer_of(self.transport)
        if peer is departure.Peer.GONE:
            self.transport.abort()
            return
        if peer is departure.Peer.SENDS:
            # It has ended its side only where all of it was read, or the state tells so.
            self._look_s = departure.LOOK_S
        elif self._is_probed:
            self._look_s = min(2 * self._look_s, departure.LOOK_S)
        elif not active.response_started:
            self._is_probed = self._is_ahead = True
            self._look_s = departure.FIRST_LOOK_S
            self.transport.write(departure.SENT_AHEAD)
        if self._has_ended or self._flow.is_held:
            self._deadlines.set("probe", self._look_s)

    def _close(self) -> None:
        if not self.transport.is_closing():
            self._is_deaf = True
            self.transport.close()
            self._watch_writing()

    def _watch_writing(self) -> None:
        if "stall" not in self._deadlines:
            self._unflushed_bytes = self.transport.get_write_buffer_size()
            self._deadlines.set("stall", self.limits.write_timeout_s)

    def _on_stall(self) -> None:
        """Cut the connection of a peer that took nothing since the last look."""
        if self.transport.get_write_buffer_size() >= self._unflushed_bytes:
            self.transport.abort()
        else:
            self._watch_writing()
