"""BERT encoders from their weights: the graph of Hugging Face's BertModel, node for node.

BERT, MiniLM, BGE, E5 and GTE small to large are all this. What a text never needs is left out: the
one segment's embedding is added as a constant, and there is no mask because nothing is padded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from models.convert.graph import Graph
from models.convert.safetensors import Weights
from models.errors import ConversionRefused
from models.servable import Array
from models.signature import Signature, TensorSpec
from registry.ident import shown

OPSET: Final = 20  # the first with Gelu
_ACTIVATIONS: Final = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
_PREFIXES: Final = ("", "bert.", "model.", "0.auto_model.")
_MAX_LAYERS: Final = 128


@dataclass(frozen=True, slots=True)
class BertShape:
    """What config.json says of the encoder. ``approximate``: of GELU, as ONNX names it."""

    width: int
    layers: int
    heads: int
    epsilon: float
    approximate: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> BertShape:
        """Return the shape, or raise ConversionRefused naming the field of config.json."""
        kind = config.get("model_type")
        if kind != "bert":
            raise ConversionRefused(
                f"config.json: model_type {shown(kind)} has no converter here, only 'bert' has: "
                "put the model's ONNX export beside it as model.onnx or onnx/model.onnx"
            )
        positions = config.get("position_embedding_type", "absolute")
        if positions != "absolute":
            raise ConversionRefused(
                f"config.json: position_embedding_type {shown(positions)} has no converter here"
            )
        activation = config.get("hidden_act", "gelu")
        if activation not in _ACTIVATIONS:
            raise ConversionRefused(
                f"config.json: hidden_act {shown(activation)}: one of "
                f"{', '.join(_ACTIVATIONS)} can be converted"
            )
        width, heads = _whole(config, "hidden_size"), _whole(config, "num_attention_heads")
        if width % heads:
            raise ConversionRefused(
                f"config.json: hidden_size {width} is no multiple of {heads} attention heads"
            )
        layers = _whole(config, "num_hidden_layers")
        if layers > _MAX_LAYERS:
            raise ConversionRefused(f"config.json: {layers} layers, at most {_MAX_LAYERS} are")
        epsilon = config.get("layer_norm_eps", 1e-12)
        if not isinstance(epsilon, float) or not 0 < epsilon < 1:
            raise ConversionRefused(f"config.json: layer_norm_eps {shown(epsilon)} is no number")
        return cls(width, layers, heads, epsilon, _ACTIVATIONS[activation])


class BertWeights:
    """The weights of a checkpoint, whatever prefix its names have."""

    def __init__(self, weights: Weights) -> None:
        anchor = "embeddings.word_embeddings.weight"
        found = next((p for p in _PREFIXES if p + anchor in weights), None)
        if found is None:
            raise ConversionRefused(f"the weights have no {anchor}: this is no BERT checkpoint")
        self._weights, self._prefix = weights, found

    def get(self, name: str, *shape: int) -> NDArray[np.float32]:
        """Return a weight of the encoder; -1 in ``shape`` is any size."""
        whole = self._prefix + name
        if whole not in self._weights and "LayerNorm" in name:
            # As checkpoints that came from TensorFlow call them.
            whole = whole.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
        return self._checked(whole, shape)

    def outer(self, name: str, *shape: int) -> NDArray[np.float32]:
        """Return a weight beside the encoder, such as a classifier's."""
        return self._checked(name, shape)

    def _checked(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        array = self._weights.get(name)
        if array is None:
            raise ConversionRefused(f"the weights have no {shown(name)}, which config.json implies")
        fits = len(array.shape) == len(shape) and all(
            wanted in (-1, size) for wanted, size in zip(shape, array.shape, strict=True)
        )
        if not fits:
            raise ConversionRefused(
                f"weight {shown(name)} has shape {list(array.shape)}, config.json implies "
                f"{list(shape)}"
            )
        return array


def hidden_states(graph: Graph, shape: BertShape, weights: BertWeights) -> str:
    """Add the encoder over ``input_ids`` and return the name of its last hidden states.

    They are ``(rows, tokens, width) float32``.
    """
    return _Writer(graph, shape, weights).encoder()


def encoder_signature(output: str, size: int) -> Signature:
    """Return the signature of a graph that gives one output of ``size`` numbers a row."""
    return Signature(
        inputs=(TensorSpec("input_ids", "INT64", (-1, -1)),),
        outputs=(TensorSpec(output, "FP32", (-1, size)),),
    )


def classify(graph: Graph, shape: BertShape, weights: BertWeights, hidden: str, count: int) -> str:
    """Add the pooler and the classifier of BertForSequenceClassification; return the logits."""
    writer = _Writer(graph, shape, weights)
    first = graph.add("Gather", hidden, writer.scalar(0), axis=1)
    pooled = graph.add("Tanh", writer.linear(first, "pooler.dense", shape.width, shape.width))
    weight = weights.outer("classifier.weight", count, shape.width)
    bias = weights.outer("classifier.bias", count)
    product = graph.add("MatMul", pooled, graph.constant(_transposed(weight)))
    return graph.add("Add", product, graph.constant(np.array(bias)))


def finished(graph: Graph, output: str, size: int) -> onnx.ModelProto:
    """Return the model whose one output is named ``output``."""
    return graph.model(encoder_signature(output, size), OPSET)


class _Writer:
    def __init__(self, graph: Graph, shape: BertShape, weights: BertWeights) -> None:
        self._graph, self._shape, self._weights = graph, shape, weights

    def encoder(self) -> str:
        graph, shape, width = self._graph, self._shape, self._shape.width
        words = self._weights.get("embeddings.word_embeddings.weight", -1, width)
        segment = self._weights.get("embeddings.token_type_embeddings.weight", -1, width)[0]
        places = self._weights.get("embeddings.position_embeddings.weight", -1, width)
        hidden = graph.add("Gather", graph.constant(np.array(words)), "input_ids")
        hidden = graph.add("Add", hidden, graph.constant(np.array(segment)))
        tokens = graph.add("Shape", "input_ids", start=1, end=2)
        begin = graph.constant(np.array([0], np.int64))
        cut = graph.add("Slice", graph.constant(np.array(places)), begin, tokens)
        hidden = self._normalised(graph.add("Add", hidden, cut), "embeddings.LayerNorm")
        for number in range(shape.layers):
            hidden = self._layer(hidden, f"encoder.layer.{number}")
        return hidden

    def linear(self, source: str, name: str, size_in: int, size_out: int) -> str:
        weight = self._weights.get(f"{name}.weight", size_out, size_in)
        product = self._graph.add("MatMul", source, self._graph.constant(_transposed(weight)))
        bias = self._weights.get(f"{name}.bias", size_out)
        return self._graph.add("Add", product, self._graph.constant(np.array(bias)))

    def scalar(self, value: int) -> str:
        return self._graph.constant(np.array(value, np.int64))

    def _layer(self, hidden: str, name: str) -> str:
        graph, width = self._graph, self._shape.width
        attended = self.linear(
            self._attention(hidden, f"{name}.attention.self"), f"{name}.attention.output.dense",
            width, width,
        )  # fmt: skip
        hidden = self._normalised(
            graph.add("Add", attended, hidden), f"{name}.attention.output.LayerNorm"
        )
        inner_size = len(self._weights.get(f"{name}.intermediate.dense.bias", -1))
        inner = self.linear(hidden, f"{name}.intermediate.dense", width, inner_size)
        inner = graph.add("Gelu", inner, approximate=self._shape.approximate)
        outer = self.linear(inner, f"{name}.output.dense", inner_size, width)
        return self._normalised(graph.add("Add", outer, hidden), f"{name}.output.LayerNorm")

    def _attention(self, hidden: str, name: str) -> str:
        graph, width = self._graph, self._shape.width
        head = width // self._shape.heads
        query = graph.add("Transpose", self._heads(hidden, f"{name}.query"), perm=[0, 2, 1, 3])
        key = graph.add("Transpose", self._heads(hidden, f"{name}.key"), perm=[0, 2, 3, 1])
        value = graph.add("Transpose", self._heads(hidden, f"{name}.value"), perm=[0, 2, 1, 3])
        scale = graph.constant(np.array(head**-0.5, np.float32))
        scores = graph.add("Mul", graph.add("MatMul", query, key), scale)
        shares = graph.add("Softmax", scores, axis=-1)
        mixed = graph.add("Transpose", graph.add("MatMul", shares, value), perm=[0, 2, 1, 3])
        return graph.add("Reshape", mixed, graph.constant(np.array([0, 0, width], np.int64)))

    def _heads(self, hidden: str, name: str) -> str:
        width, heads = self._shape.width, self._shape.heads
        projected = self.linear(hidden, name, width, width)
        sizes = np.array([0, 0, heads, width // heads], np.int64)
        return self._graph.add("Reshape", projected, self._graph.constant(sizes))

    def _normalised(self, hidden: str, name: str) -> str:
        width = self._shape.width
        scale = self._graph.constant(np.array(self._weights.get(f"{name}.weight", width)))
        shift = self._graph.constant(np.array(self._weights.get(f"{name}.bias", width)))
        return self._graph.add(
            "LayerNormalization", hidden, scale, shift, axis=-1, epsilon=self._shape.epsilon
        )


def _transposed(weight: Array) -> Array:
    return np.ascontiguousarray(weight.T)


def _whole(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or not 1 <= value <= 2**20:
        raise ConversionRefused(f"config.json: {key} {shown(value)} must be a whole number from 1")
    return value
