"""A connection: uvicorn's HTTP/1.1 protocol with what it lacks for strangers and a lossless stop.

Added: an offer to upgrade is ignored and the request answered; the head has a size and a deadline;
a peer that does not read has one; one that only ended its side is answered; errors are JSON and
come in their turn; a stop answers what was received. Requests that a lane opens go past the
application, in the same order. There is one live parser at any time, and it is not asked again
about a head that it parsed before.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.utils import is_ssl

from serving.web import departure, head
from serving.web.addresses import local_address, remote_address
from serving.web.answering import AnsweringConnection
from serving.web.cycle import AnswerTransport, Cycle, Flow
from serving.web.exchange import Exchange, Lane
from serving.web.known_heads import HEAD_END, KNOWN_HEAD_BYTES, KnownHead, KnownHeads
from serving.web.parsing import fault_of
from serving.web.timed import STOP_GRACE_S


class RamrackHttpProtocol(AnsweringConnection):
    """One connection.

    Guarantees: answers come in the order of the requests, an error of the connection after the
    answers that are due before it; what was received before a stop is answered.
    """

    lane: ClassVar[Lane | None] = None
    known: ClassVar[KnownHeads] = KnownHeads()

    # How long the client had the connection and sent nothing, before this took it over.
    silent_s: float = 0.0
    cycle: Cycle | None  # type: ignore[assignment]  # the newest request of the application

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._latest: KnownHead | None = None
        self._last_words = b""
        self._is_advancing = False

    # What the event loop calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; its first head is due header_timeout_s after it was accepted."""
        self.connections.add(self)
        self.transport = transport
        self.flow = self._flow = Flow(transport)
        self.server = local_address(transport)
        self.client = remote_address(transport)
        self.scheme = "https" if is_ssl(transport) else "http"
        self._is_head_due = True
        self._deadlines.set("head", self.limits.header_timeout_s - self.silent_s)
        self._deadlines.set("idle", self.limits.keep_alive_s - self.silent_s)

    def data_received(self, data: bytes) -> None:
        """Take what came; a packet that is one request with a known head is not parsed.

        The parser keeps nothing from one request to the next, so it need not have seen this one.
        """
        if self._is_message_open or self.lane is None:
            super().data_received(data)
            return
        known = self._latest
        # A client mostly sends the head that it sent last.
        if known is None or len(data) != known.all_bytes or not data.startswith(known.head):
            end = data.find(HEAD_END, 0, KNOWN_HEAD_BYTES) + len(HEAD_END)
            known = self.known.by_bytes.get(data[:end])
            if known is None:
                super().data_received(data)
                if self._begun == 1 and end >= len(HEAD_END):
                    self._learn(data[:end], len(data) - end)
                return
            self._latest = known
        if len(data) != known.all_bytes or not self._is_free():
            super().data_received(data)
        else:
            self._silent_bytes = 0
            self.url, self.headers = known.target, known.headers
            if self._is_head_due:
                self._forget_head()
            body = data[known.head_bytes :]
            exchange = self._active = self._newest = known.prepared.open(self, body)
            try:
                exchange.start()
            except Exception as fault:  # noqa: BLE001  as for one that the parser met
                self._parsed(fault_of(fault))

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's never keeps it open
        """Note that the client sends no more; keep the connection while answers are due.

        TLS has no half-closed connections.
        """
        if self._is_ending or self.scheme == "https":
            return False
        if self._is_message_open:
            self._drop_unfinished()
        if self._active is None and not self.pipeline:
            return False
        self._is_deaf = True
        self._has_ended = True
        self._deadlines.set("probe", departure.PROBE_AFTER_S)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request under way that nobody waits for it, and forget those behind."""
        super().connection_lost(exc)
        self._deadlines.stop()
        self._is_deaf = True
        self.pipeline.clear()
        active, self._active = self._active, None
        if active is not None:
            active.leave()
        # Requests know their connection; without these it goes at once, not with the next garbage.
        self.cycle = self._newest = None

    def pause_writing(self) -> None:
        """Note that the peer does not read; it has write_timeout_s to take something."""
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        """Note that the peer reads again, and answer what waits for that."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._deadlines.clear("stall")
            self._advance()

    def shutdown(self) -> None:
        """Answer what was received or is being received, then close; called when a stop begins."""
        self._is_stopping = True
        if self._is_idle():
            self._become_idle()

    def can_move(self) -> bool:
        """Say whether this process holds nothing of the connection, so another can go on with it.

        False for TLS, whose keys are here.
        """
        return (
            self._is_idle()
            and not self._is_deaf
            and not self.transport.is_closing()
            and self.transport.get_write_buffer_size() == 0
            and self.transport.get_extra_info("sslcontext") is None
        )

    def announce_close(self) -> None:
        """Let the next answer be the last one and say so; a client may still ask for it."""
        self._is_stopping = True

    # What the parsing calls

    def _open(self, method: bytes, *, keep_alive: bool) -> Exchange:
        exchange: Exchange | None = None
        if self.lane is not None and method == b"POST":
            exchange = self.lane.open(
                self, self.url, self.headers,
                keep_alive=keep_alive, is_expecting=self.expect_100_continue,
            )  # fmt: skip
        if exchange is None:
            exchange = self.cycle = self._new_cycle(method, keep_alive=keep_alive)
        return exchange

    def _admit(self, exchange: Exchange) -> None:
        if self._is_head_due:
            self._forget_head()
        # While stopping the last one of a packet must be known before the first is answered.
        if self._is_free():
            self._active = exchange
            exchange.start()
            return
        self._flow.pause_reading()
        self._flow.is_held = True
        self._deadlines.start("probe", departure.LOOK_S)
        self.pipeline.appendleft(exchange)

    def _parsed(self, error: Exception | None) -> None:
        if self._joined:
            self._flush()
        if error is not None:
            # Deaf: the last request was answered, and what follows it is none.
            if not self._is_deaf:
                self._refuse(error)
        elif self._active or self._is_head_open or self.pipeline or not self._begun:
            self._settle()

    # What a request calls

    def on_response_complete(self) -> None:
        """Go on with the next request, the last words, or waiting."""
        self.server_state.total_requests += 1
        self._active = None
        if self._is_ending or self.transport.is_closing():
            return
        if self.pipeline or self._last_words or self._flow.read_paused:
            self._advance()
        elif not self._is_message_open:
            self._become_idle()

    def await_body(self, timeout_s: float) -> None:
        """Tell the request under way that it is late unless its body is complete by then."""
        if not self._is_body_due:
            self._is_body_due = True
            self._deadlines.set("body", timeout_s)

    def pause_body(self) -> None:
        """Read no further, for what came is still being worked on."""
        self._flow.pause_reading()

    def resume_body(self) -> None:
        """Read on."""
        self._flow.resume_reading()

    # Inside

    def _settle(self) -> None:
        """Let the request under way have what came, and see what is awaited next."""
        if self._is_deaf:
            return
        if self._active is None:
            if self.pipeline:
                self._advance()
        elif not self._active.is_complete:
            self._active.settle()
        if self._is_head_open or (not self._begun and self._is_idle()):
            # Line ends alone begin no request, and do not keep a connection either.
            self._await_head()

    def _new_cycle(self, method: bytes, *, keep_alive: bool) -> Cycle:
        self.scope = head.scope_of(self, method)
        return Cycle(
            is_last=self._is_last,
            run=self._run_application,
            scope=self.scope,
            transport=AnswerTransport(self.transport, self._write, self._close_after_answer),
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=keep_alive,
            on_response=self.on_response_complete,
        )

    def _run_application(self, cycle: Cycle) -> None:
        self._start_asgi_task(cycle, self.app)

    def _advance(self) -> None:
        """Start the next request if it may; then see whether the connection is idle or at its end.

        A request may be answered before its start returns: then the loop goes on with the next.
        """
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            while self._active is None and self.pipeline and not self._is_ending:
                if self._flow.write_paused or self.transport.is_closing():
                    return
                self._active = self.pipeline.pop()
                self._release_reading()
                self._active.start()
        finally:
            self._is_advancing = False
        if self._active is not None or self._is_ending:
            return
        if self._last_words:
            self._say_last_words()
        else:
            self._release_reading()
            if self._is_idle():
                self._become_idle()

    def _is_free(self) -> bool:
        """Say whether a request may start at once."""
        return (
            self._active is None
            and not self.pipeline
            and not self._is_stopping
            and not self._is_deaf
            and not self._flow.write_paused
        )

    def _learn(self, data: bytes, body_bytes: int) -> None:
        """Keep the head of the one request in a packet, if that is all the packet was."""
        newest = self._newest
        if newest is None or self._is_message_open or self._is_deaf:
            return
        if self.known.is_repeated(data) and (prepared := newest.prepare()) is not None:
            self.known.learn(data, body_bytes, self.url, self.headers, prepared)

    def _become_idle(self) -> None:
        self._idle_from_s = self.loop.time()
        if self._is_stopping:
            self._deadlines.set("idle", STOP_GRACE_S)

    def _refuse(self, error: Exception) -> None:
        """Answer what is no request, after the answers that are due before it, and close."""
        self._forget_head()
        if self.limits.on_refused is not None:
            self.limits.on_refused(error)
        self._last_words = self._answer_to(error)
        self._is_deaf = True
        is_in_body = self._is_message_open and not self._is_head_open
        if is_in_body and self._active is self._newest and self._active is not None:
            has_answered = self._active.response_started
            self._active.leave()
            self._active = None
            if has_answered:
                self._close()
                return
        elif is_in_body and self.pipeline:
            self.pipeline.popleft()
        if self._active is None:
            self._advance()

    def _say_last_words(self) -> None:
        if not self.transport.is_closing():
            self._write(self._last_words)
            self._is_message_open = True
            self._close_after_answer()

    def _drop_unfinished(self) -> None:
        """Forget the request whose end cannot come any more."""
        has_exchange = not self._is_head_open
        self._is_message_open = self._is_head_open = False
        if not has_exchange:
            return
        if self._active is self._newest:
            active, self._active = self._active, None
            if active is not None:
                active.leave()
        elif self.pipeline:
            self.pipeline.popleft()
            self._newest = self.pipeline[0] if self.pipeline else self._active
