"""The door of the data plane where ``data_auth`` is ``token``: who has no token goes no further.

Pure ASGI, in front of every route, and asked first on the fast lane: a request is refused before a
byte of its body is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from registry.errors import InvalidInput
from serving.auth import INFER, Authenticator
from serving.data.call import RequestHead
from serving.data.data_plane import DataPlane
from serving.errors import ServingError
from serving.settings import Settings
from serving.web.common import RawResponse

# Probes carry no token. Readiness of one model is not among them: it tells which models exist.
OPEN_PATHS: Final = frozenset({"/v2/health/live", "/v2/health/ready", "/ping", "/health"})


def is_guarded(settings: Settings) -> bool:
    """Say whether the data plane asks for tokens."""
    return settings.data_auth == "token"


class Door:
    """Lets through what carries a token with the scope ``infer``."""

    def __init__(self, tokens: Authenticator) -> None:
        self._tokens = tokens

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise Unauthorized or ScopeMissing unless the header lines carry such a token."""
        self._tokens.actor(_authorization(headers)).require(INFER)


def door_of(settings: Settings) -> Door | None:
    """Return the door that the settings ask for, or None where everyone may come in."""
    if not is_guarded(settings):
        return None
    if not settings.tokens:
        # An Authenticator without tokens admits everyone.
        raise InvalidInput("data_auth is 'token', and there is no token")
    return Door(Authenticator(settings.tokens))


def install_guard(app: FastAPI, data_plane: DataPlane, settings: Settings) -> None:
    """Put the guard in front of ``app`` if the settings ask for one."""
    door = door_of(settings)
    if door is not None:
        app.add_middleware(DataGuard, data_plane=data_plane, door=door)


class DataGuard:
    """Passes on what the door lets through; answers 401 or 403 to the rest."""

    def __init__(self, app: ASGIApp, data_plane: DataPlane, door: Door) -> None:
        self._app = app
        self._plane = data_plane
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse and count it."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                self._door.check(scope["headers"])
            except ServingError as error:
                head = RequestHead.of(scope["headers"], scope["state"]["request_id"])
                answer = self._plane.refused(error, head)
                response = RawResponse(answer.status, answer.headers, answer.body)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _authorization(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the Authorization header; two of them are one that no token equals."""
    found = [value.decode("latin-1") for name, value in headers if name == b"authorization"]
    return ", ".join(found) if found else None
