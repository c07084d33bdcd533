"""The admin plane's application, made of the table of its calls."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from starlette.convertors import Convertor, register_url_convertor

from registry.ident import ALIAS_PATTERN, MAX_VERSION, MODEL_PATTERN
from registry.manifest import JsonObject
from serving.admin import schema
from serving.admin.answers import ADMIN_REASONS, ANSWER_SCHEMAS, DONE, LINKS
from serving.admin.calls import AdminCalls
from serving.admin.console.hub import ConsoleHub
from serving.admin.console.pages import FILES
from serving.admin.console.sampler import console_of
from serving.admin.guard import AdminGuard
from serving.admin.hold import HeldChanges
from serving.admin.request import actor_of, check_query
from serving.admin.table import CALLS, METRICS_PATH, Call
from serving.auth import Authenticator
from serving.control.control_plane import ControlPlane
from serving.settings import Settings, Token
from serving.web.common import VERSION, install_docs, install_errors
from serving.web.openapi import Document, bearer, errors, install_openapi, json_of, schema_ref


class NameConvertor(Convertor[str]):
    """A path segment without a colon, so that ``3:load`` is never taken for a version."""

    regex = "[^/:]+"

    def convert(self, value: str) -> str:
        """Return the segment as it is; the handler checks it."""
        return value

    def to_string(self, value: str) -> str:
        """Return the segment as it is."""
        return value


register_url_convertor("name", NameConvertor())


def create_admin_app(
    control: ControlPlane,
    settings: Settings,
    *,
    tokens: tuple[Token, ...] = (),
    render_metrics: Callable[[], bytes] = bytes,
    why_held: Callable[[], str] = str,
    console: ConsoleHub | None = None,
) -> FastAPI:
    """Return the admin application.

    ``tokens``: see ``auth.admin_tokens``. ``render_metrics``: blocking, called in a thread.
    ``why_held``: says why no change is taken now; nothing where changes are. ``console``: what the
    live console reads, to be closed by who made it; without one it shows no rates.
    """
    app = FastAPI(
        title="Ramrack admin plane",
        version=VERSION,
        description="Versions in and out, aliases and routes, and what is going on.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    calls = AdminCalls(control, settings, render_metrics, console or console_of(control, settings))
    is_open = settings.metrics_auth == "off"
    for call in CALLS:
        if is_open and call.path == METRICS_PATH:
            call = replace(call, scope="", refusals=(*call.refusals, 403))
        app.add_api_route(
            call.path,
            _endpoint(call, calls),
            methods=[call.method],
            operation_id=call.handler.__name__,
            summary=(call.handler.__doc__ or "").partition("\n")[0],
            responses=_responses(call),
            openapi_extra=_openapi(call),
            response_class=Response,
        )
    install_docs(app)
    install_openapi(app, ANSWER_SCHEMAS, has_tokens=True)
    hosts = [settings.admin_host, *filter(None, settings.admin_hosts.split(","))]
    app.add_middleware(HeldChanges, reason=why_held)
    app.add_middleware(AdminGuard, authenticator=Authenticator(tokens), hosts=hosts,
                       open_paths=(METRICS_PATH,) if is_open else ())  # fmt: skip
    install_errors(app)
    return app


def _endpoint(call: Call, calls: AdminCalls) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        if call.scope:
            actor_of(request).require(call.scope)
        if call.query is not None:
            check_query(request, call.query)
        return await call.handler(calls, request)

    return endpoint


def _openapi(call: Call) -> dict[str, Any]:
    names = re.findall(r"{(\w+)", call.path)
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS[name]}
        for name in names
    ]
    parameters += [
        {
            "name": name,
            "in": "query",
            "required": False,
            "schema": schema.query_schema(call.path, name),
        }
        for name in call.query or ()
    ]
    if call.takes_if_match:
        parameters.append(_IF_MATCH)
    if call.takes_range:
        parameters.append(_CONTENT_RANGE)
    document: dict[str, Any] = {"parameters": parameters}
    if call.scope:
        document["x-scope"] = call.scope
        document["security"] = bearer(call.scope)
    if call.body is not None:
        kind = "application/octet-stream" if call.body.is_binary else "application/json"
        document["requestBody"] = {
            "required": call.body.is_required,
            "content": {kind: {"schema": call.body.schema, "example": call.body.example}},
        }
    return document


def _responses(call: Call) -> dict[int | str, Document]:
    found: dict[int | str, Document] = {}
    for status, name in call.errors.items():
        found |= errors(status, reasons=ADMIN_REASONS, schema=name)
    if call.tells_offset:
        found[404]["headers"] = {"Upload-Offset": _UPLOAD_OFFSET}
    for answer in call.answers:
        described = DONE.get(answer.status) or ADMIN_REASONS[answer.status]
        found[answer.status] = {"description": described}
        if answer.schema:
            found[answer.status] = json_of(schema_ref(answer.schema), described)
        elif answer.media:
            kinds = [kind.partition(";")[0] for kind in answer.media.split(", ")]
            content = {kind: {"schema": {"type": "string"}} for kind in kinds}
            found[answer.status]["content"] = content
        if answer.has_etag:
            found[answer.status]["headers"] = {"ETag": _ETAG}
        if links := LINKS.get(answer.schema):
            found[answer.status]["links"] = links
    return found


_ETAG: Final[Document] = {
    "description": "What If-Match of a change can name.",
    "schema": {"type": "string", "pattern": '^".*"$'},
}
_UPLOAD_OFFSET: Final[Document] = {
    "description": "How many bytes of an upload that broke off are kept; 0: send all of it.",
    "schema": {"type": "integer", "minimum": 0},
}
_CONTENT_RANGE: Final[dict[str, Any]] = {
    "name": "Content-Range",
    "in": "header",
    "required": False,
    "description": "bytes START-END/TOTAL: the body is all that follows the START bytes that are "
    "kept, as the Upload-Offset of a HEAD says. Without it the body is the whole object.",
    "schema": {"type": "string", "pattern": "^bytes [0-9]{1,18}-[0-9]{1,18}/[0-9]{1,18}$"},
}
_IF_MATCH: Final[dict[str, Any]] = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "description": "The ETag that was seen, for a release those of the routes without an if_match "
    "of their own; where there is another one now, the answer is a 409.",
    "schema": {"type": "string"},
}


_PATH_SCHEMAS: Final[dict[str, JsonObject]] = {
    "model": {"type": "string", "pattern": f"^{MODEL_PATTERN}$"},
    "version": {"type": "integer", "minimum": 1, "maximum": MAX_VERSION},
    "alias": {"type": "string", "pattern": f"^{ALIAS_PATTERN}$"},
    "digest": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
    "id": {"type": "string"},
    "file": {"type": "string", "enum": [*sorted(FILES)]},
}
