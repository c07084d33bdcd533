"""What a connection and the requests on it ask of each other, whoever answers them."""

from __future__ import annotations

from typing import Protocol

from serving.web.errors import Headers


class Connection(Protocol):
    """What a request on the fast lane may ask of its connection."""

    @property
    def client(self) -> tuple[str, int] | None:
        """The peer's address and port."""

    @property
    def is_feeding(self) -> bool:
        """Whether more of the bytes that came may belong to the request."""

    def send_continue(self) -> None:
        """Tell a client that waits for leave to send its body."""

    def await_body(self, timeout_s: float) -> None:
        """Call ``late`` of the request under way unless its body is complete in time.

        Asked again, it changes nothing: the time runs from the first call.
        """

    def pause_body(self) -> None:
        """Read no further, for what came is still being worked on."""

    def resume_body(self) -> None:
        """Read on."""

    def answer(self, exchange: Exchange, status: int, headers: Headers, body: bytes) -> None:
        """Send the whole answer to the request under way; ``headers`` lack the content-length."""

    def answer_usual(self, exchange: Exchange, lines: bytes, request_id: str, body: bytes) -> None:
        """Send a 200: x-request-id goes behind the first of ``lines``, each with its line end."""


class Exchange(Protocol):
    """One request and its answer. All calls come on the loop; after ``leave`` there are none."""

    @property
    def keep_alive(self) -> bool:
        """Whether the request allows another one after it."""

    @property
    def is_complete(self) -> bool:
        """Whether the whole body came."""

    @property
    def response_started(self) -> bool:
        """Whether any of the answer was written."""

    def start(self) -> None:
        """Answer as soon as possible: every earlier answer is out."""

    def take(self, body: bytes) -> None:
        """Take a piece of the body; it may come before the start."""

    def complete(self) -> None:
        """Note that the body is complete."""

    def settle(self) -> None:
        """Work on what was taken: started and not complete, and no more bytes are there now."""

    def late(self) -> None:
        """Note that the body did not come in time."""

    def leave(self) -> None:
        """Drop the work: nobody waits for the answer any more."""

    def prepare(self) -> Prepared | None:
        """Return what opens further requests with the same head, or None for what may not."""


class Prepared(Protocol):
    """Opens requests whose head, byte for byte, opened one before."""

    def open(self, connection: Connection, body: bytes) -> Exchange:
        """Return a request that is complete; the connection may go on after it."""


class Lane(Protocol):
    """A way past the application for the requests that are worth one."""

    def open(
        self,
        connection: Connection,
        target: bytes,
        headers: Headers,
        *,
        keep_alive: bool,
        is_expecting: bool,
    ) -> Exchange | None:
        """Return what answers a POST to ``target``, or None: the application does.

        ``headers``: names in lower case. ``is_expecting``: the client waits for leave to send.
        """
