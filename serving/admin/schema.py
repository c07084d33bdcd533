"""JSON schemas of what admin calls take and give, for the OpenAPI document."""

from __future__ import annotations

from typing import Final

from registry.ident import MAX_VERSION
from registry.manifest import JsonObject

_DIGEST: Final[JsonObject] = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
_VERSION: Final[JsonObject] = {"type": "integer", "minimum": 1, "maximum": MAX_VERSION}
_OBJECT: Final[JsonObject] = {"type": "object"}

BINARY: Final[JsonObject] = {"type": "string", "format": "binary"}
EMPTY: Final[JsonObject] = {"type": "object", "additionalProperties": False}
ALIAS: Final[JsonObject] = {
    "type": "object",
    "properties": {"version": _VERSION},
    "required": ["version"],
    "additionalProperties": False,
}
ROUTE: Final[JsonObject] = {
    "type": "object",
    "description": "Either split or latest. This release takes one version of weight 100.",
    "properties": {
        "split": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": {
                "type": "object",
                "properties": {"version": _VERSION, "weight": {"type": "integer", "const": 100}},
                "required": ["version", "weight"],
                "additionalProperties": False,
            },
        },
        "latest": {"type": "boolean"},
        "shadow": {"type": "array", "maxItems": 0},
    },
    "additionalProperties": False,
}
ROLLBACK: Final[JsonObject] = {
    "type": "object",
    "properties": {"to": _VERSION},
    "additionalProperties": False,
}
INDEX: Final[JsonObject] = {
    "type": "object",
    "properties": {"ready": {"type": "boolean"}},
    "additionalProperties": False,
}
TRITON: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "parameters": {
            "type": "object",
            "properties": {"unload_dependents": {"type": "boolean"}},
            "additionalProperties": False,
        }
    },
    "additionalProperties": False,
}
MANIFEST: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "format": {"type": "integer", "const": 1},
        "model": {"type": "string"},
        "graph": _DIGEST,
        "tensors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"digest": _DIGEST, "bytes": {"type": "integer", "minimum": 0}},
                "required": ["digest", "bytes"],
                "additionalProperties": False,
            },
        },
        "signature": _OBJECT,
        "runtime": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
        "parity": {"type": ["object", "null"]},
        "source": _OBJECT,
        "meta": _OBJECT,
        "created": {"type": "string"},
    },
    "required": ["format", "model", "graph", "signature", "runtime"],
    "additionalProperties": False,
}

QUERIES: Final[dict[str, JsonObject]] = {
    "reason": {"type": "string", "maxLength": 1000, "description": "Why; goes into the events."},
    "wait": {"type": "number", "minimum": 0, "maximum": 3600, "description": "Seconds to wait."},
    "since": {"type": "integer", "minimum": 0, "description": "Only events after this number."},
    "limit": {"type": "integer", "minimum": 1, "maximum": 1000},
    "model": {"type": "string", "description": "Only events of this model."},
}

ANSWERS: Final[dict[int, str]] = {
    200: "Done.",
    201: "Made.",
    202: "Under way: an operation.",
    400: "The request, or what it names, is not allowed; error says what and why.",
    404: "Not known.",
    409: "The present state forbids it; error says what stands in the way.",
    413: "The body is too large.",
    429: "Too many operations are under way.",
    503: "Not ready; error says why.",
    507: "No room: the memory budget, or the disk.",
}
