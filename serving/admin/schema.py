"""What admin calls take, as JSON schemas with an example each, for the OpenAPI document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from registry.ident import MAX_VERSION
from registry.manifest import Json, JsonObject

_DIGEST: Final[JsonObject] = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
_VERSION: Final[JsonObject] = {"type": "integer", "minimum": 1, "maximum": MAX_VERSION}
_OBJECT: Final[JsonObject] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Body:
    """A request body: its schema and one that is allowed."""

    schema: JsonObject
    example: Json
    is_required: bool = False
    is_binary: bool = False


BINARY: Final = Body(
    {"type": "string", "format": "binary"}, "the bytes of the object",
    is_required=True, is_binary=True,
)  # fmt: skip
EMPTY: Final = Body({"type": "object", "additionalProperties": False}, {})
_ALIAS: Final[JsonObject] = {
    "type": "object",
    "properties": {"version": _VERSION},
    "required": ["version"],
    "additionalProperties": False,
}
_ROUTE: Final[JsonObject] = {
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
_ROLLBACK: Final[JsonObject] = {
    "type": "object",
    "properties": {"to": _VERSION},
    "additionalProperties": False,
}
_INDEX: Final[JsonObject] = {
    "type": "object",
    "properties": {"ready": {"type": "boolean"}},
    "additionalProperties": False,
}
_TRITON: Final[JsonObject] = {
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
_MANIFEST: Final[JsonObject] = {
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

_EXAMPLE_DIGEST: Final = "sha256:" + "0" * 64
ALIAS: Final = Body(_ALIAS, {"version": 3}, is_required=True)
ROUTE: Final = Body(_ROUTE, {"split": [{"version": 3, "weight": 100}]}, is_required=True)
ROLLBACK: Final = Body(_ROLLBACK, {"to": 2})
INDEX: Final = Body(_INDEX, {"ready": True})
TRITON: Final = Body(_TRITON, {"parameters": {"unload_dependents": False}})
MANIFEST: Final = Body(
    _MANIFEST,
    {
        "format": 1,
        "model": "fraud",
        "graph": _EXAMPLE_DIGEST,
        "tensors": [],
        "signature": {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
        },
        "runtime": {"name": "onnx"},
        "meta": {"git": "0f3c2a1"},
    },
    is_required=True,
)

QUERIES: Final[dict[str, JsonObject]] = {
    "reason": {"type": "string", "maxLength": 1000, "description": "Why; goes into the events."},
    "wait": {"type": "number", "minimum": 0, "maximum": 3600, "description": "Seconds to wait."},
    "since": {"type": "integer", "minimum": 0, "description": "Only events after this number."},
    "limit": {"type": "integer", "minimum": 1, "maximum": 1000},
    "model": {"type": "string", "description": "Only events of this model."},
}
