"""Small ONNX graphs with one property each, built in memory, for the tests of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

IR_VERSION = 10
OPSET = 17
Dim = int | str


def value(name: str, elem_type: int, shape: Sequence[Dim] | None) -> onnx.ValueInfoProto:
    """Return a tensor declaration; names are open sizes."""
    return helper.make_tensor_value_info(name, elem_type, shape)


def weights(name: str, array: np.ndarray) -> onnx.TensorProto:
    """Return an inline tensor."""
    return numpy_helper.from_array(array, name)


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = OPSET,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[tuple[str, int]] = (),
) -> onnx.ModelProto:
    """Return a model of these parts."""
    graph = helper.make_graph(nodes, "test", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(domain, version) for domain, version in domains]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=IR_VERSION, functions=list(functions)
    )


def identity(elem_type: int, shape: Sequence[Dim] = ("N",)) -> onnx.ModelProto:
    """Identity over one tensor, ``x`` to ``y``."""
    return build(
        [helper.make_node("Identity", ["x"], ["y"])],
        [value("x", elem_type, shape)],
        [value("y", elem_type, shape)],
    )


def id32() -> onnx.ModelProto:
    """Identity FP32 [N,4]."""
    return identity(TensorProto.FLOAT, ("N", 4))


def id64() -> onnx.ModelProto:
    """Identity FP64 [N,4]."""
    return identity(TensorProto.DOUBLE, ("N", 4))


def idi64() -> onnx.ModelProto:
    """Identity INT64 [N]."""
    return identity(TensorProto.INT64)


def idu64() -> onnx.ModelProto:
    """Identity UINT64 [N]."""
    return identity(TensorProto.UINT64)


def idstr() -> onnx.ModelProto:
    """Identity BYTES [N]."""
    return identity(TensorProto.STRING)


def idbool() -> onnx.ModelProto:
    """Identity BOOL [N]."""
    return identity(TensorProto.BOOL)


def idf16() -> onnx.ModelProto:
    """Identity FP16 [N,4]."""
    return identity(TensorProto.FLOAT16, ("N", 4))


def log() -> onnx.ModelProto:
    """Y = log(X), FP32 [N]: 0 gives -inf, -1 gives NaN."""
    return build(
        [helper.make_node("Log", ["X"], ["Y"])],
        [value("X", TensorProto.FLOAT, ("N",))],
        [value("Y", TensorProto.FLOAT, ("N",))],
    )


def gath(rows: int = 10, columns: int = 4) -> onnx.ModelProto:
    """Rows of a table by index; an index past the end fails only at run time."""
    table = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    return build(
        [helper.make_node("Gather", ["table", "idx"], ["y"], name="gather")],
        [value("idx", TensorProto.INT64, ("N",))],
        [value("y", TensorProto.FLOAT, ("N", columns))],
        [weights("table", table)],
    )


def fix1() -> onnx.ModelProto:
    """Identity FP32 [1,4]: exactly one row."""
    return identity(TensorProto.FLOAT, (1, 4))


def scal() -> onnx.ModelProto:
    """Outputs without a batch axis: a sum over all rows and a constant, beside the rows."""
    return build(
        [
            helper.make_node("ReduceSum", ["X"], ["total"], keepdims=0),
            helper.make_node("Identity", ["pair"], ["constant"]),
            helper.make_node("Identity", ["X"], ["rows"]),
        ],
        [value("X", TensorProto.FLOAT, ("N",))],
        [
            value("total", TensorProto.FLOAT, ()),
            value("constant", TensorProto.FLOAT, (2,)),
            value("rows", TensorProto.FLOAT, ("N",)),
        ],
        [weights("pair", np.array([1.0, 2.0], np.float32))],
    )


def resh() -> onnx.ModelProto:
    """Declares any number of rows, computes only one."""
    return build(
        [
            helper.make_node("Reshape", ["X", "shape"], ["flat"]),
            helper.make_node("MatMul", ["flat", "w"], ["Y"]),
        ],
        [value("X", TensorProto.FLOAT, ("N", 4))],
        [value("Y", TensorProto.FLOAT, ("N", 2))],
        [
            weights("shape", np.array([1, -1], np.int64)),
            weights("w", np.arange(8, dtype=np.float32).reshape(4, 2)),
        ],
    )


def slow(k: int = 200, width: int = 512) -> onnx.ModelProto:
    """Y = X, FP32 [N,1], by way of ``k`` matrix products of ``width`` x ``width`` for each row."""
    nodes = [helper.make_node("MatMul", [f"h{i}", "w"], [f"h{i + 1}"]) for i in range(k)]
    return build(
        [
            helper.make_node("Reshape", ["X", "cube"], ["column"]),
            helper.make_node("Mul", ["column", "ones"], ["h0"]),
            *nodes,
            helper.make_node("ReduceMax", [f"h{k}"], ["peak"], axes=[1, 2], keepdims=0),
            helper.make_node("Reshape", ["peak", "flat"], ["Y"]),
        ],
        [value("X", TensorProto.FLOAT, ("N", 1))],
        [value("Y", TensorProto.FLOAT, ("N", 1))],
        [
            weights("w", np.eye(width, dtype=np.float32)),
            weights("ones", np.ones((width, width), np.float32)),
            weights("cube", np.array([-1, 1, 1], np.int64)),
            weights("flat", np.array([-1, 1], np.int64)),
        ],
    )


def big(mb: int = 4, seed: int = 0) -> onnx.ModelProto:
    """A table of ``mb`` MiB that rows are gathered from; mapped, never copied."""
    table = np.random.default_rng(seed).standard_normal((mb * 4096, 64), dtype=np.float32)
    return build(
        [helper.make_node("Gather", ["table", "idx"], ["y"])],
        [value("idx", TensorProto.INT64, ("N",))],
        [value("y", TensorProto.FLOAT, ("N", 64))],
        [weights("table", table)],
    )


def forest(trees: int = 100, depth: int = 8, seed: int = 0) -> onnx.ModelProto:
    """Trees over four columns, whole in the node's attributes as converters write them."""
    inner = 2**depth - 1
    nodes = 2 * inner + 1
    ids = np.tile(np.arange(nodes), trees)
    is_leaf = ids >= inner
    random = np.random.default_rng(seed)
    leaves = ids[is_leaf]
    return build(
        [
            helper.make_node(
                "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
                nodes_treeids=np.repeat(np.arange(trees), nodes).tolist(),
                nodes_nodeids=ids.tolist(),
                nodes_featureids=np.where(is_leaf, 0, random.integers(0, 4, len(ids))).tolist(),
                nodes_modes=["LEAF" if leaf else "BRANCH_LEQ" for leaf in is_leaf],
                nodes_values=random.standard_normal(len(ids)).tolist(),
                nodes_truenodeids=np.where(is_leaf, 0, 2 * ids + 1).tolist(),
                nodes_falsenodeids=np.where(is_leaf, 0, 2 * ids + 2).tolist(),
                target_treeids=np.repeat(np.arange(trees), inner + 1).tolist(),
                target_nodeids=leaves.tolist(),
                target_ids=[0] * len(leaves),
                target_weights=random.standard_normal(len(leaves)).tolist(),
            )
        ],
        [value("x", TensorProto.FLOAT, ("N", 4))],
        [value("y", TensorProto.FLOAT, ("N", 1))],
        domains=[("ai.onnx.ml", 3)],
    )  # fmt: skip


def ext(folder: Path, mb: int = 4, seed: int = 0, location: str = "weights.bin") -> Path:
    """``big`` saved with its table in a file beside it; returns the path of the model."""
    path = folder / "model.onnx"
    onnx.save_model(
        big(mb, seed), path, save_as_external_data=True, size_threshold=0, location=location
    )
    return path


def endless() -> onnx.ModelProto:
    """Loops for as many turns as ``n`` says, without end for a large one."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_in"], ["go_out"]),
            helper.make_node("Add", ["sum_in", "one"], ["sum_out"]),
        ],
        "body",
        [
            value("turn", TensorProto.INT64, ()),
            value("go_in", TensorProto.BOOL, ()),
            value("sum_in", TensorProto.FLOAT, (1,)),
        ],
        [value("go_out", TensorProto.BOOL, ()), value("sum_out", TensorProto.FLOAT, (1,))],
        [weights("one", np.ones(1, np.float32))],
    )
    return build(
        [
            helper.make_node("Squeeze", ["n"], ["turns"]),
            helper.make_node("Loop", ["turns", "go", "zero"], ["y"], body=body),
        ],
        [value("n", TensorProto.INT64, (1,))],
        [value("y", TensorProto.FLOAT, (1,))],
        [weights("go", np.array(True)), weights("zero", np.zeros(1, np.float32))],
    )


def dynamic_quantized() -> onnx.ModelProto:
    """Quantizes its input with one scale for the whole batch: rows see each other."""
    return build(
        [
            helper.make_node("DynamicQuantizeLinear", ["X"], ["q", "scale", "zero"]),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["Y"]),
        ],
        [value("X", TensorProto.FLOAT, ("N", 4))],
        [value("Y", TensorProto.FLOAT, ("N", 4))],
    )


def across_rows() -> onnx.ModelProto:
    """Takes the mean of all rows off each row, without an operator that gives it away."""
    return build(
        [
            helper.make_node("ReduceMean", ["X"], ["mean"], axes=[0], keepdims=1),
            helper.make_node("Sub", ["X", "mean"], ["Y"]),
        ],
        [value("X", TensorProto.FLOAT, ("N", 4))],
        [value("Y", TensorProto.FLOAT, ("N", 4))],
    )


def gemm(rows: int = 4, columns: int = 2, seed: int = 0) -> onnx.ModelProto:
    """A linear layer with weights of its own."""
    random = np.random.default_rng(seed)
    return build(
        [helper.make_node("Gemm", ["X", "w", "b"], ["Y"])],
        [value("X", TensorProto.FLOAT, ("N", rows))],
        [value("Y", TensorProto.FLOAT, ("N", columns))],
        [
            weights("w", random.standard_normal((rows, columns), dtype=np.float32)),
            weights("b", random.standard_normal(columns, dtype=np.float32)),
        ],
    )


def two_inputs() -> onnx.ModelProto:
    """y = a + b, FP32 [N,2] each."""
    return build(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        [value("a", TensorProto.FLOAT, ("N", 2)), value("b", TensorProto.FLOAT, ("N", 2))],
        [value("y", TensorProto.FLOAT, ("N", 2))],
    )


def allocate_bomb() -> onnx.ModelProto:
    """Under 200 bytes that ask for four terabytes."""
    return build(
        [helper.make_node("ConstantOfShape", ["shape"], ["y"])],
        [],
        [value("y", TensorProto.FLOAT, ("A", "B"))],
        [weights("shape", np.array([1_000_000, 1_000_000], np.int64))],
    )


def unknown_operator() -> onnx.ModelProto:
    """Names an operator that does not exist."""
    return build(
        [helper.make_node("Nonsense", ["x"], ["y"])],
        [value("x", TensorProto.FLOAT, ("N",))],
        [value("y", TensorProto.FLOAT, ("N",))],
    )


def external_tensor(
    name: str, shape: Sequence[int], fields: dict[str, str], elem_type: int = TensorProto.FLOAT
) -> onnx.TensorProto:
    """Return a tensor that claims external data of exactly these fields."""
    tensor = TensorProto(name=name, data_type=elem_type, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in fields.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, text
    return tensor


def layers(*seeds: int, width: int = 1024, operator: str = "MatMul") -> onnx.ModelProto:
    """Square layers, one for each seed, whose weights kernels copy into an order of their own."""
    nodes, tensors, name = [], [], "x"
    for index, seed in enumerate(seeds):
        random = np.random.default_rng(seed)
        table = random.standard_normal((width, width), dtype=np.float32) / np.float32(width**0.5)
        tensors.append(weights(f"w{index}", table))
        nodes.append(helper.make_node(operator, [name, f"w{index}"], [f"h{index}"]))
        nodes.append(helper.make_node("Tanh", [f"h{index}"], [f"t{index}"]))
        name = f"t{index}"
    return build(
        nodes,
        [value("x", TensorProto.FLOAT, ("N", width))],
        [value(name, TensorProto.FLOAT, ("N", width))],
        tensors,
    )
