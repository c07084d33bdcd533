"""What the data plane tells of its models: metadata, config, index and states, as plain JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from registry.lifecycle import State
from registry.manifest import JsonObject
from registry.serving_map import ModelView, Snapshot, VersionView
from serving.data.served import ONNX_PLATFORM

_INDEX_STATES: Final = {
    State.UNLOADED: "UNAVAILABLE",
    State.LOADING: "LOADING",
    State.READY: "READY",
    State.DRAINING: "UNLOADING",
    State.FAILED: "UNAVAILABLE",
}
# TensorFlow Serving's names; a version that failed is at its end there, with an error code.
_V1_STATES: Final = {
    State.UNLOADED: "END",
    State.LOADING: "LOADING",
    State.READY: "AVAILABLE",
    State.DRAINING: "UNLOADING",
    State.FAILED: "END",
}


def is_ready(view: VersionView[Any]) -> bool:
    """Return whether a version answers requests in this worker now."""
    return view.target is not None


def metadata(model: ModelView[Any], view: VersionView[Any]) -> JsonObject:
    """Return the V2 metadata of a version; ``versions`` are those that answer.

    Tensors carry what the signature knows beyond the protocol: columns, class labels, method.
    """
    return {
        "name": view.model,
        "versions": [str(n) for n, other in sorted(model.versions.items()) if is_ready(other)],
        "platform": _platform(view),
        "inputs": list(_specs(view, "inputs")),
        "outputs": list(_specs(view, "outputs")),
    }


def config(view: VersionView[Any]) -> JsonObject:
    """Return Triton's ModelConfig. ``max_batch_size`` 0: shapes are whole, batch included."""
    return {
        "name": view.model,
        "platform": _platform(view),
        "backend": _platform(view).partition("_")[0],
        "version_policy": {"specific": {"versions": [view.version]}},
        "max_batch_size": 0,
        "input": [_config_tensor(spec) for spec in _specs(view, "inputs")],
        "output": [_config_tensor(spec) for spec in _specs(view, "outputs")],
    }


def index(snapshot: Snapshot[Any], *, is_only_ready: bool) -> list[JsonObject]:
    """Return the repository index: the state of every version of every model."""
    return [
        {
            "name": view.model,
            "version": str(view.version),
            "state": _INDEX_STATES[view.state],
            "reason": view.reason,
        }
        for view in _all_versions(snapshot)
        if is_ready(view) or not is_only_ready
    ]


def v1_status(model: ModelView[Any]) -> JsonObject:
    """Return the states of a model as TensorFlow Serving (a list) and KServe (``ready``) do."""
    return {
        "name": model.name,
        "ready": model.route is not None
        and all(is_ready(model.versions[share.version]) for share in model.route.split),
        "model_version_status": [
            {
                "version": str(number),
                "state": _V1_STATES[view.state],
                "status": {
                    "error_code": "INTERNAL" if view.state is State.FAILED else "OK",
                    "error_message": view.reason if view.state is State.FAILED else "",
                },
            }
            for number, view in sorted(model.versions.items())
        ],
    }


def failed(snapshot: Snapshot[Any]) -> list[JsonObject]:
    """Return the versions that FAILED, with their reasons."""
    return [
        {"model": view.model, "version": view.version, "reason": view.reason}
        for view in _all_versions(snapshot)
        if view.state is State.FAILED
    ]


def _platform(view: VersionView[Any]) -> str:
    return str(view.target.platform) if view.target is not None else ONNX_PLATFORM


def _all_versions(snapshot: Snapshot[Any]) -> Iterable[VersionView[Any]]:
    for _, model in sorted(snapshot.models.items()):
        for _, view in sorted(model.versions.items()):
            yield view


def _specs(view: VersionView[Any], side: str) -> list[JsonObject]:
    specs = view.signature.get(side)
    return [spec for spec in specs if isinstance(spec, dict)] if isinstance(specs, list) else []


def _config_tensor(spec: JsonObject) -> JsonObject:
    datatype = spec["datatype"]
    kind = "STRING" if datatype == "BYTES" else datatype
    return {"name": spec["name"], "data_type": f"TYPE_{kind}", "dims": spec["shape"]}
