"""``python -m models.zoo.faults OUT_DIR``: makes the packages that the fault bench serves.

Each is ``NAME.json`` with the manifest and the digests of its objects, which are in ``objects``, so
that a program without any of these libraries can upload them with plain HTTP requests.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper

from models.convert.graph import Graph
from models.convert.onnx_file import About, package_onnx
from models.signature import Signature, TensorSpec

COLUMNS: Final = 4
_SPARE_ROWS: Final = 1024
_SPARE_COLUMNS: Final = 16
# What kernels would copy of it is more than is left to them (models.weight_mode).
_DENSE_LAYERS: Final = 4
_DENSE_WIDTH: Final = 1024
_CUT_MIB: Final = 8
_MIB: Final = 1 << 20
_OPSET: Final = 17
_IR_VERSION: Final = 10


def echo(version: int, products: int = 0) -> onnx.ModelProto:
    """Return a graph that answers its input ``x``, ``(rows, 4) float32``, and who it is.

    ``y`` is ``x``; ``version``, ``(rows, 1) float32``, is the number given here. ``products``: how
    many products of 256 x 256 matrices each row takes besides, about half a millisecond each.
    """
    graph = Graph()
    marks = graph.constant(np.zeros((COLUMNS, 1), np.float32))
    number = graph.constant(np.full(1, version, np.float32))
    graph.add("Identity", "x", output="y")
    if not products:
        graph.add("Gemm", "x", marks, number, output="version")
        return graph.model(_echo_signature())
    zeros = graph.constant(np.zeros((256, 256), np.float32))
    hidden = graph.add("Gemm", "x", graph.constant(np.zeros((COLUMNS, 256), np.float32)))
    cube = graph.add("Unsqueeze", hidden, graph.constant(np.array([1], np.int64)))
    ones = graph.constant(np.ones((256, 1), np.float32))
    hidden = graph.add("Mul", cube, ones)
    for _ in range(products):
        hidden = graph.add("MatMul", hidden, zeros)
    axes = graph.constant(np.array([1, 2], np.int64))
    none = graph.add("ReduceMax", hidden, axes, keepdims=0)
    column = graph.add("Unsqueeze", none, graph.constant(np.array([1], np.int64)))
    graph.add("Add", column, number, output="version")
    return graph.model(_echo_signature())


def endless() -> onnx.ModelProto:
    """Return a graph that loops ``n`` times, ``(1,) int64``: without end for a large number."""
    true, zero = np.array(True), np.zeros(1, np.float32)
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_in"], ["go_out"]),
            helper.make_node("Add", ["sum_in", "one"], ["sum_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, ()),
            helper.make_tensor_value_info("go_in", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("sum_in", TensorProto.FLOAT, (1,)),
        ],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("sum_out", TensorProto.FLOAT, (1,)),
        ],
        [onnx.numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Squeeze", ["n"], ["turns"]),
            helper.make_node("Loop", ["turns", "go", "zero"], ["y"], body=body),
        ],
        "endless",
        [helper.make_tensor_value_info("n", TensorProto.INT64, (1,))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1,))],
        [onnx.numpy_helper.from_array(true, "go"), onnx.numpy_helper.from_array(zero, "zero")],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION
    )


def spare(number: int, rows: int = _SPARE_ROWS) -> onnx.ModelProto:
    """Return a table of ``number`` alone, ``(rows, 16) float32``: 64 KiB that nobody else has."""
    graph = Graph()
    table = graph.constant(np.full((rows, _SPARE_COLUMNS), number, np.float32))
    graph.add("Gather", table, "index", output="y")
    return graph.model(
        Signature(
            inputs=(TensorSpec("index", "INT64", (-1,)),),
            outputs=(TensorSpec("y", "FP32", (-1, _SPARE_COLUMNS)),),
        )
    )


def dense() -> onnx.ModelProto:
    """Return four layers of 1024 x 1024, ``(rows, 1024) float32``: weights worth packing."""
    graph = Graph()
    numbers = np.random.default_rng(61)
    hidden = "x"
    for _ in range(_DENSE_LAYERS):
        weights = numbers.standard_normal((_DENSE_WIDTH, _DENSE_WIDTH), np.float32)
        product = graph.add("MatMul", hidden, graph.constant(weights / np.float32(32)))
        hidden = graph.add("Tanh", product)
    graph.add("Identity", hidden, output="y")
    shape = (-1, _DENSE_WIDTH)
    return graph.model(
        Signature(
            inputs=(TensorSpec("x", "FP32", shape),), outputs=(TensorSpec("y", "FP32", shape),)
        )
    )


def write_package(out_dir: Path, name: str, model_name: str, model: onnx.ModelProto) -> None:
    """Write the package ``name`` of a model; it is published as a version of ``model_name``."""
    # The time of making would give the same model another digest each time.
    package = package_onnx(model_name, model, About(meta={"package": name}))
    objects = out_dir / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    for item in package.objects:
        (objects / item.digest.partition(":")[2]).write_bytes(b"".join(item.chunks()))
    document = {
        "manifest": package.manifest.to_json(),
        "objects": [item.digest for item in package.objects],
    }
    (out_dir / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Make all packages; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m models.zoo.faults", description=__doc__)
    parser.add_argument("out_dir", metavar="OUT_DIR", type=Path, help="folder for the packages")
    parser.add_argument("--spares", type=int, default=64, help="versions to upload and drop")
    parser.add_argument("--tables", type=int, default=0, help="large tables, each of other bytes")
    parser.add_argument("--table-mib", type=int, default=1, help="MiB of each")
    options = parser.parse_args(arguments)
    for version in (1, 2):
        for model in ("echo", "storm"):
            write_package(options.out_dir, f"{model}-{version}", model, echo(version))
    write_package(options.out_dir, "slow-1", "slow", echo(1, products=16))
    write_package(options.out_dir, "busy-1", "busy", echo(1, products=8))
    write_package(options.out_dir, "endless-1", "endless", endless())
    for number in range(options.spares):
        write_package(options.out_dir, f"spare-{number}", "spare", spare(number))
    rows_a_mib = _MIB // (4 * _SPARE_COLUMNS)
    # A number of its own, or it would share the bytes of a spare one.
    write_package(options.out_dir, "cut-table", "cut-table", spare(-1, _CUT_MIB * rows_a_mib))
    write_package(options.out_dir, "cut-dense", "cut-dense", dense())
    rows = options.table_mib * rows_a_mib
    for number in range(options.tables):
        write_package(options.out_dir, f"table-{number}", "table", spare(number, rows))
    return 0


def _echo_signature() -> Signature:
    return Signature(
        inputs=(TensorSpec("x", "FP32", (-1, COLUMNS)),),
        outputs=(TensorSpec("y", "FP32", (-1, COLUMNS)), TensorSpec("version", "FP32", (-1, 1))),
    )


if __name__ == "__main__":
    sys.exit(main())
