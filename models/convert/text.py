"""Text models: a folder with a tokenizer and an encoder becomes a version that takes texts.

The graph is written from the weights (BERT), or is the folder's own ONNX file with a head. What the
version answers is then held to a second computation: BERT in plain numpy and double precision, or
the folder's graph as it is, pooled in numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import onnx

from models.convert import bert_reference as reference
from models.convert.bert import BertShape, BertWeights, classify, finished, hidden_states
from models.convert.extras import need
from models.convert.graph import Graph
from models.convert.onnx_file import About, package_onnx
from models.convert.opened import answer_of, opened
from models.convert.safetensors import read_safetensors
from models.convert.text_folder import TextFolder, read_text_folder
from models.convert.text_head import PROBABILITIES, pool, pooled, share, with_head
from models.errors import ConversionRefused
from models.graph_check import reason_not_to_batch
from models.graph_signature import graph_signature
from models.package import BytesObject, Package
from models.parity import Parity, compare
from models.servable import Array
from models.signature import Signature, TensorSpec
from models.text_form import EMBEDDING, INPUT_NAME, TextForm
from registry.manifest import TensorEntry

if TYPE_CHECKING:
    from models.convert.sample import Sample

# Compared on these, and on the first rows of a sample: each is computed twice.
MADE_UP: Final = (
    "", "A short sentence.", "The quick brown fox jumps over the lazy dog, twice; why?",
    "Übergrößenträger in Zürich", "東京で寿司を食べた", "emoji \N{GRINNING FACE}, NUL \0, tab \t",
    "NUMBERS 3.14 and UPPER case", "word " * 600,
)  # fmt: skip
_SAMPLE_ROWS: Final = 32
_CHUNK_ROWS: Final = 8
# One text alone, as the encoder of the folder computes it: from token ids to the row's numbers.
RowAnswer = Callable[[Sequence[int], Sequence[int]], Array]


@dataclass(frozen=True, slots=True)
class TextModel:
    """A text model before it is packed: its graph, in memory, and what surrounds it."""

    graph: onnx.ModelProto
    tokenizer: bytes
    folder: TextFolder
    answer: RowAnswer
    framework: str


def read_text(path: Path) -> TextModel:
    """Return the text model of a folder, or raise ConversionRefused."""
    need("tokenizers")
    folder = read_text_folder(path)
    read = _read_onnx if folder.is_onnx else _read_bert
    graph, answer = read(folder)
    framework = "onnx" if folder.is_onnx else "transformers"
    return TextModel(graph, tokenizer_json(folder), folder, answer, framework)


def package_text(name: str, model: TextModel) -> Package:
    """Return the package of a text model, without a record. Its graph is used up."""
    encoder = graph_signature(model.graph, ConversionRefused)
    are_rows_together = reason_not_to_batch(model.graph) is None
    inner = package_onnx(name, model.graph, About())
    tokenizer = BytesObject.of(model.tokenizer)
    form = TextForm(
        tokenizer=tokenizer.digest,
        max_tokens=model.folder.max_tokens,
        is_stripped=model.folder.is_stripped,
        is_lowercase=model.folder.is_lowercase,
        are_rows_together=are_rows_together,
        engine=inner.manifest.runtime,
        encoder=encoder,
    )
    manifest = replace(
        inner.manifest,
        tensors=(*inner.manifest.tensors, TensorEntry(tokenizer.digest, tokenizer.size_bytes)),
        signature=text_signature(encoder, model.folder.labels).to_json(),
        runtime=form.to_json(),
    )
    return Package(manifest, (*inner.objects, tokenizer))


def text_signature(encoder: Signature, labels: Sequence[str]) -> Signature:
    """Return what a client sees: one text in, an embedding or a class out."""
    given = encoder.outputs[0]
    outputs: tuple[TensorSpec, ...]
    if labels:
        outputs = (
            TensorSpec("label", "BYTES", (-1,), method="predict"),
            replace(given, labels=tuple(labels), method="predict_proba"),
        )
    else:
        outputs = (replace(given, method="encode"),)
    return Signature((TensorSpec(INPUT_NAME, "BYTES", (-1,)),), outputs)


def measured(model: TextModel, package: Package, texts: Array, tolerance: float) -> Parity:
    """Return how far the package's answers are from the folder's own, on the same texts."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(model.tokenizer.decode())
    tokenizer.no_padding()
    tokenizer.enable_truncation(model.folder.max_tokens)
    output = PROBABILITIES if model.folder.labels else EMBEDDING

    def native(inputs: dict[str, Array]) -> dict[str, Array]:
        rows = []
        for text in inputs[INPUT_NAME].tolist():
            if model.folder.is_stripped:
                text = text.strip()
            tokens = tokenizer.encode(text.lower() if model.folder.is_lowercase else text)
            rows.append(model.answer(tokens.ids, tokens.type_ids))
        answers = {output: np.stack(rows).astype(np.float64)}
        if labels := model.folder.labels:
            best = answers[output].argmax(axis=1)
            answers["label"] = np.array([labels[place] for place in best], dtype=object)
        return answers

    with opened(package) as servable:
        return compare(answer_of(servable, _CHUNK_ROWS), native, {INPUT_NAME: texts}, tolerance)


def texts_of(sample: Sample | None, rows: int = _SAMPLE_ROWS) -> Array:
    """Return the first texts of a sample, or made-up ones; raises ConversionRefused."""
    if sample is None:
        return _array(MADE_UP)
    names = list(sample.columns)
    name = INPUT_NAME if INPUT_NAME in names else names[0]
    if len(names) != 1 and name != INPUT_NAME:
        raise ConversionRefused(
            f"sample {sample.file}: one column, or one named {INPUT_NAME!r}, is needed; it has "
            f"{', '.join(names[:8])}"
        )
    cells = ["" if cell is None else cell for cell in sample.columns[name][:rows]]
    wrong = next((n for n, cell in enumerate(cells) if not isinstance(cell, str)), None)
    if wrong is not None:
        raise ConversionRefused(f"sample {sample.file}: row {wrong} is no text")
    return _array(cells)


def tokenizer_json(folder: TextFolder) -> bytes:
    """Return the tokenizer as tokenizer.json says it, made from vocab.txt where there is none."""
    if folder.tokenizer.name == "tokenizer.json":
        data = folder.tokenizer.read_bytes()
        try:
            from tokenizers import Tokenizer

            Tokenizer.from_str(data.decode())
        # The library raises plain Exception for whatever it finds.
        except Exception as error:
            raise ConversionRefused(f"tokenizer.json cannot be read: {error}") from error
        return data
    from tokenizers import BertWordPieceTokenizer

    config = folder.tokenizer_config
    lowercase = bool(config.get("do_lower_case", True))
    try:
        words = folder.tokenizer.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ConversionRefused(f"vocab.txt is not UTF-8 at byte {error.start}") from error
    vocabulary = {word: number for number, word in enumerate(words) if word}
    try:
        made = BertWordPieceTokenizer(
            vocabulary,
            handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
            strip_accents=config.get("strip_accents"),
            lowercase=lowercase,
        )
    except (TypeError, ValueError) as error:
        raise ConversionRefused(f"vocab.txt cannot be used: {error}") from None
    return made.to_str().encode()  # type: ignore[no-any-return]  # the library has no types


def _read_bert(folder: TextFolder) -> tuple[onnx.ModelProto, RowAnswer]:
    shape = BertShape.of(folder.config)
    weights = BertWeights(read_safetensors(folder.weights))
    graph = Graph()
    hidden = hidden_states(graph, shape, weights)
    if folder.labels:
        share(graph, classify(graph, shape, weights, hidden, len(folder.labels)))
        model = finished(graph, PROBABILITIES, len(folder.labels))
    else:
        pool(graph, hidden, folder.pooling, is_normalised=folder.is_normalised)
        model = finished(graph, EMBEDDING, shape.width)

    def answer(ids: Sequence[int], _: Sequence[int]) -> Array:
        states = reference.reference_states(shape, weights, ids)
        if folder.labels:
            return reference.softmax(reference.reference_logits(weights, states))
        return pooled(states, folder.pooling, is_normalised=folder.is_normalised)

    return model, answer


def _read_onnx(folder: TextFolder) -> tuple[onnx.ModelProto, RowAnswer]:
    import onnxruntime as ort

    try:
        model = onnx.load(folder.weights)
        session = ort.InferenceSession(str(folder.weights), providers=["CPUExecutionProvider"])
    # Neither library has a base class of its own for what it refuses.
    except Exception as error:
        raise ConversionRefused(f"{folder.weights.name} cannot be read: {error}") from error
    headed, source = with_head(
        model, folder.pooling, is_normalised=folder.is_normalised, classes=len(folder.labels)
    )
    types = {node.name: np.int32 if "int32" in node.type else np.int64
             for node in session.get_inputs()}  # fmt: skip

    def answer(ids: Sequence[int], segments: Sequence[int]) -> Array:
        given = {"input_ids": ids, "token_type_ids": segments, "attention_mask": [1] * len(ids)}
        feeds = {name: np.array([given[name]], dtype) for name, dtype in types.items()}
        raw = session.run([source], feeds)[0][0].astype(np.float64)
        if folder.labels:
            return reference.softmax(raw)
        states = raw if raw.ndim == 2 else raw[None]
        return pooled(states, folder.pooling, is_normalised=folder.is_normalised)

    return headed, answer


def _array(texts: Sequence[object]) -> Array:
    array = np.empty(len(texts), dtype=object)
    array[:] = list(texts)
    return array
