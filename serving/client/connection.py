"""One server's address: sends requests, repeats what may be repeated, words the errors."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

import httpx

from serving.client.errors import ClientError, ServerUnreachable, check_token

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 60.0
TRIES: Final = 4
PAUSES_S: Final = (0.1, 0.4, 1.6)
# RFC 6750, section 3: what a token must allow for the call.
_SCOPE: Final = re.compile(r'\bscope="([a-z]+)"')

Document = dict[str, Any]


class Http:
    """A server's address and the connections to it; may be used from several threads.

    ``plane``: what must answer there; ``address_from``: where a person sets the address.
    ``before_request`` is called before each attempt; what it raises ends the call.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        token_variable: str,
        plane: str = "ramrack server",
        address_from: str = "",
        before_request: Callable[[], None] | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        check_token(token, token_variable)
        self.url = url.rstrip("/")
        self.token_variable = token_variable
        self._plane = plane
        with_what = f" with {address_from}" if address_from else ""
        self._way_out = f"give the address of the {plane}{with_what}"
        self.has_token = bool(token)
        self._before_request = before_request or _nothing
        self._sleep = sleep
        headers = {"authorization": f"Bearer {token}"} if token else {}
        try:
            parsed = httpx.URL(self.url)
            if parsed.scheme not in ("http", "https") or not parsed.host:
                raise ClientError(f"{url!r} is no address of a server: use http://HOST:PORT")
            self._client = httpx.Client(
                base_url=self.url,
                headers=headers,
                timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
                transport=transport,
                # Reading the system's certificates takes 0.1 s; plain HTTP has no use for them.
                verify=parsed.scheme == "https",
                # A proxy from the environment must not stand between us and this machine.
                trust_env=not _is_loopback(parsed.host),
            )
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise ClientError(f"address {url!r} is not allowed: {error}") from error

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        content: bytes | None = None,
        params: Mapping[str, str | int | float] | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> httpx.Response:
        """Return the answer of a successful call, or raise ClientError.

        What is safe to repeat (GET, HEAD, PUT, DELETE) is tried again after a broken connection;
        a POST only where the connection was never made.
        """
        timeout = httpx.Timeout(read_timeout_s, connect=CONNECT_TIMEOUT_S)
        for attempt in range(TRIES):
            self._before_request()
            try:
                response = self._client.request(
                    method, path, json=json, content=content, params=params,
                    headers=headers, timeout=timeout,
                )  # fmt: skip
            except httpx.TransportError as error:
                is_repeatable = method != "POST" or isinstance(error, httpx.ConnectError)
                self.pause_or_raise(attempt, error, is_repeatable=is_repeatable)
            else:
                return self.checked(response)
        raise AssertionError  # pragma: no cover - the last attempt returned or raised

    def put_stream(
        self,
        path: str,
        chunks: Callable[[int], Iterator[bytes]],
        size_bytes: int,
        kept: Callable[[], int] | None = None,
    ) -> None:
        """Upload ``size_bytes``, again after each broken connection.

        ``chunks``: yields the bytes from the one that it is called with. ``kept``: how many of
        them the server has from an earlier try; without it each try sends all.
        """
        for attempt in range(TRIES):
            start = kept() if kept is not None else 0
            headers = {
                "content-length": str(size_bytes - start),
                "content-type": "application/octet-stream",
            }
            if start:
                headers["content-range"] = f"bytes {start}-{size_bytes - 1}/{size_bytes}"
            self._before_request()
            try:
                response = self._client.put(path, content=chunks(start), headers=headers)
            except httpx.TransportError as error:
                self.pause_or_raise(attempt, error, is_repeatable=True)
            else:
                if start and response.status_code == 409 and attempt + 1 < TRIES:
                    # Somebody else went on with it, or it is gone by now.
                    kept = None
                    continue
                self.checked(response)
                return
        raise AssertionError  # pragma: no cover - the last attempt returned or raised

    def pause_or_raise(
        self, attempt: int, error: httpx.TransportError, *, is_repeatable: bool
    ) -> None:
        """Wait before the next attempt, or raise ServerUnreachable after the last one."""
        # Nobody listens at all: a second attempt within seconds would only delay the advice.
        is_refused = isinstance(error, httpx.ConnectError) and attempt >= 1
        if not is_repeatable or is_refused or attempt + 1 >= TRIES:
            raise self._unreachable(error) from error
        self._sleep(PAUSES_S[min(attempt, len(PAUSES_S) - 1)])

    def checked(self, response: httpx.Response) -> httpx.Response:
        """Return a successful answer, or raise ClientError with the server's own words."""
        if response.is_success:
            return response
        document = document_of(response)
        message = document.get("error")
        if not isinstance(message, str):
            message = ""
        lacking = _SCOPE.search(response.headers.get("www-authenticate", ""))
        scope = lacking[1] if lacking else ""
        if response.status_code == 401:
            message = self._unauthorized(message)
        elif response.status_code == 404 and message.startswith("path "):
            # Both planes speak the same JSON, and their addresses are easily mixed up.
            path = response.request.url.path
            message = f"{self.url} is not the {self._plane}, it has no {path}: {self._way_out}"
        elif scope and not message:
            message = f"the token in {self.token_variable} lacks the scope {scope!r}"
        if not message:
            message = (
                f"{self.url} answered {response.status_code} to "
                f"{response.request.method} {response.request.url.path}, which is not how the "
                f"{self._plane} answers: {self._way_out}"
            )
        raise ClientError(message, response.status_code, document, scope, response.headers)

    def _unauthorized(self, message: str) -> str:
        if not self.has_token:
            return f"a token is needed: set {self.token_variable}"
        return f"{message or 'the token is refused'}: check {self.token_variable}"

    def _unreachable(self, error: httpx.TransportError) -> ServerUnreachable:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return ServerUnreachable(
                f"no server at {self.url}: start one with `ramrack serve`, or {self._way_out}"
            )
        reason = str(error) or type(error).__name__
        return ServerUnreachable(f"the connection to {self.url} broke: {reason}")


def document_of(response: httpx.Response) -> Document:
    """Return the JSON object of an answer; an empty one where there is none."""
    try:
        document = response.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


class PlaneClient:
    """A client of one plane, a context manager. ``http``: the connections that it calls over."""

    def __init__(self, http: Http) -> None:
        self.http = http

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.http.close()

    def _get(self, path: str, **params: str | int) -> Document:
        return document_of(self.http.call("GET", path, params=params or None))


def _nothing() -> None:
    """Do nothing before a request."""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
