"""Tiny text models on disk, as sentence-transformers and transformers save them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# The inner weights are just large enough for --quantize to change them.
WIDTH, INNER, LAYERS, HEADS, POSITIONS = 16, 256, 2, 2, 64
MAX_TOKENS = 24
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "brown", "fox", "jump",
         "##s", "##ed", "over", "lazy", "dog", "a", "b", "c", "good", "bad", "day", "?", "!", ".",
         *"defghijklmnopqrstuvwxyz0123456789")  # fmt: skip


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write float32 tensors by the format's own description."""
    header, offset, blobs = {}, 0, []
    for name, array in tensors.items():
        data = np.ascontiguousarray(array, "<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(array.shape),
                        "data_offsets": [offset, offset + len(data)]}  # fmt: skip
        offset += len(data)
        blobs.append(data)
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(blobs))


def bert_tensors(seed: int = 1, *, classes: int = 0) -> dict[str, np.ndarray]:
    """Return the weights of a BERT that is large enough to tell texts apart."""
    rng = np.random.default_rng(seed)
    prefix = "bert." if classes else ""
    found: dict[str, np.ndarray] = {}

    def linear(name: str, out: int, size: int) -> None:
        found[f"{prefix}{name}.weight"] = rng.normal(0, 0.4, (out, size)).astype(np.float32)
        found[f"{prefix}{name}.bias"] = rng.normal(0, 0.1, out).astype(np.float32)

    def norm(name: str) -> None:
        found[f"{prefix}{name}.weight"] = rng.normal(1, 0.1, WIDTH).astype(np.float32)
        found[f"{prefix}{name}.bias"] = rng.normal(0, 0.1, WIDTH).astype(np.float32)

    for name, rows in (("word", len(WORDS)), ("position", POSITIONS), ("token_type", 2)):
        table = rng.normal(0, 1, (rows, WIDTH)).astype(np.float32)
        found[f"{prefix}embeddings.{name}_embeddings.weight"] = table
    norm("embeddings.LayerNorm")
    for layer in (f"encoder.layer.{number}" for number in range(LAYERS)):
        for part in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{part}", WIDTH, WIDTH)
        linear(f"{layer}.attention.output.dense", WIDTH, WIDTH)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", INNER, WIDTH)
        linear(f"{layer}.output.dense", WIDTH, INNER)
        norm(f"{layer}.output.LayerNorm")
    if classes:
        linear("pooler.dense", WIDTH, WIDTH)
        found["classifier.weight"] = rng.normal(0, 1, (classes, WIDTH)).astype(np.float32)
        found["classifier.bias"] = rng.normal(0, 1, classes).astype(np.float32)
    return found


def write_folder(folder: Path, *, labels: tuple[str, ...] = (), pooling: str = "mean") -> Path:
    """Write a model: an embedding as sentence-transformers saves it, or a classifier."""
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, object] = {
        "architectures": ["BertForSequenceClassification" if labels else "BertModel"],
        "model_type": "bert", "hidden_size": WIDTH, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "intermediate_size": INNER, "hidden_act": "gelu",
        "max_position_embeddings": POSITIONS, "layer_norm_eps": 1e-12,
    }  # fmt: skip
    if labels:
        config["id2label"] = {str(place): label for place, label in enumerate(labels)}
    tokens = {"do_lower_case": True, "model_max_length": MAX_TOKENS}
    _write(folder / "config.json", config)
    _write(folder / "tokenizer_config.json", tokens)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    write_safetensors(folder / "model.safetensors", bert_tensors(classes=len(labels)))
    if not labels:
        kinds = ("Transformer", "Pooling", "Normalize")
        _write(folder / "modules.json", [
            {"idx": place, "name": str(place), "path": "" if not place else f"{place}_{kind}",
             "type": f"sentence_transformers.models.{kind}"} for place, kind in enumerate(kinds)
        ])  # fmt: skip
        (folder / "1_Pooling").mkdir(exist_ok=True)
        _write(folder / "1_Pooling" / "config.json", {
            "word_embedding_dimension": WIDTH, "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
            "pooling_mode_max_tokens": pooling == "max",
        })  # fmt: skip
        _write(folder / "sentence_bert_config.json", {"max_seq_length": MAX_TOKENS})
    return folder


def write_onnx(path: Path, opset: int = 17) -> Path:
    """Write an encoder as exporters do, mask and segments among its inputs, large weights beside.

    Its hidden states are word, segment and a mean over all tokens that the mask lets through.
    """
    rng = np.random.default_rng(3)
    table = rng.normal(0, 1, (len(WORDS), WIDTH)).astype(np.float32)
    segments = rng.normal(0, 1, (2, WIDTH)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["word"]),
        helper.make_node("Gather", ["segments", "token_type_ids"], ["segment"]),
        helper.make_node("Add", ["word", "segment"], ["token"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        _along("Unsqueeze", "mask", "two", 2, "column", opset),
        helper.make_node("Mul", ["token", "column"], ["kept"]),
        _along("ReduceSum", "kept", "one", 1, "sum", opset),
        helper.make_node("Add", ["token", "sum"], ["last_hidden_state"]),
    ]
    names = ("input_ids", "attention_mask", "token_type_ids")
    graph = helper.make_graph(
        nodes, "encoder",
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["rows", "tokens"]) for n in names],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT,
                                       ["rows", "tokens", WIDTH])],
        [numpy_helper.from_array(table, "words"), numpy_helper.from_array(segments, "segments"),
         numpy_helper.from_array(np.array([1]), "one"),
         numpy_helper.from_array(np.array([2]), "two")],
    )  # fmt: skip
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def _along(op: str, source: str, axes: str, axis: int, output: str, opset: int) -> onnx.NodeProto:
    # From opset 13 on axes are an input, before they are an attribute.
    if opset >= 13:
        return helper.make_node(op, [source, axes], [output])
    return helper.make_node(op, [source], [output], axes=[axis])


def _write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")
