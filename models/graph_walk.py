"""Every graph, node and tensor of an ONNX model, wherever it hides, without recursion.

Tensors may stand in initializers, sparse initializers, attributes of nodes, default attributes of
functions, training graphs, and in subgraphs of all of them. What looks for external data has to
look at each place, so there is one walk for all who look.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import onnx

from models.errors import ModelsError
from registry.ident import shown

# Real models nest a handful deep; the parser itself gives up near 33.
MAX_GRAPH_DEPTH: Final = 16
# More bytes than any address has.
_MAX_ELEMENTS: Final = 2**60

_BITS: Final[dict[int, int]] = {
    onnx.TensorProto.FLOAT: 32,
    onnx.TensorProto.UINT8: 8,
    onnx.TensorProto.INT8: 8,
    onnx.TensorProto.UINT16: 16,
    onnx.TensorProto.INT16: 16,
    onnx.TensorProto.INT32: 32,
    onnx.TensorProto.INT64: 64,
    onnx.TensorProto.BOOL: 8,
    onnx.TensorProto.FLOAT16: 16,
    onnx.TensorProto.DOUBLE: 64,
    onnx.TensorProto.UINT32: 32,
    onnx.TensorProto.UINT64: 64,
    onnx.TensorProto.COMPLEX64: 64,
    onnx.TensorProto.COMPLEX128: 128,
    onnx.TensorProto.BFLOAT16: 16,
    onnx.TensorProto.FLOAT8E4M3FN: 8,
    onnx.TensorProto.FLOAT8E4M3FNUZ: 8,
    onnx.TensorProto.FLOAT8E5M2: 8,
    onnx.TensorProto.FLOAT8E5M2FNUZ: 8,
    onnx.TensorProto.UINT4: 4,
    onnx.TensorProto.INT4: 4,
    onnx.TensorProto.FLOAT4E2M1: 4,
    onnx.TensorProto.FLOAT8E8M0: 8,
    onnx.TensorProto.UINT2: 2,
    onnx.TensorProto.INT2: 2,
}


@dataclass(frozen=True, slots=True)
class Scope:
    """One list of nodes: a graph, or the body of a function (then ``graph`` is None)."""

    graph: onnx.GraphProto | None
    function: onnx.FunctionProto | None
    where: str
    depth: int
    is_training: bool

    @property
    def nodes(self) -> Iterable[onnx.NodeProto]:
        """The nodes in order."""
        owner = self.graph if self.graph is not None else self.function
        return () if owner is None else tuple(owner.node)


@dataclass(frozen=True, slots=True)
class FoundTensor:
    """A tensor and its place. ``is_initializer``: a dense one of a graph that is computed."""

    tensor: onnx.TensorProto
    where: str
    is_initializer: bool


def scopes(model: onnx.ModelProto, error: type[ModelsError]) -> Iterator[Scope]:
    """Yield every scope, outer ones first; raises ``error`` where they nest too deep."""
    stack = [Scope(model.graph, None, "graph", 1, is_training=False)]
    for function in model.functions:
        where = f"function {shown(function.name)}"
        stack.append(Scope(None, function, where, 1, is_training=False))
    for info in model.training_info:
        stack.extend(
            Scope(graph, None, "training_info", 1, is_training=True)
            for graph in (info.initialization, info.algorithm)
        )
    stack.reverse()
    while stack:
        scope = stack.pop()
        yield scope
        if scope.depth >= MAX_GRAPH_DEPTH and any(True for _ in _subgraphs(scope)):
            raise error(f"graphs nest deeper than {MAX_GRAPH_DEPTH} levels")
        stack.extend(
            Scope(graph, None, f"{scope.where}/{name}", scope.depth + 1, scope.is_training)
            for name, graph in _subgraphs(scope)
        )


def tensors(model: onnx.ModelProto, error: type[ModelsError]) -> Iterator[FoundTensor]:
    """Yield every tensor of the model, each with its place in words."""
    for scope in scopes(model, error):
        yield from _scope_tensors(scope)


def attributes(scope: Scope) -> Iterator[tuple[onnx.AttributeProto, str]]:
    """Yield the attributes of all nodes of a scope, and the defaults of a function."""
    for index, node in enumerate(scope.nodes):
        for attribute in node.attribute:
            node_name = shown(node.name or f"{node.op_type} #{index}")
            yield attribute, f"attribute {shown(attribute.name)} of node {node_name}"
    if scope.function is not None:
        for attribute in scope.function.attribute_proto:
            yield attribute, f"default attribute {shown(attribute.name)} of {scope.where}"


def is_external(tensor: onnx.TensorProto) -> bool:
    """Tell whether any part of the tensor claims that its bytes lie elsewhere."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL or len(tensor.external_data) > 0


def tensor_bytes(tensor: onnx.TensorProto, where: str, error: type[ModelsError]) -> int:
    """Return dims x item size, or raise ``error`` on a type or a dimension that cannot be."""
    bits = _BITS.get(tensor.data_type)
    if bits is None:
        raise error(f"{where}: element type {tensor.data_type} has no fixed size")
    elements = bound = 1
    for dim in tensor.dims:
        if dim < 0:
            raise error(f"{where}: dimension {dim} is negative")
        elements *= dim
        # A million dimensions would multiply for hours.
        bound *= dim or 1
        if bound > _MAX_ELEMENTS:
            raise error(f"{where}: its dimensions make more than {_MAX_ELEMENTS} elements")
    return (elements * bits + 7) // 8


def _scope_tensors(scope: Scope) -> Iterator[FoundTensor]:
    if scope.graph is not None:
        for tensor in scope.graph.initializer:
            where = f"initializer {shown(tensor.name)}"
            yield FoundTensor(tensor, where, not scope.is_training)
        for sparse in scope.graph.sparse_initializer:
            yield from _sparse_parts(sparse, f"sparse initializer {shown(sparse.values.name)}")
    for attribute, where in attributes(scope):
        if attribute.HasField("t"):
            yield FoundTensor(attribute.t, where, is_initializer=False)
        for tensor in attribute.tensors:
            yield FoundTensor(tensor, where, is_initializer=False)
        if attribute.HasField("sparse_tensor"):
            yield from _sparse_parts(attribute.sparse_tensor, where)
        for sparse in attribute.sparse_tensors:
            yield from _sparse_parts(sparse, where)


def _sparse_parts(sparse: onnx.SparseTensorProto, where: str) -> Iterator[FoundTensor]:
    yield FoundTensor(sparse.values, where, is_initializer=False)
    yield FoundTensor(sparse.indices, where, is_initializer=False)


def _subgraphs(scope: Scope) -> Iterator[tuple[str, onnx.GraphProto]]:
    for attribute, _ in attributes(scope):
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for graph in attribute.graphs:
            yield attribute.name, graph
