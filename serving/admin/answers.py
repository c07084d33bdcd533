"""JSON schemas of what admin calls answer, good and bad, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from registry.lifecycle import State
from registry.model_settings import RANGES
from serving.admin.views import TRITON_STATES
from serving.web.openapi import Document, schema_ref


def _object(properties: Mapping[str, Document], *optional: str) -> Document:
    """Return the schema of an object that has all of ``properties`` but the ``optional`` ones."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
    }


def _array(items: Document) -> Document:
    return {"type": "array", "items": items}


def _or_null(schema: Document) -> Document:
    if "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}


_TEXT: Final[Document] = {"type": "string"}
_FLAG: Final[Document] = {"type": "boolean"}
_COUNT: Final[Document] = {"type": "integer", "minimum": 0}
_VERSION: Final[Document] = {"type": "integer", "minimum": 1}
_DIGEST: Final[Document] = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
_TIME: Final[Document] = {"type": "string", "format": "date-time"}
_SECONDS: Final[Document] = {"type": "number", "minimum": 0}
_ANY_OBJECT: Final[Document] = {"type": "object", "additionalProperties": True}
_ANYTHING: Final[Document] = {}
_ETAG: Final[Document] = {"type": "string", "pattern": '^".*"$'}
_SPLIT: Final = _array(
    _object({"version": _VERSION, "weight": {"type": "integer", "minimum": 1, "maximum": 100}})
)
_TRAFFIC: Final[dict[str, Document]] = {"split": _SPLIT, "shadow": _array(_VERSION)}
_SETTINGS: Final = _object(
    {
        **{
            name: _or_null({"type": "number" if name == "max_run_s" else "integer"})
            for name in RANGES
        },
        "batching": _or_null(_FLAG),
    }
) | {"description": "Null: the server's own setting holds."}
_MEMORY: Final[dict[str, Document]] = {
    "disk_bytes": _COUNT,
    "weight_bytes": _COUNT,
    "object_bytes": _COUNT | {"description": "Kept in RAM for it: graph, weights, packed weights."},
    "unique_bytes": _COUNT,
    "shared_bytes": _COUNT,
    "shared_with": _array(_object({"model": _TEXT, "version": _VERSION})),
    "private_bytes_per_worker": _or_null(_COUNT)
    | {"description": "Of the worker that takes most. Null until the first load measured it."},
    "private_bytes": _COUNT | {"description": "Of all workers together, as the budget counts it."},
    "resident_bytes": _COUNT | {"description": "Of object_bytes, as the kernel counts them."},
    "locked_bytes": _COUNT,
}
_WEIGHT_MODE: Final[Document] = {"type": "string", "enum": ["private", "mapped", "packed"]}
_FAILED: Final = _array(_object({"model": _TEXT, "version": _VERSION, "reason": _TEXT}))

ANSWER_SCHEMAS: Final[dict[str, Document]] = {
    "Object": _object({"digest": _DIGEST, "bytes": _COUNT}),
    "Models": _object({"models": _array(schema_ref("Model"))}),
    "Model": _object(
        {
            "name": _TEXT,
            "versions": _array(schema_ref("Version")),
            "aliases": {"type": "object", "additionalProperties": _VERSION},
            "alias_etags": {"type": "object", "additionalProperties": _ETAG}
            | {"description": "Of each alias, for If-Match."},
            "route": _or_null(schema_ref("Route")),
            "settings": _SETTINGS,
        }
    ),
    "Version": _object(
        {
            "model": _TEXT,
            "version": _VERSION,
            "state": {"type": "string", "enum": [state.value for state in State]},
            "reason": _TEXT,
            "digest": _DIGEST,
            "published": _TIME,
            "created": _TEXT,
            "meta": _ANY_OBJECT,
            "source": _ANY_OBJECT,
            "signature": _ANY_OBJECT,
            "runtime": _ANY_OBJECT,
            "parity": _or_null(_ANY_OBJECT),
            "aliases": _array(_TEXT),
            "traffic": {"type": "integer", "minimum": 0, "maximum": 100},
            "is_shadow": _FLAG,
            "is_previous": _FLAG,
            "memory": _object(_MEMORY),
            "load_s": _or_null(_SECONDS),
            "batching": _or_null(_object({"allowed": _FLAG, "reason": _TEXT})),
            "weights": _or_null(_object({"mode": _WEIGHT_MODE, "reason": _TEXT})),
        }
    ),
    "Published": _object(
        {"model": _TEXT, "version": _VERSION, "digest": _DIGEST, "created": _FLAG}
    ),
    "Deleted": _object({"model": _TEXT, "version": _VERSION}),
    "Operation": _object(
        {
            "id": _TEXT,
            "kind": {"type": "string", "enum": ["load", "unload", "restart"]},
            "model": _or_null(_TEXT),
            "version": _or_null(_VERSION),
            "state": {"type": "string", "enum": ["running", "succeeded", "failed"]},
            "progress": {"type": "number", "minimum": 0, "maximum": 1},
            "stage": _TEXT,
            "reason": _TEXT,
            "started": _TIME,
            "ended": _or_null(_TIME),
            "plan": schema_ref("Plan"),
        },
        "plan",
    )
    | {"description": "plan: where it failed for the budget, as the call itself answers it."},
    "Plan": _object(
        {
            "state": {"type": "string", "enum": [state.value for state in State]},
            "state_reason": _TEXT | {"description": "Of one that waits: how it comes back."},
            "model": _TEXT,
            "version": _VERSION,
            "budget_bytes": _COUNT,
            "needs_bytes": _COUNT,
            "free_bytes": _COUNT,
            "over_bytes": _COUNT,
            "fits": _FLAG,
            "object_bytes": _COUNT,
            "new_bytes": _COUNT,
            "private_bytes_per_worker": _MEMORY["private_bytes_per_worker"],
            "workers": _COUNT,
            "is_estimated": _FLAG | {"description": "needs_bytes is a lower bound."},
            "reason": _TEXT | {"description": "Why it is estimated; else empty."},
            "would_evict": _array(
                _object({"model": _TEXT, "version": _VERSION, "frees_bytes": _COUNT})
            )
            | {"description": "What to unload so that it fits; nothing is unloaded by itself."},
            "fits_after_evicting": _FLAG,
        },
        "state",
        "state_reason",
    )
    | {"description": "state, with its reason: of the version now; not in the plan of a 507."},
    "Alias": _object(
        {
            "model": _TEXT,
            "alias": _TEXT,
            "version": _or_null(_VERSION),
            "previous": _or_null(_VERSION),
            "etag": _or_null(_ETAG),
        }
    ),
    "Route": _object(
        {
            "model": _TEXT,
            **_TRAFFIC,
            "latest": _FLAG,
            "previous": _or_null(_object(_TRAFFIC)) | {"description": "What a rollback restores."},
            "etag": _ETAG,
        }
    ),
    "Release": _object({"routes": _array(schema_ref("Route"))}),
    "ModelSettings": _object({"model": _TEXT, "settings": _SETTINGS, "etag": _ETAG}),
    "RouteDeleted": _object({"model": _TEXT, "split": _SPLIT}),
    "History": _object(
        {
            "history": _array(
                _object(
                    {
                        "seq": _COUNT,
                        "time": _TIME,
                        "who": _TEXT,
                        "reason": _TEXT,
                        **_TRAFFIC,
                        "latest": _FLAG,
                    }
                )
            )
        }
    ),
    "Event": _object(
        {
            "seq": _COUNT,
            "time": _TIME,
            "kind": _TEXT,
            "model": _or_null(_TEXT),
            "version": _or_null(_VERSION),
            "who": _TEXT,
            "address": _TEXT,
            "reason": _TEXT,
            "before": _ANYTHING,
            "after": _ANYTHING,
        }
    ),
    "Events": _object({"events": _array(schema_ref("Event")), "next": _COUNT}),
    "Memory": _object(
        {
            "budget_bytes": _COUNT,
            "committed_bytes": _COUNT,
            "free_bytes": _COUNT,
            "over_bytes": _COUNT,
            "unreleased_bytes": _or_null(_COUNT)
            | {"description": "Null: the last unload could not be measured."},
            "last_unload": _or_null(
                _object(
                    {
                        "model": _TEXT,
                        "version": _VERSION,
                        "unreleased_bytes": _or_null(_COUNT),
                        "reason": _TEXT,
                    }
                )
            ),
            "resident_bytes": _COUNT,
            "locked_bytes": _COUNT,
            "workers": _COUNT,
            "versions": _array(
                _object(
                    {
                        "model": _TEXT,
                        "version": _VERSION,
                        **_MEMORY,
                        "mode": _TEXT | {"description": "As weights.mode; empty: not loaded."},
                        "mode_reason": _TEXT,
                    }
                )
            ),
        }
    ),
    "Workers": _object({"workers": _array(schema_ref("Worker"))}),
    "Worker": _object(
        {
            "slot": _COUNT,
            "pid": _or_null(_VERSION),
            "state": _TEXT,
            "generation": _COUNT,
            "cpus": _array(_COUNT),
            "restarts": _COUNT,
            "reason": _TEXT,
            "memory_bytes": _COUNT,
        }
    ),
    "Upgrade": _object({"pid": _VERSION, "workers": _array(_VERSION)})
    | {"description": "The process that goes on, and the workers that will be replaced."},
    "Gc": _object({"objects": _COUNT, "bytes": _COUNT}),
    "Verify": _object(
        {
            "objects": _COUNT,
            "bytes": _COUNT,
            "damaged": _array(_object({"digest": _TEXT, "reason": _TEXT})),
        }
    ),
    "RepositoryIndex": _array(
        _object(
            {
                "name": _TEXT,
                "version": _TEXT,
                "state": {"type": "string", "enum": sorted(set(TRITON_STATES.values()))},
                "reason": _TEXT,
            }
        )
    ),
    "Live": _object({"live": _FLAG}),
    "Ready": _object({"ready": _FLAG, "failed": _FAILED}),
    "NotReady": _object({"error": _TEXT, "ready": _FLAG, "failed": _FAILED}),
    "OperationError": _object(
        {"error": _TEXT, "operation": schema_ref("Operation"), "plan": schema_ref("Plan")},
        "operation",
        "plan",
    )
    | {"description": "operation: what failed; plan: where it was the budget."},
    "PublishError": _object({"error": _TEXT, "missing": _array(_DIGEST)}, "missing")
    | {"description": "missing: the objects to upload first."},
}

_SAME_VERSION: Final[Document] = {
    "model": "$response.body#/model",
    "version": "$response.body#/version",
}
_SAME_MODEL: Final[Document] = {"model": "$response.body#/model"}


def _links(parameters: Document, *operations: str) -> Document:
    return {name: {"operationId": name, "parameters": parameters} for name in operations}


# By schema of the answer: the calls that what it holds leads to.
LINKS: Final[Mapping[str, Document]] = {
    "Object": _links({"digest": "$response.body#/digest"}, "head_blob"),
    "Published": _links(
        _SAME_VERSION, "show_version", "plan_version", "load_version", "unload_version",
        "delete_version",
    ),
    "Version": _links(_SAME_VERSION, "plan_version", "load_version", "unload_version"),
    "Operation": _links({"id": "$response.body#/id"}, "show_operation"),
    "Route": _links(_SAME_MODEL, "show_route", "roll_back", "show_history", "delete_route"),
    "ModelSettings": _links(_SAME_MODEL, "show_settings", "show_model"),
    "Alias": _links(
        {**_SAME_MODEL, "alias": "$response.body#/alias"}, "set_alias", "delete_alias"
    ),
}  # fmt: skip

DONE: Final[Mapping[int, str]] = {
    200: "Done.",
    201: "Made.",
    202: "Under way: an operation.",
}
ADMIN_REASONS: Final[Mapping[int, str]] = {
    400: "The request, or what it names, is not allowed; error says what and why.",
    401: "No token, or one that is not known.",
    403: "The token lacks the scope, or Host or Origin is foreign.",
    404: "Not known.",
    405: "The path exists, but not with this verb.",
    408: "The body did not come in time.",
    409: "The present state forbids it; error says what stands in the way, and the way out.",
    413: "The body is too large.",
    415: "The body is not JSON, or encoded.",
    429: "Too many operations are under way; Retry-After says when to come back.",
    431: "The request head is larger than allowed.",
    500: "Not planned, or an object is damaged; the log has more under the x-request-id.",
    503: "The store's disk failed, or the server is not ready; error says why.",
    504: "The workers did not come to the wanted state in time; error says what holds now.",
    507: "No room: the memory budget, or the disk.",
}
