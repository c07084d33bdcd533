"""The door of the data plane where ``data_auth`` is ``token``: who has no token goes no further.

Pure ASGI, in front of every route: a request is refused before a byte of its body is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from registry.errors import InvalidInput
from serving.auth import INFER, Authenticator
from serving.data.data_plane import DataPlane, RequestHead
from serving.errors import ServingError
from serving.settings import Settings
from serving.web.common import RawResponse

# Probes carry no token. Readiness of one model is not among them: it tells which models exist.
OPEN_PATHS: Final = frozenset({"/v2/health/live", "/v2/health/ready"})


def is_guarded(settings: Settings) -> bool:
    """Say whether the data plane asks for tokens."""
    return settings.data_auth == "token"


def install_guard(app: FastAPI, data_plane: DataPlane, settings: Settings) -> None:
    """Put the guard in front of ``app`` if the settings ask for one."""
    if not is_guarded(settings):
        return
    if not settings.tokens:
        # An Authenticator without tokens admits everyone.
        raise InvalidInput("data_auth is 'token', and there is no token")
    app.add_middleware(DataGuard, data_plane=data_plane, tokens=Authenticator(settings.tokens))


class DataGuard:
    """Passes on what carries a token with the scope ``infer``; answers 401 or 403 to the rest."""

    def __init__(self, app: ASGIApp, data_plane: DataPlane, tokens: Authenticator) -> None:
        self._app = app
        self._plane = data_plane
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse and count it."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                self._tokens.actor(_authorization(scope["headers"])).require(INFER)
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
