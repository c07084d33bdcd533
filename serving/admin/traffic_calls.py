"""What the calls of aliases, routes, releases and settings do between request and answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from registry import model_settings
from registry.errors import InvalidInput
from registry.ident import check_model_name, check_version, shown
from registry.manifest import Json, JsonObject
from registry.rollout import Route
from registry.traffic_rules import WISH_FIELDS, parse_wish
from serving.admin.request import (
    MAX_RELEASED,
    actor_of,
    alias_in,
    check_fields,
    model_in,
    object_in,
    reason_in,
)
from serving.admin.views import route_json, settings_json
from serving.control.traffic_control import GuardedWish, TrafficControl
from serving.web.common import json_response
from serving.web.errors import Headers


class TrafficCalls:
    """One method a call; planned errors are raised and answered further out."""

    def __init__(self, traffic: TrafficControl, body_timeout_s: float) -> None:
        self._traffic = traffic
        self._body_timeout_s = body_timeout_s

    async def set_alias(self, request: Request) -> Response:
        """Let an alias name a READY version."""
        model, alias = alias_in(request)
        body = await object_in(request, self._body_timeout_s, ("version",))
        if "version" not in body:
            raise InvalidInput('body: version is missing: give the one to name, {"version": 3}')
        version = check_version(body["version"])
        entry, previous = await self._traffic.set_alias(
            model, alias, version, actor_of(request), reason_in(request), _if_match(request)
        )
        document: JsonObject = {
            "model": model, "alias": alias, "version": version, "previous": previous,
            "etag": entry.etag,
        }  # fmt: skip
        return json_response(document, headers=_etag(entry.etag))

    async def delete_alias(self, request: Request) -> Response:
        """Remove an alias; the version stays."""
        model, alias = alias_in(request)
        previous = await self._traffic.delete_alias(
            model, alias, actor_of(request), reason_in(request), _if_match(request)
        )
        return json_response(
            {"model": model, "alias": alias, "version": None, "previous": previous, "etag": None}
        )

    async def show_route(self, request: Request) -> Response:
        """Show where requests without a version go."""
        model = model_in(request)
        return _route_answer(model, self._traffic.route(model))

    async def set_route(self, request: Request) -> Response:
        """Split requests without a version over READY versions, or let them follow the latest."""
        model = model_in(request)
        wish = parse_wish(await object_in(request, self._body_timeout_s, WISH_FIELDS), "body")
        route = await self._traffic.set_route(
            model, wish, actor_of(request), reason_in(request), _if_match(request)
        )
        return _route_answer(model, route)

    async def delete_route(self, request: Request) -> Response:
        """Remove the route, so that its versions can be unloaded."""
        model = model_in(request)
        await self._traffic.delete_route(
            model, actor_of(request), reason_in(request), _if_match(request)
        )
        return json_response({"model": model, "split": []})

    async def show_history(self, request: Request) -> Response:
        """List the routes that were, oldest first."""
        history = self._traffic.route(model_in(request)).history
        return json_response({"history": [change.to_json() for change in history]})

    async def roll_back(self, request: Request) -> Response:
        """Restore the traffic before the present one, or route to a version that has answered."""
        model = model_in(request)
        body = await object_in(request, self._body_timeout_s, ("to",))
        to = check_version(body["to"]) if "to" in body else None
        route = await self._traffic.rollback(
            model, to, actor_of(request), reason_in(request), _if_match(request)
        )
        return _route_answer(model, route)

    async def release(self, request: Request) -> Response:
        """Set the routes of several models at once, all of them or none."""
        body = await object_in(request, self._body_timeout_s, ("routes",))
        wishes = _wishes(body.get("routes"), _if_match(request))
        routes = await self._traffic.release(wishes, actor_of(request), reason_in(request))
        documents: list[Json] = [route_json(name, route) for name, route in routes.items()]
        return json_response({"routes": documents})

    async def show_settings(self, request: Request) -> Response:
        """Show what is set for one model; null: the server's own setting holds."""
        model = model_in(request)
        state = self._traffic.settings(model)
        return json_response(
            {"model": model, "settings": settings_json(state), "etag": state.settings_etag},
            headers=_etag(state.settings_etag),
        )

    async def set_settings(self, request: Request) -> Response:
        """Change what is set for one model: a value sets, null resets, the rest stays."""
        model = model_in(request)
        changes = await object_in(request, self._body_timeout_s, model_settings.NAMES)
        state = await self._traffic.set_settings(
            model, changes, actor_of(request), reason_in(request), _if_match(request)
        )
        return json_response(
            {"model": model, "settings": settings_json(state), "etag": state.settings_etag},
            headers=_etag(state.settings_etag),
        )


def _wishes(routes: Any, if_match: str | None) -> dict[str, GuardedWish]:
    """Return the wishes; ``if_match``: the ETags of which each route must have one of its own."""
    if not isinstance(routes, dict) or not 1 <= len(routes) <= MAX_RELEASED:
        raise InvalidInput(
            f"body: routes {shown(routes)}: use an object of 1 to {MAX_RELEASED} models, each with "
            "its route"
        )
    return {check_model_name(name): _wish(item, f"body: routes.{name}", if_match)
            for name, item in routes.items()}  # fmt: skip


def _wish(item: Any, where: str, default: str | None) -> GuardedWish:
    if not isinstance(item, Mapping):
        raise InvalidInput(f"{where}: {shown(item)} must be an object, as PUT .../route takes it")
    check_fields(item, (*WISH_FIELDS, "if_match"), where)
    if_match = item.get("if_match", default)
    if if_match is not None and not isinstance(if_match, str):
        raise InvalidInput(f"{where}: if_match {shown(if_match)} must be the etag of the route")
    return GuardedWish(parse_wish(item, where), if_match)


def _route_answer(model: str, route: Route) -> Response:
    return json_response(route_json(model, route), headers=_etag(route.etag))


def _if_match(request: Request) -> str | None:
    return request.headers.get("if-match")


def _etag(etag: str) -> Headers:
    return [(b"etag", etag.encode("ascii"))]
