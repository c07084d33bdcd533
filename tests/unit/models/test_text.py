"""A tokenizer beside an encoder: texts in, embeddings or classes out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from models.convert import ConvertOptions, convert
from models.convert.opened import opened
from models.convert.text import MADE_UP
from models.convert.variants import unpacked
from models.errors import ConversionRefused, InputRefused, LoadFailed, RunFailed, RunTerminated
from models.inspect import Limits, inspect_version
from models.pack_child import pack
from models.package import Package
from models.runtime import tokens
from models.runtime.text import TextServable
from models.servable import Array, Servable
from models.text_form import parse_text_form
from tests import text_models

pytestmark = pytest.mark.extra
tokenizers = pytest.importorskip("tokenizers")


def texts(*elements: object) -> dict[str, Array]:
    array = np.empty(len(elements), dtype=object)
    array[:] = list(elements)
    return {"text": array}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return convert("tiny", text_models.write_folder(tmp_path_factory.mktemp("text") / "tiny"))


@pytest.fixture(scope="module")
def servable(package: Package) -> Iterator[Servable]:
    with opened(package) as found:
        yield found


def test_a_folder_becomes_a_version_that_takes_texts(package: Package):
    """One BYTES input, one embedding; the tokenizer is an object; the proof has golden rows."""
    signature = package.manifest.signature
    assert signature["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert signature["outputs"] == [{
        "name": "embedding", "datatype": "FP32", "shape": [-1, text_models.WIDTH],
        "method": "encode",
    }]  # fmt: skip
    form = parse_text_form(package.manifest)
    assert form.tokenizer in package.manifest.object_digests
    assert form.max_tokens == text_models.MAX_TOKENS
    assert package.manifest.parity["rows"] == len(MADE_UP)
    assert package.manifest.parity["golden"]


def test_a_row_is_the_same_alone_and_among_others(servable: Servable):
    """Neighbours of any length change nothing, and each row stands where its text stood."""
    rows = ["the quick brown fox", "dog", "", "jumps over the lazy dog", "fox ?", "a b c", "day"]
    alone = [servable.run(texts(row))[0][0] for row in rows]
    for order in ([0, 1, 2, 3, 4, 5, 6], [6, 0, 3, 3, 1, 2, 5, 4]):
        together = servable.run(texts(*(rows[place] for place in order)))[0]
        np.testing.assert_allclose(together, [alone[place] for place in order], atol=1e-6)
    assert len({tuple(np.round(row, 3)) for row in alone}) == len(rows)


def test_embeddings_are_normalised_and_no_rows_have_no_answer(servable: Servable):
    """Length 1 as the folder's Normalize asks; an empty batch is an empty answer."""
    embedding = servable.run(texts("the fox", "a dog"))[0]
    np.testing.assert_allclose(np.linalg.norm(embedding, axis=1), 1, atol=1e-6)
    assert servable.run(texts())[0].shape == (0, text_models.WIDTH)


@pytest.mark.parametrize(
    "text",
    ["fox " * 3000, "fox" + " " * 30_000 + "dog " * 100, "x" * 5000 + " dog",
     "quick brown " * 2000 + "x" * 9000],
)  # fmt: skip
def test_a_long_text_is_cut_as_in_training(package: Package, servable: Servable, text: str):
    """What is read of it at first gives the very tokens that the whole text gives."""
    form = parse_text_form(package.manifest)
    data = next(b"".join(o.chunks()) for o in package.objects if o.digest == form.tokenizer)
    whole = tokenizers.Tokenizer.from_str(data.decode())
    whole.enable_truncation(text_models.MAX_TOKENS)
    assert len(text) > 4096
    assert isinstance(servable, TextServable)
    found = servable._tokenizer.encode([text], lambda: None)[0]
    assert list(found.ids) == whole.encode(text.strip()).ids
    assert np.isfinite(servable.run(texts(text))[0]).all()


def test_no_character_of_any_kind_stops_it(servable: Servable):
    """NUL, emoji, controls, other scripts, UTF-8 as bytes."""
    answers = servable.run(texts("\0", "fox\0", "\N{GRINNING FACE}", "東京", "\x7f\r\n", b"fox"))[0]
    assert np.isfinite(answers).all()
    np.testing.assert_allclose(answers[5], servable.run(texts("fox"))[0][0], atol=1e-6)


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        (b"fox \xff", "element 1 is not UTF-8: byte 0xff at 4"),
        ("\ud800", "element 1 has a lone surrogate"),
        (7, "element 1 is int, expected a string"),
        ("." + " " * tokens.MAX_CHARACTERS + ".", "hold fewer than the 24 tokens"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(
    servable: Servable, element: object, reason: str
):
    """The caller is told which element and why."""
    with pytest.raises(InputRefused, match=reason):
        servable.run(texts("fox", element))


def test_a_run_is_ended_between_its_texts(package: Package):
    """terminate is felt while texts are tokenised, and later runs go on."""
    with opened(package) as found:
        assert isinstance(found, TextServable)
        ended: list[bool] = []

        class Ending:
            def run(self, inputs: dict[str, Array]) -> list[Array]:
                if not ended:
                    ended.append(True)
                    found.terminate()
                return [np.zeros((len(inputs["input_ids"]), text_models.WIDTH), np.float32)]

            def terminate(self) -> None: ...

            def close(self) -> None: ...

        whole, found._encoder = found._encoder, Ending()  # type: ignore[assignment]
        with pytest.raises(RunTerminated):
            found.run(texts("fox", "the fox"))
        assert len(found.run(texts("fox", "the fox"))[0]) == 2
        found._encoder = whole


@pytest.mark.parametrize("kind", ["Exception", "PanicException"])
def test_a_tokenizer_that_trips_fails_its_run_and_nothing_else(package: Package, kind: str):
    """A panic of the library is no Exception: it must not end the thread that runs."""
    failure = Exception if kind == "Exception" else type(kind, (BaseException,), {})

    class Broken:
        def encode_batch(self, _: object) -> None:
            raise failure("index out of bounds in /home/me/x")

    with opened(package) as found:
        assert isinstance(found, TextServable)
        found._tokenizer._tokenizer = Broken()
        with pytest.raises(RunFailed, match="tokenizer fails: 'index out of bounds in <file>'"):
            found.run(texts("fox"))


def test_what_is_packed_for_all_workers_leaves_the_tokenizer_resident(tmp_path: Path):
    """No graph names it, and every worker reads it."""
    folder = text_models.write_folder(tmp_path / "tiny")
    tensors = text_models.bert_tensors()
    # Large enough for an object of its own.
    tensors["embeddings.word_embeddings.weight"] = np.ones((2048, text_models.WIDTH), np.float32)
    text_models.write_safetensors(folder / "model.safetensors", tensors)
    package = convert("tiny", folder)
    unpacked(package, tmp_path)
    found = pack(package.manifest, tmp_path, threads=1, graph_path=tmp_path / "graph",
                 data_path=tmp_path / "data")  # fmt: skip
    form = parse_text_form(package.manifest)
    sizes = {each.digest: each.size_bytes for each in package.manifest.tensors}
    assert found["resident"][form.tokenizer] == sizes[form.tokenizer]


def test_a_classifier_answers_labels_and_probabilities(tmp_path: Path):
    """The classes have the names of id2label, the label is the likeliest."""
    folder = text_models.write_folder(tmp_path / "mood", labels=("bad", "fine", "good"))
    with opened(convert("mood", folder)) as found:
        label, probabilities = found.run(texts("good day", "bad dog", "fox"))
        assert found.run(texts("good day"), ["label"])[0].tolist() == [label[0]]
    assert found.signature.outputs[1].labels == ("bad", "fine", "good")
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    names = np.array(("bad", "fine", "good"))
    assert label.tolist() == names[probabilities.argmax(axis=1)].tolist()


@pytest.mark.parametrize(("pooling", "opset"), [("mean", 17), ("cls", 17), ("mean", 11)])
def test_an_onnx_encoder_of_others_gets_the_head_of_its_folder(
    tmp_path: Path, pooling: str, opset: int
):
    """Mask and segments are fed; the pooling is that of the folder, as numpy computes it."""
    folder = text_models.write_folder(tmp_path / "other", pooling=pooling)
    (folder / "model.safetensors").unlink()
    path = text_models.write_onnx(folder / "onnx" / "model.onnx", opset)
    package = convert("other", folder)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    ids = np.array([[2, 8, 5, 3]])  # [CLS] fox the [SEP]
    feeds = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
    states = session.run(None, feeds)[0][0]
    wanted = states.mean(axis=0) if pooling == "mean" else states[0]
    with opened(package) as found:
        got = found.run(texts("longer than the other one ?", "fox the"))[0][1]
    np.testing.assert_allclose(got, wanted / np.linalg.norm(wanted), atol=1e-5)


def test_rows_run_alone_where_the_graph_takes_one_scale_for_all(tmp_path: Path):
    """int8 rounds with one scale for a run: a row must not see its neighbours through it."""
    folder = text_models.write_folder(tmp_path / "tiny")
    (tmp_path / "smaller").mkdir()
    options = ConvertOptions(quantize="int8", folder=tmp_path / "smaller", tolerance=0.2)
    package = convert("tiny", folder, options)
    assert package.manifest.source["quantize"]["weights"] == 2 * text_models.LAYERS
    assert package.manifest.parity["least_cosine"] > 0.98
    assert not parse_text_form(package.manifest).are_rows_together
    with opened(package) as found:
        alone = found.run(texts("fox"))[0][0]
        together = found.run(texts("the", "fox", "dog", "bad"))[0][1]
    assert alone.tolist() == together.tolist()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f: _edit(f / "config.json", model_type="gpt2"), "model_type 'gpt2'"),
        (lambda f: _edit(f / "config.json", num_hidden_layers=3), "no 'encoder.layer.2"),
        (lambda f: _edit(f / "config.json", hidden_size=12), "implies"),
        (lambda f: _edit(f / "1_Pooling" / "config.json", pooling_mode_max_tokens=True), "pooling"),
        (lambda f: (f / "model.safetensors").unlink(), "none of model.onnx"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x10" * 40), "cut short"),
        (lambda f: _truncate(f / "model.safetensors"), "ends after the file"),
        (lambda f: (f / "config.json").write_text("{"), "config.json is not JSON"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json cannot be read"),
    ],
)
def test_a_folder_that_cannot_be_served_is_refused_with_the_reason(
    tmp_path: Path, change: object, reason: str
):
    """File and field are named."""
    folder = text_models.write_folder(tmp_path / "tiny")
    change(folder)  # type: ignore[operator]
    with pytest.raises(ConversionRefused, match=reason):
        convert("tiny", folder)


def test_inspection_opens_it_in_a_child_and_finds_rows_independent(
    package: Package, tmp_path: Path
):
    """The golden rows hold there, and rows of different requests may share a run."""
    unpacked(package, tmp_path)
    found = inspect_version(package.manifest, tmp_path, Limits(512 << 20, 90, 1))
    assert found.is_batchable, found.batch_reason
    assert found.drift == ""
    golden = json.loads(json.dumps(package.manifest.parity))
    golden["golden"][0]["outputs"]["embedding"][3] += 0.5
    manifest = dataclasses.replace(package.manifest, parity=golden)
    drifted = inspect_version(manifest, tmp_path, Limits(512 << 20, 90, 1))
    assert "golden row 1: embedding" in drifted.drift


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokenizer": "sha256:" + "0" * 64}, "no object of the manifest"),
        ({"max_tokens": 0}, "runtime.max_tokens 0 must be 1 to"),
        ({"engine": {"name": "native"}}, "runtime.engine must name one of"),
        ({"strip": "yes"}, "runtime.strip 'yes' must be true or false"),
    ],
)
def test_a_manifest_that_says_otherwise_is_not_opened(
    package: Package, change: dict[str, object], reason: str
):
    """Whoever pushed it wrote it: each field is checked."""
    manifest = dataclasses.replace(package.manifest, runtime={**package.manifest.runtime, **change})
    with pytest.raises(LoadFailed, match=reason):
        parse_text_form(manifest)


def test_a_missing_library_is_named_with_what_to_type(
    package: Package, monkeypatch: pytest.MonkeyPatch
):
    """The reason of the FAILED version is the command that mends it."""
    monkeypatch.setattr(tokens.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(LoadFailed, match=r"pip install 'ramrack\[text\]'"):
        tokens.prepare()


def _edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])
