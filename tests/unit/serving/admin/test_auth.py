"""Tokens and scopes: every route with no, a wrong, a narrow and the right token."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from dataclasses import replace

import pytest

from registry.errors import InvalidInput
from serving.admin.app import create_admin_app
from serving.admin.table import CALLS
from serving.auth import Authenticator, admin_tokens, check_exposure, data_tokens
from serving.errors import Unauthorized
from serving.settings import SCOPES, Settings, Token


def token(name: str, *scopes: str) -> Token:
    return Token(name, hashlib.sha256(f"secret-{name}".encode()).hexdigest(), scopes)


TOKENS = (token("everything", *SCOPES), *(token(scope, scope) for scope in SCOPES))


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer secret-{name}"}


def url_of(path: str) -> str:
    values = {"model": "m", "version": "1", "alias": "a", "digest": "sha256:" + "0" * 64,
              "id": "x", "file": "main.js"}  # fmt: skip
    if path.endswith("/stream"):
        # It does not end by itself.
        path += "?limit=1"
    return re.sub(r"{(\w+)(:\w+)?}", lambda match: values[match[1]], path)


def routes_of(app):
    """Every method and path that the application answers, whoever added it."""
    found = []
    for route in app.routes:
        methods = getattr(route, "methods", None) or {"GET"}
        path = getattr(route, "path", "")
        found += [(method, path) for method in sorted(methods)]
    return found


async def test_every_route_of_the_app_is_in_the_table_or_a_page(world):
    """No route comes in beside the table that says what scope it needs."""
    app = create_admin_app(world.control, world.settings)
    pages = {"/docs", "/docs/static", "/openapi.json"}
    table = {(call.method, call.path) for call in CALLS}

    assert {(m, p) for m, p in routes_of(app) if p not in pages} == table
    open_to_all = {call.path for call in CALLS if not call.scope}
    assert open_to_all == {"/v2/health/live", "/v2/health/ready", "/", "/console/{file:name}"}


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [(call.method, call.path, call.scope) for call in CALLS]
    + [("GET", "/docs", "read"), ("GET", "/openapi.json", "read"),
       ("GET", "/docs/static/swagger-ui.css", "read")],
)  # fmt: skip
async def test_route_wants_exactly_its_scope(world, method, path, scope):
    """No token or a wrong one is a 401, one without the scope a 403, any other goes through."""
    narrow = [name for name in SCOPES if name != scope]
    async with world.client(tokens=TOKENS) as client:
        none = await client.request(method, url_of(path))
        wrong = await client.request(method, url_of(path), headers=bearer("nobody"))
        lacking = [
            (await client.request(method, url_of(path), headers=bearer(name))).status_code
            for name in narrow
        ]
        right = await client.request(method, url_of(path), headers=bearer(scope or "infer"))
        everything = await client.request(method, url_of(path), headers=bearer("everything"))

    if not scope:
        assert {none.status_code, wrong.status_code, *lacking} <= {200, 503}
        return
    assert (none.status_code, wrong.status_code) == (401, 401)
    assert none.headers["www-authenticate"] == "Bearer"
    if method != "HEAD":
        assert none.json()["error"]
    assert lacking == [403] * len(narrow)
    assert right.status_code not in (401, 403)
    assert everything.status_code not in (401, 403)


async def test_unknown_path_needs_a_token_too(world):
    """Who has no token learns nothing of what there is."""
    async with world.client(tokens=TOKENS) as client:
        assert (await client.get("/nothing")).status_code == 401
        assert (await client.get("/nothing", headers=bearer("read"))).status_code == 404


async def test_name_of_the_token_goes_into_the_events(world):
    """An event says whose token it was, never the token."""
    async with world.client(tokens=TOKENS) as client:
        await client.post("/admin/v1/gc", headers=bearer("admin"))
        events = await client.get("/admin/v1/events", headers=bearer("read"))

    assert events.json()["events"][0]["who"] == "admin"
    assert "secret" not in events.text


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc", "secret-read",
                                    "Bearer secret-read extra", "Bearer \udcff"])  # fmt: skip
def test_header_that_is_no_token_is_refused(header):
    """Anything but a known bearer token is Unauthorized."""
    with pytest.raises(Unauthorized):
        Authenticator(TOKENS).actor(header)


def test_scheme_of_the_header_may_be_in_any_case():
    """HTTP's schemes are not case sensitive."""
    assert Authenticator(TOKENS).actor("bearer secret-read", "1.2.3.4").address == "1.2.3.4"


def test_token_of_the_environment_has_all_scopes_and_is_taken_out():
    """Child processes never see the secret, and only its hash is kept."""
    environ = {"RAMRACK_ADMIN_TOKEN": "s3cret", "PATH": "/bin"}

    tokens = admin_tokens(dataclasses.replace(Settings(), tokens=(token("a", "read"),)), environ)

    assert environ == {"PATH": "/bin"}
    assert [t.name for t in tokens] == ["a", "environment"]
    assert Authenticator(tokens).actor("Bearer s3cret").scopes == frozenset(SCOPES)
    assert "s3cret" not in repr(tokens)


def test_data_plane_that_asks_for_tokens_needs_one_with_its_scope():
    """A server whose data plane nobody could use does not start, and says how to mend it."""
    settings = Settings(data_auth="token")
    for tokens in ((), (token("ci", "read", "admin"),)):
        with pytest.raises(InvalidInput, match=r"data_auth.*RAMRACK_ADMIN_TOKEN.*\[\[tokens\]\]"):
            check_exposure(settings, tokens)

    check_exposure(settings, (token("app", "infer"),))
    check_exposure(settings, admin_tokens(settings, {"RAMRACK_ADMIN_TOKEN": "s"}))


def test_workers_learn_of_tokens_only_where_they_ask_for_them():
    """The hashes go no further than they are needed."""
    assert data_tokens(Settings(), TOKENS) == ()
    assert data_tokens(Settings(data_auth="token"), TOKENS) == TOKENS


def test_empty_token_of_the_environment_is_refused():
    """A variable that was set to nothing by mistake does not open the server."""
    with pytest.raises(InvalidInput, match="RAMRACK_ADMIN_TOKEN"):
        admin_tokens(Settings(), {"RAMRACK_ADMIN_TOKEN": " "})


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("models.example", False)],
)  # fmt: skip
def test_address_beyond_loopback_needs_a_token(host, is_loopback):
    """Without a token the admin plane listens on loopback only."""
    settings = dataclasses.replace(Settings(), admin_host=host)
    check_exposure(settings, TOKENS)
    if is_loopback:
        check_exposure(settings, ())
    else:
        with pytest.raises(InvalidInput, match="RAMRACK_ADMIN_TOKEN"):
            check_exposure(settings, ())


async def test_metrics_may_be_open_and_nothing_else_is(world):
    """With metrics_auth = off a scrape needs no token, but a Host header of ours as before."""
    world.settings = replace(world.settings, metrics_auth="off")
    async with world.client(tokens=TOKENS) as client:
        assert (await client.get("/metrics")).status_code == 200
        for path in ("/admin/v1/console/stream", "/admin/v1/models", "/docs"):
            assert (await client.get(path)).status_code == 401
        assert (await client.post("/metrics")).status_code in (403, 405)
        foreign = await client.get("/metrics", headers={"host": "evil.example"})
        assert foreign.status_code == 403
        assert (await client.get("/metrics", headers=bearer("infer"))).status_code == 200


async def test_metrics_need_a_token_by_default(world):
    """A token without scope read is not enough."""
    async with world.client(tokens=TOKENS) as client:
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers=bearer("infer"))).status_code == 403
        assert (await client.get("/metrics", headers=bearer("read"))).status_code == 200
