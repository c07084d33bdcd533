"""Packaging ONNX: a file, or a model that a converter just made, becomes what a push sends."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import onnx
from google.protobuf.message import DecodeError

from models.convert.detect import PUSHABLE
from models.convert.skim import SELF_LOCATION, skim
from models.convert.split import split_model
from models.errors import ConversionRefused
from models.graph_check import check_structure
from models.graph_signature import graph_signature
from models.graph_walk import tensors
from models.package import CHUNK_BYTES, Package
from models.signature import Signature
from registry.ident import check_model_name, shown
from registry.manifest import JsonObject, Manifest, TensorEntry

# One protobuf message cannot be longer.
MAX_FILE_BYTES: Final = 2**31 - 1
_HEAD_BYTES: Final = 64
_LOOKS_LIKE: Final = (
    (b"version https://git-lfs", "a Git LFS pointer, not the model: run 'git lfs pull' first"),
    (b"<", "a web page or XML document, perhaps a failed download"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x89HDF", "an HDF5 file"),
    (b"{", "a JSON document"),
)


@dataclass(frozen=True, slots=True)
class About:
    """What a converter knows beside the graph.

    ``signature`` adds column names, labels and the like: the same tensors as the graph's.
    ``source`` says where the model is from (framework, library versions, file digest).
    """

    signature: Signature | None = None
    parity: JsonObject | None = None
    source: JsonObject = field(default_factory=dict)
    meta: JsonObject = field(default_factory=dict)


def package_onnx(
    model_name: str, model: Path | onnx.ModelProto, about: About | None = None
) -> Package:
    """Return the package of an ONNX file, or of a model in memory (changed in place, used up).

    Raises ConversionRefused with the reason and what to do.
    """
    about = about or About()
    check_model_name(model_name)
    source: JsonObject = {"framework": "onnx"}
    if isinstance(model, Path):
        source["file_digest"] = _file_digest(model)
        path, model = model, read_onnx(model)
    else:
        path = Path("/nonexistent/model")  # a model in memory has nothing beside it
    source["producer"] = f"{model.producer_name} {model.producer_version}".strip()
    check_structure(model, ConversionRefused)
    signature = _signature(model, about.signature)
    split = split_model(model, path)
    manifest = Manifest(
        model=model_name,
        graph=split.graph.digest,
        tensors=tuple(TensorEntry(item.digest, item.size_bytes) for item in split.tensors),
        signature=signature.to_json(),
        runtime={"name": "onnx", "opsets": _opsets(model)},
        parity=about.parity,
        source={**source, **about.source},
        meta=about.meta,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return Package(manifest, (split.graph, *split.tensors))


def read_onnx(path: Path) -> onnx.ModelProto:
    """Return the model of a file, its external data and its own large weights left where they are.

    What points to SELF_LOCATION lies in the file itself.
    """
    if not path.is_file():
        kind = "a directory" if path.is_dir() else "missing"
        raise ConversionRefused(f"{shown(path.name)}: expected an ONNX file, it is {kind}")
    size = path.stat().st_size
    if size == 0:
        raise ConversionRefused(f"{shown(path.name)} is empty")
    if size > MAX_FILE_BYTES:
        raise ConversionRefused(
            f"{shown(path.name)} has {size} bytes, an ONNX file can have {MAX_FILE_BYTES}: "
            "save its weights as external data"
        )
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    for start, kind in _LOOKS_LIKE:
        if head.startswith(start):
            raise ConversionRefused(f"{shown(path.name)} is not an ONNX model: it is {kind}")
    model = onnx.ModelProto()
    data, skimmed = skim(path) or (path.read_bytes(), 0)
    try:
        model.ParseFromString(data)
    except DecodeError:
        raise ConversionRefused(
            f"{shown(path.name)} is not an ONNX model, or it is damaged or truncated: {PUSHABLE}"
        ) from None
    _refuse_self_location(model, skimmed)
    return model


def _refuse_self_location(model: onnx.ModelProto, skimmed: int) -> None:
    """Refuse a file that says of itself what only skim may say of it."""
    found = [
        each.where
        for each in tensors(model, ConversionRefused)
        for entry in each.tensor.external_data
        if entry.key == "location" and entry.value == SELF_LOCATION
    ]
    if len(found) != skimmed:
        raise ConversionRefused(
            f"{found[-1]}: external location {shown(SELF_LOCATION)} is no file: "
            "use a plain file beside the model"
        )


def _signature(model: onnx.ModelProto, given: Signature | None) -> Signature:
    declared = graph_signature(model, ConversionRefused)
    if given is None:
        return declared
    for kind in ("inputs", "outputs"):
        graph_side = [(spec.name, spec.datatype) for spec in getattr(declared, kind)]
        given_side = [(spec.name, spec.datatype) for spec in getattr(given, kind)]
        if graph_side != given_side:
            raise ConversionRefused(
                f"signature.{kind}: {shown(given_side)} differs from the graph's "
                f"{shown(graph_side)}"
            )
    return given


def _opsets(model: onnx.ModelProto) -> JsonObject:
    return {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}


def _file_digest(path: Path) -> str:
    if not path.is_file():
        return ""  # read_onnx says what is wrong
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            hasher.update(chunk)
    return "sha256:" + hasher.hexdigest()
