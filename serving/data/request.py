"""One request on its way through a version; each stage calls the next.

No task and no future stands behind a request, which would cost more than its decoding. What takes
long because the body is large happens in a thread, and the next stage follows on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from models.errors import InputRefused, RunFailed, RunTerminated
from models.servable import Array
from registry.serving_map import Handle
from serving.codec import encoding, v1, v2
from serving.data.batch_queue import Member, Outcome, Result
from serving.data.call import LENGTH_HEADER, Answer, InferCall
from serving.data.deadline import json_length, timeout_ns
from serving.data.refusal import error_answer, reason_of
from serving.data.response_cache import Key, key_of
from serving.data.served import ServedVersion
from serving.errors import Cancelled, PayloadTooLarge, status_of
from serving.metrics.page import PlaneCounters, Timing
from serving.web.errors import JSON_TYPE, REQUEST_ID, Headers

_log = logging.getLogger(__name__)

# Decoding and encoding from this size on happen in a thread, so that health stays quick.
OFF_LOOP_BYTES: Final = 256 * 1024
_BINARY_TYPE: Final = (b"content-type", b"application/octet-stream")


Decoded: TypeAlias = v1.PredictCall | v2.InferCall
OnAnswered: TypeAlias = Callable[[InferCall, ServedVersion, Decoded, Result], None]


class Owner(Protocol):
    """What a request gives back and counts into at its end; the data plane is one."""

    plane_counters: PlaneCounters
    clock: Callable[[], int]
    on_answered: OnAnswered | None

    def left(self, request: Request) -> None:
        """Take back the permits of a request that is over."""
        ...


class Request:
    """A request that holds its permits and a handle until it is over. Event-loop thread only.

    ``done`` is called exactly once, or never after ``cancel``.
    """

    __slots__ = ("_cache_key", "_call", "_decoded", "_done", "_is_over", "_member", "_owner",
                 "_start_ns", "_version", "handle")  # fmt: skip

    def __init__(
        self,
        owner: Owner,
        handle: Handle[ServedVersion],
        call: InferCall,
        done: Callable[[Answer], None],
    ) -> None:
        self.handle = handle
        self._owner = owner
        self._version = handle.target
        self._call = call
        self._done = done
        self._is_over = False
        self._cache_key: Key | None = None
        self._member: Member | None = None
        self._decoded: Decoded | None = None
        self._start_ns = owner.clock()

    def start(self) -> None:
        """Go as far as it goes without waiting."""
        self._version.counters.request_started()
        if len(self._call.body) < OFF_LOOP_BYTES:
            try:
                self._submit(self._decode())
            except Exception as error:  # noqa: BLE001  the boundary of a request
                self._fail(error)
        else:
            self._off_loop(self._decode, self._submit)

    def cancel(self) -> None:
        """Drop the request, for its client left: ``done`` is not called. Late calls do nothing."""
        if self._is_over:
            return
        if self._member is not None:
            self._version.batcher.drop(self._member)
        self._owner.plane_counters.rejected("cancelled")
        self._end(status_of(Cancelled()), 0, None)

    def _decode(self) -> Decoded:
        call, version = self._call, self._version
        if call.protocol == "v2":
            return version.plan.decode(call.body, json_length(call.head.json_length))
        return v1.decode_predict(
            call.body, version.signature, is_batchable=version.batcher.is_batchable
        )

    def _submit(self, decoded: Decoded) -> None:
        call, version = self._call, self._version
        outputs = timeout_us = key = None
        if isinstance(decoded, v2.InferCall):
            timeout_us = decoded.timeout_us
            if decoded.outputs is version.plan.all_outputs:
                key = version.usual_key
            else:
                outputs = decoded.output_names
        elif decoded.unknown_columns:
            version.counters.unknown_columns(decoded.unknown_columns)
        self._decoded = decoded
        left_ns = timeout_ns(call.head.timeout_ms, timeout_us, version.timeout_ns)
        if version.cache is not None and len(call.body) < OFF_LOOP_BYTES:
            start_ns = self._owner.clock()
            self._cache_key = key_of(
                (version.model, version.version), version.digest, decoded.inputs, outputs
            )
            kept = version.cache.get(self._cache_key)
            lookup_ns = self._owner.clock() - start_ns
            version.counters.cache_asked(lookup_ns, is_hit=kept is not None)
            if kept is not None:
                self._cache_key = None
                self._computed(Result(list(kept), 0, 0, 0, 0, 0))
                return
        self._member = version.batcher.enqueue(
            decoded.inputs, decoded.rows, outputs, self._start_ns + left_ns, self._computed, key
        )

    def _computed(self, outcome: Outcome) -> None:
        if self._is_over:
            return
        if not isinstance(outcome, Result):
            self._fail(outcome)
            return
        arrays, limit_bytes = outcome.arrays, self._version.max_output_bytes
        size_bytes = 0
        for array in arrays:
            size_bytes += array.nbytes
        if self._cache_key is not None and self._version.cache is not None:
            self._version.cache.put(self._cache_key, arrays)
        if size_bytes > limit_bytes:
            self._fail(_too_large(size_bytes, limit_bytes))
        elif size_bytes < OFF_LOOP_BYTES:
            try:
                self._respond(outcome, self._encode(arrays))
            except Exception as error:  # noqa: BLE001  the boundary of a request
                self._fail(error)
        else:
            self._off_loop(
                lambda: self._encode(arrays), lambda encoded: self._respond(outcome, encoded)
            )

    def _encode(self, arrays: list[Array]) -> tuple[bytes, int | None]:
        decoded, version = self._decoded, self._version
        if isinstance(decoded, v2.InferCall):
            return version.plan.encode(decoded, arrays)
        if decoded is None:
            raise RuntimeError("nothing is encoded before it was decoded")
        return v1.encode_predict(decoded, arrays, version.signature), None

    def _respond(self, result: Result, encoded: tuple[bytes, int | None]) -> None:
        body, json_bytes = encoded
        head, version = self._call.head, self._version
        request_id = (REQUEST_ID, head.request_id.encode("ascii"))
        name = None
        if head.accept_encoding is not None:
            name = encoding.choose_encoding(head.accept_encoding, len(body))
        if json_bytes is None and name is None:
            # The usual answer: its head was prepared.
            headers: Headers = [JSON_TYPE, request_id, *version.headers]
            self._answer(result, Answer(200, headers, body, version.json_prefix))
            return
        headers = [JSON_TYPE if json_bytes is None else _BINARY_TYPE, request_id, *version.headers]
        if json_bytes is not None:
            headers.append((LENGTH_HEADER, str(json_bytes).encode("ascii")))
        if name is None:
            self._answer(result, Answer(200, headers, body))
        else:
            self._compress(result, headers, body, name)

    def _compress(self, result: Result, headers: Headers, body: bytes, name: str) -> None:
        headers += [(b"content-encoding", name.encode("ascii")), (b"vary", b"accept-encoding")]
        if len(body) < OFF_LOOP_BYTES:
            self._answer(result, Answer(200, headers, encoding.compress(body, name)))
        else:
            self._off_loop(
                lambda: encoding.compress(body, name),
                lambda packed: self._answer(result, Answer(200, headers, packed)),
            )

    def _answer(self, result: Result, answer: Answer) -> None:
        owner, decoded = self._owner, self._decoded
        self._is_over = True
        self._member = None
        self._version.counters.request_answered(
            decoded.rows if decoded is not None else 0,
            owner.clock() - self._start_ns,
            result.queue_ns,
            result.input_ns,
            result.infer_ns,
            result.output_ns,
        )
        owner.left(self)
        self._done(answer)
        if owner.on_answered is not None and decoded is not None:
            owner.on_answered(self._call, self._version, decoded, result)

    def _fail(self, error: Exception) -> None:
        if self._is_over:
            return
        code, version, head = status_of(error), self._version, self._call.head
        timing = None
        if isinstance(error, RunFailed | RunTerminated | InputRefused):
            timing = Timing(self._owner.clock() - self._start_ns)
        if reason := reason_of(error):
            self._owner.plane_counters.rejected(reason)
        if code == 500:
            about = {"model": version.model, "version": version.version}
            extra = {"request_id": head.request_id, **about}
            _log.error("request failed", exc_info=error, extra=extra)
        self._end(code, 0 if self._decoded is None else self._decoded.rows, timing)
        self._done(error_answer(error, head, version.headers))

    def _end(self, code: int, rows: int, timing: Timing | None) -> None:
        self._is_over = True
        # It leads back here: body and arrays would wait for the garbage collector.
        self._member = None
        self._version.counters.request_done(code, rows, timing)
        self._owner.left(self)

    def _off_loop(self, work: Callable[[], Any], go_on: Callable[[Any], None]) -> None:
        """Call ``work`` in a thread and ``go_on`` with what it gave, unless the client left."""

        def ended(future: asyncio.Future[Any]) -> None:
            if self._is_over:
                future.exception()
                return
            try:
                go_on(future.result())
            except Exception as error:  # noqa: BLE001  the boundary of a request
                self._fail(error)

        asyncio.get_running_loop().run_in_executor(None, work).add_done_callback(ended)


def _too_large(size_bytes: int, limit_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"answer: the outputs take {size_bytes} bytes, at most {limit_bytes} are allowed: "
        "send fewer rows, or ask for fewer outputs"
    )
