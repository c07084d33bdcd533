"""Every path of the data plane and what its documentation says; the app is built from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from models.signature import DATATYPES
from registry.ident import ALIAS_PATTERN, MODEL_PATTERN
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


def _object(properties: Document, required: tuple[str, ...] = ()) -> Document:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required or properties),
    }


def _array(items: Document) -> Document:
    return {"type": "array", "items": items}


_TEXT: Final = {"type": "string"}
_FLAG: Final = {"type": "boolean"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_SHAPE: Final = _array({"type": "integer", "minimum": -1})
_ANYTHING: Final[Document] = {}
_DATATYPE: Final = {"type": "string", "enum": list(DATATYPES)}
_DURATION: Final = _object({"count": _COUNT, "ns": _COUNT})
_PARAMETERS: Final[Document] = {"type": "object", "additionalProperties": True}

DATA_SCHEMAS: Final[dict[str, Document]] = {
    "Server": _object({"name": _TEXT, "version": _TEXT, "extensions": _array(_TEXT)}),
    "Root": _object({"name": _TEXT, "version": _TEXT, "api": _TEXT, "docs": _TEXT}),
    "Live": _object({"live": _FLAG}),
    "FailedVersion": _object({"model": _TEXT, "version": _COUNT, "reason": _TEXT}),
    "Ready": _object({"ready": _FLAG, "failed": _array(schema_ref("FailedVersion"))}),
    "NotReady": _object(
        {"error": _TEXT, "ready": _FLAG, "failed": _array(schema_ref("FailedVersion"))}
    ),
    "Models": _object({"models": _array(_TEXT)}),
    "ModelReady": _object({"name": _TEXT, "ready": _FLAG}),
    "TensorMetadata": _object(
        {
            "name": _TEXT,
            "datatype": _DATATYPE,
            "shape": _SHAPE,
            "columns": _array(_TEXT),
            "labels": _array({"type": ["string", "integer"]}),
            "categories": _array(_TEXT),
            "missing": _TEXT,
            "method": _TEXT,
        },
        ("name", "datatype", "shape"),
    ),
    "ModelMetadata": _object(
        {
            "name": _TEXT,
            "versions": _array(_TEXT),
            "platform": _TEXT,
            "inputs": _array(schema_ref("TensorMetadata")),
            "outputs": _array(schema_ref("TensorMetadata")),
        }
    ),
    "ConfigTensor": _object({"name": _TEXT, "data_type": _TEXT, "dims": _SHAPE}),
    "ModelConfig": _object(
        {
            "name": _TEXT,
            "platform": _TEXT,
            "backend": _TEXT,
            "version_policy": _PARAMETERS,
            "max_batch_size": _COUNT,
            "input": _array(schema_ref("ConfigTensor")),
            "output": _array(schema_ref("ConfigTensor")),
        }
    ),
    "VersionStatistics": _object(
        {
            "name": _TEXT,
            "version": _TEXT,
            "last_inference": _COUNT,
            "inference_count": _COUNT,
            "execution_count": _COUNT,
            "inference_stats": {"type": "object", "additionalProperties": _DURATION},
            "batch_stats": _array(_PARAMETERS),
            "memory_usage": _array(_PARAMETERS),
        }
    ),
    "Statistics": _object({"model_stats": _array(schema_ref("VersionStatistics"))}),
    "IndexRequest": _object({"ready": _FLAG}) | {"required": []},
    "Index": _array(
        _object(
            {
                "name": _TEXT,
                "version": _TEXT,
                "state": {
                    "type": "string",
                    "enum": ["READY", "UNAVAILABLE", "LOADING", "UNLOADING", "UNKNOWN"],
                },
                "reason": _TEXT,
            }
        )
    ),
    "RequestTensor": _object(
        {
            "name": _TEXT,
            "shape": _SHAPE,
            "datatype": _DATATYPE,
            "parameters": _PARAMETERS,
            "data": {"type": "array", "items": _ANYTHING},
        },
        ("name", "shape", "datatype"),
    ),
    "RequestOutput": _object({"name": _TEXT, "parameters": _PARAMETERS}, ("name",)),
    "InferRequest": _object(
        {
            "id": _TEXT,
            "parameters": _PARAMETERS,
            "inputs": _array(schema_ref("RequestTensor")),
            "outputs": _array(schema_ref("RequestOutput")),
        },
        ("inputs",),
    ),
    "ResponseTensor": _object(
        {
            "name": _TEXT,
            "datatype": _DATATYPE,
            "shape": _SHAPE,
            "data": {"type": "array", "items": _ANYTHING},
            "parameters": _PARAMETERS,
        },
        ("name", "datatype", "shape"),
    ),
    "InferResponse": _object(
        {
            "id": _TEXT,
            "model_name": _TEXT,
            "model_version": _TEXT,
            "outputs": _array(schema_ref("ResponseTensor")),
        },
        ("model_name", "model_version", "outputs"),
    ),
    "PredictRequest": {
        "type": "object",
        "properties": {
            "signature_name": _TEXT,
            "instances": {"type": "array", "items": _ANYTHING},
            "inputs": _ANYTHING,
            "dataframe_records": _array(_PARAMETERS),
            "dataframe_split": _object(
                {"columns": _array(_ANYTHING), "data": _array(_array(_ANYTHING))},
                ("columns", "data"),
            ),
        },
        "oneOf": [
            {"required": [name]}
            for name in ("instances", "inputs", "dataframe_records", "dataframe_split")
        ],
    },
    "PredictResponse": {
        "type": "object",
        "properties": {"predictions": _array(_ANYTHING), "outputs": _ANYTHING},
        "oneOf": [{"required": ["predictions"]}, {"required": ["outputs"]}],
    },
    "InvocationsRequest": {
        "type": "object",
        "properties": {
            "dataframe_records": _array(_PARAMETERS),
            "dataframe_split": _object(
                {"columns": _array(_ANYTHING), "data": _array(_array(_ANYTHING))},
                ("columns", "data"),
            ),
            "instances": {"type": "array", "items": _ANYTHING},
            "inputs": _ANYTHING,
            "params": {"type": "object", "properties": {"output": _TEXT}},
        },
        "oneOf": [
            {"required": [name]}
            for name in ("dataframe_split", "dataframe_records", "instances", "inputs")
        ],
    },
    "InvocationsResponse": _object({"predictions": _ANYTHING}),
    "ModelStatus": _object(
        {
            "name": _TEXT,
            "ready": _FLAG,
            "model_version_status": _array(
                _object({"version": _TEXT, "state": _TEXT, "status": _PARAMETERS})
            ),
        }
    ),
}

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
    _header("x-request-id", "Comes back; at most 128 visible ASCII characters.", _TEXT),
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
    _header("x-server-timing", "1: the answer says in Server-Timing where its time went.", _TEXT),
    _header("Content-Encoding", "gzip or deflate.", _TEXT),
    _header("Accept-Encoding", "gzip or deflate.", _TEXT),
]
_LENGTH: Final = _header(
    "Inference-Header-Content-Length",
    "Bytes of the JSON part where tensors follow it; 0: the whole body is the one tensor.",
    _COUNT,
)
_BINARY: Final = {"schema": {"type": "string", "format": "binary"}}


def _infer(path: str, suffix: str, meaning: str) -> RouteDoc:
    body = json_of(schema_ref("InferRequest"), "JSON, then the binary tensors if there are any.")
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
    body["required"] = True
    answer = json_of(schema_ref("PredictResponse"), "The predictions.", is_of_version=True)
    return RouteDoc(
        "POST", path + ":predict", "predict", f"predict{suffix}", "predict",
        f"Predict rows with {meaning}", _COMPUTE | {200: answer}, body, _HEADERS,
    )  # fmt: skip


def _invocations(path: str, suffix: str, meaning: str) -> RouteDoc:
    body = json_of(schema_ref("InvocationsRequest"), "A DataFrame, rows, or whole tensors.")
    body["content"]["text/csv"] = {"schema": _TEXT}
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
