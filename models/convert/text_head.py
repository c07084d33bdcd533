"""What stands behind an encoder: its hidden states become one embedding, its logits probabilities.

Written into the graph, so that every runtime computes it and nothing crosses into Python but the
answer.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper

from models.convert.graph import Graph
from models.convert.text_folder import Pooling
from models.errors import ConversionRefused
from models.graph_signature import graph_signature
from models.servable import Array
from models.signature import TensorSpec
from models.text_form import EMBEDDING, ENCODER_INPUTS
from registry.ident import shown

PROBABILITIES: Final = "probabilities"
_POOLED: Final = ("sentence_embedding", "sentence_embeddings")
_HIDDEN: Final = ("last_hidden_state", "token_embeddings", "hidden_states")
_LOGITS: Final = ("logits",)
_MIN_OPSET: Final = 11  # what exporters have written for years
_AXES_AS_INPUT: Final = 13  # of ReduceSum, from here on
_LEAST_LENGTH: Final = 1e-12  # as torch.nn.functional.normalize


def pool(
    graph: Graph, hidden: str, pooling: Pooling, *, is_normalised: bool, opset: int = _AXES_AS_INPUT
) -> None:
    """Add the embedding of hidden states ``(rows, tokens, width)``; no token is padding."""
    if pooling == "cls":
        first = graph.constant(np.array(0, np.int64))
        pooled = graph.add("Gather", hidden, first, axis=1)
    else:
        summed = _summed(graph, hidden, opset, keepdims=0)
        shape = graph.add("Shape", hidden)
        place = graph.constant(np.array([1], np.int64))
        count = graph.add("Cast", graph.add("Gather", shape, place), to=TensorProto.FLOAT)
        pooled = graph.add("Div", summed, count)
    _embedding(graph, pooled, opset, is_normalised=is_normalised)


def _summed(graph: Graph, source: str, opset: int, *, keepdims: int) -> str:
    if opset < _AXES_AS_INPUT:
        return graph.add("ReduceSum", source, axes=[1], keepdims=keepdims)
    axes = graph.constant(np.array([1], np.int64))
    return graph.add("ReduceSum", source, axes, keepdims=keepdims)


def _embedding(graph: Graph, pooled: str, opset: int, *, is_normalised: bool) -> None:
    if not is_normalised:
        graph.add("Identity", pooled, output=EMBEDDING)
        return
    squares = _summed(graph, graph.add("Mul", pooled, pooled), opset, keepdims=1)
    least = graph.constant(np.array(_LEAST_LENGTH, np.float32))
    length = graph.add("Max", graph.add("Sqrt", squares), least)
    graph.add("Div", pooled, length, output=EMBEDDING)


def share(graph: Graph, logits: str) -> None:
    """Add the probabilities of logits ``(rows, classes)``."""
    graph.add("Softmax", logits, output=PROBABILITIES, axis=1)


def with_head(
    model: onnx.ModelProto, pooling: Pooling, *, is_normalised: bool, classes: int
) -> tuple[onnx.ModelProto, str]:
    """Give a graph of others the head that its folder asks for, and return it with what it reads.

    ``classes`` is 0 for an embedding. The model is changed in place: the answer is its only output.
    """
    opset = _check(model)
    source = _source(model, _LOGITS if classes else (*_POOLED, *_HIDDEN), 2 if classes else 3)
    graph = Graph()
    if classes:
        share(graph, source.name)
        size = classes
    elif len(source.shape) == 2:
        _embedding(graph, source.name, opset, is_normalised=is_normalised)
        size = source.shape[1]
    else:
        pool(graph, source.name, pooling, is_normalised=is_normalised, opset=opset)
        size = source.shape[2]
    output = PROBABILITIES if classes else EMBEDDING
    model.graph.node.extend(graph.nodes)
    model.graph.initializer.extend(graph.constants)
    del model.graph.output[:]
    shape = ["rows", size if size > 0 else None]
    model.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, shape))
    return model, source.name


def _check(model: onnx.ModelProto) -> int:
    """Return the operator set of a graph that takes what a text gives."""
    opset = max((e.version for e in model.opset_import if e.domain in ("", "ai.onnx")), default=0)
    if opset < _MIN_OPSET:
        raise ConversionRefused(
            f"the ONNX file has opset {opset}: export it with {_MIN_OPSET} or newer"
        )
    for spec in graph_signature(model, ConversionRefused).inputs:
        if spec.name not in ENCODER_INPUTS:
            raise ConversionRefused(
                f"the ONNX file takes an input {shown(spec.name)}: a text gives "
                f"{', '.join(ENCODER_INPUTS)}"
            )
        if spec.shape != (-1, -1):
            raise ConversionRefused(
                f"input {spec.name!r} of the ONNX file has shape {list(spec.shape)}: export it "
                "with rows and tokens open"
            )
    return opset


def _source(model: onnx.ModelProto, names: tuple[str, ...], rank: int) -> TensorSpec:
    outputs = graph_signature(model, ConversionRefused).outputs
    by_name = {spec.name: spec for spec in outputs}
    for name in names:
        if name in by_name and by_name[name].datatype == "FP32":
            return by_name[name]
    fitting = [spec for spec in outputs if len(spec.shape) == rank and spec.datatype == "FP32"]
    if len(fitting) != 1:
        raise ConversionRefused(
            f"the ONNX file has the outputs {shown([spec.name for spec in outputs])}: one FP32 of "
            f"{rank} dimensions, or one named {' or '.join(names)}, is needed"
        )
    return fitting[0]


def pooled(states: Array, pooling: Pooling, *, is_normalised: bool) -> Array:
    """Return the embedding of one text's states ``(tokens, width)``, in plain numpy."""
    embedding = states.mean(axis=0) if pooling == "mean" else states[0]
    if is_normalised:
        embedding = embedding / max(float(np.linalg.norm(embedding)), _LEAST_LENGTH)
    return np.asarray(embedding)
