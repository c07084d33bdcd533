"""The computation of BertModel in plain numpy and double precision: what its graph is held to.

After "BERT: Pre-training of Deep Bidirectional Transformers" (Devlin et al., 2018) as Hugging Face
computes it. It shares no code with the writer of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models.convert.bert import BertShape, BertWeights

Matrix = NDArray[np.float64]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def reference_states(shape: BertShape, weights: BertWeights, ids: Sequence[int]) -> Matrix:
    """Return the last hidden states ``(tokens, width)`` of one text."""

    def weight(name: str) -> Matrix:
        # The shapes were checked when the graph was written.
        return np.asarray(weights.get(name, *shapes(name)), np.float64)

    def shapes(name: str) -> tuple[int, ...]:
        is_vector = name.endswith(".bias") or "LayerNorm" in name
        return (-1,) if is_vector else (-1, -1)

    def linear(x: Matrix, name: str) -> Matrix:
        return np.asarray(x @ weight(f"{name}.weight").T + weight(f"{name}.bias"))

    def norm(x: Matrix, name: str) -> Matrix:
        centred = x - x.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + shape.epsilon)
        return np.asarray(centred / spread * weight(f"{name}.weight") + weight(f"{name}.bias"))

    places = np.asarray(ids)
    x = (
        np.asarray(weights.get("embeddings.word_embeddings.weight", -1, -1)[places], np.float64)
        + weight("embeddings.token_type_embeddings.weight")[0]
        + weight("embeddings.position_embeddings.weight")[: len(places)]
    )
    x = norm(x, "embeddings.LayerNorm")
    head = shape.width // shape.heads
    for number in range(shape.layers):
        name = f"encoder.layer.{number}"
        query, key, value = (
            linear(x, f"{name}.attention.self.{part}").reshape(len(places), shape.heads, head)
            for part in ("query", "key", "value")
        )
        scores = softmax(np.einsum("qhd,khd->hqk", query, key) / math.sqrt(head))
        mixed = np.einsum("hqk,khd->qhd", scores, value).reshape(len(places), shape.width)
        x = norm(linear(mixed, f"{name}.attention.output.dense") + x,
                 f"{name}.attention.output.LayerNorm")  # fmt: skip
        inner = gelu(linear(x, f"{name}.intermediate.dense"), shape.approximate)
        x = norm(linear(inner, f"{name}.output.dense") + x, f"{name}.output.LayerNorm")
    return np.asarray(x)


def reference_logits(weights: BertWeights, states: Matrix) -> Matrix:
    """Return what BertForSequenceClassification makes of the last hidden states."""
    dense = np.asarray(weights.get("pooler.dense.weight", -1, -1), np.float64)
    pooled = np.tanh(dense @ states[0] + weights.get("pooler.dense.bias", -1))
    classifier = np.asarray(weights.outer("classifier.weight", -1, -1), np.float64)
    return np.asarray(classifier @ pooled + weights.outer("classifier.bias", -1), np.float64)


def softmax(x: Matrix) -> Matrix:
    """Return the softmax over the last axis."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def gelu(x: Matrix, approximate: str) -> Matrix:
    """Return GELU, exact or by tanh."""
    if approximate == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + _erf(x / math.sqrt(2))))
