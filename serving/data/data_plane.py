"""The data plane: a request's way from its bytes to its answer, the same for every HTTP front.

permit, version, deadline, decode, batch, encode, count. It knows no framework: it takes bytes and
gives status, headers and bytes, and it answers every error itself.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from models.errors import InputRefused, RunFailed, RunTerminated
from models.servable import Array, Servable
from models.signature import Signature
from registry.errors import InvalidInput, NotReady
from registry.ident import check_model_name, shown
from registry.serving_map import Handle, ServingMap, VersionView
from serving.codec import encoding, v1, v2
from serving.data.batcher import Batcher, Result
from serving.data.call import LENGTH_HEADER, Answer, RequestHead
from serving.errors import (
    Cancelled,
    DeadlineExpired,
    HeadersTooLarge,
    PayloadTooLarge,
    QueueFull,
    RequestTooSlow,
    UnsupportedMedia,
    WorkerLost,
    message_of,
    status_of,
)
from serving.metrics.page import PlaneCounters, Timing, VersionCounters
from serving.settings import Settings
from serving.web.errors import (
    JSON_TYPE,
    REQUEST_ID,
    Headers,
    error_body,
    error_headers,
)

_log = logging.getLogger(__name__)
R = TypeVar("R")

# Decoding and encoding from this size on happen in a thread, so that health stays quick.
OFF_LOOP_BYTES: Final = 256 * 1024
MAX_TIMEOUT_MS: Final = 3_600_000
NS_PER_MS: Final = 1_000_000
_NUMBER = re.compile("[0-9]{1,18}")
_BINARY_TYPE: Final = (b"content-type", b"application/octet-stream")
_REASONS: Final[dict[type[Exception], str]] = {
    QueueFull: "queue_full",
    DeadlineExpired: "deadline",
    Cancelled: "cancelled",
    PayloadTooLarge: "body_too_large",
    HeadersTooLarge: "headers_too_large",
    RequestTooSlow: "too_slow",
    InvalidInput: "bad_request",
    UnsupportedMedia: "unsupported_media",
    WorkerLost: "stopping",
}


class InFlightFull(QueueFull):
    """The worker holds as many requests as it may."""


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """A version that answers, with all that it needs to; the target of the serving map."""

    model: str
    version: int
    digest: str
    signature: Signature
    servable: Servable
    batcher: Batcher
    counters: VersionCounters
    timeout_ms: int


class _Call(Protocol):
    """A decoded request, of either protocol."""

    @property
    def inputs(self) -> dict[str, Array]: ...

    @property
    def rows(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Work:
    """A decoded request and how its answer is written."""

    call: _Call
    outputs: tuple[str, ...] | None
    timeout_us: int | None
    encode: Callable[[Sequence[Array]], tuple[bytes, int | None]]


_Decode: TypeAlias = Callable[[RequestHead, bytes, ServedVersion], _Work]


class DataPlane:
    """Answers predictions of one worker. Event-loop thread only."""

    def __init__(
        self,
        serving_map: ServingMap[ServedVersion],
        plane: PlaneCounters,
        settings: Settings,
        statistics: Callable[[str, int], dict[str, Any]],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.serving_map = serving_map
        self.statistics = statistics
        self._plane = plane
        self._settings = settings
        self._clock = clock
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        """Requests that hold a permit now."""
        return self._in_flight

    async def infer_v2(
        self, model: str, selector: int | str | None, head: RequestHead, body: bytes
    ) -> Answer:
        """Answer a V2 infer request; ``body`` is decompressed already.

        Only cancellation is raised: it takes the work out of the queue.
        """
        return await self._answer(model, selector, head, body, _decode_v2)

    async def predict_v1(
        self, model: str, selector: int | str | None, head: RequestHead, body: bytes
    ) -> Answer:
        """Answer a V1 predict request, as ``infer_v2`` does."""
        return await self._answer(model, selector, head, body, _decode_v1)

    def refused(self, error: Exception, head: RequestHead) -> Answer:
        """Return the answer to a request that reached no version, and count it."""
        code = status_of(error)
        self._plane.unknown_request(code)
        if reason := _reason_of(error):
            self._plane.rejected(reason)
        if code == 500:
            _log.error("unplanned error", exc_info=error, extra={"request_id": head.request_id})
        return _error_answer(error, head, [])

    async def _answer(
        self,
        model: str,
        selector: int | str | None,
        head: RequestHead,
        body: bytes,
        decode: _Decode,
    ) -> Answer:
        try:
            with self._permit(), self._acquired(model, selector) as handle:
                return await self._served(handle.target, head, body, decode)
        except NotReady as error:
            answer = self.refused(error, head)
            return self._with_version(answer, model, selector)
        except Exception as error:  # noqa: BLE001  the boundary of a request: it must be answered
            return self.refused(error, head)

    @contextmanager
    def _permit(self) -> Iterator[None]:
        limit = self._settings.max_in_flight
        if self._in_flight >= limit:
            raise InFlightFull(f"requests in flight: {self._in_flight} of {limit} in this worker")
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    def _acquired(self, model: str, selector: int | str | None) -> Handle[ServedVersion]:
        return self.serving_map.acquire(check_model_name(model), selector)

    def _with_version(self, answer: Answer, model: str, selector: int | str | None) -> Answer:
        """Name the version that a refused request meant, where it meant a certain one."""
        try:
            view: VersionView[ServedVersion] = self.serving_map.find(model, selector)
        except NotReady:
            return answer
        headers = [*answer.headers, *version_headers(view.version, view.digest)]
        return Answer(answer.status, headers, answer.body)

    async def _served(
        self, version: ServedVersion, head: RequestHead, body: bytes, decode: _Decode
    ) -> Answer:
        start_ns = self._clock()
        code, rows, timing = status_of(Cancelled()), 0, None
        version.counters.request_started()
        try:
            work = await _maybe_off_loop(len(body), decode, head, body, version)
            rows = work.call.rows
            result = await self._computed(version, head, work, start_ns)
            answer = await self._encoded(version, head, work, result)
            code, timing = answer.status, self._timing(start_ns, result)
            return answer
        except asyncio.CancelledError:
            self._plane.rejected("cancelled")
            raise
        except Exception as error:  # noqa: BLE001  the boundary of a request: it must be answered
            code = status_of(error)
            if isinstance(error, RunFailed | RunTerminated | InputRefused):
                timing = Timing(self._clock() - start_ns)
            return self._failed(error, version, head)
        finally:
            version.counters.request_done(code, rows, timing)

    async def _computed(
        self, version: ServedVersion, head: RequestHead, work: _Work, start_ns: int
    ) -> Result:
        timeout_ns = _timeout_ns(head, work.timeout_us, version.timeout_ms)
        result = await version.batcher.submit(
            work.call.inputs, work.call.rows, work.outputs, start_ns + timeout_ns
        )
        size_bytes = sum(array.nbytes for array in result.arrays)
        if size_bytes > self._settings.max_output_bytes:
            raise PayloadTooLarge(
                f"answer: the outputs take {size_bytes} bytes, at most "
                f"{self._settings.max_output_bytes} are allowed: send fewer rows, "
                "or ask for fewer outputs"
            )
        return result

    async def _encoded(
        self, version: ServedVersion, head: RequestHead, work: _Work, result: Result
    ) -> Answer:
        size_bytes = sum(array.nbytes for array in result.arrays)
        body, json_length = await _maybe_off_loop(size_bytes, work.encode, result.arrays)
        headers = [JSON_TYPE if json_length is None else _BINARY_TYPE, *_ids(head, version)]
        if json_length is not None:
            headers.append((LENGTH_HEADER, str(json_length).encode("ascii")))
        if chosen := encoding.choose_encoding(head.accept_encoding, len(body)):
            body = await _maybe_off_loop(len(body), encoding.compress, body, chosen)
            headers += [
                (b"content-encoding", chosen.encode("ascii")),
                (b"vary", b"accept-encoding"),
            ]
        return Answer(200, headers, body)

    def _timing(self, start_ns: int, result: Result) -> Timing:
        return Timing(
            total_ns=self._clock() - start_ns,
            queue_ns=result.queue_ns,
            input_ns=result.input_ns,
            infer_ns=result.infer_ns,
            output_ns=result.output_ns,
        )

    def _failed(self, error: Exception, version: ServedVersion, head: RequestHead) -> Answer:
        if reason := _reason_of(error):
            self._plane.rejected(reason)
        if status_of(error) == 500:
            _log.error(
                "request failed",
                exc_info=error,
                extra={
                    "request_id": head.request_id,
                    "model": version.model,
                    "version": version.version,
                },
            )
        return _error_answer(error, head, version_headers(version.version, version.digest))


def _decode_v2(head: RequestHead, body: bytes, version: ServedVersion) -> _Work:
    call = v2.decode_infer(
        body,
        _json_length(head),
        version.signature,
        is_batchable=version.batcher.is_batchable,
    )

    def encode(arrays: Sequence[Array]) -> tuple[bytes, int | None]:
        return v2.encode_infer(call, version.model, version.version, arrays, version.signature)

    return _Work(call, call.output_names, call.timeout_us, encode)


def _decode_v1(_: RequestHead, body: bytes, version: ServedVersion) -> _Work:
    call = v1.decode_predict(body, version.signature, is_batchable=version.batcher.is_batchable)
    if call.unknown_columns:
        version.counters.unknown_columns(call.unknown_columns)

    def encode(arrays: Sequence[Array]) -> tuple[bytes, int | None]:
        return v1.encode_predict(call, arrays, version.signature), None

    return _Work(call, None, None, encode)


def _json_length(head: RequestHead) -> int | None:
    if head.json_length is None:
        return None
    if not _NUMBER.fullmatch(head.json_length):
        raise InvalidInput(
            f"header Inference-Header-Content-Length: {shown(head.json_length)} is not allowed: "
            "use the number of bytes of the JSON part"
        )
    return int(head.json_length)


def _timeout_ns(head: RequestHead, timeout_us: int | None, default_ms: int) -> int:
    """Return the shorter of what header and parameter ask for, or the version's own."""
    asked = []
    if head.timeout_ms is not None:
        is_number = _NUMBER.fullmatch(head.timeout_ms)
        if not is_number or not 1 <= int(head.timeout_ms) <= MAX_TIMEOUT_MS:
            raise InvalidInput(
                f"header x-request-timeout-ms: {shown(head.timeout_ms)} is not allowed: "
                f"use 1 to {MAX_TIMEOUT_MS}"
            )
        asked.append(int(head.timeout_ms) * NS_PER_MS)
    if timeout_us:
        asked.append(min(timeout_us, MAX_TIMEOUT_MS * 1000) * 1000)
    return min(asked, default=default_ms * NS_PER_MS)


async def _maybe_off_loop(size_bytes: int, function: Callable[..., R], *args: Any) -> R:
    if size_bytes < OFF_LOOP_BYTES:
        return function(*args)
    return await asyncio.to_thread(function, *args)


def _ids(head: RequestHead, version: ServedVersion) -> Headers:
    return [
        (REQUEST_ID, head.request_id.encode("ascii")),
        *version_headers(version.version, version.digest),
    ]


def version_headers(version: int, digest: str) -> Headers:
    """Return what says of an answer which version it is about."""
    return [
        (b"x-ramrack-version", str(version).encode("ascii")),
        (b"x-ramrack-digest", digest.encode("ascii")),
    ]


def _error_answer(error: Exception, head: RequestHead, headers: Headers) -> Answer:
    return Answer(
        status_of(error),
        [
            JSON_TYPE,
            (REQUEST_ID, head.request_id.encode("ascii")),
            *error_headers(error),
            *headers,
        ],
        error_body(message_of(error)),
    )


def _reason_of(error: Exception) -> str | None:
    if isinstance(error, InFlightFull):
        return "in_flight"
    return next((_REASONS[kind] for kind in type(error).__mro__ if kind in _REASONS), None)
