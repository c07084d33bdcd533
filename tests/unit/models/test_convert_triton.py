"""Model repositories of Triton: configuration, versions, labels, and what is refused."""

from __future__ import annotations

import contextlib
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.convert import convert
from models.convert.triton.labels import labelled
from models.convert.triton.pbtxt import MAX_DEPTH, parse
from models.convert.triton.repository import TritonModel, read_repository
from models.errors import ConversionRefused
from tests.graphs import id32

ONNX = 'backend: "onnxruntime"\n'
FOREST = 'backend: "fil" parameters { key: "model_type" value { string_value: "%s" } }'
LABELLED = ONNX + 'output [{name: "%s" data_type: TYPE_FP32 dims: [4] label_filename: "%s"}]'


def model_of(root: Path, config: str | None, *versions: str, name: str = "m") -> Path:
    folder = root / name
    for version in versions:
        (folder / version).mkdir(parents=True)
        onnx.save(id32(), folder / version / "model.onnx")
    folder.mkdir(exist_ok=True)
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    return folder


def only(root: Path) -> TritonModel:
    (model,) = read_repository(root)
    return model


def test_the_text_format_is_read_as_protobuf_reads_it():
    """Comments, both quotes, joined texts, lists, messages in braces and angles, separators."""
    config = parse(
        """
        # a comment { with: "marks" }
        name: "a" 'b' "\\"c\\n", max_batch_size : 8;
        input [ { name: "x", dims: [ -1, 4 ] }, < name: 'y' dims: 1 dims: 2 > ]
        dynamic_batching { preferred_batch_size: [4, 8] }
        parameters { key: "k" value: { string_value: "v" } } # the end
        """
    )
    assert (config.text("name"), config.number("max_batch_size")) == ('ab"c\n', 8)
    assert [one.text("name") for one in config.messages("input")] == ["x", "y"]
    assert [one.numbers("dims") for one in config.messages("input")] == [[-1, 4], [1, 2]]
    assert config.message("dynamic_batching").numbers("preferred_batch_size") == [4, 8]
    assert config.parameters() == {"k": "v"}
    assert config.message("absent").text("x") == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name: "a', "line 1: a character that has no place"),
        ("a: 1\nb {", "line 2: expected a field"),
        ("a: 1 }", "expected a field"),
        ("a [1 2]", "expected , or ]"),
        ("a: {", "expected a field"),
        ("a", "expected a value of a"),
        ("a:", "expected a value"),
        ("a: @", "a character"),
        ("a {" * (MAX_DEPTH + 2), f"more than {MAX_DEPTH} deep"),
    ],
)
def test_a_broken_configuration_is_refused_by_line(text: str, words: str):
    """Never a traceback, and never half a configuration."""
    with pytest.raises(ConversionRefused) as caught:
        parse(text)
    assert words in str(caught.value)


@given(st.text(alphabet='ab:{}<>[]",;#\n \\1-', max_size=60))
def test_any_text_is_read_or_refused(text: str):
    """Nothing else comes out of the reader."""
    with contextlib.suppress(ConversionRefused):
        parse(text)


def test_versions_are_numbers_in_their_order(tmp_path: Path):
    """10 comes after 9; folders that are no canonical number are named and left."""
    model_of(tmp_path, ONNX, "10", "9", "2", "010", "latest", "3.bak", ".tmp", "0")
    model = only(tmp_path)
    assert [version.number for version in model.versions] == [2, 9, 10]
    notes = " ".join(model.notes)
    assert all(repr(name) in notes for name in ("010", "latest", "3.bak", "0"))


def test_only_as_many_versions_as_are_kept_are_taken(tmp_path: Path):
    """Older ones would be removed again, and a second run would bring them anew."""
    model_of(tmp_path, ONNX, *map(str, range(1, 13)))
    model = only(tmp_path)
    assert [version.number for version in model.versions] == list(range(3, 13))
    assert "2 older versions" in model.notes[0]


@pytest.mark.parametrize(
    ("config", "settings", "words"),
    [
        (None, {}, ""),
        (ONNX + "max_batch_size: 0", {"batching": False}, ""),
        (ONNX + "max_batch_size: 8", {}, ""),
        (ONNX + "max_batch_size: 8 dynamic_batching { }", {"batching": True}, ""),
        (ONNX + "dynamic_batching { max_queue_delay_microseconds: 100 priority_levels: 2 "
         "default_queue_policy { default_timeout_microseconds: 2500000 max_queue_size: 9 } }",
         {"batching": True, "timeout_ms": 2500}, "max_queue_delay_ms"),
        (ONNX + "instance_group [ { kind: KIND_GPU count: 2 } ]", {}, "instance_group is not"),
        (ONNX + "version_policy: { all { }}", {}, "version_policy is not"),
    ],
)  # fmt: skip
def test_what_of_a_configuration_is_taken(
    tmp_path: Path, config: str | None, settings: object, words: str
):
    """Batching and deadlines become settings; the rest is named."""
    model_of(tmp_path, config, "1")
    model = only(tmp_path)
    assert (model.refusal, model.settings) == ("", settings)
    assert words in " ".join(model.notes)
    assert model.versions[0].file == (tmp_path / "m" / "1" / "model.onnx").resolve()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('platform: "ensemble" ensemble_scheduling { step [] }', "an ensemble joins models"),
        ('backend: "python"', "BLS included"),
        ('backend: "tensorrt"', "built for one GPU"),
        ('backend: "mine"', "'mine' is not known"),
        (FOREST % "treelite_checkpoint", "'treelite_checkpoint'"),
        (ONNX + "sequence_batching { }", "sequences keep state"),
        (ONNX + "model_transaction_policy { decoupled: True }", "exactly one answer"),
        (ONNX + 'name: "other"', "'other' is not that of its folder"),
        (ONNX + 'default_model_filename: "../../model.onnx"', "leads out of the folder"),
        (ONNX + 'default_model_filename: "gone.onnx"', "no such file"),
        (LABELLED % ("Y", "../../labels.txt"), "leads out of the folder"),
        (LABELLED % ("Y", "gone.txt"), "no such file"),
        ("max_batch_size: x", "'x' is no whole number"),
        ("{", "line 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_by_name(tmp_path: Path, config: str, words: str):
    """One model that cannot be taken says why, and the others are read all the same."""
    model_of(tmp_path, config, "1")
    model_of(tmp_path, None, "1", name="z")
    broken, good = read_repository(tmp_path)
    assert words in broken.refusal
    assert good.refusal == ""


def test_links_out_of_a_model_are_refused(tmp_path: Path):
    """A file, a version and a whole model that are somewhere else."""
    elsewhere = tmp_path / "elsewhere"
    onnx_file = model_of(elsewhere, None, "1") / "1" / "model.onnx"
    root = tmp_path / "root"
    (root / "a" / "1").mkdir(parents=True)
    (root / "a" / "1" / "model.onnx").symlink_to(onnx_file)
    (root / "b").mkdir()
    (root / "b" / "1").symlink_to(onnx_file.parent)
    (root / "c").symlink_to(elsewhere / "m")
    refusals = [model.refusal for model in read_repository(root)]
    assert ["link that leads out" in refusal for refusal in refusals] == [True] * 3


def test_a_pickle_is_never_opened(tmp_path: Path):
    """Not even under the name of a forest."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "xgboost.model").write_bytes(b"\x80\x04K\x01.")
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "fil"')
    assert "an import opens none" in only(tmp_path).refusal


def test_labels_stand_in_the_signature(tmp_path: Path):
    """In the order of the last dimension; a number that does not fit is refused."""
    folder = model_of(tmp_path, LABELLED % ("y", "labels.txt"), "1")
    (folder / "labels.txt").write_text("cat\ndog\n日本\nbird\n")
    model = only(tmp_path)
    assert model.labels == {"y": ["cat", "dog", "日本", "bird"]}
    package = convert("m", folder / "1" / "model.onnx")
    output = package.manifest.signature["outputs"][0]  # type: ignore[index,call-overload]
    name = output["name"]  # type: ignore[index,call-overload]
    found = labelled(package, {name: model.labels["y"]}).manifest.signature["outputs"]
    assert found[0]["labels"] == model.labels["y"]  # type: ignore[index,call-overload]
    with pytest.raises(ConversionRefused, match="2 labels for 4 classes"):
        labelled(package, {name: ["a", "b"]})
    with pytest.raises(ConversionRefused, match="'z' is none of the model's"):
        labelled(package, {"z": ["a"]})


def test_a_folder_without_models_is_refused(tmp_path: Path):
    """Rather than taken for an import that had nothing to do."""
    with pytest.raises(ConversionRefused, match="no model folder"):
        read_repository(tmp_path)
    (tmp_path / "m").mkdir()
    assert "no version folder" in only(tmp_path).refusal
