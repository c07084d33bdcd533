"""The fast lane: predictions go from the connection to the data plane, past the application.

It answers what the application's routes for predictions would, byte for byte, for it asks the same
parts in the same order: the door, the path, the body's caps, the data plane.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from registry.errors import InvalidInput
from serving.data.body import BodyReader, Intake
from serving.data.call import Answer, InferCall, Pending, RequestHead
from serving.data.guard import door_of
from serving.data.invocations import invoked
from serving.data.paths import Target, prediction_of
from serving.errors import Cancelled, ServingError
from serving.settings import Settings
from serving.web.access_log import AccessLog
from serving.web.errors import Headers, new_request_id, request_id_of
from serving.web.exchange import Connection
from serving.web.head import split_target


class Predictions(Protocol):
    """What the lane asks of the data plane."""

    def begin(self, call: InferCall, done: Callable[[Answer], None]) -> Pending:
        """Answer ``call``: ``done`` is called once, on the loop, maybe before this returns."""

    def refused(self, error: Exception, head: RequestHead) -> Answer:
        """Return the answer to a request that reached no version, and count it."""


class InferLane:
    """Opens a ``Prediction`` for each POST to a prediction's path; one for each worker."""

    def __init__(self, plane: Predictions, settings: Settings, bodies: BodyReader) -> None:
        self.plane = plane
        self.bodies = bodies
        self.door = door_of(settings)
        self.access_log = AccessLog.of(settings)
        self._invocations_model = settings.invocations_model

    def open(
        self,
        connection: Connection,
        target: bytes,
        headers: Headers,
        *,
        keep_alive: bool,
        is_expecting: bool,
    ) -> Prediction | None:
        """Return a prediction, or None for what the application answers."""
        asked = prediction_of(target)
        if asked is None:
            return None
        if asked.protocol == "mlflow":
            asked = invoked(asked, headers, self._invocations_model)
        prediction = Prediction(self, connection, asked, headers)
        prediction.keep_alive = keep_alive
        prediction.is_expecting = is_expecting
        if self.access_log is not None:
            prediction.path = split_target(target)[0]
        return prediction


class Prediction:
    """One request on the lane, from its head to its answer.

    Nothing of a body is worked on before the request's turn. A refusal waits for the end of the
    bytes that came with the head: where they hold the whole body, the connection can be kept.
    """

    # Most requests need none of these set: the class holds what they begin with.
    keep_alive = True
    is_expecting = False
    is_complete = False
    response_started = False
    path = ""
    _intake: Intake | None = None
    _pending: Pending | None = None
    _refusal: Exception | None = None
    _is_decoding = False
    _start_s = 0.0
    _head: RequestHead
    _request_id: str

    def __init__(
        self, lane: InferLane, connection: Connection, asked: Target, headers: Headers
    ) -> None:
        self._lane = lane
        self._connection = connection
        self._asked = asked
        self._headers = headers
        self._pieces: list[bytes] = []

    def start(self) -> None:
        """Check what the head says; go on with the body unless more of it is about to come."""
        lane = self._lane
        if lane.access_log is not None:
            self._start_s = time.monotonic()
        self._head = RequestHead.of(self._headers)
        self._request_id = self._head.request_id
        try:
            if lane.door is not None:
                lane.door.check(self._headers)
            if self._asked.error is not None:
                self._refusal = self._asked.error
            else:
                self._intake = lane.bodies.open(
                    self._headers, takes_csv=self._asked.protocol == "csv"
                )
        except (InvalidInput, ServingError) as error:
            self._refusal = error
        if self.is_expecting and self._refusal is None:
            self._connection.send_continue()
        if not self._connection.is_feeding:
            self.settle()

    def take(self, body: bytes) -> None:
        """Keep a piece of the body until ``settle``."""
        self._pieces.append(body)

    def complete(self) -> None:
        """Note that the body is complete, and compute if it is this request's turn."""
        self.is_complete = True
        if self._intake is not None or self._refusal is not None:
            self.settle()

    def settle(self) -> None:
        """Take in what came of the body; compute if that was all of it."""
        if self._is_decoding or self.response_started:
            return
        if self._refusal is not None:
            self._answer(self._lane.plane.refused(self._refusal, self._head))
            return
        try:
            body = self._taken_in()
            if body is None:
                return
            asked = self._asked
            call = InferCall(asked.protocol, asked.model, asked.selector, self._head, body)
            pending = self._lane.plane.begin(call, self._answer)
            if not self.response_started:
                self._pending = pending
        except Exception as error:
            if self.response_started:
                raise
            self._answer(self._lane.plane.refused(error, self._head))

    def late(self) -> None:
        """Refuse a body that did not come in time."""
        if self._pending is None and not self.response_started:
            self._answer(self._lane.plane.refused(self._lane.bodies.too_slow(), self._head))

    def leave(self) -> None:
        """Drop the work; count the request as one that was called off."""
        if self.response_started:
            return
        if self._pending is not None:
            self._pending.cancel()
            status = 499
        else:
            # What is wrong with the head was known before the client left.
            error = self._refusal or Cancelled("the client left before its request was complete")
            status = self._lane.plane.refused(error, self._head).status
        self._end(status)

    def prepare(self) -> PreparedPrediction | None:
        """Return what opens predictions with the same head, unless their bodies need more care."""
        asked = self._asked
        is_plain = all(name != b"content-encoding" for name, _ in self._headers)
        if asked.error is not None or self.is_expecting or not (is_plain and self.keep_alive):
            return None
        try:
            self._lane.bodies.open(self._headers, takes_csv=asked.protocol == "csv")
        except (InvalidInput, ServingError):
            return None
        return PreparedPrediction(self._lane, asked, self._headers, self.path)

    def _taken_in(self) -> bytes | None:
        """Return the body once it is complete and decoded."""
        intake, pieces = self._intake, self._pieces
        if intake is None:
            return None
        if not self.is_complete:
            self._connection.await_body(self._lane.bodies.timeout_s)
        if pieces:
            piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            if not intake.take(piece):
                self._decode_in_thread(intake, piece)
                return None
        return intake.finish() if self.is_complete else None

    def _decode_in_thread(self, intake: Intake, piece: bytes) -> None:
        self._is_decoding = True
        self._connection.pause_body()
        decoding = asyncio.get_running_loop().run_in_executor(None, intake.decode, piece)
        decoding.add_done_callback(self._decoded)

    def _decoded(self, decoding: asyncio.Future[None]) -> None:
        self._is_decoding = False
        if decoding.cancelled() or self.response_started:
            return
        error = decoding.exception()
        if isinstance(error, Exception):
            self._refusal = error
        elif self._intake is not None:
            try:
                self._intake.count()
            except ServingError as full:
                self._refusal = full
        self._connection.resume_body()
        self.settle()

    def _answer(self, answer: Answer) -> None:
        self._end(answer.status)
        if answer.version_prefix:
            self._connection.answer_usual(
                self, answer.version_prefix, self._request_id, answer.body
            )
        else:
            self._connection.answer(self, answer.status, answer.headers, answer.body)

    def _end(self, status: int) -> None:
        self.response_started = True
        self._pending = None
        self._release()
        access_log = self._lane.access_log
        if access_log is not None:
            client = self._connection.client
            access_log.write(
                self._request_id, client[0] if client else "", "POST", self.path, status,
                time.monotonic() - self._start_s,
            )  # fmt: skip

    def _release(self) -> None:
        # The connection remembers its newest request; the body must not stay with it. An error
        # leads back here by its traceback: body and all would wait for the garbage collector.
        self._pieces.clear()
        self._refusal = None
        if self._intake is not None:
            self._intake.release()
            self._intake = None


class PreparedPrediction:
    """Opens predictions with one head. What depends on nothing but the head was checked before."""

    def __init__(self, lane: InferLane, asked: Target, headers: Headers, path: str) -> None:
        self.lane = lane
        self.asked = asked
        self.headers = headers
        self.path = path
        self.head = RequestHead.of(headers)
        # Where the client names none, each request gets an id of its own.
        has_id = request_id_of(headers) == self.head.request_id
        self.request_id = self.head.request_id if has_id else ""

    def open(self, connection: Connection, body: bytes) -> Prediction:
        """Return a prediction that has its whole body."""
        return KnownPrediction(self, connection, body)


class KnownPrediction(Prediction):
    """A prediction that came whole, behind a head that was looked at before."""

    is_complete = True
    _held_bytes = 0

    def __init__(self, prepared: PreparedPrediction, connection: Connection, body: bytes) -> None:
        self._prepared = prepared
        self._lane = prepared.lane
        self._connection = connection
        self._request_id = prepared.request_id or new_request_id()
        self._body = body

    def start(self) -> None:
        """Compute."""
        lane, body, prepared = self._lane, self._body, self._prepared
        self._body = b""
        if lane.access_log is not None:
            self.path = prepared.path
            self._start_s = time.monotonic()
        asked = prepared.asked
        call = InferCall(
            asked.protocol, asked.model, asked.selector, prepared.head, body, self._request_id
        )
        try:
            if lane.door is not None:
                lane.door.check(prepared.headers)
            held_bytes = len(body)
            lane.bodies.hold(held_bytes)
            self._held_bytes = held_bytes
            pending = lane.plane.begin(call, self._answer)
            if not self.response_started:
                self._pending = pending
        except Exception as error:
            if self.response_started:
                raise
            self._answer(lane.plane.refused(error, call.own_head()))

    def prepare(self) -> PreparedPrediction:
        """Return what opened this one."""
        return self._prepared

    def _answer(self, answer: Answer) -> None:
        prefix = answer.version_prefix
        if prefix and self._lane.access_log is None:
            # As below, with fewer steps: most answers are of this kind.
            self.response_started = True
            self._pending = None
            self._lane.bodies.release(self._held_bytes)
            self._held_bytes = 0
            self._connection.answer_usual(self, prefix, self._request_id, answer.body)
        else:
            super()._answer(answer)

    def _release(self) -> None:
        self._lane.bodies.release(self._held_bytes)
        self._held_bytes = 0
