"""Smaller weights: bytes shrink, answers stay within what was measured, and loss is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.convert import ConvertOptions, convert
from models.convert.quantize import quantize
from models.convert.weights import (
    WeightsFile,
    as_blocks,
    as_int8,
    block_scales,
    column_scales,
    row_scales,
)
from models.errors import ConversionRefused
from models.graph_check import check_structure, reason_not_to_batch
from models.package import Package
from models.parity import graph_answer, labels_text
from models.zoo.encoder import EncoderShape, write_encoder
from models.zoo.heavy import write_dense
from models.zoo.recommender import write_recommender
from tests import graphs

FLOAT = onnx.TensorProto.FLOAT
SMALLER = {"int8": 3.5, "int8-weights": 3.4, "fp16": 1.95}
MODES = tuple(SMALLER)
RNG = np.random.default_rng(3)
WEIGHTS = RNG.standard_normal((96, 64), dtype=np.float32) * np.float32(0.1)


def encoder(folder: Path) -> Path:
    return write_encoder(folder / "encoder.onnx", EncoderShape(
        layers=2, width=96, heads=4, inner=192, vocabulary=2000, positions=64))  # fmt: skip


def dense(folder: Path) -> Path:
    return write_dense(folder, 16)


def recommender(folder: Path) -> Path:
    return write_recommender(folder, mib=1)


def smaller(path: Path, mode: str, folder: Path, **options: object) -> Package:
    folder.mkdir(exist_ok=True)
    return convert("m", path, ConvertOptions(quantize=mode, folder=folder, **options))


def gemm(**attributes: object) -> onnx.ModelProto:
    weight = WEIGHTS.T.copy() if attributes.get("transB") else WEIGHTS
    return graphs.build(
        [onnx.helper.make_node("Gemm", ["x", "w", "b"], ["y"], **attributes)],
        [graphs.value("x", FLOAT, ["N", 96])],
        [graphs.value("y", FLOAT, ["N", 64])],
        [graphs.weights("w", weight), graphs.weights("b", np.arange(64, dtype=np.float32))],
    )


def saved(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [encoder, dense, recommender])
def test_weights_shrink_and_the_loss_is_recorded(make, mode: str, tmp_path: Path):
    """What is sent is several times smaller, and the manifest says how far the answers moved."""
    path = make(tmp_path)
    before = sum(each.size_bytes for each in convert("m", path).objects)
    package = smaller(path, mode, tmp_path / "small")
    after = sum(each.size_bytes for each in package.objects)
    # The rounding to pages of nothing is kept apart: the small parts of a graph do not shrink.
    assert before / after > SMALLER[mode] * 0.85
    record = package.manifest.source["quantize"]
    assert record["mode"] == mode
    assert record["before_bytes"] / record["after_bytes"] > SMALLER[mode]
    parity = package.manifest.parity
    assert 0 < parity["p999_difference"] <= parity["max_difference"] <= parity["tolerance"]
    assert (parity["rows"], parity["sample"], parity["against"]) == (32, None, "the original")


@pytest.mark.parametrize("mode", MODES)
def test_the_rewritten_graph_is_a_proper_one(mode: str, tmp_path: Path):
    """It passes onnx's own checker for order and names, and our check of what is served."""
    small = quantize(encoder(tmp_path), mode, tmp_path)
    model = onnx.load(small.path, load_external_data=False)
    check_structure(model, ConversionRefused)
    seen = {value.name for value in model.graph.input} | {t.name for t in model.graph.initializer}
    for node in model.graph.node:
        assert set(node.input) <= seen | {""}
        assert not set(node.output) & seen
        seen.update(node.output)
    names = [node.name for node in model.graph.node if node.name]
    assert len(names) == len(set(names))


def test_dynamic_int8_is_never_batched_across_requests(tmp_path: Path):
    """One scale for the whole input would let one caller's row change another's."""
    reasons = {}
    for mode in MODES:
        model = onnx.load(quantize(dense(tmp_path), mode, tmp_path).path, load_external_data=False)
        reasons[mode] = reason_not_to_batch(model)
    assert reasons == {
        "int8": "DynamicQuantizeLinear takes one scale for the whole batch",
        "int8-weights": None,
        "fp16": None,
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("attributes", [{}, {"transB": 1}])
def test_gemm_keeps_its_bias_and_its_order(mode: str, attributes: dict, tmp_path: Path):
    """A Gemm is rewritten with its C added, whichever way its B lies."""
    path = saved(tmp_path, gemm(**attributes))
    small = quantize(path, mode, tmp_path)
    inputs = {"x": RNG.standard_normal((5, 96), dtype=np.float32)}
    wanted = inputs["x"] @ WEIGHTS + np.arange(64, dtype=np.float32)
    got = graph_answer(small.path)(inputs)["y"]
    np.testing.assert_allclose(got, wanted, atol=0.04)
    assert small.weights == 1


def test_what_is_used_otherwise_stays_as_it_is(tmp_path: Path):
    """A weight that is also an output, or read in another way, is not rounded."""
    used = gemm()
    used.graph.output.append(graphs.value("w", FLOAT, [96, 64]))
    for model in (used, gemm(alpha=0.5), gemm(transA=1)):
        with pytest.raises(ConversionRefused, match="no float32 weights of MatMul, Gemm or Gather"):
            quantize(saved(tmp_path, model), "int8", tmp_path)


def test_inputs_shared_by_several_matrices_are_rounded_once(tmp_path: Path):
    """Query, key and value read one input: one rounding serves all three, whatever their order."""
    small = quantize(encoder(tmp_path), "int8", tmp_path)
    model = onnx.load(small.path, load_external_data=False)
    kinds = [node.op_type for node in model.graph.node]
    # Two layers of six products; query, key and value share.
    assert kinds.count("MatMulInteger") == 12
    assert kinds.count("DynamicQuantizeLinear") == 8


def test_too_large_a_loss_is_refused_with_the_figures(tmp_path: Path):
    """The push ends before anything is sent, and says how much would have been lost."""
    with pytest.raises(ConversionRefused) as refusal:
        smaller(dense(tmp_path), "int8", tmp_path / "small", tolerance=1e-4)
    message = str(refusal.value)
    for part in ("--quantize int8 loses too much on 32 made-up rows", "largest difference 0.",
                 "99.9 % are below 0.", "0 labels changed", "the tolerance is 0.0001",
                 "--tolerance"):  # fmt: skip
        assert part in message


def test_labels_that_change_within_the_tolerance_are_told_too(tmp_path: Path):
    """They are no reason to refuse, for the original was in two minds; they are a loss."""
    one = RNG.standard_normal((96, 1), dtype=np.float32)
    many = one + np.float32(1e-4) * RNG.standard_normal((96, 64), dtype=np.float32)
    model = graphs.build(
        [
            onnx.helper.make_node("MatMul", ["x", "w"], ["scores"]),
            onnx.helper.make_node("Softmax", ["scores"], ["p"]),
            onnx.helper.make_node("ArgMax", ["p"], ["label"], axis=1, keepdims=0),
        ],
        [graphs.value("x", FLOAT, ["N", 96])],
        [graphs.value("label", onnx.TensorProto.INT64, ["N"]), graphs.value("p", FLOAT, ["N", 64])],
        [graphs.weights("w", many)],
    )
    parity = smaller(saved(tmp_path, model), "int8", tmp_path / "small").manifest.parity
    assert (parity["label_disagreements"], parity["rows"]) == (0, 32)
    assert parity["ties"] > 0
    said = labels_text(0, parity["ties"])
    assert said.startswith(f"{parity['ties']} label")
    assert said.endswith("within twice the tolerance)")
    assert labels_text(1, 0) == "1 label changed"
    assert labels_text(2, 3).startswith("5 labels changed (3 where")


def test_the_loss_is_measured_on_the_sample(tmp_path: Path):
    """Rows of tokens are taken from a JSON file with a list for each text."""
    sample = tmp_path / "texts.json"
    ids = RNG.integers(0, 2000, (3, 7)).tolist()
    sample.write_text(json.dumps({"input_ids": ids, "attention_mask": [[1] * 7] * 3}))
    package = smaller(encoder(tmp_path), "int8", tmp_path / "small", sample=sample)
    parity = package.manifest.parity
    assert (parity["rows"], parity["sample"]) == (3, "texts.json")
    assert parity["golden"][0]["inputs"]["input_ids"] == ids[0]


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([[1, 2], [3]], "all of one length"),
        ([[1.5, "x"]], "must be INT64"),
        ([[[1], [2]]] * 2, r"rows have shape \[2, 1\], the model takes \[-1\]"),
    ],
)
def test_a_sample_of_ragged_rows_is_refused(ids: object, reason: str, tmp_path: Path):
    """A column that is no tensor is named, with what is wrong with it."""
    sample = tmp_path / "texts.json"
    sample.write_text(json.dumps({"input_ids": ids, "attention_mask": [[1, 1], [1, 1]]}))
    with pytest.raises(ConversionRefused, match=reason):
        smaller(encoder(tmp_path), "int8", tmp_path / "small", sample=sample)


def test_an_unknown_mode_is_refused(tmp_path: Path):
    """The message lists the modes there are."""
    with pytest.raises(ConversionRefused, match="'int4': use one of int8, int8-weights, fp16"):
        smaller(dense(tmp_path), "int4", tmp_path / "small")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(mode: str, value: float, tmp_path: Path):
    """NaN and infinity have no place in a smaller form; the weight is named."""
    model = gemm()
    broken = WEIGHTS.copy()
    broken[3, 4] = value
    model.graph.initializer[0].CopyFrom(graphs.weights("w", broken))
    with pytest.raises(ConversionRefused, match="weights 'w': a value is"):
        quantize(saved(tmp_path, model), mode, tmp_path)


def test_a_value_too_large_for_fp16_is_refused(tmp_path: Path):
    """Rounding to infinity would not be a loss of precision but of the answer."""
    model = gemm()
    model.graph.initializer[0].CopyFrom(graphs.weights("w", WEIGHTS * 1e6))
    with pytest.raises(ConversionRefused, match="too large for fp16"):
        quantize(saved(tmp_path, model), "fp16", tmp_path)


def test_names_of_an_earlier_rewrite_do_not_clash(tmp_path: Path):
    """A model that was made smaller once can be made smaller again."""
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    path = recommender(tmp_path)
    small = quantize(path, "int8", first)
    with pytest.raises(ConversionRefused, match="no float32 weights"):
        quantize(small.path, "int8", second)
    model = gemm()
    model.graph.node.insert(0, onnx.helper.make_node("Identity", ["x"], ["ramrack/quantized_1"]))
    model.graph.node[1].input[0] = "ramrack/quantized_1"
    again = quantize(saved(tmp_path, model), "int8", second)
    assert graph_answer(again.path)({"x": WEIGHTS[:, :1].T.copy()})["y"].shape == (1, 64)


def test_weights_in_folders_of_their_own_are_compared_too(tmp_path: Path):
    """The runtime enters no folders, so the original is laid out flat for the comparison."""
    model = gemm()
    (tmp_path / "deep").mkdir()
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True,
              location="deep/w.bin", size_threshold=1024)  # fmt: skip
    package = smaller(tmp_path / "model.onnx", "int8-weights", tmp_path / "small")
    assert package.manifest.parity["max_difference"] > 0


def test_a_full_disk_is_said_with_the_way_out():
    """Whatever fails to be written is told where it should have gone."""
    with (
        pytest.raises(ConversionRefused, match="no room in /dev for the smaller weights: set TMP"),
        WeightsFile(Path("/dev/full")) as file,
    ):
        file.add("w", FLOAT, WEIGHTS.shape, [WEIGHTS])


def test_rounding_is_to_the_nearest_step():
    """Each form is at most half a step off, also where rows do not fill the last block."""
    steps = row_scales(WEIGHTS, "w")
    back = np.concatenate(list(as_int8(WEIGHTS, steps))) * steps
    assert np.abs(back - WEIGHTS).max() <= steps.max() * 0.5001
    steps = column_scales(WEIGHTS, "w")
    back = np.concatenate(list(as_int8(WEIGHTS, steps))) * steps
    assert np.abs(back - WEIGHTS).max() <= steps.max() * 0.5001
    odd = WEIGHTS[:70]
    scales = block_scales(odd, "w")
    blocks = np.concatenate(list(as_blocks(odd, scales)))
    assert (blocks.shape, scales.shape) == ((64, 2, 64), (64, 2))
    back = ((blocks.astype(np.float32) - 128) * scales[:, :, None]).reshape(64, 128)[:, :70].T
    assert np.abs(back - odd).max() <= scales.max() * 0.5001


def test_rows_of_nothing_but_zeros_stay_zeros():
    """Padding rows of a table have no largest value to scale by."""
    table = np.zeros((3, 8), dtype=np.float32)
    steps = row_scales(table, "w")
    assert not np.concatenate(list(as_int8(table, steps))).any()
