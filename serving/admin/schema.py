"""What admin calls take, as JSON schemas with an example each, for the OpenAPI document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from registry.ident import MAX_VERSION, MODEL_PATTERN
from registry.manifest import Json, JsonObject
from registry.model_settings import RANGES
from registry.traffic import WEIGHT_SUM
from registry.traffic_rules import MAX_SHADOWS, MAX_SPLIT
from serving.admin.request import (
    MAX_EVENTS,
    MAX_LOOKS,
    MAX_REASON_CHARS,
    MAX_RELEASED,
    MAX_SEQ,
    MAX_WAIT_S,
)

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
_ROUTE_FIELDS: Final[JsonObject] = {
    "split": {
        "type": "array",
        "description": f"Whole weights that sum to {WEIGHT_SUM}; each version once.",
        "minItems": 1,
        "maxItems": MAX_SPLIT,
        "items": {
            "type": "object",
            "properties": {
                "version": _VERSION,
                "weight": {"type": "integer", "minimum": 1, "maximum": WEIGHT_SUM},
            },
            "required": ["version", "weight"],
            "additionalProperties": False,
        },
    },
    "shadow": {
        "type": "array",
        "description": "Versions that get copies and never answer; only with split, not in it.",
        "maxItems": MAX_SHADOWS,
        "uniqueItems": True,
        "items": _VERSION,
    },
    "latest": {"type": "boolean", "description": "Follow the highest READY version."},
    "allow_incompatible": {
        "type": "boolean",
        "description": "Mix versions although their inputs or outputs differ.",
    },
}
_EITHER: Final[list[Json]] = [
    {"required": ["split"], "properties": {"latest": {"const": False}}},
    {
        "required": ["latest"],
        "properties": {"latest": {"const": True}, "shadow": {"maxItems": 0}},
        "not": {"required": ["split"]},
    },
]
_ROUTE: Final[JsonObject] = {
    "type": "object",
    "description": "Either split or latest.",
    "properties": _ROUTE_FIELDS,
    "oneOf": _EITHER,
    "additionalProperties": False,
}
_IF_MATCH: Final[JsonObject] = {"type": "string", "description": "The etag this route must have."}
_RELEASE: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "routes": {
            "type": "object",
            "description": "Model to its route.",
            "minProperties": 1,
            "maxProperties": MAX_RELEASED,
            "propertyNames": {"pattern": f"^{MODEL_PATTERN}$"},
            "additionalProperties": {
                "type": "object",
                "properties": {**_ROUTE_FIELDS, "if_match": _IF_MATCH},
                "oneOf": _EITHER,
                "additionalProperties": False,
            },
        }
    },
    "required": ["routes"],
    "additionalProperties": False,
}
_SETTINGS: Final[JsonObject] = {
    "type": "object",
    "description": "A value sets, null resets to the server's own, what is left out stays.",
    "properties": {
        **{
            name: {
                "type": ["number" if name == "max_run_s" else "integer", "null"],
                "minimum": low,
                "maximum": high,
            }
            for name, (low, high) in RANGES.items()
        },
        "batching": {"type": ["boolean", "null"]},
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
_SPLIT_EXAMPLE: Final[JsonObject] = {
    "split": [{"version": 3, "weight": 90}, {"version": 4, "weight": 10}], "shadow": [5],
}  # fmt: skip
ROUTE: Final = Body(_ROUTE, _SPLIT_EXAMPLE, is_required=True)
RELEASE: Final = Body(
    _RELEASE, {"routes": {"fraud": _SPLIT_EXAMPLE, "search": {"latest": True}}}, is_required=True
)
SETTINGS: Final = Body(_SETTINGS, {"queue_rows": 1024, "priority": None}, is_required=True)
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

_QUERIES: Final[dict[str, JsonObject]] = {
    "reason": {
        "type": "string",
        "maxLength": MAX_REASON_CHARS,
        "description": "Why; goes into the events.",
    },
    "wait": {
        "type": "number",
        "minimum": 0,
        "maximum": MAX_WAIT_S,
        "description": "Seconds to wait.",
    },
    "since": {
        "type": "integer",
        "minimum": 0,
        "maximum": MAX_SEQ,
        "description": "Only events after this number.",
    },
    "newest": {
        "type": "integer",
        "minimum": 0,
        "maximum": 1,
        "description": "1: the last events instead of the first ones. Not together with since.",
    },
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_EVENTS},
    "model": {"type": "string", "description": "Only events of this model."},
}
# Where a parameter of one call means something of its own.
_OWN_QUERIES: Final[dict[tuple[str, str], JsonObject]] = {
    ("/admin/v1/console/stream", "limit"): {
        "type": "integer",
        "minimum": 1,
        "maximum": MAX_LOOKS,
        "description": "Looks after which it ends; without it there is no end.",
    },
}


def query_schema(path: str, name: str) -> JsonObject:
    """Return the schema of a query parameter of the call at ``path``."""
    return _OWN_QUERIES.get((path, name)) or _QUERIES[name]
