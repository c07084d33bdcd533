"""The users: each kind speaks one form of the protocol, to the models by their weights."""

from __future__ import annotations

import os
import random
import time
from typing import Any, ClassVar, Final

import gevent
from locust import FastHttpUser, task
from locust.exception import StopUser

from loadtest.users.loads import Loads
from loadtest.wire.discover import Reply
from loadtest.wire.forms import FORMS, Request

TOKEN_VARIABLE: Final = "RAMRACK_TOKEN"  # noqa: S105 - the variable's name


class RamrackUser(FastHttpUser):
    """Sends one request after the other. ``loads`` is set on the class when a run starts.

    ``per_s``: requests a second at most; 0: as fast as answers come.
    """

    abstract = True
    loads: ClassVar[Loads | None] = None
    per_s: ClassVar[float] = 0.0
    form: ClassVar[str] = ""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        token = os.environ.get(TOKEN_VARIABLE, "")
        self._extra = {"Authorization": f"Bearer {token}"} if token else {}

    def wait_time(self) -> float:
        """Return the seconds until the next request; spread, so that users do not march."""
        return random.uniform(0.5, 1.5) / self.per_s if self.per_s else 0.0

    @task
    def predict(self) -> None:
        """Send one request and hold its answer to it."""
        loads = RamrackUser.loads
        if loads is None:
            raise StopUser
        form = self.form or random.choice(list(FORMS))
        model, request = loads.next(form)
        name, began = f"{form} {model}", time.perf_counter()
        try:
            self._send(loads, model, request, name)
        except gevent.GreenletExit:
            self._cut_off(name, time.perf_counter() - began)
            raise

    def _cut_off(self, name: str, waited_s: float) -> None:
        """Count a request that was not answered in time after the end of the run.

        Left out, a stalled server would look like a fast one. What was cut off sooner began while
        its user was being stopped, and says nothing.
        """
        if waited_s >= self.environment.stop_timeout:
            self.environment.events.request.fire(
                request_type="POST", name=name, response_length=0, context={},
                response_time=waited_s * 1000,
                exception=TimeoutError("no answer by the end of the run"),
            )  # fmt: skip

    def _send(self, loads: Loads, model: str, request: Request, name: str) -> None:
        with self.client.post(
            request.path,
            data=request.body,  # type: ignore[arg-type]  # what goes out is bytes; str is encoded
            headers={**request.headers, **self._extra}, name=name, catch_response=True,
        ) as response:  # fmt: skip
            reply = Reply(response.status_code, response.headers or {}, response.content or b"")
            fault = loads.fault(model, request, reply)
            if fault:
                response.failure(fault)
            else:
                response.success()


class V1User(RamrackUser):
    """Rows by column name, ``/v1/models/M:predict``."""

    form = "v1"


class V2JsonUser(RamrackUser):
    """Tensors as JSON, ``/v2/models/M/infer``."""

    form = "v2"


class V2BinaryUser(RamrackUser):
    """Tensors as bytes, both ways, ``/v2/models/M/infer``."""

    form = "binary"


class MixedUser(RamrackUser):
    """All three forms, in turns by chance."""
