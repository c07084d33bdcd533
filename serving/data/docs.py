"""Every path of the data plane and what its documentation says; the app is built from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from registry.ident import ALIAS_PATTERN, MODEL_PATTERN
from serving.data.schemas import COUNT, TEXT
from serving.web.openapi import Document, errors, json_of, schema_ref

_NUMBER: Final = "[1-9][0-9]{0,15}"
PARAMETERS: Final = {
    "model": ("The model's name.", MODEL_PATTERN),
    "version": ("A version number or an alias.", f"({_NUMBER}|{ALIAS_PATTERN})"),
    "number": ("A version number.", _NUMBER),
    "alias": ("An alias.", ALIAS_PATTERN),
}
_M: Final = "/v2/models/{model:segment}"
_MV: Final = _M + "/versions/{version:segment}"
_V1: Final = "/v1/models/{model:segment}"


@dataclass(frozen=True, slots=True)
class RouteDoc:
    """One route: where it is, which handler answers, and what is said about it."""

    method: str
    path: str
    handler: str
    operation: str
    tag: str
    summary: str
    responses: dict[int | str, dict[str, Any]]
    body: Document | None = None
    headers: list[Document] = field(default_factory=list)


_FIND: Final = errors(400, 404, 405, 431, 500)
_FIND_READY: Final = errors(400, 404, 405, 431, 500, 503)
_COMPUTE: Final = errors(400, 404, 405, 408, 413, 415, 429, 431, 500, 503, 504)


# What these answer is about one version, and says which.
_OF_ONE_VERSION: Final = frozenset({"metadata", "config", "model_ready"})


def _ok(name: str, description: str, *, is_of_version: bool = False) -> dict[int | str, Document]:
    return {200: json_of(schema_ref(name), description, is_of_version=is_of_version)}


def _header(name: str, description: str, schema: Document) -> Document:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": schema,
    }


_HEADERS: Final = [
    _header("x-request-id", "Comes back; at most 128 visible ASCII characters.", TEXT),
    _header(
        "x-request-timeout-ms",
        "Milliseconds after which nobody waits for the answer any more.",
        {"type": "integer", "minimum": 1, "maximum": 3_600_000},
    ),
    _header(
        "x-routing-key",
        "Equal keys go to the same version of a split; at most 256 bytes.",
        {"type": "string", "maxLength": 256},
    ),
    _header("x-server-timing", "1: the answer says in Server-Timing where its time went.", TEXT),
    _header(
        "Content-Encoding",
        "How the body is compressed; upper case is the same.",
        {"type": "string", "enum": ["gzip", "x-gzip", "deflate", "identity"]},
    ),
    _header("Accept-Encoding", "gzip or deflate.", TEXT),
]
_LENGTH: Final = _header(
    "Inference-Header-Content-Length",
    "Bytes of the JSON part where tensors follow it; 0: the whole body is the one tensor.",
    COUNT,
)
_ROWS: Final[list[list[float]]] = [[1.5, -2, 0, 4], [5, 6, 7, 8]]
_NUMBERS: Final = [number for row in _ROWS for number in row]
_INFER_EXAMPLE: Final[Document] = {
    "id": "order-17",
    "inputs": [
        {
            "name": "x",
            "datatype": "FP32",
            "shape": [2, 4],
            "data": _NUMBERS,
        }
    ],
}
_FRAME_EXAMPLE: Final[Document] = {
    "dataframe_split": {"columns": ["age", "income", "debt", "years"], "data": _ROWS}
}
_BINARY: Final = {"schema": {"type": "string", "format": "binary"}}


def _infer(path: str, suffix: str, meaning: str) -> RouteDoc:
    body = json_of(schema_ref("InferRequest"), "JSON, then the binary tensors if there are any.")
    body["content"]["application/json"]["example"] = _INFER_EXAMPLE
    body["content"]["application/octet-stream"] = _BINARY
    body["required"] = True
    answer = json_of(schema_ref("InferResponse"), "The outputs.", is_of_version=True)
    answer["content"]["application/octet-stream"] = _BINARY
    return RouteDoc(
        "POST", path + "/infer", "infer", f"infer{suffix}", "predict", f"Predict with {meaning}",
        _COMPUTE | {200: answer}, body, [_LENGTH, *_HEADERS],
    )  # fmt: skip


def _predict(path: str, suffix: str, meaning: str) -> RouteDoc:
    body = json_of(schema_ref("PredictRequest"), "Rows, or whole tensors.")
    body["content"]["application/json"]["example"] = {"instances": _ROWS}
    body["required"] = True
    answer = json_of(schema_ref("PredictResponse"), "The predictions.", is_of_version=True)
    return RouteDoc(
        "POST", path + ":predict", "predict", f"predict{suffix}", "predict",
        f"Predict rows with {meaning}", _COMPUTE | {200: answer}, body, _HEADERS,
    )  # fmt: skip


def _invocations(path: str, suffix: str, meaning: str) -> RouteDoc:
    body = json_of(schema_ref("InvocationsRequest"), "A DataFrame, rows, or whole tensors.")
    body["content"]["application/json"]["example"] = _FRAME_EXAMPLE
    body["content"]["text/csv"] = {"schema": TEXT}
    body["required"] = True
    answer = json_of(
        schema_ref("InvocationsResponse"),
        "Labels of a classifier, numbers of a regressor; params.output names another output.",
        is_of_version=True,
    )
    return RouteDoc(
        "POST", path + "/invocations", "invocations", f"invocations{suffix}", "predict",
        f"Predict in MLflow's form with {meaning}", _COMPUTE | {200: answer}, body, _HEADERS,
    )  # fmt: skip


def _get(
    path: str, handler: str, operation: str, tag: str, summary: str, schema: str,
    failures: dict[int | str, Document],
) -> RouteDoc:  # fmt: skip
    responses = _ok(schema, summary, is_of_version=handler in _OF_ONE_VERSION) | failures
    return RouteDoc("GET", path, handler, operation, tag, summary, responses)


_ALWAYS: Final = errors(405, 431, 500)
ROUTES: Final = (
    _get("/", "root", "root", "health", "Where API and documentation are", "Root", _ALWAYS),
    _get("/v2", "server", "server", "health", "Name, version, extensions", "Server", _ALWAYS),
    _get("/v2/health/live", "live", "live", "health", "The process answers", "Live", _ALWAYS),
    _get(
        "/v2/health/ready", "ready", "ready", "health", "Predictions can be sent", "Ready",
        _ALWAYS | {503: json_of(schema_ref("NotReady"), "Not yet; the message says why.")},
    ),
    _get(
        "/ping", "ready", "ping", "health", "Predictions can be sent, as MLflow's clients ask",
        "Ready", _ALWAYS | {503: json_of(schema_ref("NotReady"), "Not yet; it says why.")},
    ),
    _get(
        "/health", "ready", "health", "health", "The same as /ping", "Ready",
        _ALWAYS | {503: json_of(schema_ref("NotReady"), "Not yet; it says why.")},
    ),
    _get("/v2/models", "models", "models", "models", "Names of all models", "Models", _ALWAYS),
    _get(
        "/v2/models/stats", "all_stats", "all_stats", "models",
        "Statistics of all versions that answer", "Statistics", _ALWAYS,
    ),
    _infer(_M, "", "the version that the route names"),
    _infer(_MV, "_version", "one version"),
    _predict(_V1, "", "the version that the route names"),
    _predict(_V1 + "/versions/{number:segment}", "_version", "one version"),
    _predict(_V1 + "/labels/{alias:segment}", "_alias", "the version of an alias"),
    _invocations("", "", "the model that the setting invocations_model names"),
    _invocations(_V1, "_model", "the version that the route names"),
    _invocations(_V1 + "/versions/{number:segment}", "_version", "one version"),
    _invocations(_V1 + "/labels/{alias:segment}", "_alias", "the version of an alias"),
    _get(_M, "metadata", "metadata", "models", "Inputs and outputs", "ModelMetadata", _FIND_READY),
    _get(
        _MV, "metadata", "metadata_version", "models", "Inputs and outputs of one version",
        "ModelMetadata", _FIND_READY,
    ),
    _get(
        _M + "/ready", "model_ready", "model_ready", "health", "The routed version answers",
        "ModelReady", _FIND_READY,
    ),
    _get(
        _MV + "/ready", "model_ready", "model_ready_version", "health", "The version answers",
        "ModelReady", _FIND_READY,
    ),
    _get(
        _M + "/config", "config", "config", "models", "Configuration in Triton's form",
        "ModelConfig", _FIND_READY,
    ),
    _get(
        _MV + "/config", "config", "config_version", "models",
        "Configuration of one version in Triton's form", "ModelConfig", _FIND_READY,
    ),
    _get(
        _M + "/stats", "model_stats", "stats", "models",
        "Statistics of a model's versions that answer", "Statistics", _FIND,
    ),
    _get(
        _MV + "/stats", "model_stats", "stats_version", "models", "Statistics of one version",
        "Statistics", _FIND_READY,
    ),
    RouteDoc(
        "POST", "/v2/repository/index", "index", "index", "models", "States of all versions",
        _ok("Index", "One entry a version")
        | errors(400, 405, 408, 413, 415, 429, 431, 500),
        json_of(schema_ref("IndexRequest"), "Nothing, or whether only READY ones are wanted."),
    ),
    _get(
        _V1, "v1_status", "v1_status", "models",
        "States of a model's versions as TensorFlow Serving and KServe name them", "ModelStatus",
        _FIND,
    ),
)  # fmt: skip
