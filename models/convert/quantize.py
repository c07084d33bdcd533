"""Smaller weights on request: tables and matrices as int8 or float16, the graph rewritten for them.

``int8``          matrices as int8 with a scale for each column; what is multiplied with them is
                  rounded to 8 bits as well, with one scale for the whole tensor
``int8-weights``  matrices as 8 bits with a scale for each 64 values; what is multiplied with them
                  is rounded in blocks of its own row, so rows stay apart
``fp16``          matrices and tables as float16, computed in float32

In both int8 modes the rows of tables (Gather) are int8 with a scale each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.convert.external import ExternalFolder
from models.convert.onnx_file import read_onnx
from models.convert.skim import SELF_LOCATION
from models.convert.split import hoist_constants
from models.convert.weights import (
    BLOCK_ROWS,
    Weights,
    WeightsFile,
    as_blocks,
    as_int8,
    block_scales,
    blocks_of,
    column_scales,
    halves,
    row_scales,
)
from models.errors import ConversionRefused
from models.graph_check import check_structure
from models.graph_walk import is_external, scopes, tensor_bytes
from models.package import OBJECT_THRESHOLD_BYTES
from models.servable import Array
from registry.ident import shown

Mode: TypeAlias = Literal["int8", "int8-weights", "fp16"]
MODES: Final[tuple[Mode, ...]] = ("int8", "int8-weights", "fp16")
# Smaller ones would save little and lose as much.
MIN_VALUES: Final = 4096
# A row has a scale of 4 bytes: narrower rows would hardly shrink.
MIN_COLUMNS: Final = 8
_MIN_OPSET: Final = 11  # the first with DynamicQuantizeLinear
_MICROSOFT: Final = "com.microsoft"
_WEIGHTS_SUFFIX: Final = ".bin"


@dataclass(frozen=True, slots=True)
class Quantized:
    """The rewritten model on disk, and what it took: bytes of the weights that were changed."""

    path: Path
    weights: int
    before_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True)
class _Use:
    """A node that reads a weight. ``kind``: table or matrix, ``transposed`` for Gemm's transB."""

    node: int
    kind: Literal["table", "matrix", "other"]
    is_transposed: bool = False


def quantize(path: Path, mode: Mode, folder: Path) -> Quantized:
    """Write the model at ``path`` with smaller weights into ``folder``, one tensor after the other.

    Raises ConversionRefused where it has no weights that this mode makes smaller.
    """
    model = read_onnx(path)
    check_structure(model, ConversionRefused)
    if _opset(model) < _MIN_OPSET:
        raise ConversionRefused(
            f"--quantize: opset {_opset(model)} is too old: export with {_MIN_OPSET} or newer"
        )
    model.ClearField("training_info")
    hoist_constants(model.graph)
    target = folder / "quantized.onnx"
    with ExternalFolder(path) as external, _weights_of(target) as file:
        rewriter = _Rewriter(model, mode, external, file)
        rewriter.rewrite()
        external.check_overlap()
    target.write_bytes(model.SerializeToString(deterministic=True))
    return Quantized(target, rewriter.count, rewriter.before_bytes, rewriter.after_bytes)


def opens_in_place(path: Path, model: onnx.ModelProto) -> bool:
    """Whether the runtime opens the file where it is: it follows no links and enters no folders."""
    places = {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location" and entry.value != SELF_LOCATION
    }
    return not places or not (path.is_symlink() or any("/" in place for place in places))


def copy_flat(path: Path, folder: Path) -> Path:
    """Write the model at ``path`` into ``folder`` with all of its weights in one file beside it."""
    model = read_onnx(path)
    target = folder / "original.onnx"
    with ExternalFolder(path) as external, _weights_of(target) as file:
        tensors = [_moved(tensor, external, file) for tensor in model.graph.initializer]
    model.graph.ClearField("initializer")
    model.graph.initializer.extend(tensors)
    target.write_bytes(model.SerializeToString(deterministic=True))
    return target


class _Rewriter:
    """Replaces the weights of one graph, and the nodes that read them; used once."""

    def __init__(
        self, model: onnx.ModelProto, mode: Mode, external: ExternalFolder, file: WeightsFile
    ) -> None:
        self._model = model
        self._graph = model.graph
        self._mode = mode
        self._external = external
        self._file = file
        self._tensors: list[onnx.TensorProto] = []
        self._taken = _names_in(model.graph)
        self._count = 0
        # What stands in place of a node, and what comes right behind the maker of a tensor.
        self._instead: dict[int, list[onnx.NodeProto]] = {}
        self._behind: defaultdict[int, list[onnx.NodeProto]] = defaultdict(list)
        self._rounded: dict[str, tuple[str, str, str]] = {}
        self.count = self.before_bytes = self.after_bytes = 0

    def rewrite(self) -> None:
        """Change the graph in place; its tensors then lie in the file, large ones and small."""
        uses = self._uses()
        for tensor in self._graph.initializer:
            where = f"weights {shown(tensor.name)}"
            change = self._change(tensor, uses[tensor.name])
            size = tensor_bytes(tensor, where, ConversionRefused)
            if change is None:
                self._tensors.append(_moved(tensor, self._external, self._file))
                continue
            first = len(self._tensors)
            change(self._read(tensor, where), tensor.name, uses[tensor.name])
            self.count += 1
            self.before_bytes += size
            self.after_bytes += sum(
                tensor_bytes(each, where, ConversionRefused) for each in self._tensors[first:]
            )
        if not self.count:
            raise ConversionRefused(
                f"--quantize {self._mode}: no float32 weights of MatMul, Gemm or Gather with "
                f"{MIN_VALUES} values or more are in this model: push it without"
            )
        self._replace()

    def _uses(self) -> defaultdict[str, list[_Use]]:
        uses: defaultdict[str, list[_Use]] = defaultdict(list)
        for index, node in enumerate(self._graph.node):
            for position, name in enumerate(node.input):
                uses[name].append(_use(index, node, position))
        for value in self._graph.output:
            uses[value.name].append(_Use(-1, "other"))
        for scope in scopes(self._model, ConversionRefused):
            if scope.depth > 1:
                for node in scope.nodes:
                    for name in node.input:
                        uses[name].append(_Use(-1, "other"))
                for value in scope.graph.output if scope.graph is not None else ():
                    uses[value.name].append(_Use(-1, "other"))
        return uses

    def _change(
        self, tensor: onnx.TensorProto, uses: list[_Use]
    ) -> Callable[[Weights, str, list[_Use]], None] | None:
        """Return what makes the weight smaller, or None where it stays."""
        dims = list(tensor.dims)
        if tensor.data_type != TensorProto.FLOAT or not uses or len(dims) != 2:
            return None
        kinds = {(use.kind, use.is_transposed) for use in uses}
        if dims[0] * dims[1] < MIN_VALUES or min(dims) < MIN_COLUMNS:
            return None
        if any(use.kind == "other" for use in uses):
            return None
        if self._mode == "fp16":
            return self._to_half
        if kinds == {("table", False)}:
            return self._to_table
        if len(kinds) > 1:
            return None  # one copy for each use would rather take more bytes
        return self._to_int8 if self._mode == "int8" else self._to_blocks

    def _to_half(self, weights: Weights, name: str, uses: list[_Use]) -> None:
        half = self._write(TensorProto.FLOAT16, weights.shape, halves(weights, name))
        for use in uses:
            node, cast = self._copy(use), self._fresh()
            if use.kind == "table":
                output = node.output[0]
                node.input[0], node.output[0] = half, cast
                back = _made("Cast", [cast], output, to=TensorProto.FLOAT)
                self._instead[use.node] = [node, back]
            else:
                node.input[1] = cast
                full = _made("Cast", [half], cast, to=TensorProto.FLOAT)
                self._instead[use.node] = [full, node]

    def _to_table(self, weights: Weights, name: str, uses: list[_Use]) -> None:
        scales = row_scales(weights, name)
        table = self._write(TensorProto.INT8, weights.shape, as_int8(weights, scales))
        steps = self._constant(scales)
        for use in uses:
            node = self._copy(use)
            index, output = node.input[1], node.output[0]
            rows, values, step = self._fresh(), self._fresh(), self._fresh()
            node.input[0], node.output[0] = table, rows
            self._instead[use.node] = [
                node,
                _made("Cast", [rows], values, to=TensorProto.FLOAT),
                _made("Gather", [steps, index], step, axis=0),
                _made("Mul", [values, step], output),
            ]

    def _to_int8(self, weights: Weights, name: str, uses: list[_Use]) -> None:
        matrix = weights.T if uses[0].is_transposed else weights
        scales = column_scales(matrix, name)
        rounded = self._write(TensorProto.INT8, matrix.shape, as_int8(matrix, scales))
        steps, zero = self._constant(scales), self._constant(np.zeros((), dtype=np.int8))
        for use in uses:
            left, left_step, left_zero = self._round(self._copy(use).input[0])
            whole, values, step = self._fresh(), self._fresh(), self._fresh()
            product, add = self._result(use)
            self._instead[use.node] = [
                _made("MatMulInteger", [left, rounded, left_zero, zero], whole),
                _made("Cast", [whole], values, to=TensorProto.FLOAT),
                _made("Mul", [left_step, steps], step),
                _made("Mul", [values, step], product),
                *add,
            ]

    def _to_blocks(self, weights: Weights, name: str, uses: list[_Use]) -> None:
        matrix = weights.T if uses[0].is_transposed else weights
        rows, columns = matrix.shape
        scales = block_scales(matrix, name)
        shape = (columns, blocks_of(rows), BLOCK_ROWS)
        blocks = self._write(TensorProto.UINT8, shape, as_blocks(matrix, scales))
        steps = self._constant(scales.reshape(-1))
        for use in uses:
            product, add = self._result(use)
            # Level 4 multiplies whole numbers: as fast as int8, and hardly less exact than level 0,
            # which unpacks the matrix in each run.
            multiply = _made(
                "MatMulNBits", [self._copy(use).input[0], blocks, steps], product,
                domain=_MICROSOFT, K=rows, N=columns, bits=8, block_size=BLOCK_ROWS,
                accuracy_level=4,
            )  # fmt: skip
            self._instead[use.node] = [multiply, *add]
        if all(entry.domain != _MICROSOFT for entry in self._model.opset_import):
            self._model.opset_import.append(helper.make_opsetid(_MICROSOFT, 1))

    def _round(self, name: str) -> tuple[str, str, str]:
        """Return the names of a rounded input, its step and its zero; each input only once."""
        if name not in self._rounded:
            names = (self._fresh(), self._fresh(), self._fresh())
            makers = (i for i, node in enumerate(self._graph.node) if name in node.output)
            self._behind[next(makers, -1)].append(
                helper.make_node("DynamicQuantizeLinear", [name], names, name=names[0])
            )
            self._rounded[name] = names
        return self._rounded[name]

    def _result(self, use: _Use) -> tuple[str, list[onnx.NodeProto]]:
        """Return where the product goes, and what adds Gemm's C to it, if there is one."""
        node = self._graph.node[use.node]
        if node.op_type != "Gemm" or len(node.input) < 3 or not node.input[2]:
            return node.output[0], []
        product = self._fresh()
        return product, [_made("Add", [product, node.input[2]], node.output[0])]

    def _copy(self, use: _Use) -> onnx.NodeProto:
        copy = onnx.NodeProto()
        copy.CopyFrom(self._graph.node[use.node])
        # The last of the new nodes has the name of the output, which may be the name of this one.
        copy.ClearField("name")
        return copy

    def _write(self, data_type: int, dims: tuple[int, ...], pieces: Any) -> str:
        tensor = self._file.add(self._fresh(), data_type, dims, pieces)
        self._tensors.append(tensor)
        return str(tensor.name)

    def _constant(self, array: Array) -> str:
        if array.nbytes >= OBJECT_THRESHOLD_BYTES:
            data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
            return self._write(data_type, array.shape, [array])
        tensor = numpy_helper.from_array(array, self._fresh())
        self._tensors.append(tensor)
        return str(tensor.name)

    def _fresh(self) -> str:
        self._count += 1
        while (name := f"ramrack/quantized_{self._count}") in self._taken:
            self._count += 1
        return name

    def _read(self, tensor: onnx.TensorProto, where: str) -> Weights:
        if is_external(tensor):
            return self._external.array(tensor, where)
        try:
            return numpy_helper.to_array(tensor)
        except (ValueError, TypeError) as error:
            raise ConversionRefused(f"{where}: its values do not fill its shape: {error}") from None

    def _replace(self) -> None:
        nodes = list(self._behind[-1])
        for index, node in enumerate(self._graph.node):
            nodes += self._instead.get(index, [onnx.NodeProto.FromString(node.SerializeToString())])
            nodes += self._behind[index]
        tensors = [onnx.TensorProto.FromString(each.SerializeToString()) for each in self._tensors]
        gone = {tensor.name for tensor in self._graph.initializer}
        gone -= {tensor.name for tensor in tensors}
        values = [each for each in self._graph.value_info if each.name not in gone]
        values = [onnx.ValueInfoProto.FromString(each.SerializeToString()) for each in values]
        inputs = [onnx.ValueInfoProto.FromString(each.SerializeToString())
                  for each in self._graph.input if each.name not in gone]  # fmt: skip
        for name, items in (
            ("node", nodes), ("initializer", tensors), ("value_info", values), ("input", inputs),
        ):  # fmt: skip
            self._graph.ClearField(name)
            getattr(self._graph, name).extend(items)


def _weights_of(model: Path) -> WeightsFile:
    return WeightsFile(model.with_suffix(_WEIGHTS_SUFFIX))


def _moved(
    tensor: onnx.TensorProto, external: ExternalFolder, file: WeightsFile
) -> onnx.TensorProto:
    """Return a weight as it is; what lies in another file is copied to ours."""
    where = f"weights {shown(tensor.name)}"
    if not is_external(tensor):
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        return copy
    pieces = external.pieces(tensor, where)
    if tensor_bytes(tensor, where, ConversionRefused) >= OBJECT_THRESHOLD_BYTES:
        return file.add(tensor.name, tensor.data_type, tensor.dims, pieces)
    return TensorProto(
        name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=b"".join(pieces)
    )


def _use(index: int, node: onnx.NodeProto, position: int) -> _Use:
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.domain in ("", "ai.onnx"):
        if node.op_type == "Gather" and position == 0 and given.get("axis", 0) == 0:
            return _Use(index, "table")
        if node.op_type == "MatMul" and position == 1:
            return _Use(index, "matrix")
        factors = (given.get("alpha", 1.0), given.get("beta", 1.0))
        is_plain = not given.get("transA") and factors == (1.0, 1.0)
        if node.op_type == "Gemm" and position == 1 and is_plain:
            return _Use(index, "matrix", bool(given.get("transB")))
    return _Use(index, "other")


def _made(op: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], name=output, **attributes)


def _names_in(graph: onnx.GraphProto) -> set[str]:
    names = {value.name for value in graph.input} | {each.name for each in graph.initializer}
    for node in graph.node:
        names.update(node.output)
    return names


def _opset(model: onnx.ModelProto) -> int:
    return max((e.version for e in model.opset_import if e.domain in ("", "ai.onnx")), default=0)
