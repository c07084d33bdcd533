"""One request on its way through a version; each stage calls the next.

No task and no future stands behind a request, which would cost more than its decoding. What takes
long because the body is large happens in a thread, and the next stage follows on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeAlias

from models.errors import InputRefused, RunFailed, RunTerminated
from models.servable import Array
from registry.serving_map import ServingMap, Uses
from serving.codec import encoding, invocations, v1, v2
from serving.codec.packed_rows import Inputs, arrays_of
from serving.codec.row_texts import RowTexts
from serving.data.batch_queue import Member, RunResult
from serving.data.batch_run import group_key
from serving.data.call import LENGTH_HEADER, Answer, InferCall
from serving.data.deadline import json_length, length_of, limit_text, timeout_ns
from serving.data.refusal import error_answer, reason_of
from serving.data.response_cache import Key, ResponseCache, key_of
from serving.data.served import ServedVersion
from serving.data.timing import server_timing
from serving.errors import Cancelled, DeadlineExpired, PayloadTooLarge, status_of
from serving.metrics.page import PlaneCounters, Timing
from serving.web.errors import JSON_TYPE, REQUEST_ID, Headers

_log = logging.getLogger(__name__)

# Decoding and encoding from this size on happen in a thread, so that health stays quick.
OFF_LOOP_BYTES: Final = 256 * 1024
_BINARY_TYPE: Final = (b"content-type", b"application/octet-stream")


Decoded: TypeAlias = v1.PredictCall | v2.InferCall
# Takes what was asked, the version that answered, and the outputs that were asked for.
OnAnswered: TypeAlias = Callable[[InferCall, ServedVersion, Decoded, list[Array]], None]


class Owner(Protocol):
    """What a request gives back and counts into at its end; the data plane is one."""

    plane_counters: PlaneCounters
    clock: Callable[[], int]
    serving_map: ServingMap[ServedVersion]
    on_answered: OnAnswered | None

    def watch(
        self, call: InferCall, version: ServedVersion, decoded: Decoded, arrays: list[Array]
    ) -> None:
        """Take an answer that its caller has got."""
        ...

    def left(self, request: Request) -> None:
        """Take back the permits of a request that is over."""
        ...


class Request(Member):
    """A request that holds its permits and a version until it is over. Event-loop thread only.

    ``done`` is called exactly once, or never after ``cancel``. It is itself what waits for a run.
    """

    __slots__ = ("_cache_key", "_call", "_call_id", "_decoded", "_done", "_is_answered",
                 "_is_usual", "_owner", "start_ns", "uses", "version")  # fmt: skip

    _decoded: Decoded

    def __init__(
        self,
        owner: Owner,
        version: ServedVersion,
        uses: Uses,
        call: InferCall,
        done: Callable[[Answer], None],
    ) -> None:
        self.uses = uses
        self._owner = owner
        self.version = version
        self._call = call
        self._done = done
        self._is_answered = False
        # A run knows of it only once it was admitted.
        self.is_over = True
        self._is_usual = False
        self._call_id: str | None = None
        self._cache_key: Key | None = None
        self.rows = 0
        self.key = ()
        self.start_ns = owner.clock()

    def start(self) -> None:
        """Go as far as it goes without waiting."""
        call, version = self._call, self.version
        version.counters.request_started()
        body = call.body
        if len(body) < OFF_LOOP_BYTES:
            try:
                if call.protocol == "v2":
                    length, plan = call.head.json_length, version.plan
                    if length is None:
                        read = plan.read(body)
                    else:
                        read = plan.read_binary(body, length_of(length))
                    if read is not None:
                        self._submit(*read)
                        return
                decoded = self._decode()
                self._submit(decoded, decoded.inputs)
            except Exception as error:  # noqa: BLE001  the boundary of a request
                self._fail(error)
        else:
            self._off_loop(self._decode, lambda decoded: self._submit(decoded, decoded.inputs))

    def cancel(self) -> None:
        """Drop the request, for its client left: ``done`` is not called. Late calls do nothing."""
        if self._is_answered:
            return
        self.version.batcher.drop(self)
        self._owner.plane_counters.rejected("cancelled")
        self._end(status_of(Cancelled()), 0, None)

    def _decode(self) -> Decoded:
        call, version = self._call, self.version
        if call.protocol == "v2":
            return version.plan.decode(call.body, json_length(call.head.json_length))
        is_batchable = version.batcher.is_batchable
        if call.protocol == "v1":
            return v1.decode_predict(call.body, version.signature, is_batchable=is_batchable)
        return invocations.decode_invocations(
            call.body, version.signature, is_csv=call.protocol == "csv", is_batchable=is_batchable
        )

    def _submit(self, decoded: Decoded, inputs: Inputs) -> None:
        call, version = self._call, self.version
        batcher = version.batcher
        outputs = timeout_us = None
        self._decoded = decoded
        self.inputs = inputs
        self.rows = decoded.rows
        self.positions = None
        if isinstance(decoded, v2.InferCall):
            timeout_us, self._call_id = decoded.timeout_us, decoded.id
            self._is_usual = decoded.outputs is version.plan.all_outputs
            if not self._is_usual:
                outputs = decoded.output_names
                self.positions = batcher.positions_of(outputs)
        elif decoded.unknown_columns:
            version.counters.unknown_columns(decoded.unknown_columns)
        left_ns = version.timeout_ns
        if timeout_us or call.head.timeout_ms is not None:
            left_ns = timeout_ns(call.head.timeout_ms, timeout_us, left_ns)
        self.deadline_ns = self.start_ns + left_ns
        cache = version.cache
        if (
            cache is not None
            and len(call.body) < OFF_LOOP_BYTES
            and self._answered_from(cache, outputs)
        ):
            return
        if batcher.is_batchable:
            if self._is_usual or isinstance(inputs, tuple):
                self.key = version.usual_key
            else:
                self.key = group_key(inputs, decoded.rows)
        batcher.admit(self)

    def _answered_from(self, cache: ResponseCache, outputs: Sequence[str] | None) -> bool:
        """Answer the request with what was kept, or note under which key to keep its answer."""
        version, start_ns = self.version, self._owner.clock()
        name = (version.model, version.version)
        key = key_of(name, version.digest, arrays_of(self.inputs), outputs)
        kept = cache.get(key)
        lookup_ns = self._owner.clock() - start_ns
        version.counters.cache_asked(lookup_ns, self.rows, is_hit=kept is not None)
        if kept is None:
            self._cache_key = key
            return False
        # What was kept are the outputs that were asked for.
        self.positions = None
        self.submitted_ns = 0
        self.computed(RunResult(list(kept), 0, 0), 0, self.rows)
        return True

    def computed(self, run: RunResult, start: int, end: int) -> None:
        """Answer with the rows from ``start`` to ``end`` of a run."""
        if self._is_answered:
            return
        version, limit_bytes = self.version, self.version.max_output_bytes
        if self._is_usual and run.is_shared and self._cache_key is None:
            try:
                texts = run.texts if run.has_texts else self._texts_of(run)
                if texts is not None and texts.row_bytes * (end - start) <= limit_bytes:
                    body = texts.body(start, end)
                    if self._call_id is not None:
                        body = version.plan.with_id(body, self._call_id)
                    self._respond(run, start, end, body, None)
                    return
            except Exception as error:  # noqa: BLE001  the boundary of a request
                self._fail(error)
                return
        arrays = run.share(start, end, self.positions)
        size_bytes = 0
        for array in arrays:
            size_bytes += array.nbytes
        if self._cache_key is not None and version.cache is not None:
            version.cache.put(self._cache_key, arrays)
        if size_bytes > limit_bytes:
            self._fail(_too_large(size_bytes, limit_bytes))
        elif size_bytes < OFF_LOOP_BYTES:
            try:
                self._respond(run, start, end, *self._encode(arrays))
            except Exception as error:  # noqa: BLE001  the boundary of a request
                self._fail(error)
        else:
            self._off_loop(
                lambda: self._encode(arrays),
                lambda encoded: self._respond(run, start, end, *encoded),
            )

    def failed(self, error: Exception) -> None:
        """Answer with an error."""
        self._fail(error)

    def _texts_of(self, run: RunResult) -> RowTexts | None:
        """Write the outputs of a run for all who share it, where that may be."""
        run.has_texts = True
        size_bytes = sum([array.nbytes for array in run.arrays])
        if size_bytes < OFF_LOOP_BYTES:
            run.texts = self.version.plan.texts(run.arrays, run.rows)
        return run.texts

    def _encode(self, arrays: list[Array]) -> tuple[bytes, int | None]:
        decoded, version = self._decoded, self.version
        if isinstance(decoded, v2.InferCall):
            return version.plan.encode(decoded, arrays)
        if isinstance(decoded, invocations.InvocationsCall):
            return invocations.encode_invocations(decoded, arrays, version.signature), None
        return v1.encode_predict(decoded, arrays, version.signature), None

    def _respond(
        self, run: RunResult, start: int, end: int, body: bytes, json_bytes: int | None
    ) -> None:
        head, version = self._call.head, self.version
        name = None
        if head.accept_encoding is not None:
            name = encoding.choose_encoding(head.accept_encoding, len(body))
        if json_bytes is None and name is None and not head.is_timed:
            # The usual answer: its head was prepared.
            answer = Answer(200, self._json_headers, body, version.json_prefix)
            self._answer(run, start, end, answer)
            return
        headers = self._json_headers()
        if json_bytes is not None:
            headers[0] = _BINARY_TYPE
        if head.is_timed:
            total_ns = self._owner.clock() - self.start_ns
            headers.append(server_timing(total_ns, run.started_ns - self.submitted_ns, run))
        if json_bytes is not None:
            headers.append((LENGTH_HEADER, str(json_bytes).encode("ascii")))
        if name is None:
            self._answer(run, start, end, Answer(200, headers, body))
            return
        headers += [(b"content-encoding", name.encode("ascii")), (b"vary", b"accept-encoding")]
        if len(body) < OFF_LOOP_BYTES:
            packed = encoding.compress(body, name)
            self._answer(run, start, end, Answer(200, headers, packed))
        else:
            self._off_loop(
                lambda: encoding.compress(body, name),
                lambda packed: self._answer(run, start, end, Answer(200, headers, packed)),
            )

    def _json_headers(self) -> Headers:
        call = self._call
        request_id = call.request_id or call.head.request_id
        return [JSON_TYPE, (REQUEST_ID, request_id.encode("ascii")), *self.version.headers]

    def _answer(self, run: RunResult, start: int, end: int, answer: Answer) -> None:
        owner = self._owner
        self._is_answered = True
        total_ns = owner.clock() - self.start_ns
        queue_ns = run.started_ns - self.submitted_ns
        if run.is_open:
            run.total_ns.append(total_ns)
            run.queue_ns.append(queue_ns)
            run.answered_rows += self.rows
        else:
            self.version.counters.request_answered(
                self.rows, total_ns, queue_ns, run.input_ns, run.infer_ns, run.output_ns
            )
        owner.left(self)
        # It leads back here: without it nothing waits for the garbage collector.
        done = self._done
        done(answer)
        if owner.on_answered is not None or owner.serving_map.has_shadows:
            decoded, arrays = self._decoded, run.share(start, end, self.positions)
            if isinstance(decoded, v2.InferCall):
                decoded = replace(decoded, inputs=arrays_of(self.inputs))
            owner.watch(self._call, self.version, decoded, arrays)

    def _limit_text(self) -> str:
        decoded = self._decoded
        timeout_us = decoded.timeout_us if isinstance(decoded, v2.InferCall) else None
        limit_ns = self.deadline_ns - self.start_ns
        return limit_text(limit_ns, self._call.head.timeout_ms, timeout_us)

    def _fail(self, error: Exception) -> None:
        if self._is_answered:
            return
        if isinstance(error, DeadlineExpired):
            error = DeadlineExpired(f"{error}: {self._limit_text()}")
        code, version, head = status_of(error), self.version, self._call.own_head()
        timing = None
        if isinstance(error, RunFailed | RunTerminated | InputRefused):
            timing = Timing(self._owner.clock() - self.start_ns)
        if reason := reason_of(error):
            self._owner.plane_counters.rejected(reason)
        if code == 500:
            about = {"model": version.model, "version": version.version}
            extra = {"request_id": head.request_id, **about}
            _log.error("request failed", exc_info=error, extra=extra)
        self._end(code, self.rows, timing)
        self._done(error_answer(error, head, version.headers))

    def _end(self, code: int, rows: int, timing: Timing | None) -> None:
        self._is_answered = True
        self.version.counters.request_done(code, rows, timing)
        self._owner.left(self)

    def _off_loop(self, work: Callable[[], Any], go_on: Callable[[Any], None]) -> None:
        """Call ``work`` in a thread and ``go_on`` with what it gave, unless the client left."""

        def ended(future: asyncio.Future[Any]) -> None:
            if self._is_answered:
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
