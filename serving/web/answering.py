"""How answers go out on a connection: their heads, joined into few writes, and the last of them."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from serving.errors import message_of, status_of
from serving.web import departure, head
from serving.web.errors import JSON_TYPE, REQUEST_ID, Headers, error_body, request_id_of
from serving.web.exchange import Exchange
from serving.web.timed import TimedConnection

# How long what a client still sends is read and thrown away after the last answer: closing at once
# would reset the connection, and the client might lose the answer with it.
LINGER_S: Final = 1.0
# Answers are joined into one write up to this size; a larger body is not copied for it.
JOINED_BYTES: Final = 64 * 1024
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class AnsweringConnection(TimedConnection):
    """A connection that writes answers, and closes so that a client can read the last one.

    A subclass starts the requests, in their order, and goes on after each answer.
    """

    heads: ClassVar[head.AnswerHeads] = head.AnswerHeads()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Ending: the last answer is out.
        self._is_ending = False
        # Answers that became ready while bytes were parsed; they go out in one write.
        self._joined: list[bytes] = []
        self._joined_bytes = 0

    # What a subclass says

    def on_response_complete(self) -> None:
        """Go on after the answer to the request under way."""
        raise NotImplementedError

    # What a request calls

    def send_continue(self) -> None:
        """Tell a client that waits for leave to send its body."""
        self._write(_CONTINUE)

    def answer(self, exchange: Exchange, status: int, headers: Headers, body: bytes) -> None:
        """Send the whole answer to the request under way; ``headers`` lack the content-length."""
        is_kept = exchange.keep_alive and exchange.is_complete
        if is_kept and (self._is_stopping or self._has_ended):
            is_kept = not self._is_last(exchange)
        defaults = self.server_state.default_headers
        self._send(self.heads.head(status, defaults, headers, len(body), is_kept), body, is_kept)

    def answer_usual(self, exchange: Exchange, lines: bytes, request_id: str, body: bytes) -> None:
        """Send a 200: x-request-id goes behind the first of ``lines``, each with its line end."""
        begin, middle = self.heads.usual(self.server_state.default_headers, lines)
        is_kept = exchange.keep_alive and exchange.is_complete
        if is_kept and (self._is_stopping or self._has_ended):
            is_kept = not self._is_last(exchange)
        end = (head.KEPT_END if is_kept else head.CLOSED_END) % len(body)
        parts = (begin, request_id.encode("ascii"), middle, end)
        if is_kept and not self.is_feeding and not self._is_ahead and len(body) <= JOINED_BYTES:
            # As below, in one step.
            self.transport.write(b"".join((*parts, body)))
            self.on_response_complete()
        else:
            self._send(b"".join(parts), body, is_kept)

    # Inside

    def _send(self, lines: bytes, body: bytes, is_kept: bool) -> None:
        if len(body) <= JOINED_BYTES:
            self._write(lines + body)
        else:
            self._write(lines)
            self._write(body)
        if not is_kept:
            self._close_after_answer()
        self.on_response_complete()

    def _is_last(self, exchange: Exchange) -> bool:
        is_to_end = self._is_stopping or self._has_ended
        return is_to_end and exchange is self._newest and not self._is_head_open

    def _close_after_answer(self) -> None:
        """Close once the answer is out, in such a way that the client can read it."""
        if self._is_ending or self.transport.is_closing():
            return
        self._is_deaf = True
        self._is_ending = True
        self._flush()
        self._forget_head()
        self._body_came()
        if self._has_ended or not (self._is_message_open or self._is_stopping):
            self._close()
            return
        self._release_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._deadlines.set("linger", LINGER_S)

    def _write(self, data: bytes) -> None:
        if self._is_ahead:
            self._is_ahead = False
            data = data[len(departure.SENT_AHEAD) :]
        if not self.is_feeding:
            self.transport.write(data)
            return
        self._joined.append(data)
        self._joined_bytes += len(data)
        if self._joined_bytes > JOINED_BYTES:
            self._flush()

    def _flush(self) -> None:
        joined = self._joined
        if joined:
            data = joined[0] if len(joined) == 1 else b"".join(joined)
            joined.clear()
            self._joined_bytes = 0
            self.transport.write(data)

    def _release_reading(self) -> None:
        if self._is_deaf or not self.pipeline:
            self._flow.is_held = False
            self._flow.resume_reading()

    def _answer_to(self, error: Exception) -> bytes:
        body = error_body(message_of(error))
        request_id = request_id_of(self.headers or ()).encode("ascii")
        lines = self.heads.head(
            status_of(error), self.server_state.default_headers,
            [JSON_TYPE, (REQUEST_ID, request_id)], len(body), False,
        )  # fmt: skip
        return lines + body
