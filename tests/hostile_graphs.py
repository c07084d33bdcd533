"""Small graphs with giant demands, and places where external data hides: one corpus for all tests.

Each is what somebody who may push could send; none needs a library to build that the server lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper

from tests import graphs

FLOAT: Final = TensorProto.FLOAT
SECRET_FIELDS: Final = {"location": "/etc/passwd", "offset": "0", "length": "64"}


def rows(nodes: Sequence[onnx.NodeProto], *weights: onnx.TensorProto) -> onnx.ModelProto:
    """Return a graph from rows of four numbers to rows of four numbers."""
    value = [graphs.value(name, FLOAT, ("N", 4)) for name in ("x", "y")]
    return graphs.build(list(nodes), value[:1], value[1:], list(weights))


def peak_of(node: onnx.NodeProto, *weights: onnx.TensorProto) -> onnx.ModelProto:
    """Return a graph that adds the largest element of a node's output ``large`` to its rows."""
    return rows(
        [
            node,
            helper.make_node("ReduceMax", ["large"], ["peak"], keepdims=0),
            helper.make_node("Add", ["x", "peak"], ["y"]),
        ],
        *weights,
    )


def _int64(name: str, *values: int) -> onnx.TensorProto:
    return graphs.weights(name, np.array(values, np.int64))


def constant_of_shape(side: int = 10**6) -> onnx.ModelProto:
    """Return a constant of ``side`` x ``side``, folded while the graph is opened."""
    return peak_of(helper.make_node("ConstantOfShape", ["s"], ["large"]), _int64("s", side, side))


def expanded() -> onnx.ModelProto:
    """Return a shape whose product is past 64 bits."""
    return peak_of(
        helper.make_node("Expand", ["o", "s"], ["large"]),
        graphs.weights("o", np.array(1, np.float32)), _int64("s", 2**40, 2**23),
    )  # fmt: skip


def ranged() -> onnx.ModelProto:
    """Return a trillion steps of a range."""
    ends = {"a": 0, "b": 1e9, "c": 1e-3}
    return peak_of(
        helper.make_node("Range", [*ends], ["large"]),
        *(graphs.weights(name, np.array(end, np.float32)) for name, end in ends.items()),
    )


def tiled() -> onnx.ModelProto:
    """Return rows repeated a trillion times, at run time."""
    return peak_of(helper.make_node("Tile", ["x", "s"], ["large"]), _int64("s", 10**6, 10**6))


def sparse(place: str = "initializer") -> onnx.ModelProto:
    """Return one number in a sparse tensor of eight terabytes, as initializer or attribute."""
    values = helper.make_tensor("large", FLOAT, [1], [1.0])
    indices = helper.make_tensor("large_i", TensorProto.INT64, [1], [5])
    tensor = helper.make_sparse_tensor(values, indices, [2**31, 2**10])
    if place == "attribute":
        return peak_of(helper.make_node("Constant", [], ["large"], sparse_value=tensor))
    model = peak_of(helper.make_node("Identity", ["unused"], ["other"]), _int64("unused", 1))
    model.graph.sparse_initializer.append(tensor)
    return model


def many_dimensions(count: int = 100_000) -> onnx.ModelProto:
    """Return a tensor whose number of elements has millions of digits."""
    model = peak_of(helper.make_node("Identity", ["t"], ["large"]))
    tensor = model.graph.initializer.add(name="t", data_type=FLOAT)
    tensor.dims.extend([2**62] * count)
    return model


def doubling(levels: int) -> onnx.ModelProto:
    """Return functions of which each calls the next one twice."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = rows([helper.make_node("f0", ["x"], ["y"], domain="own")])
    for level in range(levels):
        name = f"f{level + 1}"
        nodes = [
            helper.make_node(name, ["a"], ["t"], domain="own"),
            helper.make_node(name, ["t"], ["b"], domain="own"),
        ]
        if level == levels - 1:
            nodes = [helper.make_node("Identity", ["a"], ["b"])]
        body = helper.make_function("own", f"f{level}", ["a"], ["b"], nodes, opsets)
        model.functions.append(body)
    model.opset_import.append(opsets[1])
    return model


def nested(levels: int) -> bytes:
    """Return the bytes of a model with subgraphs nested deeper than any library builds them."""

    def field(number: int, data: bytes) -> bytes:
        length, size = b"", len(data)
        while size > 127:
            length += bytes([size & 127 | 128])
            size >>= 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + data

    graph = b""
    for _ in range(levels):
        # GraphProto.node = 1, NodeProto.attribute = 5, AttributeProto.g = 6.
        graph = field(1, field(5, field(6, graph)))
    return b"\x08\x08" + field(7, graph)


def recursive() -> onnx.ModelProto:
    """Return a function that calls itself in the branch of an If."""
    model = doubling(1)
    branch = onnx.GraphProto(name="branch")
    branch.node.append(helper.make_node("f0", ["a"], ["q"], domain="own"))
    node = model.functions[0].node.add(op_type="If", input=["a"], output=["q"])
    node.attribute.add(name="then_branch", type=AttributeProto.GRAPH).g.CopyFrom(branch)
    return model


def chain(length: int = 100_000) -> onnx.ModelProto:
    """Return a chain of nodes."""
    names = ["x", *(f"t{index}" for index in range(1, length)), "y"]
    return rows([helper.make_node("Relu", [a], [b]) for a, b in pairwise(names)])


def foreign() -> onnx.ModelProto:
    """Return an operator of a domain that only a library of its author knows."""
    return rows([helper.make_node("Run", ["x"], ["y"], domain="ai.onnx.contrib")])


def asking_for_threads(threads: int = 64) -> onnx.ModelProto:
    """Return a graph whose metadata asks for session options of its own."""
    model = graphs.id32()
    options = f'{{"session_options": {{"intra_op_num_threads": {threads}, "execution_mode": 1}}}}'
    model.metadata_props.add(key="ort_config", value=options)
    return model


def hiding_external(place: str, fields: Mapping[str, str] = SECRET_FIELDS) -> onnx.ModelProto:
    """Return an identity with external data in one of the places that a tensor can stand in."""
    tensor = graphs.external_tensor("t", (16,), dict(fields))
    model = graphs.id32()
    node = model.graph.node[0]
    whole = onnx.SparseTensorProto(values=tensor, dims=[16])
    if place == "initializer":
        model.graph.initializer.append(tensor)
    elif place == "sparse initializer":
        model.graph.sparse_initializer.append(whole)
    elif place == "attribute":
        node.attribute.add(name="a", type=AttributeProto.TENSOR).t.CopyFrom(tensor)
    elif place == "list attribute":
        node.attribute.add(name="a", type=AttributeProto.TENSORS).tensors.append(tensor)
    elif place == "sparse attribute":
        attribute = node.attribute.add(name="a", type=AttributeProto.SPARSE_TENSOR)
        attribute.sparse_tensor.CopyFrom(whole)
    elif place == "sparse list attribute":
        attribute = node.attribute.add(name="a", type=AttributeProto.SPARSE_TENSORS)
        attribute.sparse_tensors.append(whole)
    elif place == "function body":
        function = model.functions.add(name="f", domain="own")
        inside = function.node.add(op_type="Constant", output=["o"]).attribute.add(name="value")
        inside.t.CopyFrom(tensor)
    elif place == "function default":
        model.functions.add(name="f", domain="own").attribute_proto.add(name="a").t.CopyFrom(tensor)
    else:
        branch = onnx.GraphProto(name="branch")
        if place == "subgraph attribute":
            branch.node.add(op_type="Constant").attribute.add(name="value").t.CopyFrom(tensor)
        else:
            branch.initializer.append(tensor)
        if place == "list of subgraphs":
            node.attribute.add(name="a", type=AttributeProto.GRAPHS).graphs.append(branch)
            return model
        node.attribute.add(name="then_branch", type=AttributeProto.GRAPH).g.CopyFrom(branch)
    return model


PLACES: Final = (
    "initializer", "sparse initializer", "attribute", "list attribute", "sparse attribute",
    "sparse list attribute", "function body", "function default", "subgraph initializer",
    "subgraph attribute", "list of subgraphs",
)  # fmt: skip

# By name: the graph, and a word of the reason that the server gives for refusing it.
BOMBS: Final[Mapping[str, tuple[Callable[[], onnx.ModelProto], str]]] = {
    "shape": (constant_of_shape, "MiB of private memory"),
    "range": (ranged, "MiB of private memory"),
    "overflow": (expanded, "verflow"),
    "tile": (tiled, "Tile"),
    "sparse initializer": (sparse, "byte limit"),
    "sparse attribute": (lambda: sparse("attribute"), "byte limit"),
    "dimensions": (many_dimensions, "verflow"),
    "doubling functions": (lambda: doubling(60), "unfold"),
    "recursive functions": (recursive, "calls itself"),
    "foreign operator": (foreign, "custom operators are not run"),
}
