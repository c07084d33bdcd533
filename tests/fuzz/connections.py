"""A connection without a socket: bytes in, answers out, on the protocol class of the workers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final

from models.signature import Signature, TensorSpec
from registry.errors import RegistryError
from serving.codec.v1 import decode_predict, encode_predict
from serving.codec.v2_plan import V2Plan
from serving.data.body import BodyReader
from serving.data.call import Answer, InferCall, Pending, RequestHead
from serving.data.deadline import json_length
from serving.data.lane import InferLane
from serving.errors import ServingError, message_of, status_of
from serving.metrics.page import MetricsMemory
from serving.settings import Settings
from serving.web.errors import error_body
from serving.web.server import HttpServer
from tests.unit.serving.data.rig import Plane, small

_CHANGING: Final = re.compile(rb"(?im)^(?:date|x-request-id): [^\r]*\r\n|retry-after[^\r]*\r\n")
_CALM_PASSES: Final = 12
_SIGNATURE: Final = Signature(
    (TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "FP32", (-1, 4)),)
)


class _AtOnce:
    """Answers each prediction with its inputs before ``begin`` returns: no thread is waited for."""

    def __init__(self) -> None:
        self._plan = V2Plan(_SIGNATURE, "fraud", 3)

    def begin(self, call: InferCall, done: Callable[[Answer], None]) -> Pending:
        try:
            if call.protocol == "v2":
                wish = self._plan.decode(call.body, json_length(call.head.json_length))
                body, _ = self._plan.encode(wish, [wish.inputs["x"]])
            else:
                predict = decode_predict(call.body, _SIGNATURE)
                body = encode_predict(predict, [predict.inputs["x"]], _SIGNATURE)
        except (RegistryError, ServingError) as error:
            done(self.refused(error, call.head))
        else:
            done(Answer(200, [], body))
        return _Nothing()

    def refused(self, error: Exception, head: RequestHead) -> Answer:
        return Answer(status_of(error), [], error_body(message_of(error)))


class _Nothing:
    def cancel(self) -> None:
        return None


class _Transport(asyncio.Transport):
    """Keeps what is written; the peer reads everything at once."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.said = bytearray()
        self.is_closed = False
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        self.said += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def can_write_eof(self) -> bool:
        return False

    def write_eof(self) -> None:
        return None

    def pause_reading(self) -> None:
        return None

    def resume_reading(self) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol


class OneConnection:
    """A data plane over a fake version, made once, and the connections to it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        memory = MetricsMemory.create(1)
        settings = small(Settings(), max_body_bytes=20_000)
        plane = Plane(settings, ThreadPoolExecutor(1), memory.writer(0), memory)
        self.loop.run_until_complete(self._set_up(plane))

    async def _set_up(self, plane: Plane) -> None:
        plane.add()
        lane = InferLane(_AtOnce(), plane.settings, BodyReader(plane.settings))
        server = HttpServer(plane.app, plane.settings, lane=lane)
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        self._server = server

    async def talk(self, pieces: Sequence[bytes]) -> list[bytes]:
        """Return the answers to what is sent, without what changes from one time to the next."""
        state = self._server.server_state
        transport = _Transport()
        transport.protocol = self._server.config.http_protocol_class(  # type: ignore[call-arg]
            config=self._server.config, server_state=state, app_state={}
        )
        transport.protocol.connection_made(transport)
        for piece in pieces:
            if not transport.is_closed:
                transport.protocol.data_received(piece)
                await self._quiet(transport)
        await self._quiet(transport)
        transport.protocol.connection_lost(None)
        while state.tasks:
            await asyncio.wait(state.tasks)
        if state.connections or state.tasks:
            raise AssertionError(f"left: {state.connections} {state.tasks}")
        said = _CHANGING.sub(b"", bytes(transport.said))
        # Leave to go on is asked for or not, as the body comes late or at once.
        found: list[bytes] = re.findall(rb"HTTP/1\.1 (\d{3}) ", said)
        statuses = [status for status in found if status != b"100"]
        if b"500" in statuses or b"Traceback" in said:
            raise AssertionError(said[:500])
        return statuses

    async def _quiet(self, transport: _Transport) -> None:
        """Give the loop passes until nothing more is said; who waits for a body goes on."""
        calm, before = 0, -1
        while calm < _CALM_PASSES:
            await asyncio.sleep(0)
            calm = calm + 1 if len(transport.said) == before else 0
            before = len(transport.said)

    @classmethod
    def answers_to(cls, pieces: Sequence[bytes]) -> list[bytes]:
        """Return the statuses of all answers to what one client sends."""
        one = _the_one()
        return one.loop.run_until_complete(one.talk(pieces))


@cache
def _the_one() -> OneConnection:
    return OneConnection()
