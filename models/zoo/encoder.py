"""A sentence encoder, as a transformer with made-up weights: what it costs, not what it knows.

The shape is that of the small encoders in common use (six layers, 384 wide: 22.6 million
parameters). The graph is the usual one: embeddings, attention with a mask, GELU, a mean over the
tokens that count, and length one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnx

from models.convert.graph import Graph
from models.servable import Array
from models.signature import Signature, TensorSpec

_SEED: Final = 7
_MASKED: Final = -1e9  # a softmax makes it 0, and unlike -inf it has no NaN where all are masked
_TUNED_LAYERS: Final = 2
_OPSET: Final = 20  # the first with Gelu


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """How large an encoder is. ``positions``: the longest sequence it takes, in tokens."""

    layers: int = 6
    width: int = 384
    heads: int = 12
    inner: int = 1536
    vocabulary: int = 30_522
    positions: int = 512

    @property
    def parameters(self) -> int:
        """Number of weights."""
        layer = 4 * self.width * (self.width + 1) + 2 * self.width * self.inner
        layer += self.inner + self.width + 4 * self.width
        return (self.vocabulary + self.positions + 2) * self.width + self.layers * layer


def write_encoder(path: Path, shape: EncoderShape | None = None, tuning: int = 0) -> Path:
    """Write the encoder as one ONNX file.

    ``tuning`` above 0: one that was tuned further, which differs in its last two layers only.

    Inputs ``input_ids`` and ``attention_mask``, ``(rows, tokens) int64``; output ``embedding``,
    ``(rows, width) float32`` of length one.
    """
    shape = shape or EncoderShape()
    if shape.width % shape.heads:
        raise ValueError(f"encoder: {shape.heads} heads do not divide a width of {shape.width}")
    path.write_bytes(_Writer(shape, tuning).model().SerializeToString(deterministic=True))
    return path


class _Writer:
    """Writes one graph; the weights come in the order of the nodes, the same each time."""

    def __init__(self, shape: EncoderShape, tuning: int) -> None:
        self._shape = shape
        self._tuning = tuning
        self._graph = Graph()
        self._rng = np.random.default_rng(_SEED)

    def model(self) -> onnx.ModelProto:
        graph, width = self._graph, self._shape.width
        hidden = self._embedded()
        mask = graph.add("Cast", "attention_mask", to=onnx.TensorProto.FLOAT)
        inverse = graph.add("Sub", self._number(1.0), mask)
        bias = graph.add("Mul", inverse, self._number(_MASKED))
        bias = graph.add("Unsqueeze", bias, self._axes(1, 2))
        for layer in range(self._shape.layers):
            if self._tuning and layer == max(0, self._shape.layers - _TUNED_LAYERS):
                self._rng = np.random.default_rng([_SEED, self._tuning])
            attended = self._attention(hidden, bias)
            hidden = self._normalised(graph.add("Add", hidden, attended))
            inner = graph.add("Gelu", self._linear(hidden, width, self._shape.inner))
            outer = self._linear(inner, self._shape.inner, width)
            hidden = self._normalised(graph.add("Add", hidden, outer))
        self._pooled(hidden, mask)
        signature = Signature(
            inputs=(
                TensorSpec("input_ids", "INT64", (-1, -1)),
                TensorSpec("attention_mask", "INT64", (-1, -1)),
            ),
            outputs=(TensorSpec("embedding", "FP32", (-1, width)),),
        )
        return graph.model(signature, _OPSET)

    def _embedded(self) -> str:
        graph, shape = self._graph, self._shape
        words = graph.add("Gather", self._weight(shape.vocabulary, shape.width), "input_ids")
        tokens = graph.add("Shape", "input_ids", start=1, end=2)
        places = graph.add(
            "Slice", self._weight(shape.positions, shape.width), self._axes(0), tokens
        )
        return self._normalised(graph.add("Add", words, places))

    def _attention(self, hidden: str, bias: str) -> str:
        graph, width = self._graph, self._shape.width
        per_head = width // self._shape.heads
        query = graph.add("Transpose", self._split(hidden), perm=[0, 2, 1, 3])
        key = graph.add("Transpose", self._split(hidden), perm=[0, 2, 3, 1])
        value = graph.add("Transpose", self._split(hidden), perm=[0, 2, 1, 3])
        scores = graph.add("MatMul", query, key)
        scores = graph.add("Mul", scores, self._number(per_head**-0.5))
        shares = graph.add("Softmax", graph.add("Add", scores, bias), axis=-1)
        mixed = graph.add("Transpose", graph.add("MatMul", shares, value), perm=[0, 2, 1, 3])
        joined = graph.add("Reshape", mixed, self._axes(0, 0, width))
        return self._linear(joined, width, width)

    def _split(self, hidden: str) -> str:
        heads, width = self._shape.heads, self._shape.width
        projected = self._linear(hidden, width, width)
        return self._graph.add("Reshape", projected, self._axes(0, 0, heads, width // heads))

    def _pooled(self, hidden: str, mask: str) -> None:
        graph = self._graph
        counted = graph.add("Mul", hidden, graph.add("Unsqueeze", mask, self._axes(2)))
        summed = graph.add("ReduceSum", counted, self._axes(1), keepdims=0)
        tokens = graph.add("ReduceSum", mask, self._axes(1), keepdims=1)
        mean = graph.add("Div", summed, graph.add("Max", tokens, self._number(1.0)))
        length = graph.add("ReduceL2", mean, self._axes(1), keepdims=1)
        length = graph.add("Max", length, self._number(1e-12))
        graph.add("Div", mean, length, output="embedding")

    def _normalised(self, hidden: str) -> str:
        width = self._shape.width
        scale = self._graph.constant(np.ones(width, dtype=np.float32))
        shift = self._graph.constant(np.zeros(width, dtype=np.float32))
        return self._graph.add("LayerNormalization", hidden, scale, shift, axis=-1, epsilon=1e-12)

    def _linear(self, source: str, width_in: int, width_out: int) -> str:
        product = self._graph.add("MatMul", source, self._weight(width_in, width_out))
        bias = self._graph.constant(np.zeros(width_out, dtype=np.float32))
        return self._graph.add("Add", product, bias)

    def _weight(self, *shape: int) -> str:
        drawn: Array = self._rng.standard_normal(shape, dtype=np.float32) * np.float32(0.05)
        return self._graph.constant(drawn)

    def _number(self, value: float) -> str:
        return self._graph.constant(np.array(value, dtype=np.float32))

    def _axes(self, *values: int) -> str:
        return self._graph.constant(np.array(values, dtype=np.int64))
