"""The OpenAPI document: schemas by name, errors by code, and parameters that handlers read raw.

Handlers take the request as it is, for the codec checks bodies far better and faster than a model
class could; so what they take and give is written down here, and a test holds it to the routes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

Document: TypeAlias = dict[str, Any]

REASONS: Final[Mapping[int, str]] = {
    400: "Bad input: the message names the field, the value seen and what is allowed.",
    401: "No token, or one that is not known.",
    403: "The token lacks the scope, or the Host header is foreign.",
    404: "No such model, version, alias or path.",
    405: "The path exists, but not with this verb.",
    408: "The request did not come in within the receive deadline.",
    409: "The present state forbids it.",
    413: "The body, or the answer, is larger than allowed.",
    415: "A content type or content encoding that is not spoken here.",
    429: "The bounded queue is full; Retry-After says when to come back.",
    431: "The request head is larger than allowed.",
    500: "The model itself failed; the log has more under the x-request-id.",
    503: "Known, but not ready to answer; the message has state and reason.",
    504: "The deadline passed before there was an answer.",
    507: "The memory budget or the disk has no room for it.",
}
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_VERSION_HEADERS: Final = {
    "x-request-id": {"description": "The id of the request.", "schema": {"type": "string"}},
    "x-ramrack-version": {
        "description": "The version that the answer is of.",
        "schema": {"type": "string"},
    },
    "x-ramrack-digest": {
        "description": "The digest of that version.",
        "schema": {"type": "string"},
    },
}


def schema_ref(name: str) -> Document:
    """Return a reference to one of the document's schemas."""
    return {"$ref": f"#/components/schemas/{name}"}


def json_of(schema: Document, description: str, *, is_of_version: bool = False) -> Document:
    """Return a response or request body that is JSON of ``schema``."""
    document: Document = {
        "description": description,
        "content": {"application/json": {"schema": schema}},
    }
    if is_of_version:
        document["headers"] = _VERSION_HEADERS
    return document


def errors(
    *codes: int, reasons: Mapping[int, str] = REASONS, schema: str = "Error"
) -> dict[int | str, Document]:
    """Return the responses for ``codes``, each of the one form of all errors or one with more."""
    found: dict[int | str, Document] = {}
    for code in codes:
        found[code] = json_of(schema_ref(schema), reasons[code])
        if code == 429:
            found[code]["headers"] = {
                "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}
            }
    return found


def path_parameters(path: str, descriptions: Mapping[str, tuple[str, str]]) -> list[Document]:
    """Return the parameters of a route's path, each ``(description, pattern)`` by its name."""
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": descriptions[name][0],
            "schema": {"type": "string", "pattern": f"^{descriptions[name][1]}$"},
        }
        for name in _PARAMETER.findall(path)
    ]


def bearer(scope: str) -> list[Document]:
    """Return the security of a call that needs a token with ``scope``."""
    return [{_SCHEME: [scope]}]


def install_openapi(
    app: FastAPI, schemas: Mapping[str, Document], *, has_tokens: bool = False
) -> None:
    """Make ``app`` describe itself with ``schemas``, and without what never happens here.

    ``has_tokens``: calls may name ``bearer`` as their security.
    """
    # Replacing the method is FastAPI's own recipe.
    app.openapi = _describer(app, schemas, has_tokens=has_tokens)  # type: ignore[method-assign]


def _describer(
    app: FastAPI, schemas: Mapping[str, Document], *, has_tokens: bool
) -> Callable[[], Document]:
    cached: Document = {}

    def describe() -> Document:
        if not cached:
            document = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                tags=app.openapi_tags,
            )
            components = document.setdefault("components", {})
            if has_tokens:
                components["securitySchemes"] = {_SCHEME: SECURITY_SCHEME}
            named = components.setdefault("schemas", {})
            for name in ("HTTPValidationError", "ValidationError"):
                named.pop(name, None)
            named.update({"Error": ERROR_SCHEMA, **schemas})
            for operation in _operations(document):
                # The framework's own check of parameters answers 400 here, like all bad input.
                operation["responses"].pop("422", None)
            cached.update(document)
        return cached

    return describe


def _operations(document: Document) -> list[Document]:
    return [
        operation
        for methods in document["paths"].values()
        for operation in methods.values()
        if isinstance(operation, dict) and "responses" in operation
    ]


_SCHEME: Final = "bearer"
SECURITY_SCHEME: Final[Document] = {
    "type": "http",
    "scheme": "bearer",
    "description": "Authorization: Bearer TOKEN. The roles of a call are the scopes it needs.",
}
ERROR_SCHEMA: Final[Document] = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
    "examples": [{"error": "input 'age': element 3: \"x\" is not allowed: use a number"}],
}
