"""The data plane's HTTP application: every path of it, on FastAPI, without middleware that copies.

Handlers only find out what is asked and hand bytes to ``DataPlane``; that one decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias

import orjson
from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Receive

from registry.errors import InvalidInput, NotFound, NotReady
from registry.ident import check_model_name, shown
from registry.known import unknown_model
from registry.manifest import JsonObject
from registry.serving_map import ModelView, VersionView
from serving.auth import INFER
from serving.data import views as model_views
from serving.data.body import BodyReader
from serving.data.call import Answer, RequestHead
from serving.data.data_plane import DataPlane, ServedVersion, version_headers
from serving.data.docs import PARAMETERS, ROUTES, RouteDoc
from serving.data.guard import OPEN_PATHS, install_guard, is_guarded
from serving.data.invocations import body_protocol, invoked_model
from serving.data.paths import selector_of
from serving.data.schemas import DATA_SCHEMAS
from serving.errors import Cancelled, ServingError, status_of
from serving.settings import Settings
from serving.web.access_log import AccessLog
from serving.web.common import (
    VERSION,
    RawResponse,
    error_response,
    install_docs,
    install_errors,
    json_response,
)
from serving.web.openapi import bearer, errors, install_openapi, path_parameters

EXTENSIONS: Final = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "parameters",
    "statistics",
)

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
View: TypeAlias = VersionView[ServedVersion]


def create_data_app(
    data_plane: DataPlane, settings: Settings, bodies: BodyReader | None = None
) -> FastAPI:
    """Return the application that serves ``data_plane``; it runs under any ASGI server.

    ``bodies``: the worker's, where another front takes in bodies, too.
    """
    app = FastAPI(
        title="Ramrack data plane",
        version=VERSION,
        description="Open Inference Protocol V2, V1 rows for tables, and health.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    routes = _Routes(data_plane, settings, bodies or BodyReader(settings))
    for doc in ROUTES:
        has_token = is_guarded(settings) and doc.path not in OPEN_PATHS
        _add_route(app, doc, getattr(routes, doc.handler), has_token=has_token)
    install_docs(app)
    install_guard(app, data_plane, settings)
    install_errors(app, AccessLog.of(settings))
    install_openapi(app, DATA_SCHEMAS, has_tokens=is_guarded(settings))
    return app


def _add_route(app: FastAPI, doc: RouteDoc, handler: Handler, *, has_token: bool) -> None:
    extra: dict[str, Any] = {"parameters": [*path_parameters(doc.path, PARAMETERS), *doc.headers]}
    responses = doc.responses
    if doc.body is not None:
        extra["requestBody"] = doc.body
    if has_token:
        extra["security"] = bearer(INFER)
        responses = responses | errors(401, 403)
    app.add_api_route(
        doc.path,
        handler,
        methods=[doc.method],
        name=doc.operation,
        operation_id=doc.operation,
        summary=doc.summary,
        tags=[doc.tag],
        responses=responses,
        response_class=Response,
        response_model=None,
        openapi_extra=extra,
    )


class _Routes:
    """The handlers. Paths and documentation are in ``docs.ROUTES``."""

    def __init__(self, data_plane: DataPlane, settings: Settings, bodies: BodyReader) -> None:
        self._plane = data_plane
        self._settings = settings
        self._bodies = bodies

    async def root(self, _: Request) -> Response:
        document = {"name": "ramrack", "version": VERSION, "api": "/v2", "docs": "/docs"}
        return json_response(document)

    async def server(self, _: Request) -> Response:
        document = {"name": "ramrack", "version": VERSION, "extensions": list(EXTENSIONS)}
        return json_response(document)

    async def live(self, _: Request) -> Response:
        return json_response({"live": True})

    async def ready(self, _: Request) -> Response:
        snapshot = self._plane.serving_map.snapshot
        failed = model_views.failed(snapshot)
        reason = ""
        if not snapshot.is_restored:
            reason = "the versions that were loaded before the start are being restored"
        elif failed and self._settings.ready_requires == "all":
            reason = f"{len(failed)} versions FAILED and ready_requires is 'all'"
        if reason:
            return json_response({"error": reason, "ready": False, "failed": failed}, 503)
        return json_response({"ready": True, "failed": failed})

    async def models(self, _: Request) -> Response:
        return json_response({"models": sorted(self._plane.serving_map.snapshot.models)})

    async def metadata(self, request: Request) -> Response:
        model = self._model(request)
        return self._about(request, lambda view: model_views.metadata(model, view))

    async def config(self, request: Request) -> Response:
        return self._about(request, model_views.config)

    async def model_ready(self, request: Request) -> Response:
        return self._about(request, lambda view: {"name": view.model, "ready": True})

    async def all_stats(self, _: Request) -> Response:
        models = self._plane.serving_map.snapshot.models
        return self._stats([view for model in models.values() for view in _answering(model)])

    async def model_stats(self, request: Request) -> Response:
        if "version" in request.path_params:
            return self._stats([self._view(request)])
        return self._stats(_answering(self._model(request)))

    async def index(self, request: Request) -> Response:
        async with self._bodies.read(request.scope["headers"], request.receive) as body:
            is_only_ready = _wants_ready(body)
        snapshot = self._plane.serving_map.snapshot
        return json_response(model_views.index(snapshot, is_only_ready=is_only_ready))

    async def v1_status(self, request: Request) -> Response:
        return json_response(model_views.v1_status(self._model(request)))

    async def infer(self, request: Request) -> Response:
        return await self._predicted(request, self._plane.infer_v2)

    async def predict(self, request: Request) -> Response:
        return await self._predicted(request, self._plane.predict_v1)

    async def invocations(self, request: Request) -> Response:
        protocol = body_protocol(request.scope["headers"])
        compute = partial(self._plane.invoke, protocol)
        return await self._predicted(request, compute, takes_csv=protocol == "csv")

    async def _predicted(
        self,
        request: Request,
        compute: Callable[[str, int | str | None, RequestHead, bytes], Coroutine[Any, Any, Answer]],
        *,
        takes_csv: bool = False,
    ) -> Response:
        head = RequestHead.of(request.scope["headers"], request.scope["state"]["request_id"])
        try:
            selector = selector_of(request.path_params)
            model = invoked_model(
                request.path_params.get("model", ""), self._settings.invocations_model
            )
            headers, receive = request.scope["headers"], request.receive
            async with self._bodies.read(headers, receive, takes_csv=takes_csv) as body:
                answer = await _unless_gone(receive, compute(model, selector, head, body))
            if answer is None:
                # Counted where it was dropped; nobody reads this one.
                return RawResponse(status_of(Cancelled()), [], b"")
        except (InvalidInput, NotFound, ServingError) as error:
            answer = self._plane.refused(error, head)
        return RawResponse(answer.status, answer.headers, answer.body)

    def _model(self, request: Request) -> ModelView[ServedVersion]:
        name = check_model_name(request.path_params["model"])
        model = self._plane.serving_map.snapshot.models.get(name)
        if model is None:
            raise unknown_model(name, self._plane.serving_map.snapshot.models)
        return model

    def _view(self, request: Request) -> View:
        name = check_model_name(request.path_params["model"])
        return self._plane.serving_map.find(name, selector_of(request.path_params))

    def _about(self, request: Request, describe: Callable[[View], JsonObject]) -> Response:
        """Answer with what ``describe`` says of the version, or that it does not answer now."""
        view = self._view(request)
        headers = version_headers(view.version, view.digest)
        if not model_views.is_ready(view):
            error = NotReady(
                f"model {shown(view.model)} version {view.version} is {view.state}: {view.reason}"
            )
            return error_response(error, headers)
        return json_response(describe(view), headers=headers)

    def _stats(self, views: list[View]) -> Response:
        stats = [self._plane.statistics(view.model, view.version) for view in views]
        return json_response({"model_stats": stats})


def _answering(model: ModelView[ServedVersion]) -> list[View]:
    return [view for _, view in sorted(model.versions.items()) if model_views.is_ready(view)]


def _wants_ready(body: bytes) -> bool:
    if not body.strip():
        return False
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"body: not valid JSON: {error}") from error
    ready = document.get("ready", False) if isinstance(document, dict) else None
    if not isinstance(ready, bool):
        raise InvalidInput('body: expected nothing, or {"ready": true or false}')
    return ready


async def _unless_gone(receive: Receive, answer: Coroutine[Any, Any, Answer]) -> Answer | None:
    """Return the answer, or None when the client leaves first: its work is dropped."""
    work = asyncio.create_task(answer, name="answer")
    gone = asyncio.create_task(_disconnected(receive), name="disconnect")
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        work.cancel()
        gone.cancel()
        await asyncio.wait((work, gone))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
