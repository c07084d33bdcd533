"""Speaks the admin plane of a running server: what exists, what is loaded, where requests go."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import quote

from serving.client.connection import READ_TIMEOUT_S, Document, Http, PlaneClient, document_of
from serving.client.errors import ClientError, ServerUnreachable

ADMIN_URL: Final = "http://127.0.0.1:8081"
ADMIN_TOKEN_VARIABLE: Final = "RAMRACK_ADMIN_TOKEN"  # noqa: S105 - the variable's name
# A smaller object is sent again as soon as it is asked for.
RESUMED_BYTES: Final = 8 << 20
# Of no object: asking for it only shows whether this client may push.
_NO_OBJECT: Final = "sha256:" + "0" * 64
# A load is first waited for inside its own request, so that a short one costs one round trip.
FIRST_WAIT_S: Final = 1.0
POLL_S: Final = 0.2
# A new release loads all that the former one held, while that one serves.
UPGRADE_TIMEOUT_S: Final = 3600.0


class AdminClient(PlaneClient):
    """The admin plane: what exists, what is loaded, where requests go."""

    @classmethod
    def connect(
        cls,
        url: str = ADMIN_URL,
        token: str = "",
        *,
        before_request: Callable[[], None] | None = None,
    ) -> AdminClient:
        """Return a client of the admin plane at ``url``; nothing is sent yet.

        ``before_request`` is called before each request; what it raises ends the call.
        """
        return cls(
            Http(
                url,
                token,
                token_variable=ADMIN_TOKEN_VARIABLE,
                before_request=before_request,
                plane="admin plane",
                address_from="--admin-url or RAMRACK_ADMIN_URL",
            )
        )

    def check_live(self) -> None:
        """Raise ClientError unless a server answers here; needs no token."""
        self.http.call("GET", "/v2/health/live")

    def check_push(self) -> None:
        """Raise ClientError, saying what lacks, unless this client may push here."""
        self.check_live()
        try:
            self.has_object(_NO_OBJECT)
        except ClientError as error:
            if error.status == 403 and not error.scope:
                # An answer to HEAD has no words; whatever refused it refuses this with some.
                self.workers()
            raise
        try:
            self.workers()
        except ClientError as error:
            # A token to push with need not read.
            if error.status != 403:
                raise

    def models(self) -> list[Document]:
        """Return all models with their versions, aliases and route."""
        return _list(self._get("/admin/v1/models"), "models")

    def model(self, name: str) -> Document:
        """Return one model."""
        return self._get(_model(name))

    def version(self, name: str, version: int) -> Document:
        """Return one version."""
        return self._get(_version(name, version))

    def has_object(self, digest: str, size_bytes: int | None = None) -> bool:
        """Return whether the server holds the object; it then keeps it for the push under way.

        One that has not ``size_bytes``, if given, is damaged there and does not count.
        """
        try:
            response = self.http.call("HEAD", f"/admin/v1/blobs/{digest}")
        except ClientError as error:
            if error.status == 404:
                return False
            raise
        held = response.headers.get("content-length")
        return held is None or size_bytes is None or held == str(size_bytes)

    def put_object(
        self, digest: str, size_bytes: int, chunks: Callable[[int], Iterator[bytes]]
    ) -> None:
        """Upload one object; of a large one only what an earlier try has not brought there.

        ``chunks``: yields the bytes from the one that it is called with.
        """
        path = f"/admin/v1/blobs/{digest}"
        kept = (lambda: self._kept_bytes(path, size_bytes)) if size_bytes >= RESUMED_BYTES else None
        self.http.put_stream(path, chunks, size_bytes, kept)

    def _kept_bytes(self, path: str, size_bytes: int) -> int:
        """Return where an upload goes on; 0 where it begins, or the server is an older one."""
        try:
            self.http.call("HEAD", path)
        except ClientError as error:
            offset = error.headers.get("upload-offset", "")
            if offset.isdecimal() and int(offset) < size_bytes:
                return int(offset)
        return 0

    def register(self, name: str, manifest: Document, reason: str = "") -> Document:
        """Register a manifest whose objects are all there; returns version, digest, created.

        Where the version is there already or something is damaged, the server hashes its objects.
        """
        return self._post(f"{_model(name)}/versions", manifest, reason, read_timeout_s=None)

    def load(
        self,
        name: str,
        version: int,
        *,
        reason: str = "",
        timeout_s: float | None = None,
        progress: Callable[[Document], None] | None = None,
    ) -> Document:
        """Load a version and wait until it is READY; returns the operation, or raises its reason.

        ``timeout_s``: None waits as long as the server works on it.
        """
        return self._operate(f"{_version(name, version)}:load", reason, timeout_s, progress)

    def unload(
        self,
        name: str,
        version: int,
        *,
        reason: str = "",
        timeout_s: float | None = None,
        progress: Callable[[Document], None] | None = None,
    ) -> Document:
        """Unload a version and wait until its memory is given back; returns the operation."""
        return self._operate(f"{_version(name, version)}:unload", reason, timeout_s, progress)

    def plan(self, name: str, version: int) -> Document:
        """Return what a load would need; changes nothing."""
        return self._post(f"{_version(name, version)}:plan", {})

    def set_alias(
        self, name: str, alias: str, version: int, reason: str = "", if_match: str | None = None
    ) -> Document:
        """Point an alias at a READY version."""
        path = f"{_model(name)}/aliases/{quote(alias, safe='')}"
        return self._change("PUT", path, {"version": version}, reason, if_match)

    def delete_alias(
        self, name: str, alias: str, reason: str = "", if_match: str | None = None
    ) -> Document:
        """Remove an alias; the version stays."""
        path = f"{_model(name)}/aliases/{quote(alias, safe='')}"
        return self._change("DELETE", path, None, reason, if_match)

    def route(self, name: str) -> Document:
        """Return where requests without a version go."""
        return self._get(f"{_model(name)}/route")

    def set_route(
        self, name: str, body: Document, reason: str = "", if_match: str | None = None
    ) -> Document:
        """Send requests without a version where ``body`` says, as the admin plane takes it."""
        return self._change("PUT", f"{_model(name)}/route", body, reason, if_match)

    def delete_route(self, name: str, reason: str = "", if_match: str | None = None) -> Document:
        """Remove the route, so that no version is held by it."""
        return self._change("DELETE", f"{_model(name)}/route", None, reason, if_match)

    def route_history(self, name: str) -> list[Document]:
        """Return the routes that were, oldest first."""
        return _list(self._get(f"{_model(name)}/route/history"), "history")

    def rollback(
        self, name: str, to: int | None = None, reason: str = "", if_match: str | None = None
    ) -> Document:
        """Restore the traffic before the present one, or route to version ``to``."""
        path = f"{_model(name)}/route:rollback"
        body: Document = {} if to is None else {"to": to}
        return self._post(path, body, reason, read_timeout_s=None, if_match=if_match)

    def release(
        self, routes: Document, reason: str = "", if_match: str | None = None
    ) -> list[Document]:
        """Set the routes of several models, all or none; returns the routes.

        ``if_match``: etags, of which each route must have one; a route may have its own instead.
        """
        answer = self._change("PUT", "/admin/v1/release", {"routes": routes}, reason, if_match)
        return _list(answer, "routes")

    def settings(self, name: str) -> Document:
        """Return what is set for one model: settings, etag."""
        return self._get(f"{_model(name)}/settings")

    def set_settings(
        self, name: str, changes: Document, reason: str = "", if_match: str | None = None
    ) -> Document:
        """Change what is set for one model: a value sets, None resets, the rest stays."""
        return self._change("PUT", f"{_model(name)}/settings", changes, reason, if_match)

    def delete_version(self, name: str, version: int, reason: str = "") -> Document:
        """Remove a version that is not loaded, routed or aliased."""
        return document_of(
            self.http.call("DELETE", _version(name, version), params=_reason(reason))
        )

    def gc(self, reason: str = "") -> Document:
        """Drop objects that no version uses; returns objects and bytes."""
        return self._post("/admin/v1/gc", {}, reason, read_timeout_s=None)

    def verify(self) -> Document:
        """Read every object and compare it with its digest; returns what is damaged."""
        return self._post("/admin/v1/verify", {}, read_timeout_s=None)

    def events(self, since: int | None = 0, model: str = "", limit: int = 100) -> Document:
        """Return changes after number ``since``, or the newest where it is None: events, next."""
        params: dict[str, str | int] = {"limit": limit}
        params |= {"newest": 1} if since is None else {"since": since}
        if model:
            params["model"] = model
        return self._get("/admin/v1/events", **params)

    def memory(self) -> Document:
        """Return the memory ledger."""
        return self._get("/admin/v1/memory")

    def metrics(self) -> str:
        """Return the page of counters, in the text format of Prometheus."""
        return self.http.call("GET", "/metrics").text

    def workers(self) -> list[Document]:
        """Return every worker slot."""
        return _list(self._get("/admin/v1/workers"), "workers")

    def restart_workers(
        self,
        reason: str = "",
        timeout_s: float | None = None,
        progress: Callable[[Document], None] | None = None,
    ) -> Document:
        """Replace the workers one by one and wait until all are new; returns the operation."""
        return self._operate("/admin/v1/workers:restart", reason, timeout_s, progress)

    def upgrade(self, reason: str = "", timeout_s: float | None = None) -> list[Document]:
        """Let the release that is installed on the server take over; returns its workers.

        Raises ClientError where it does not begin, or is not over in time.
        """
        timeout_s = UPGRADE_TIMEOUT_S if timeout_s is None else timeout_s
        begun = self._post("/admin/v1/server:upgrade", {}, reason, read_timeout_s=timeout_s)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            time.sleep(POLL_S)
            # Between the two programs nobody answers: what is asked waits in the listener.
            with contextlib.suppress(ServerUnreachable):
                workers = self.workers()
                pids = {worker["pid"] for worker in workers}
                is_over = all(worker["state"] == "serving" for worker in workers)
                if is_over and not pids & set(begun["workers"]):
                    return workers
        raise ClientError(f"the new release did not serve after {timeout_s:g} s: see its log")

    def _operate(
        self,
        path: str,
        reason: str,
        timeout_s: float | None,
        progress: Callable[[Document], None] | None,
    ) -> Document:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        first = FIRST_WAIT_S if timeout_s is None else min(FIRST_WAIT_S, timeout_s)
        operation = self._post(path, {}, reason, wait=first)
        while operation.get("state") == "running":
            if progress is not None:
                progress(operation)
            if deadline is not None and time.monotonic() >= deadline:
                raise ClientError(
                    f"still {operation.get('stage') or 'running'} after {timeout_s:g} s; it goes "
                    f"on in the server as operation {operation['id']}: `ramrack ls` shows its end"
                )
            time.sleep(POLL_S)
            operation = self._get(f"/admin/v1/operations/{operation['id']}")
        if operation.get("state") == "failed":
            reason = operation.get("reason") or "the operation failed"
            raise ClientError(
                reason, None, {key: operation[key] for key in ("plan",) if key in operation}
            )
        if progress is not None:
            progress(operation)
        return operation

    def _post(
        self,
        path: str,
        body: Document,
        reason: str = "",
        *,
        wait: float | None = None,
        read_timeout_s: float | None = READ_TIMEOUT_S,
        if_match: str | None = None,
    ) -> Document:
        params: dict[str, str | float] = dict(_reason(reason))
        if wait is not None:
            params["wait"] = wait
        # What reads the whole store or loads a version is bounded by the server, not by us.
        timeout_s = 3600.0 if read_timeout_s is None else read_timeout_s
        response = self.http.call(
            "POST", path, json=body, params=params, headers=_guard(if_match),
            read_timeout_s=timeout_s,
        )  # fmt: skip
        return document_of(response)

    def _change(
        self,
        method: str,
        path: str,
        body: Document | None,
        reason: str,
        if_match: str | None = None,
    ) -> Document:
        return document_of(
            self.http.call(
                method, path, json=body, params=_reason(reason), headers=_guard(if_match)
            )
        )


def _guard(if_match: str | None) -> dict[str, str]:
    return {"if-match": if_match} if if_match else {}


def _list(document: Document, key: str) -> list[Document]:
    value = document.get(key)
    if not isinstance(value, list):
        raise ClientError(f"the answer has no list {key!r}: is it a ramrack server?")
    return value


def _model(name: str) -> str:
    return f"/admin/v1/models/{quote(name, safe='')}"


def _version(name: str, version: int) -> str:
    return f"{_model(name)}/versions/{version}"


def _reason(reason: str) -> dict[str, str]:
    return {"reason": reason} if reason else {}
