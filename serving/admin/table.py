"""The table of admin calls: where each one is, who may make it, what it takes and may answer.

Routes, checks, OpenAPI document and documentation tests all read it; nothing is said twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from serving.admin import schema
from serving.admin.calls import METRICS_TYPE, AdminCalls
from serving.admin.console.pages import TYPES
from serving.admin.console.stream import EVENTS_TYPE
from serving.admin.schema import Body

METRICS_PATH: Final = "/metrics"
MODEL: Final = "/admin/v1/models/{model:name}"
VERSION: Final = MODEL + "/versions/{version:name}"
Handler = Callable[[AdminCalls, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A good answer: its status, the name of its schema if it is JSON, else its media types.

    Without either it has no body. ``media``: several are parted by a comma and a space.
    ``has_etag``: it carries what If-Match of a change can name.
    """

    status: int
    schema: str = ""
    media: str = ""
    has_etag: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One call. ``scope``: what the token must have; empty for what is open to everyone.

    ``query``: allowed parameters; None takes any, for the calls that other programs make.
    ``refusals``: statuses of errors beyond those that every call of its kind has.
    ``error``: name of the schema of the errors that its work ends with, where they say more.
    ``takes_if_match``: it happens only to the state that the header If-Match names.
    ``takes_range``: its body may be the end of an upload that broke off.
    ``tells_offset``: its 404 says where such an upload goes on.
    """

    method: str
    path: str
    scope: str
    handler: Handler
    answers: tuple[Answer, ...]
    refusals: tuple[int, ...] = ()
    query: tuple[str, ...] | None = ()
    body: Body | None = None
    error: str = "Error"
    takes_if_match: bool = False
    takes_range: bool = False
    tells_offset: bool = False

    @property
    def errors(self) -> Mapping[int, str]:
        """Every error that the call can end with: status to the name of its schema."""
        known = {answer.status for answer in self.answers}
        common = {405, 431, 500}
        if self.scope:
            common |= {401, 403}
        if self.query is not None or "{" in self.path:
            common.add(400)
        if self.body is not None:
            common |= {400, 408} if self.body.is_binary else {400, 408, 413, 415}
        names = dict.fromkeys(common, "Error") | dict.fromkeys(self.refusals, self.error)
        return {status: names[status] for status in sorted(names) if status not in known}


def _json(name: str, *, has_etag: bool = False) -> tuple[Answer, ...]:
    return (Answer(200, name, has_etag=has_etag),)


# The disk may fail, or be full, under everything that is written down before it is answered.
_DISK: Final = (503, 507)
_NAMED: Final = (404, 409, *_DISK)
# What is answered only when every worker has taken it.
_SWITCHED: Final = (*_NAMED, 504)
_OPERATED: Final = (400, 404, 409, 429, 500, 503, 504, 507)
_STARTED: Final = (Answer(200, "Operation"), Answer(202, "Operation"))
_ROUTED: Final = _json("Route", has_etag=True)
_SET: Final = _json("ModelSettings", has_etag=True)
_CHANGE: Final = ("reason",)
_OPERATE: Final = ("reason", "wait")
CALLS: Final = (
    Call("HEAD", "/admin/v1/blobs/{digest}", "push", AdminCalls.head_blob, (Answer(200),),
         (404, 503), tells_offset=True),
    Call("PUT", "/admin/v1/blobs/{digest}", "push", AdminCalls.put_blob,
         (Answer(200, "Object"), Answer(201, "Object")), (409, *_DISK), body=schema.BINARY,
         takes_range=True),
    Call("GET", "/admin/v1/models", "read", AdminCalls.list_models, _json("Models")),
    Call("GET", MODEL, "read", AdminCalls.show_model, _json("Model"), (404,)),
    Call("POST", MODEL + "/versions", "push", AdminCalls.publish_version,
         (Answer(200, "Published"), Answer(201, "Published")), (409, *_DISK), _CHANGE,
         schema.MANIFEST, "PublishError"),
    Call("GET", VERSION, "read", AdminCalls.show_version, _json("Version"), (404,)),
    Call("DELETE", VERSION, "admin", AdminCalls.delete_version, _json("Deleted"), _NAMED, _CHANGE),
    Call("POST", VERSION + ":load", "promote", AdminCalls.load_version, _STARTED, _OPERATED,
         _OPERATE, schema.EMPTY, "OperationError"),
    Call("POST", VERSION + ":unload", "promote", AdminCalls.unload_version, _STARTED, _OPERATED,
         _OPERATE, schema.EMPTY, "OperationError"),
    Call("POST", VERSION + ":plan", "read", AdminCalls.plan_version, _json("Plan"), (404,),
         body=schema.EMPTY),
    Call("GET", "/admin/v1/operations/{id}", "read", AdminCalls.show_operation,
         _json("Operation"), (404,)),
    Call("PUT", MODEL + "/aliases/{alias:name}", "promote", AdminCalls.set_alias,
         _json("Alias", has_etag=True), _SWITCHED, _CHANGE, schema.ALIAS, takes_if_match=True),
    Call("DELETE", MODEL + "/aliases/{alias:name}", "promote", AdminCalls.delete_alias,
         _json("Alias"), _SWITCHED, _CHANGE, takes_if_match=True),
    Call("GET", MODEL + "/route", "read", AdminCalls.show_route, _ROUTED, (404,)),
    Call("PUT", MODEL + "/route", "promote", AdminCalls.set_route, _ROUTED, _SWITCHED,
         _CHANGE, schema.ROUTE, takes_if_match=True),
    Call("DELETE", MODEL + "/route", "promote", AdminCalls.delete_route, _json("RouteDeleted"),
         _SWITCHED, _CHANGE, takes_if_match=True),
    Call("GET", MODEL + "/route/history", "read", AdminCalls.show_history, _json("History"),
         (404,)),
    Call("POST", MODEL + "/route:rollback", "promote", AdminCalls.roll_back, _ROUTED,
         _OPERATED, _CHANGE, schema.ROLLBACK, "OperationError", takes_if_match=True),
    Call("PUT", "/admin/v1/release", "promote", AdminCalls.release, _json("Release"), _SWITCHED,
         _CHANGE, schema.RELEASE, takes_if_match=True),
    Call("GET", MODEL + "/settings", "read", AdminCalls.show_settings, _SET, (404,)),
    Call("PUT", MODEL + "/settings", "promote", AdminCalls.set_settings, _SET,
         _SWITCHED, _CHANGE, schema.SETTINGS, takes_if_match=True),
    Call("GET", "/admin/v1/events", "read", AdminCalls.list_events, _json("Events"), (503,),
         ("since", "newest", "model", "limit")),
    Call("GET", "/admin/v1/memory", "read", AdminCalls.show_memory, _json("Memory")),
    Call("GET", "/admin/v1/workers", "read", AdminCalls.list_workers, _json("Workers")),
    Call("POST", "/admin/v1/workers:restart", "admin", AdminCalls.restart_workers, _STARTED,
         (400, 409, 429, 500, 503, 507), _OPERATE, schema.EMPTY, "OperationError"),
    Call("POST", "/admin/v1/server:upgrade", "admin", AdminCalls.upgrade_server,
         (Answer(200, "Upgrade"),), (409, 500, 503, 507), _CHANGE, schema.EMPTY),
    Call("POST", "/admin/v1/gc", "admin", AdminCalls.collect_garbage, _json("Gc"), _DISK,
         _CHANGE, schema.EMPTY),
    Call("POST", "/admin/v1/verify", "admin", AdminCalls.verify_store, _json("Verify"), (503,),
         body=schema.EMPTY),
    Call("POST", "/v2/repository/index", "read", AdminCalls.triton_index,
         _json("RepositoryIndex"), query=None, body=schema.INDEX),
    Call("POST", "/v2/repository/models/{model:name}/load", "promote", AdminCalls.triton_load,
         (Answer(200),), _OPERATED, None, schema.TRITON, "OperationError"),
    Call("POST", "/v2/repository/models/{model:name}/unload", "promote",
         AdminCalls.triton_unload, (Answer(200),), _OPERATED, None, schema.TRITON),
    Call("GET", "/v2/health/live", "", AdminCalls.live, _json("Live"), query=None),
    Call("GET", "/v2/health/ready", "", AdminCalls.ready,
         (Answer(200, "Ready"), Answer(503, "NotReady")), query=None),
    Call("GET", METRICS_PATH, "read", AdminCalls.metrics, (Answer(200, media=METRICS_TYPE),),
         query=None),
    Call("GET", "/", "", AdminCalls.page, (Answer(200, media="text/html; charset=utf-8"),),
         (403,), query=None),
    Call("GET", "/console/{file:name}", "", AdminCalls.console_file,
         (Answer(200, media=", ".join(TYPES.values())),), (403, 404), query=None),
    Call("GET", "/admin/v1/console/stream", "read", AdminCalls.console_stream,
         (Answer(200, media=EVENTS_TYPE),), (429, 503), query=("limit",)),
)  # fmt: skip
