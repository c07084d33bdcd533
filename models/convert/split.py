"""Splitting a model by tensor: a small graph, and one object for each large tensor.

Versions that share a tensor then share its bytes on disk, on the wire and in memory. The graph
names a tensor object by the hex digits of its digest, which is its file name in the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import numpy_helper

from models.convert.external import ExternalFolder
from models.errors import ConversionRefused
from models.graph_walk import (
    FoundTensor,
    is_external,
    scopes,
    tensor_bytes,
    tensors,
)
from models.package import OBJECT_THRESHOLD_BYTES, BytesObject, ObjectSource
from registry.ident import digest_hex, shown


@dataclass(frozen=True, slots=True)
class SplitModel:
    """A graph without its large tensors, and those tensors, each once."""

    graph: BytesObject
    tensors: tuple[ObjectSource, ...]


def split_model(model: onnx.ModelProto, path: Path) -> SplitModel:
    """Move each dense initializer of OBJECT_THRESHOLD_BYTES or more out of ``model``.

    ``model`` is changed in place, for a copy would double its weights in memory. External data is
    read from the folder of ``path``, the model's file, and nowhere else. The same model gives the
    same bytes every time.
    """
    _strip(model)
    objects: dict[str, ObjectSource] = {}
    with ExternalFolder(path) as external:
        for found in tensors(model, ConversionRefused):
            moved = _moved(found, external) if found.is_initializer else None
            if moved is not None:
                objects.setdefault(moved.digest, moved)
                _point_to(found.tensor, moved)
        external.check_overlap()
    graph = BytesObject.of(model.SerializeToString(deterministic=True))
    return SplitModel(graph, tuple(objects.values()))


def _strip(model: onnx.ModelProto) -> None:
    # Notes of exporters decide no answer, but hold stack traces with paths of the pusher's machine
    # and change with the exporter's patch release, which would make equal graphs differ. Model
    # metadata can also carry session options.
    model.producer_name = model.producer_version = model.doc_string = ""
    model.ClearField("metadata_props")
    for scope in scopes(model, ConversionRefused):
        owner = scope.graph if scope.graph is not None else scope.function
        if owner is not None:
            owner.doc_string = ""
            owner.ClearField("metadata_props")
        for node in scope.nodes:
            node.doc_string = ""
            node.ClearField("metadata_props")
        if scope.graph is not None and not scope.is_training:
            hoist_constants(scope.graph)
    for found in tensors(model, ConversionRefused):
        found.tensor.doc_string = ""
        found.tensor.ClearField("metadata_props")
        if not found.is_initializer:
            _refuse_external(found)
    model.ClearField("training_info")
    _fix_initializers(model)


def hoist_constants(graph: onnx.GraphProto) -> None:
    """Turn large Constant nodes into initializers, which alone can be mapped and shared."""
    outputs = {value.name for value in graph.output}
    kept = []
    for node in graph.node:
        value = _constant_value(node)
        if value is None or node.output[0] in outputs:
            kept.append(node)
            continue
        initializer = graph.initializer.add()
        initializer.CopyFrom(value)
        initializer.name = node.output[0]
    if len(kept) != len(graph.node):
        remaining = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
        graph.ClearField("node")
        graph.node.extend(remaining)


def _constant_value(node: onnx.NodeProto) -> onnx.TensorProto | None:
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    if len(node.attribute) != 1 or len(node.output) != 1:
        return None
    attribute = node.attribute[0]
    if attribute.name != "value" or not attribute.HasField("t"):
        return None
    value: onnx.TensorProto = attribute.t
    if is_external(value):
        return value
    if value.data_type in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
        return None
    size = tensor_bytes(value, f"node {shown(node.name)}", ConversionRefused)
    return value if size >= OBJECT_THRESHOLD_BYTES else None


def _fix_initializers(model: onnx.ModelProto) -> None:
    """Make initializers that are also graph inputs constant: V2 knows no optional inputs."""
    names = {tensor.name for tensor in model.graph.initializer}
    names.update(sparse.values.name for sparse in model.graph.sparse_initializer)
    kept = [value for value in model.graph.input if value.name not in names]
    if len(kept) != len(model.graph.input):
        remaining = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in kept]
        model.graph.ClearField("input")
        model.graph.input.extend(remaining)
    # Before IR 4 every initializer had to be an input as well.
    model.ir_version = max(model.ir_version, 4)


def _refuse_external(found: FoundTensor) -> None:
    if is_external(found.tensor):
        raise ConversionRefused(f"{found.where}: external data is allowed in initializers only")


def _moved(found: FoundTensor, external: ExternalFolder) -> ObjectSource | None:
    """Return the object that the tensor becomes, or None where it stays in the graph."""
    tensor, where = found.tensor, found.where
    if tensor.data_type == onnx.TensorProto.STRING:
        _refuse_external(FoundTensor(tensor, f"{where} (strings)", is_initializer=False))
        return None
    size = tensor_bytes(tensor, where, ConversionRefused)
    if is_external(tensor):
        if size >= OBJECT_THRESHOLD_BYTES:
            return external.slice_of(tensor, where)
        data = external.read(tensor, where)
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
        tensor.raw_data = data
        return None
    if size < OBJECT_THRESHOLD_BYTES:
        return None
    data = _inline_bytes(tensor, where)
    if len(data) != size:
        raise ConversionRefused(f"{where}: has {len(data)} bytes, its shape needs {size}")
    return BytesObject.of(data)


def _inline_bytes(tensor: onnx.TensorProto, where: str) -> bytes:
    if tensor.HasField("raw_data"):
        return bytes(tensor.raw_data)
    try:
        array = numpy_helper.to_array(tensor)
        return bytes(numpy_helper.from_array(array).raw_data)
    except (ValueError, TypeError) as error:
        raise ConversionRefused(f"{where}: its values do not fill its shape: {error}") from None


def _point_to(tensor: onnx.TensorProto, target: ObjectSource) -> None:
    name, data_type, dims = tensor.name, tensor.data_type, list(tensor.dims)
    tensor.Clear()
    tensor.name, tensor.data_type = name, data_type
    tensor.dims.extend(dims)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    fields = {
        "location": digest_hex(target.digest),
        "offset": "0",
        "length": str(target.size_bytes),
    }
    for key, value in fields.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
