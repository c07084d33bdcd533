"""What each call of the admin plane does between its request and its answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from models.signature import parse_signature
from registry.errors import InvalidInput, MissingObjects
from registry.ident import check_digest, shown
from registry.manifest import Json, JsonObject, parse_manifest
from serving.admin.console.hub import ConsoleHub
from serving.admin.console.pages import INDEX
from serving.admin.console.pages import page as console_page
from serving.admin.console.stream import ConsoleStream
from serving.admin.request import (
    MAX_EVENTS,
    MAX_LOOKS,
    MAX_SEQ,
    actor_of,
    announced_in,
    chunks_in,
    json_in,
    model_in,
    object_in,
    reason_in,
    version_in,
    wait_in,
    whole_in,
)
from serving.admin.traffic_calls import TrafficCalls
from serving.admin.upload import receive
from serving.admin.views import AdminViews
from serving.control.control_plane import ControlPlane
from serving.control.operations import SUCCEEDED, Operation
from serving.errors import message_of, status_of
from serving.settings import Settings
from serving.web.common import json_response
from serving.web.errors import error_facts, error_headers

UPLOAD_CHUNK_BYTES: Final = 1 << 20
UPLOAD_OFFSET: Final = "upload-offset"
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class AdminCalls(TrafficCalls):
    """One method a call; planned errors are raised and answered further out."""

    def __init__(
        self,
        control: ControlPlane,
        settings: Settings,
        render_metrics: Callable[[], bytes],
        console: ConsoleHub,
    ) -> None:
        super().__init__(control.traffic, settings.body_timeout_s)
        self._control = control
        self._console = console
        self._views = AdminViews(control, settings)
        self._render_metrics = render_metrics

    # Objects

    async def head_blob(self, request: Request) -> Response:
        """Say whether an object is there; it is then kept for the push under way."""
        digest = check_digest(request.path_params["digest"])
        size = await asyncio.to_thread(self._control.store.object_size, digest)
        if size is None:
            # Not as an error that is raised: what a client needs to know is in the head.
            kept = self._control.store.upload_offset(digest)
            headers = {UPLOAD_OFFSET: str(kept)}
            return Response(status_code=404, headers=headers, media_type="application/json")
        return Response(status_code=200, headers={"content-length": str(size)})

    async def put_blob(self, request: Request) -> Response:
        """Store an object whose bytes hash to the digest in the path, or go on with an upload."""
        digest = check_digest(request.path_params["digest"])
        store = self._control.store
        chunks = chunks_in(request, self._body_timeout_s, UPLOAD_CHUNK_BYTES)
        async with aclosing(chunks):
            try:
                announced, offset = announced_in(request)
                size = await asyncio.to_thread(store.object_size, digest)
                # One of another size, or sent without one, may be damaged: it is hashed.
                if size is not None and announced == size:
                    # Read to the end: many clients look at the answer only after the last byte.
                    async for _ in chunks:
                        pass
                    return json_response({"digest": digest, "bytes": size})
                upload = await asyncio.to_thread(store.begin_upload, digest, announced, offset)
                try:
                    size = offset + await receive(upload, chunks)
                except BaseException:
                    self._control.upload_broke_off()
                    raise
            except ClientDisconnect as error:
                raise InvalidInput(f"object {digest}: the client left before its end") from error
        return json_response({"digest": digest, "bytes": size}, 201)

    # Models and versions

    async def list_models(self, _: Request) -> Response:
        """List all models with their versions, aliases and routes."""
        await self._control.residency.count()
        return json_response(self._views.models())

    async def show_model(self, request: Request) -> Response:
        """Show one model."""
        await self._control.residency.count()
        return json_response(self._views.model(model_in(request)))

    async def show_version(self, request: Request) -> Response:
        """Show one version."""
        await self._control.residency.count()
        return json_response(self._views.version(*version_in(request)))

    async def publish_version(self, request: Request) -> Response:
        """Publish a version: a manifest whose objects are all there."""
        model = model_in(request)
        manifest = parse_manifest(await json_in(request, self._body_timeout_s))
        if manifest.model != model:
            raise InvalidInput(
                f"manifest: model {shown(manifest.model)} is not the {shown(model)} of the path"
            )
        parse_signature(manifest.signature)
        try:
            record, is_new = await self._control.publish(
                manifest, actor_of(request), reason_in(request)
            )
        except MissingObjects as error:
            missing: list[Json] = list(error.digests)
            return json_response({"error": str(error), "missing": missing}, status_of(error))
        return json_response(
            {
                "model": record.model,
                "version": record.version,
                "digest": record.digest,
                "created": is_new,
            },
            201 if is_new else 200,
        )

    async def delete_version(self, request: Request) -> Response:
        """Remove a version that is not loaded, routed or aliased; its number is never reused."""
        model, version = version_in(request)
        await self._control.delete(model, version, actor_of(request), reason_in(request))
        return json_response({"model": model, "version": version})

    async def load_version(self, request: Request) -> Response:
        """Bring a version to READY in every worker."""
        wait_s = wait_in(request)
        await object_in(request, self._body_timeout_s, ())
        operation = self._control.load(*version_in(request), actor_of(request), reason_in(request))
        return await _operation_answer(operation, wait_s)

    async def unload_version(self, request: Request) -> Response:
        """Take a version out of memory; refused while a route or alias names it."""
        wait_s = wait_in(request)
        await object_in(request, self._body_timeout_s, ())
        operation = self._control.unload(
            *version_in(request), actor_of(request), reason_in(request)
        )
        return await _operation_answer(operation, wait_s)

    async def plan_version(self, request: Request) -> Response:
        """Say what a load would take; changes nothing."""
        await object_in(request, self._body_timeout_s, ())
        key = version_in(request)
        state, why = self._control.status(*key)
        plan = self._control.plan(*key).to_json()
        return json_response({"state": state.value, "state_reason": why, **plan})

    async def show_operation(self, request: Request) -> Response:
        """Show how far a load or unload is."""
        operation = self._control.operations.get(request.path_params["id"])
        return json_response({**operation.to_json(), **error_facts(operation.error)})

    # The server as a whole

    async def list_events(self, request: Request) -> Response:
        """List recorded changes after a number, or the newest ones, oldest first."""
        is_newest = whole_in(request, "newest", 0, 0, 1) == 1
        if is_newest and "since" in request.query_params:
            raise InvalidInput("query: newest=1 and since exclude each other: use one of them")
        since = whole_in(request, "since", 0, 0, MAX_SEQ)
        limit = whole_in(request, "limit", 100, 1, MAX_EVENTS)
        model = request.query_params.get("model")
        events = await self._control.events(None if is_newest else since, model, limit)
        documents: list[Json] = [event.to_json() for event in events]
        return json_response({"events": documents, "next": events[-1].seq if events else since})

    async def show_memory(self, _: Request) -> Response:
        """Show the memory ledger."""
        await self._control.residency.count()
        return json_response(self._views.memory())

    async def list_workers(self, _: Request) -> Response:
        """List every worker slot."""
        return json_response(self._views.workers())

    async def restart_workers(self, request: Request) -> Response:
        """Replace the workers one by one, with no request lost."""
        wait_s = wait_in(request)
        await object_in(request, self._body_timeout_s, ())
        operation = self._control.restart_workers(actor_of(request), reason_in(request))
        return await _operation_answer(operation, wait_s)

    async def upgrade_server(self, request: Request) -> Response:
        """Let the release that is installed now take over in the same process."""
        await object_in(request, self._body_timeout_s, ())
        workers: list[Json] = [w.pid for w in self._control.workers() if w.pid is not None]
        await self._control.upgrade(actor_of(request), reason_in(request))
        return json_response({"pid": os.getpid(), "workers": workers})

    async def collect_garbage(self, request: Request) -> Response:
        """Drop objects that no version uses."""
        await object_in(request, self._body_timeout_s, ())
        report = await self._control.gc(actor_of(request), reason_in(request))
        return json_response({"objects": report.objects, "bytes": report.bytes})

    async def verify_store(self, request: Request) -> Response:
        """Read every object and compare it with its digest; changes nothing."""
        await object_in(request, self._body_timeout_s, ())
        report = await self._control.verify()
        damaged: list[Json] = [
            {"digest": name, "reason": reason} for name, reason in report.damaged.items()
        ]
        return json_response({"objects": report.objects, "bytes": report.bytes, "damaged": damaged})

    # What other programs look for

    async def triton_index(self, request: Request) -> Response:
        """List the states of all versions in Triton's form."""
        body = await object_in(request, self._body_timeout_s, ("ready",))
        is_ready_only = body.get("ready", False)
        if not isinstance(is_ready_only, bool):
            raise InvalidInput(f"body: ready {shown(is_ready_only)} must be true or false")
        return json_response(self._views.repository_index(is_ready_only=is_ready_only))

    async def triton_load(self, request: Request) -> Response:
        """Load the highest version; answers when it is READY."""
        model = model_in(request)
        await self._triton_parameters(request)
        version = max(self._control.writer.versions(model))
        await _ended(self._control.load(model, version, actor_of(request), "repository load"))
        return Response(status_code=200)

    async def triton_unload(self, request: Request) -> Response:
        """Unload all versions; refused while a route or alias names one of them."""
        model = model_in(request)
        await self._triton_parameters(request)
        operations = self._control.unload_all(model, actor_of(request), "repository unload")
        for operation in operations:
            await _ended(operation)
        return Response(status_code=200)

    async def live(self, _: Request) -> Response:
        """Say that the process answers."""
        return json_response({"live": True})

    async def ready(self, _: Request) -> Response:
        """Say whether requests are served, and which versions FAILED."""
        is_ready, body = self._views.readiness()
        return json_response(body, 200 if is_ready else 503)

    async def metrics(self, _: Request) -> Response:
        """Return all metrics in Prometheus' text form."""
        page = await asyncio.to_thread(self._render_metrics)
        return PlainTextResponse(page, media_type=METRICS_TYPE)

    # The live console

    async def page(self, _: Request) -> Response:
        """Return the live console, a page for people; it asks for a token where one is needed."""
        return console_page(INDEX)

    async def console_file(self, request: Request) -> Response:
        """Return a script or style of the live console."""
        return console_page(request.path_params["file"])

    async def console_stream(self, request: Request) -> Response:
        """Send what the console shows, and once a second what changed, as server-sent events."""
        limit = whole_in(request, "limit", 0, 1, MAX_LOOKS)
        actor = actor_of(request)
        scopes: list[Json] = [*sorted(actor.scopes)]
        return ConsoleStream(self._console, {"who": actor.name, "scopes": scopes}, limit)

    async def _triton_parameters(self, request: Request) -> None:
        body = await object_in(request, self._body_timeout_s, ("parameters",))
        parameters = body.get("parameters", {})
        if not isinstance(parameters, dict):
            raise InvalidInput(f"body: parameters {shown(parameters)} must be an object")
        for name in parameters:
            if name != "unload_dependents":
                raise InvalidInput(
                    f"body: parameters.{name} is not supported: what a version is made of and how "
                    "it is configured is fixed when it is pushed"
                )
        unload_dependents = parameters.get("unload_dependents", False)
        if not isinstance(unload_dependents, bool):
            raise InvalidInput(
                f"body: parameters.unload_dependents {shown(unload_dependents)} must be true or "
                "false"
            )


async def _operation_answer(operation: Operation, wait_s: float | None) -> Response:
    if wait_s is not None:
        await operation.wait(wait_s)
    if operation.is_running:
        return json_response(operation.to_json(), 202)
    if operation.state == SUCCEEDED or operation.error is None:
        return json_response(operation.to_json())
    return _failure(operation, operation.error)


def _failure(operation: Operation, error: Exception) -> Response:
    document: JsonObject = {"error": message_of(error), "operation": operation.to_json()}
    return json_response({**document, **error_facts(error)}, status_of(error), error_headers(error))


async def _ended(operation: Operation) -> None:
    await operation.wait()
    if operation.error is not None:
        raise operation.error
