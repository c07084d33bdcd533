"""Holds each answer of the admin plane to the OpenAPI document of the app that gave it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from fastapi import FastAPI

from tests.schema_check import problems


def operation_of(document: dict[str, Any], method: str, path: str) -> dict[str, Any] | None:
    """Return the operation that a request is of; None for a path that is not documented."""
    for template, methods in document["paths"].items():
        # A version never has a colon, so 3:load is the version 3; a digest has one.
        pattern = template.replace("{digest}", "[^/]+")
        if re.fullmatch(re.sub(r"{\w+}", "[^/:]+", pattern), path):
            found: dict[str, Any] | None = methods.get(method.lower())
            if found is not None:
                return found
    return None


def checker(app: FastAPI) -> Callable[[httpx.Response], Awaitable[None]]:
    """Return a hook of httpx that fails the test on an answer its document does not know."""
    document = app.openapi()

    async def check(response: httpx.Response) -> None:
        request = response.request
        operation = operation_of(document, request.method, request.url.path)
        if operation is None:
            return
        what = f"{request.method} {request.url.path}: {response.status_code}"
        documented = operation["responses"].get(str(response.status_code))
        assert documented is not None, f"{what} is not documented"
        body = await response.aread()
        content = documented.get("content", {})
        media = response.headers.get("content-type", "").partition(";")[0]
        if request.method == "HEAD" or not body:
            assert request.method == "HEAD" or not content, f"{what} has no body"
            return
        assert media in content, f"{what}: {media} is not documented"
        if media == "application/json":
            found = list(problems(response.json(), content[media]["schema"], document))
            assert found == [], f"{what}: {found}"

    return check
