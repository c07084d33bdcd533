"""The admin plane's application: one table of its calls, and the app made of it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from starlette.convertors import Convertor, register_url_convertor

from registry.ident import ALIAS_PATTERN, MODEL_PATTERN
from registry.manifest import JsonObject
from serving.admin import schema
from serving.admin.calls import AdminCalls
from serving.admin.guard import AdminGuard
from serving.admin.request import actor_of, check_query
from serving.auth import Authenticator
from serving.control.control_plane import ControlPlane
from serving.settings import Settings, Token
from serving.web.common import install_docs, install_errors

MODEL: Final = "/admin/v1/models/{model:name}"
VERSION: Final = MODEL + "/versions/{version:name}"
Handler = Callable[[AdminCalls, Request], Awaitable[Response]]


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


@dataclass(frozen=True, slots=True)
class Call:
    """One call. ``scope``: what the token must have; empty for what is open to everyone.

    ``query``: allowed parameters; None takes any, for the calls that other programs make.
    ``body``: its schema, None where there is none. ``answers``: status to description.
    """

    method: str
    path: str
    scope: str
    handler: Handler
    query: tuple[str, ...] | None = ()
    body: JsonObject | None = None
    answers: tuple[int, ...] = (200,)


_CHANGE: Final = ("reason",)
_OPERATE: Final = ("reason", "wait")
CALLS: Final = (
    Call("HEAD", "/admin/v1/blobs/{digest}", "push", AdminCalls.head_blob, answers=(200, 404)),
    Call("PUT", "/admin/v1/blobs/{digest}", "push", AdminCalls.put_blob, body=schema.BINARY,
         answers=(200, 201, 400, 507)),
    Call("GET", "/admin/v1/models", "read", AdminCalls.list_models),
    Call("GET", MODEL, "read", AdminCalls.show_model, answers=(200, 404)),
    Call("POST", MODEL + "/versions", "push", AdminCalls.publish_version, _CHANGE,
         schema.MANIFEST, (200, 201, 400, 409, 413, 507)),
    Call("GET", VERSION, "read", AdminCalls.show_version, answers=(200, 404)),
    Call("DELETE", VERSION, "admin", AdminCalls.delete_version, _CHANGE, None, (200, 404, 409)),
    Call("POST", VERSION + ":load", "promote", AdminCalls.load_version, _OPERATE, schema.EMPTY,
         (200, 202, 400, 404, 429, 507)),
    Call("POST", VERSION + ":unload", "promote", AdminCalls.unload_version, _OPERATE,
         schema.EMPTY, (200, 202, 404, 409, 429)),
    Call("POST", VERSION + ":plan", "read", AdminCalls.plan_version, (), schema.EMPTY, (200, 404)),
    Call("GET", "/admin/v1/operations/{id}", "read", AdminCalls.show_operation,
         answers=(200, 404)),
    Call("PUT", MODEL + "/aliases/{alias:name}", "promote", AdminCalls.set_alias, _CHANGE,
         schema.ALIAS, (200, 400, 404, 409)),
    Call("DELETE", MODEL + "/aliases/{alias:name}", "promote", AdminCalls.delete_alias, _CHANGE,
         None, (200, 404, 409)),
    Call("GET", MODEL + "/route", "read", AdminCalls.show_route, answers=(200, 404)),
    Call("PUT", MODEL + "/route", "promote", AdminCalls.set_route, _CHANGE, schema.ROUTE,
         (200, 400, 404, 409)),
    Call("DELETE", MODEL + "/route", "promote", AdminCalls.delete_route, _CHANGE, None,
         (200, 404, 409)),
    Call("GET", MODEL + "/route/history", "read", AdminCalls.show_history, answers=(200, 404)),
    Call("POST", MODEL + "/route:rollback", "promote", AdminCalls.roll_back, _CHANGE,
         schema.ROLLBACK, (200, 400, 404, 409)),
    Call("GET", "/admin/v1/events", "read", AdminCalls.list_events, ("since", "model", "limit")),
    Call("GET", "/admin/v1/memory", "read", AdminCalls.show_memory),
    Call("GET", "/admin/v1/workers", "read", AdminCalls.list_workers),
    Call("POST", "/admin/v1/gc", "admin", AdminCalls.collect_garbage, _CHANGE, schema.EMPTY),
    Call("POST", "/admin/v1/verify", "admin", AdminCalls.verify_store, _CHANGE, schema.EMPTY),
    Call("POST", "/v2/repository/index", "read", AdminCalls.triton_index, None, schema.INDEX),
    Call("POST", "/v2/repository/models/{model:name}/load", "promote", AdminCalls.triton_load,
         None, schema.TRITON, (200, 400, 404, 507)),
    Call("POST", "/v2/repository/models/{model:name}/unload", "promote",
         AdminCalls.triton_unload, None, schema.TRITON, (200, 400, 404, 409)),
    Call("GET", "/v2/health/live", "", AdminCalls.live, None),
    Call("GET", "/v2/health/ready", "", AdminCalls.ready, None, None, (200, 503)),
    Call("GET", "/metrics", "read", AdminCalls.metrics, None),
    Call("GET", "/", "read", AdminCalls.page, None),
)  # fmt: skip


def create_admin_app(
    control: ControlPlane,
    settings: Settings,
    *,
    tokens: tuple[Token, ...] = (),
    render_metrics: Callable[[], bytes] = bytes,
) -> FastAPI:
    """Return the admin application.

    ``tokens``: see ``auth.admin_tokens``. ``render_metrics``: blocking, called in a thread.
    """
    app = FastAPI(
        title="Ramrack admin plane",
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    calls = AdminCalls(control, settings, render_metrics)
    for call in CALLS:
        app.add_api_route(
            call.path,
            _endpoint(call, calls),
            methods=[call.method],
            operation_id=call.handler.__name__,
            summary=(call.handler.__doc__ or "").partition("\n")[0],
            responses={status: {"description": schema.ANSWERS[status]} for status in call.answers},
            openapi_extra=_openapi(call),
            response_class=Response,
        )
    install_docs(app)
    hosts = [settings.admin_host, *filter(None, settings.admin_hosts.split(","))]
    app.add_middleware(AdminGuard, authenticator=Authenticator(tokens), hosts=hosts)
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
        {"name": name, "in": "query", "required": False, "schema": schema.QUERIES[name]}
        for name in call.query or ()
    ]
    document: dict[str, Any] = {"parameters": parameters}
    if call.scope:
        document["x-scope"] = call.scope
        document["security"] = [{"token": []}]
    if call.body is not None:
        kind = "application/octet-stream" if call.body is schema.BINARY else "application/json"
        document["requestBody"] = {
            "required": call.body in (schema.BINARY, schema.MANIFEST, schema.ALIAS, schema.ROUTE),
            "content": {kind: {"schema": call.body}},
        }
    return document


_PATH_SCHEMAS: Final[dict[str, JsonObject]] = {
    "model": {"type": "string", "pattern": f"^{MODEL_PATTERN}$"},
    "version": {"type": "integer", "minimum": 1},
    "alias": {"type": "string", "pattern": f"^{ALIAS_PATTERN}$"},
    "digest": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
    "id": {"type": "string"},
}
