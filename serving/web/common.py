"""What the apps of both planes share: JSON errors, request ids, and docs without another host.

No BaseHTTPMiddleware anywhere: it costs a task and a queue for each request, and a client that
leaves is not noticed through it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import MutableMapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import fastapi_offline
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from models.errors import ModelsError
from registry.errors import RegistryError
from serving.errors import ServingError, message_of, status_of
from serving.web.access_log import AccessLog
from serving.web.errors import (
    JSON_TYPE,
    REQUEST_ID,
    Headers,
    error_body,
    error_facts,
    error_headers,
    request_id_of,
)

_log = logging.getLogger(__name__)

STATIC_PATH: Final = "/docs/static"


def _version() -> str:
    try:
        return metadata.version("ramrack")
    except metadata.PackageNotFoundError:
        # Run from a checkout that was never installed.
        return "0"


VERSION: Final = _version()


class RawResponse(Response):
    """A response whose headers are bytes already; nothing is encoded or guessed again."""

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = [*headers, (b"content-length", str(len(body)).encode("ascii"))]


def json_response(document: object, status: int = 200, headers: Headers | None = None) -> Response:
    """Return a document as compact JSON."""
    body = json.dumps(document, separators=(",", ":")).encode("ascii")
    return RawResponse(status, [JSON_TYPE, *(headers or [])], body)


def error_response(error: BaseException, headers: Headers | None = None) -> Response:
    """Return the answer to a domain error, with the status that the one table gives it."""
    extra = [*error_headers(error), *(headers or [])]
    body = error_body(message_of(error), error_facts(error))
    return RawResponse(status_of(error), [JSON_TYPE, *extra], body)


class RequestIds:
    """ASGI: gives each request an id, logs what nobody planned under it, and answers that too.

    ``scope["state"]["request_id"]`` holds the id for whoever logs or answers further in.
    ``access_log``: takes every request; what went wrong is logged without it, too.
    """

    def __init__(self, app: ASGIApp, *, access_log: AccessLog | None = None) -> None:
        self._app = app
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass HTTP on; there is no other kind of request here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope["headers"])
        scope.setdefault("state", {})["request_id"] = request_id
        start_s = time.monotonic()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_id(message, request_id)
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            _log.exception("unplanned error", extra={"request_id": request_id})
            if status:
                # Half an answer is out: only a broken connection says so.
                raise
            await error_response(error)(scope, receive, send_with_id)
        finally:
            if self._access_log is not None:
                self._access_log.write(
                    request_id,
                    scope["client"][0] if scope.get("client") else "",
                    scope["method"],
                    scope["path"],
                    status,
                    time.monotonic() - start_s,
                )


def _add_id(message: MutableMapping[str, Any], request_id: str) -> None:
    headers = message.setdefault("headers", [])
    if not any(name == REQUEST_ID for name, _ in headers):
        message["headers"] = [*headers, (REQUEST_ID, request_id.encode("ascii"))]


def install_errors(app: FastAPI, access_log: AccessLog | None = None) -> None:
    """Make every error of ``app``, the framework's own too, JSON of the one form.

    ``access_log``: takes every request.
    """
    for kind in (RegistryError, ModelsError, ServingError):
        app.add_exception_handler(kind, _on_domain_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_middleware(RequestIds, access_log=access_log)


async def _on_domain_error(request: Request, error: Exception) -> Response:
    if status_of(error) == 500:
        request_id = request.scope["state"]["request_id"]
        _log.error("request failed", exc_info=error, extra={"request_id": request_id})
    return error_response(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    method, path = request.method, request.url.path
    headers: Headers = [JSON_TYPE]
    if error.status_code == 404:
        message = f"path {path!r} is not known: see /docs"
    elif error.status_code == 405:
        allowed = sorted(_methods_of(request))
        message = f"method {method} is not allowed for {path!r}: use {' or '.join(allowed)}"
        headers.append((b"allow", ", ".join(allowed).encode("ascii")))
    else:
        message = str(error.detail)
    return RawResponse(error.status_code, headers, error_body(message))


def _methods_of(request: Request) -> set[str]:
    """Return the methods that any route has for the request's path."""
    methods: set[str] = set()
    for route in request.app.routes:
        _, _ = match = route.matches(request.scope)
        if match[0].value and getattr(route, "methods", None):
            methods |= route.methods
    return methods or {"GET"}


async def _on_validation_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    where = ".".join(str(part) for part in first.get("loc", ()))
    return RawResponse(400, [JSON_TYPE], error_body(f"{where}: {first.get('msg', 'not valid')}"))


def install_docs(app: FastAPI) -> None:
    """Serve ``/docs`` with script and style from this server.

    fastapi-offline ships the files; its own factory would add a second page and an OAuth redirect
    that nothing here uses.
    """
    static = Path(fastapi_offline.__file__).parent / "static"
    app.mount(STATIC_PATH, StaticFiles(directory=static), name="docs-static")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return get_swagger_ui_html(
            openapi_url=str(app.openapi_url),
            title=app.title,
            swagger_js_url=f"{STATIC_PATH}/swagger-ui-bundle.js",
            swagger_css_url=f"{STATIC_PATH}/swagger-ui.css",
            swagger_favicon_url=f"{STATIC_PATH}/favicon.png",
            oauth2_redirect_url=None,
        )
