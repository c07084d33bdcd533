"""Versions that count terms: what their manifest may say, and which rows share a run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from models.computed import computed_manifest, engine_name, objects_beside
from models.errors import InputRefused, LoadFailed, RunTerminated
from models.runtime import terms
from models.runtime.term_counts import murmur3, open_counter
from models.runtime.terms import TermsServable, check_signature
from models.servable import Array
from models.signature import Signature, TensorSpec
from models.terms_form import TermInput, TermsForm, parse_terms_form
from registry.manifest import Manifest, TensorEntry

DIGEST = "sha256:" + "1" * 64
ITEM = TermInput(
    name="text", tensor="t", columns=3, vocabulary=DIGEST, analyzer="word", is_lowercase=True,
    accents=None, token_pattern=r"(?u)\b\w\w+\b", lengths=(1, 2), is_binary=False,
)  # fmt: skip
LINES = [json.dumps(["the"]).encode(), json.dumps(["good", "film", "good film"]).encode()]
TENSOR = TensorSpec("t", "INT64", (-1, -1, 2))
NUMBER = TensorSpec("age", "FP64", (-1, 1))
OUTPUT = TensorSpec("total", "INT64", (-1,))
FORM = TermsForm((ITEM,), {"name": "onnx"}, Signature((NUMBER, TENSOR), (OUTPUT,)), True)
SERVED = Signature((NUMBER, TensorSpec("text", "BYTES", (-1,))), (OUTPUT,))
MANIFEST = Manifest(
    model="m", graph="sha256:" + "0" * 64, tensors=(TensorEntry(DIGEST, 10),),
    signature=SERVED.to_json(), runtime=FORM.to_json(), parity=None, source={}, meta={}, created="",
)  # fmt: skip


class Summing:
    """A graph that adds up the counts of a row, and remembers what it was asked."""

    def __init__(self) -> None:
        self.signature = FORM.graph
        self.asked: list[Mapping[str, Array]] = []

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> list[Array]:
        self.asked.append(inputs)
        return [inputs["t"][:, :, 1].sum(axis=1)]

    def terminate(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def graph() -> Summing:
    return Summing()


@pytest.fixture
def servable(graph: Summing) -> TermsServable:
    return TermsServable([open_counter(ITEM, LINES)], graph, FORM, SERVED)


def rows(*texts: object) -> dict[str, Array]:
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return {"text": array, "age": np.zeros((len(texts), 1))}


def test_the_graph_is_given_columns_and_counts(servable: TermsServable, graph: Summing):
    """A stop word is taken out before words are paired; what a row lacks is column 3, counted 0."""
    found = servable.run(rows("Good THE film good", b"x", ""))
    assert found[0].tolist() == [4, 0, 0]
    (asked,) = graph.asked
    assert asked["t"].tolist() == [
        [[0, 2], [1, 1], [2, 1]], [[3, 0], [3, 0], [3, 0]], [[3, 0], [3, 0], [3, 0]]
    ]  # fmt: skip
    assert asked["age"].shape == (3, 1)


def test_rows_share_a_run_as_long_as_its_table_is_small(
    servable: TermsServable, graph: Summing, monkeypatch: pytest.MonkeyPatch
):
    """Each row is in one run, in its order; the answer is that of one run."""
    texts = ["good film", "film", "", "good good", "film good film"] * 3
    whole = servable.run(rows(*texts))[0]
    monkeypatch.setattr(terms, "_RUN_CELLS", 2 * (3 + 16 * 3))
    graph.asked.clear()
    assert servable.run(rows(*texts))[0].tolist() == whole.tolist()
    sizes = [len(asked["age"]) for asked in graph.asked]
    assert sum(sizes) == len(texts)
    assert max(sizes) > 1
    assert min(sizes) < len(texts)
    assert servable.run(rows())[0].shape == (0,)


def test_bad_inputs_are_named(servable: TermsServable):
    """What is missing, unknown, of another shape or of another number of rows."""
    good = rows("a")
    for change, reason in (
        ({"text": np.zeros(1)}, "input 'text': got float64"),
        ({"text": np.empty((1, 1), object)}, r"shape \[1, 1\], expected BYTES of shape \[-1\]"),
        ({"age": np.zeros((2, 1))}, "different numbers of rows"),
        ({"age": np.zeros((1, 2))}, r"input 'age': got shape \[1, 2\]"),
        ({"more": np.zeros(1)}, "input 'more' is unknown"),
    ):
        with pytest.raises(InputRefused, match=reason):
            servable.run(good | change)
    with pytest.raises(InputRefused, match="input 'age' is missing"):
        servable.run({"text": good["text"]})
    with pytest.raises(InputRefused, match="output 'other' is unknown"):
        servable.run(good, ["other"])


def test_a_run_that_is_told_to_end_ends_while_it_counts(servable: TermsServable):
    """Counting looks now and then; the next run is not affected."""

    class Ending(bytes):
        def decode(self, *_: Any) -> str:
            servable.terminate()
            return "good film"

    with pytest.raises(RunTerminated):
        servable.run(rows(Ending(b""), "film"))
    assert servable.run(rows("film"))[0].tolist() == [1]


def test_hashes_are_those_of_the_reference():
    """Values of the reference code, seed 0; the sign is the highest bit."""
    texts = ("", "hello", "hello, world", "The quick brown fox jumps over the lazy dog")
    assert [murmur3(text) for text in texts] == [0, 613153351, 345750399, 776992547]
    with pytest.raises(InputRefused, match="lone surrogate"):
        murmur3("\ud800")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([b"[]", b'["a", "b"]'], "2 terms, 2 of them different; the model has 3 columns"),
        ([b"[]", b'["a", "b", "a"]'], "3 terms, 2 of them different"),
        ([b"[]", b'["a", 2, "c"]'], "a line is no JSON list of texts"),
        ([b"[]", b'{"a": 1}'], "a line is no JSON list of texts"),
        ([b"[]", b"\xff"], "a line is no JSON list of texts"),
        ([b"[" * 100_000], "a line is no JSON list of texts"),
        ([], "has 0 terms"),
    ],
)
def test_a_damaged_vocabulary_is_not_opened(lines: list[bytes], reason: str):
    """Whoever pushed it wrote it."""
    with pytest.raises(LoadFailed, match=reason):
        open_counter(ITEM, lines)


def test_a_manifest_is_read_back_as_it_was_written():
    """What the graph computes, what lies beside it, and every field of the form."""
    assert parse_terms_form(MANIFEST) == FORM
    assert computed_manifest(MANIFEST).signature == FORM.graph.to_json()
    assert engine_name(MANIFEST) == "onnx"
    assert objects_beside(MANIFEST) == {DIGEST}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"vocabulary": "sha256:" + "2" * 64}, "is no object of the manifest"),
        ({"vocabulary": 3}, r"runtime.inputs\[0\].vocabulary"),
        ({"tensor": "age"}, "must be an input of runtime.graph of its own, INT64"),
        ({"n_features": 0}, "n_features 0 must be 1 to 2147483647"),
        ({"token_pattern": "(a+)+b"}, "token_pattern .* is none of those that are known"),
        ({"token_pattern": ["a"]}, "token_pattern .* is none of those that are known"),
        ({"ngram_range": [2, 1]}, "ngram_range .* must be two numbers"),
        ({"ngram_range": [1, 10**9]}, "ngram_range .* must be two numbers"),
        ({"analyzer": "own"}, "analyzer 'own' must be one of word, char, char_wb"),
        ({"strip_accents": "all"}, "strip_accents 'all' must be one of None, ascii, unicode"),
        ({"lowercase": 1}, "lowercase 1 must be true or false"),
        ({"name": None}, "name None must be a text"),
    ],
    ids=str,
)
def test_a_manifest_that_says_otherwise_is_not_opened(change: dict[str, Any], reason: str):
    """Each field is checked: a pattern of one's own could keep a worker busy for hours."""
    runtime = {**FORM.to_json(), "inputs": [ITEM.to_json() | change]}
    with pytest.raises(LoadFailed, match=reason):
        parse_terms_form(dataclasses.replace(MANIFEST, runtime=runtime))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"engine": {"name": "native"}}, "runtime.engine must name onnx"),
        ({"inputs": []}, "runtime.inputs must be a list of 1 to 256"),
        ({"inputs": [1]}, r"runtime.inputs\[0\] must be an object"),
        ({"inputs": [ITEM.to_json(), ITEM.to_json()]}, r"runtime.inputs\[1\].tensor 't' must be"),
        ({"graph": []}, "runtime.graph"),
        ({"dense": None}, "runtime.dense None must be true or false"),
    ],
    ids=str,
)
def test_a_form_that_is_none_is_not_opened(change: dict[str, Any], reason: str):
    """The reason names the field."""
    with pytest.raises(LoadFailed, match=reason):
        parse_terms_form(dataclasses.replace(MANIFEST, runtime={**FORM.to_json(), **change}))


def test_a_signature_that_is_not_the_graphs_is_not_opened():
    """Its texts, its other inputs and its outputs are held to the graph."""
    check_signature(SERVED, FORM)
    text = TensorSpec("text", "BYTES", (-1,))
    for inputs, outputs, reason in (
        ((NUMBER,), (OUTPUT,), "'text' must be BYTES"),
        ((NUMBER, TensorSpec("text", "BYTES", (-1, 2))), (OUTPUT,), "'text' must be BYTES"),
        ((text,), (OUTPUT,), "'age' is not what the graph takes"),
        ((NUMBER, text, TensorSpec("b", "FP64", (-1,))), (OUTPUT,), "'b' is not what the graph"),
        ((NUMBER, text), (), "outputs are not those of the graph"),
    ):
        with pytest.raises(LoadFailed, match=reason):
            check_signature(Signature(inputs, outputs), FORM)
