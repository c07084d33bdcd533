"""The door of the admin plane: whose Host and Origin a request carries, and whose token.

Pure ASGI, in front of every route, the documentation included. What a route needs beyond a valid
token, its scope, is declared at the route.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from registry.ident import shown
from serving.auth import Authenticator
from serving.errors import Forbidden, ServingError
from serving.web.common import error_response

HEALTH_PATHS: Final = frozenset({"/v2/health/live", "/v2/health/ready"})
# The console's own files say nothing of the server: what they show, they ask for with a token.
CONSOLE_PREFIX: Final = "/console/"
# Pages that the framework serves, where no route declares a scope.
READ_PREFIXES: Final = ("/docs", "/openapi.json")
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class AdminGuard:
    """Refuses foreign hosts and pages, finds the actor, and puts it into ``scope["state"]``."""

    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator,
        hosts: Collection[str],
        open_paths: Collection[str] = (),
    ) -> None:
        self._app = app
        self._open_paths = frozenset(HEALTH_PATHS) | frozenset(open_paths)
        self._authenticator = authenticator
        self._hosts = frozenset({"localhost", *(normal_host(host) for host in hosts)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 401 or 403."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._admit(scope)
        except ServingError as error:
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        headers: dict[str, str] = {}
        for raw, value in scope["headers"]:
            name, text = raw.decode("latin-1"), value.decode("latin-1")
            # Two of a kind are one that equals nothing: a proxy in front may have looked at either.
            headers[name] = f"{headers[name]}, {text}" if name in headers else text
        if scope["path"] not in HEALTH_PATHS:
            self._check_host(headers.get("host", ""), scope)
        if scope["method"] not in _SAFE_METHODS:
            _check_origin(headers)
        state = scope.setdefault("state", {})
        client = scope.get("client")
        address = str(client[0]) if client else ""
        if scope["path"] in self._open_paths or _is_console(scope):
            # Probes carry no token, and a probe that sends a wrong one still learns of health.
            return
        actor = self._authenticator.actor(headers.get("authorization"), address)
        if scope["path"].startswith(READ_PREFIXES):
            actor.require("read")
        state["actor"] = actor

    def _check_host(self, value: str, scope: Scope) -> None:
        host = normal_host(host_of(value))
        if host in self._hosts or _is_loopback(host):
            return
        server = scope.get("server")
        if server and host == normal_host(str(server[0])):
            return
        raise Forbidden(
            f"Host {shown(value)} is not an address of this server: add its name to admin_hosts"
        )


def _is_console(scope: Scope) -> bool:
    """Tell whether the console's page or a file of it is asked for, which show nothing alone."""
    path = str(scope["path"])
    return bool(scope["method"] == "GET") and (path == "/" or path.startswith(CONSOLE_PREFIX))


def host_of(value: str) -> str:
    """Return the host of a Host header, its port left out."""
    if value.startswith("["):
        return value.partition("]")[0] + "]"
    host, colon, port = value.rpartition(":")
    return host if colon and port.isdigit() else value


def normal_host(host: str) -> str:
    """Return one spelling for each host: lower case, IP addresses without brackets."""
    bare = host.strip().strip("[]").rstrip(".").lower()
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return bare


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_origin(headers: Mapping[str, str]) -> None:
    """Refuse a change that another web page sent: browsers say whose page it was."""
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        raise Forbidden(f"Origin {shown(origin)}: changes from another page are refused")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Forbidden("Sec-Fetch-Site: changes from another site's page are refused")
