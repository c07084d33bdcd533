"""Changes held back while the workers of the server before this one still answer requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from registry.errors import NotReady
from serving.web.common import error_response

_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class HeldChanges:
    """Answers 503 to every change for as long as ``reason`` says why.

    Otherwise a route could be changed and acknowledged while workers that know nothing of it go on
    answering by the old one.
    """

    def __init__(self, app: ASGIApp, reason: Callable[[], str]) -> None:
        self._app = app
        self._reason = reason

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http" and scope["method"] not in _READING and (why := self._reason()):
            await error_response(NotReady(why))(scope, receive, send)
            return
        await self._app(scope, receive, send)
