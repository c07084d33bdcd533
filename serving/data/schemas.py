"""JSON schemas of what the data plane takes and gives, for its OpenAPI document."""

from __future__ import annotations

from typing import Final

from models.signature import DATATYPES
from serving.web.openapi import Document, schema_ref


def _object(properties: Document, required: tuple[str, ...] = ()) -> Document:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required or properties),
    }


def _array(items: Document) -> Document:
    return {"type": "array", "items": items}


TEXT: Final = {"type": "string"}
_FLAG: Final = {"type": "boolean"}
COUNT: Final = {"type": "integer", "minimum": 0}
_SHAPE: Final = _array({"type": "integer", "minimum": -1})
_ANYTHING: Final[Document] = {}
_DATATYPE: Final = {"type": "string", "enum": list(DATATYPES)}
_DURATION: Final = _object({"count": COUNT, "ns": COUNT})
_PARAMETERS: Final[Document] = {"type": "object", "additionalProperties": True}

DATA_SCHEMAS: Final[dict[str, Document]] = {
    "Server": _object({"name": TEXT, "version": TEXT, "extensions": _array(TEXT)}),
    "Root": _object({"name": TEXT, "version": TEXT, "api": TEXT, "docs": TEXT}),
    "Live": _object({"live": _FLAG}),
    "FailedVersion": _object({"model": TEXT, "version": COUNT, "reason": TEXT}),
    "Ready": _object({"ready": _FLAG, "failed": _array(schema_ref("FailedVersion"))}),
    "NotReady": _object(
        {"error": TEXT, "ready": _FLAG, "failed": _array(schema_ref("FailedVersion"))}
    ),
    "Models": _object({"models": _array(TEXT)}),
    "ModelReady": _object({"name": TEXT, "ready": _FLAG}),
    "TensorMetadata": _object(
        {
            "name": TEXT,
            "datatype": _DATATYPE,
            "shape": _SHAPE,
            "columns": _array(TEXT),
            "labels": _array({"type": ["string", "integer"]}),
            "categories": _array(TEXT),
            "missing": TEXT,
            "method": TEXT,
            "integers": _FLAG,
        },
        ("name", "datatype", "shape"),
    ),
    "ModelMetadata": _object(
        {
            "name": TEXT,
            "versions": _array(TEXT),
            "platform": TEXT,
            "inputs": _array(schema_ref("TensorMetadata")),
            "outputs": _array(schema_ref("TensorMetadata")),
        }
    ),
    "ConfigTensor": _object({"name": TEXT, "data_type": TEXT, "dims": _SHAPE}),
    "ModelConfig": _object(
        {
            "name": TEXT,
            "platform": TEXT,
            "backend": TEXT,
            "version_policy": _PARAMETERS,
            "max_batch_size": COUNT,
            "input": _array(schema_ref("ConfigTensor")),
            "output": _array(schema_ref("ConfigTensor")),
        }
    ),
    "VersionStatistics": _object(
        {
            "name": TEXT,
            "version": TEXT,
            "last_inference": COUNT,
            "inference_count": COUNT,
            "execution_count": COUNT,
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
                "name": TEXT,
                "version": TEXT,
                "state": {
                    "type": "string",
                    "enum": ["READY", "UNAVAILABLE", "LOADING", "UNLOADING", "UNKNOWN"],
                },
                "reason": TEXT,
            }
        )
    ),
    "RequestTensor": _object(
        {
            "name": TEXT,
            "shape": _SHAPE,
            "datatype": _DATATYPE,
            "parameters": _PARAMETERS,
            "data": {"type": "array", "items": _ANYTHING},
        },
        ("name", "shape", "datatype"),
    ),
    "RequestOutput": _object({"name": TEXT, "parameters": _PARAMETERS}, ("name",)),
    "InferRequest": _object(
        {
            "id": TEXT,
            "parameters": _PARAMETERS,
            "inputs": _array(schema_ref("RequestTensor")),
            "outputs": _array(schema_ref("RequestOutput")),
        },
        ("inputs",),
    ),
    "ResponseTensor": _object(
        {
            "name": TEXT,
            "datatype": _DATATYPE,
            "shape": _SHAPE,
            "data": {"type": "array", "items": _ANYTHING},
            "parameters": _PARAMETERS,
        },
        ("name", "datatype", "shape"),
    ),
    "InferResponse": _object(
        {
            "id": TEXT,
            "model_name": TEXT,
            "model_version": TEXT,
            "outputs": _array(schema_ref("ResponseTensor")),
        },
        ("model_name", "model_version", "outputs"),
    ),
    "PredictRequest": {
        "type": "object",
        "properties": {
            "signature_name": TEXT,
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
            "params": {"type": "object", "properties": {"output": TEXT}},
        },
        "oneOf": [
            {"required": [name]}
            for name in ("dataframe_split", "dataframe_records", "instances", "inputs")
        ],
    },
    "InvocationsResponse": _object({"predictions": _ANYTHING}),
    "ModelStatus": _object(
        {
            "name": TEXT,
            "ready": _FLAG,
            "model_version_status": _array(
                _object({"version": TEXT, "state": TEXT, "status": _PARAMETERS})
            ),
        }
    ),
}
