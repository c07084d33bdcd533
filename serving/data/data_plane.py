"""The data plane: lets requests in, finds their version, answers them; the same for every front.

It knows no framework: it takes bytes and gives status, headers and bytes, and it answers every
error itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from models.servable import Array
from registry.errors import InvalidInput, NotFound, NotReady
from registry.ident import check_model_name
from registry.serving_map import ServingMap, VersionView
from serving.codec import v2
from serving.data.call import Answer, InferCall, Pending, Protocol, RequestHead, routing_key
from serving.data.refusal import InFlightFull, error_answer, reason_of
from serving.data.request import Decoded, OnAnswered, Request
from serving.data.served import ServedVersion, version_headers
from serving.data.shadows import Activity, Shadows
from serving.errors import QueueFull, status_of
from serving.metrics.page import PlaneCounters
from serving.settings import Settings

__all__ = [
    "Answer",
    "DataPlane",
    "InferCall",
    "Pending",
    "RequestHead",
    "ServedVersion",
    "version_headers",
]

_log = logging.getLogger(__name__)


class _Over:
    """A request that was answered before it began."""

    def cancel(self) -> None:
        pass


_OVER = _Over()


class DataPlane:
    """Answers predictions of one worker. Event-loop thread only.

    A refused request costs as little as can be: permits come before its body is looked at.
    """

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
        self.plane_counters = plane
        self.clock = clock
        self.shadows = Shadows(
            serving_map,
            lambda: self.activity,
            max_copies=settings.shadow_queue,
            max_bytes=settings.max_body_bytes,
            overlap=settings.shadow_overlap_percent / 100,
        )
        # Told of each answer with 200 once its caller has it; it must be quick and not raise.
        self.on_answered: OnAnswered | None = None
        # Told when the last request under way is over, with the time when the first one began.
        self.on_idle: Callable[[int], None] | None = None
        self._max_in_flight = settings.max_in_flight
        self._in_flight = 0
        self._begun = 0
        self._woken_ns = 0

    @property
    def in_flight(self) -> int:
        """Requests that hold a permit now."""
        return self._in_flight

    @property
    def activity(self) -> Activity:
        """What this worker does now, and all that it ever began."""
        return Activity(self._in_flight, self._begun)

    def begin(self, call: InferCall, done: Callable[[Answer], None]) -> Pending:
        """Answer ``call``: ``done`` gets the answer, exactly once, maybe before this returns.

        ``cancel`` of what is returned drops the work, and ``done`` is not called.
        """
        try:
            if self._in_flight >= self._max_in_flight:
                raise InFlightFull(
                    f"requests in flight: {self._in_flight} of {self._max_in_flight} in this worker"
                )
            key = routing_key(call.head) if call.head.routing_key else None
            version, uses = self.serving_map.begin_use(call.model, call.selector, key)
        except NotFound as error:
            done(self.refused(_named(error, call.model), call.own_head()))
            return _OVER
        except NotReady as error:
            done(self._with_version(self.refused(error, call.own_head()), call))
            return _OVER
        except Exception as error:  # noqa: BLE001  the boundary of a request: it must be answered
            done(self.refused(error, call.own_head()))
            return _OVER
        gate = version.gate
        try:
            # What a cache may have needs no place in the queue.
            if version.batcher.is_full and version.cache is None:
                version.batcher.refuse_full()
            if gate.limit is None:
                gate.in_flight += 1
            else:
                gate.enter()
        except QueueFull as error:
            uses.end()
            self.plane_counters.rejected(reason_of(error) or "")
            version.counters.request_refused(429)
            done(error_answer(error, call.own_head(), version.headers))
            return _OVER
        self._in_flight += 1
        self._begun += 1
        request = Request(self, version, uses, call, done)
        if self._in_flight == 1:
            self._woken_ns = request.start_ns
        request.start()
        return request

    def left(self, request: Request) -> None:
        """Take back the permits of a request that is over."""
        self._in_flight -= 1
        request.version.gate.in_flight -= 1
        request.uses.end()
        if not self._in_flight and self.on_idle is not None:
            self.on_idle(self._woken_ns)

    def watch(
        self, call: InferCall, version: ServedVersion, decoded: Decoded, arrays: list[Array]
    ) -> None:
        """Tell of an answer that its caller has got."""
        if self.on_answered is not None:
            self.on_answered(call, version, decoded, arrays)
        if call.selector is None:
            outputs = decoded.output_names if isinstance(decoded, v2.InferCall) else None
            self.shadows.offer(
                version, decoded.inputs, decoded.rows, outputs, arrays, len(call.body)
            )

    async def infer_v2(
        self, model: str, selector: int | str | None, head: RequestHead, body: bytes
    ) -> Answer:
        """Answer a V2 infer request; ``body`` is decompressed already.

        Only cancellation is raised: it takes the work out of the queue.
        """
        return await self._awaited(InferCall("v2", model, selector, head, body))

    async def predict_v1(
        self, model: str, selector: int | str | None, head: RequestHead, body: bytes
    ) -> Answer:
        """Answer a V1 predict request, as ``infer_v2`` does."""
        return await self._awaited(InferCall("v1", model, selector, head, body))

    async def invoke(
        self,
        protocol: Protocol,
        model: str,
        selector: int | str | None,
        head: RequestHead,
        body: bytes,
    ) -> Answer:
        """Answer a request in MLflow's form, as ``infer_v2`` does."""
        return await self._awaited(InferCall(protocol, model, selector, head, body))

    def refused(self, error: Exception, head: RequestHead) -> Answer:
        """Return the answer to a request that reached no version, and count it."""
        code = status_of(error)
        self.plane_counters.unknown_request(code)
        if reason := reason_of(error):
            self.plane_counters.rejected(reason)
        if code == 500:
            _log.error("unplanned error", exc_info=error, extra={"request_id": head.request_id})
        return error_answer(error, head, [])

    async def _awaited(self, call: InferCall) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def done(answer: Answer) -> None:
            if not future.done():
                future.set_result(answer)

        pending = self.begin(call, done)
        try:
            return await future
        finally:
            pending.cancel()

    def _with_version(self, answer: Answer, call: InferCall) -> Answer:
        """Name the version that a refused request meant, where it meant a certain one."""
        try:
            view: VersionView[ServedVersion] = self.serving_map.find(
                call.model, call.selector, routing_key(call.head)
            )
        except NotReady:
            return answer
        headers = [*answer.headers, *version_headers(view.version, view.digest)]
        return Answer(answer.status, headers, answer.body)


def _named(error: NotFound, model: str) -> Exception:
    """Return what is wrong with the name of a model that is not known, if it is no name at all."""
    try:
        check_model_name(model)
    except InvalidInput as refusal:
        return refusal
    return error
