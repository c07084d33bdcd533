"""The signature that an ONNX graph declares."""

from __future__ import annotations

from typing import Final

import onnx

from models.errors import ModelsError
from models.signature import MAX_DIMENSIONS, MAX_TENSOR_SPECS, Signature, TensorSpec
from registry.ident import shown

_DATATYPES: Final[dict[int, str]] = {
    onnx.TensorProto.BOOL: "BOOL",
    onnx.TensorProto.UINT8: "UINT8",
    onnx.TensorProto.UINT16: "UINT16",
    onnx.TensorProto.UINT32: "UINT32",
    onnx.TensorProto.UINT64: "UINT64",
    onnx.TensorProto.INT8: "INT8",
    onnx.TensorProto.INT16: "INT16",
    onnx.TensorProto.INT32: "INT32",
    onnx.TensorProto.INT64: "INT64",
    onnx.TensorProto.FLOAT16: "FP16",
    onnx.TensorProto.FLOAT: "FP32",
    onnx.TensorProto.DOUBLE: "FP64",
    onnx.TensorProto.STRING: "BYTES",
}
ZIPMAP_ADVICE: Final = (
    "a list of dictionaries cannot be served: convert again with the option zipmap off "
    "(skl2onnx: options={'zipmap': False}; onnxmltools: zipmap=False)"
)


def graph_signature(model: onnx.ModelProto, error: type[ModelsError]) -> Signature:
    """Return inputs and outputs as declared, -1 for every open size; raises ``error``."""
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    constants.update(sparse.values.name for sparse in graph.sparse_initializer)
    inputs = [value for value in graph.input if value.name not in constants]
    for kind, values in (("input", inputs), ("output", list(graph.output))):
        _check_names(kind, [value.name for value in values], error)
    if not graph.output:
        raise error("the graph has no outputs")
    return Signature(
        tuple(_spec("input", value, error) for value in inputs),
        tuple(_spec("output", value, error) for value in graph.output),
    )


def _check_names(kind: str, names: list[str], error: type[ModelsError]) -> None:
    if len(names) > MAX_TENSOR_SPECS:
        raise error(f"the graph has {len(names)} {kind}s, at most {MAX_TENSOR_SPECS} are allowed")
    if not all(names):
        raise error(f"an {kind} of the graph has no name")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise error(f"{kind} {shown(twice)} stands twice in the graph")


def _spec(kind: str, value: onnx.ValueInfoProto, error: type[ModelsError]) -> TensorSpec:
    what = f"{kind} {shown(value.name)}"
    form = value.type.WhichOneof("value")
    if form in ("sequence_type", "map_type"):
        raise error(f"{what}: {ZIPMAP_ADVICE}")
    if form != "tensor_type":
        raise error(f"{what}: its type is {form or 'missing'}, only dense tensors can be served")
    tensor = value.type.tensor_type
    datatype = _DATATYPES.get(tensor.elem_type)
    if datatype is None:
        raise error(f"{what}: element type {_type_name(tensor.elem_type)} cannot be served")
    if not tensor.HasField("shape"):
        if kind == "input":
            raise error(f"{what}: its shape is not declared: export it with one")
        # Inspection replaces it by the shape that the graph answers with.
        return TensorSpec(value.name, datatype, (-1,))
    if len(tensor.shape.dim) > MAX_DIMENSIONS:
        raise error(
            f"{what}: {len(tensor.shape.dim)} dimensions, at most {MAX_DIMENSIONS} are allowed"
        )
    return TensorSpec(value.name, datatype, tuple(_size(dim) for dim in tensor.shape.dim))


def _size(dim: onnx.TensorShapeProto.Dimension) -> int:
    # Some exporters write an open size as 0 or -1 instead of a name.
    return int(dim.dim_value) if dim.dim_value > 0 else -1


def _type_name(elem_type: int) -> str:
    if elem_type in onnx.TensorProto.DataType.values():
        return str(onnx.TensorProto.DataType.Name(elem_type)).lower()
    return str(elem_type)
