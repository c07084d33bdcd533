"""What an HTTP front and the data plane hand each other: a request, its answer, the way to end it.

No framework, and nothing of a model: fronts and plane depend on this, not on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias
from typing import Protocol as Interface

from registry.errors import InvalidInput
from serving.web.errors import REQUEST_ID, Headers, new_request_id, request_id_of

LENGTH_HEADER: Final = b"inference-header-content-length"
TIMEOUT_HEADER: Final = b"x-request-timeout-ms"
KEY_HEADER: Final = b"x-routing-key"
MAX_KEY_BYTES: Final = 256
ACCEPT_HEADER: Final = b"accept-encoding"
TIMING_HEADER: Final = b"x-server-timing"
# How a body is to be read; "csv" is MLflow's form with rows as CSV.
Protocol: TypeAlias = Literal["v1", "v2", "mlflow", "csv"]
_HEADERS: Final = frozenset(
    {REQUEST_ID, LENGTH_HEADER, TIMEOUT_HEADER, KEY_HEADER, ACCEPT_HEADER, TIMING_HEADER}
)


@dataclass(slots=True)
class RequestHead:
    """What a request's head says that matters here; texts as they came, unchecked.

    ``is_timed``: the answer shall say where its time went.
    """

    request_id: str
    json_length: str | None = None
    timeout_ms: str | None = None
    accept_encoding: str | None = None
    routing_key: str | None = None
    is_timed: bool = False

    @classmethod
    def of(
        cls, headers: Iterable[tuple[bytes, bytes]], request_id: str | None = None
    ) -> RequestHead:
        """Return the head of lower-case header lines; a line sent twice is joined by a comma.

        ``request_id``: the one that was decided on already, if it was.
        """
        pairs = [header for header in headers if header[0] in _HEADERS]
        if not pairs:
            return cls(request_id or new_request_id())
        found: dict[bytes, str] = {}
        for name, value in pairs:
            text = value.decode("latin-1").strip()
            found[name] = f"{found[name]},{text}" if name in found else text
        return cls(
            request_id=request_id or request_id_of(pairs),
            json_length=found.get(LENGTH_HEADER),
            timeout_ms=found.get(TIMEOUT_HEADER),
            accept_encoding=found.get(ACCEPT_HEADER),
            routing_key=found.get(KEY_HEADER),
            is_timed=found.get(TIMING_HEADER, "0") != "0",
        )


@dataclass(slots=True)
class InferCall:
    """A prediction that is asked for. ``body`` is whole and decompressed.

    ``selector``: a version's number, an alias, ``latest``, or None for the route. ``request_id``:
    the request's own, where its head is one that many share; empty: the head's.
    """

    protocol: Protocol
    model: str
    selector: int | str | None
    head: RequestHead
    body: bytes
    request_id: str = ""

    def own_head(self) -> RequestHead:
        """Return the head with the request's own id."""
        return replace(self.head, request_id=self.request_id) if self.request_id else self.head


class Answer:
    """A whole HTTP answer.

    ``version_prefix``: the lines of all ``headers`` but x-request-id as they go on the wire, each
    with its line end, for a front that writes a head in one piece: the content type first, and only
    with a 200; empty where none was prepared.
    """

    __slots__ = ("_headers", "body", "status", "version_prefix")

    def __init__(
        self,
        status: int,
        headers: Headers | Callable[[], Headers],
        body: bytes,
        version_prefix: bytes = b"",
    ) -> None:
        """``headers``: or what makes them, for most fronts that have a prefix never ask."""
        self.status = status
        self._headers = headers
        self.body = body
        self.version_prefix = version_prefix

    @property
    def headers(self) -> Headers:
        """The header lines; they lack only the content-length."""
        headers = self._headers
        return headers if isinstance(headers, list) else headers()


class Pending(Interface):
    """A request under way."""

    def cancel(self) -> None:
        """Drop the request, for its client left: ``done`` is not called. Late calls do nothing."""


def routing_key(head: RequestHead) -> bytes | None:
    """Return what a split decides by, or None where nothing or an empty text was sent."""
    if not head.routing_key:
        return None
    key = head.routing_key.encode("latin-1")
    if len(key) > MAX_KEY_BYTES:
        raise InvalidInput(
            f"header x-routing-key: {len(key)} bytes, at most {MAX_KEY_BYTES} are allowed"
        )
    return key
