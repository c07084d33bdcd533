"""Tokens on the data plane: none by default; with ``data_auth = "token"`` for all but health."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from dataclasses import replace
from typing import Any

import httpx
import pytest

from registry.errors import InvalidInput
from serving.data.app import create_data_app
from serving.metrics.collector import render
from serving.metrics.facts import Facts
from serving.settings import Settings, Token
from tests.unit.serving.data.rig import Plane, Served, serve

OPEN = {"/v2/health/live", "/v2/health/ready", "/ping", "/health"}


def token(name: str, *scopes: str) -> Token:
    return Token(name, hashlib.sha256(f"secret-{name}".encode()).hexdigest(), scopes)


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer secret-{name}"}


@pytest.fixture
def settings() -> Settings:
    tokens = (token("app", "infer"), token("ci", "read", "push", "promote", "admin"))
    return replace(Settings(), data_auth="token", tokens=tokens)


def calls(plane: Plane) -> list[tuple[str, str]]:
    """Every method and path of the application, with names that are there."""
    values = {"model": "fraud", "version": "3", "number": "3", "alias": "prod"}
    return [
        (min(route.methods or ()), re.sub(r"{(\w+):\w+}", lambda m: values[m[1]], path))
        for route in plane.app.routes
        if (path := getattr(route, "path", "")) and getattr(route, "methods", None)
    ]


def refusal(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert response.json()["error"]
    return response.status_code, response.headers["www-authenticate"]


async def test_every_call_but_health_needs_a_token_with_the_scope_infer(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """No token or a wrong one is a 401, one without the scope a 403, the right one goes on."""
    plane.add()
    for method, path in calls(plane):
        none = await client.request(method, path)
        wrong = await client.request(method, path, headers=bearer("nobody"))
        lacking = await client.request(method, path, headers=bearer("ci"))
        right = await client.request(method, path, headers=bearer("app"))
        if path in OPEN:
            assert {none.status_code, wrong.status_code, lacking.status_code} == {200}
            continue
        assert refusal(none) == refusal(wrong) == (401, "Bearer")
        challenge = 'Bearer error="insufficient_scope", scope="infer"'
        assert refusal(lacking) == (403, challenge), path
        assert right.status_code not in (401, 403), path
    assert (await client.get("/nothing")).status_code == 401


async def test_a_refused_body_is_not_read(served: Served) -> None:
    """The answer comes before the body does, so strangers cannot make the server hold memory."""
    connection = await served.connect()
    await connection.send(
        b"POST /v2/models/fraud/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 60000000\r\n\r\n"
    )
    answer = await connection.response()
    assert (answer.status, "error" in json.loads(answer.body)) == (401, True)


async def test_refusals_are_counted(plane: Plane, client: httpx.AsyncClient) -> None:
    """A refused request is one of unknown version, with its code."""
    await client.post("/v2/models/fraud/infer", json={})
    await client.post("/v2/models/fraud/infer", json={}, headers=bearer("ci"))
    page = render(plane.memory, Facts()).decode()
    for code in (401, 403):
        line = f'ramrack_requests_total{{code="{code}",model="_unknown",version=""}} 1'
        assert line in page.splitlines()


def test_a_guard_without_tokens_is_refused(plane: Plane) -> None:
    """Asking for a token that nobody can have must not end in an open door."""
    settings = replace(plane.settings, tokens=())
    with pytest.raises(InvalidInput, match="data_auth"):
        create_data_app(plane.data_plane, settings)


async def test_the_document_says_what_is_needed(client: httpx.AsyncClient) -> None:
    """Guarded calls name the scheme and both refusals; health names neither."""
    document = (await client.get("/openapi.json", headers=bearer("app"))).json()
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    for path, operations in document["paths"].items():
        operation: dict[str, Any]
        for operation in operations.values():
            is_guarded = "security" in operation and {"401", "403"} <= set(operation["responses"])
            assert is_guarded == (path not in OPEN), path


async def test_an_open_plane_looks_at_no_token_and_documents_none(plane: Plane) -> None:
    """By default a wrong token changes nothing, and what cannot happen is not in the document."""
    is_open = replace(plane.settings, data_auth=Settings().data_auth)
    app = Plane(is_open, plane.executor, plane.region, plane.memory).app
    async with serve(app, is_open) as served, httpx.AsyncClient(base_url=served.url) as client:
        async with asyncio.timeout(10):
            answer = await client.get("/openapi.json", headers=bearer("nobody"))
    assert answer.status_code == 200
    assert "401" not in answer.text
    assert "securitySchemes" not in answer.text
