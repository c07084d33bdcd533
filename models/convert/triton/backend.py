"""Which file of a version folder is the model, by its backend; which backends are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from models.convert.inside import inside
from models.convert.triton.pbtxt import Message
from models.errors import ConversionRefused
from registry.ident import shown

# Names of the same backend: "platform" is the older field.
_ONNX: Final = ("onnxruntime", "onnxruntime_onnx")
_FILES: Final = {
    "onnxruntime": "model.onnx",
    "onnxruntime_onnx": "model.onnx",
    "pytorch": "model.pt",
    "pytorch_libtorch": "model.pt",
    "tensorflow_savedmodel": "model.savedmodel",
    "tensorflow": "model.savedmodel",
    "openvino": "model.xml",
}
# Of the backend "fil", by its parameter model_type.
_FOREST_FILES: Final = {
    "xgboost": "xgboost.model",
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "lightgbm": "model.txt",
}
_REFUSED: Final = {
    "ensemble": "an ensemble joins models on the server: call them one after the other, or push "
    "one graph of both",
    "python": "the python backend runs code of its own (BLS included), and the server runs none",
    "tensorrt": "a TensorRT engine is built for one GPU: push the ONNX file it was made from",
    "tensorrt_plan": "a TensorRT engine is built for one GPU: push the ONNX file it was made from",
    "tensorflow_graphdef": "a frozen graph names no inputs: save it as a SavedModel",
    "dali": "DALI pipelines run on GPUs",
    "vllm": "vLLM serves language models on GPUs",
    "tensorrtllm": "TensorRT-LLM serves language models on GPUs",
}


def model_file(version: Path, config: Message) -> Path:
    """Return the file (or folder) of a version that is the model; raises ConversionRefused."""
    backend = config.text("backend") or config.text("platform")
    if backend in _REFUSED:
        raise ConversionRefused(f"backend {backend}: {_REFUSED[backend]}")
    named = config.text("default_model_filename")
    if backend == "fil":
        return inside(version, named or _forest_file(config), "file")
    if not backend:
        return _completed(version, named)
    if backend not in _FILES:
        raise ConversionRefused(f"backend {shown(backend)} is not known here")
    path = inside(version, named or _FILES[backend], "file")
    if backend in _ONNX and path.is_dir():  # a graph with external data beside it
        path = inside(path, "model.onnx", "file")
    return path


def _forest_file(config: Message) -> str:
    kind = config.parameters().get("model_type", "xgboost")
    if kind not in _FOREST_FILES:
        raise ConversionRefused(
            f"backend fil: model_type {shown(kind)}: only {', '.join(_FOREST_FILES)} say which "
            "library answers; push the model that was saved by its library"
        )
    return _FOREST_FILES[kind]


def _completed(version: Path, named: str) -> Path:
    """Return the model of a folder whose configuration names no backend, as Triton completes it."""
    if named:
        return inside(version, named, "file")
    for name in ("model.onnx", "model.savedmodel", "model.pt"):
        if (version / name).exists():
            path = inside(version, name, "file")
            return inside(path, "model.onnx", "file") if path.is_dir() and "onnx" in name else path
    if (version / "model.py").exists():
        raise ConversionRefused(f"backend python: {_REFUSED['python']}")
    if (version / "model.plan").exists():
        raise ConversionRefused(f"backend tensorrt: {_REFUSED['tensorrt']}")
    raise ConversionRefused(f"version {version.name}: there is no model file in it")
