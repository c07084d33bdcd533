"""The models of the benches compute what they say, at any size."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest

from models.zoo import bench
from models.zoo.encoder import EncoderShape, write_encoder
from models.zoo.heavy import write_dense, write_forest

TINY = EncoderShape(layers=2, width=32, heads=4, inner=64, vocabulary=100, positions=16)


def run(path, **feed):
    return onnxruntime.InferenceSession(path).run(None, feed)[0]


def test_an_embedding_has_length_one_and_ignores_what_is_masked(tmp_path):
    """Tokens behind the mask change nothing, and the others do."""
    path = write_encoder(tmp_path / "encoder.onnx", TINY)
    ids = np.array([[5, 6, 7, 0, 0], [5, 6, 7, 9, 9], [5, 6, 8, 0, 0]], dtype=np.int64)
    mask = np.array([[1, 1, 1, 0, 0]] * 3, dtype=np.int64)
    first, padded, other = run(path, input_ids=ids, attention_mask=mask)
    assert np.linalg.norm(first) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(first, padded, atol=1e-6)
    assert np.abs(first - other).max() > 1e-3


def test_the_stated_size_is_the_real_one(tmp_path):
    """The count of parameters is that of the file."""
    path = write_encoder(tmp_path / "encoder.onnx", TINY)
    assert TINY.parameters * 4 < path.stat().st_size < TINY.parameters * 4 + 40_000
    assert 20e6 < EncoderShape().parameters < 100e6


def test_heads_must_divide_the_width(tmp_path):
    """A shape that cannot be is refused before anything is written."""
    with pytest.raises(ValueError, match="5 heads do not divide"):
        write_encoder(tmp_path / "x.onnx", EncoderShape(width=32, heads=5))
    assert not list(tmp_path.iterdir())


def test_dense_weights_are_as_many_as_asked_for_and_keep_the_scale(tmp_path):
    """Two layers of 16 MiB in a file of their own; what comes out is neither 0 nor huge."""
    path = write_dense(tmp_path, 32)
    assert (tmp_path / "dense.bin").stat().st_size == 32 << 20
    y = run(path, x=np.ones((1, 2048), dtype=np.float32))
    assert 0.1 < float(y.std()) < 10


def test_a_forest_has_whole_trees(tmp_path):
    """The sum over two trees depends on the row."""
    path = write_forest(tmp_path, 33_000)
    y = run(path, x=np.random.default_rng(1).random((2, 30), dtype=np.float32))
    assert y.shape == (2, 1)
    assert y[0] != y[1]


@pytest.mark.parametrize("write", [write_dense, write_forest])
def test_too_small_a_size_is_refused(tmp_path, write):
    """The message says the least that is possible."""
    with pytest.raises(ValueError, match="or more"):
        write(tmp_path, 1)


def test_the_index_names_what_to_push_and_what_others_open(tmp_path):
    """Only what was asked for is made; an ONNX model is pushed as others open it."""
    assert bench.main([str(tmp_path), "--only", "dense", "--dense-mib", "16"]) == 0
    index = json.loads((tmp_path / "bench.json").read_text())
    assert list(index) == ["dense"]
    assert index["dense"]["push"] == index["dense"]["onnx"]
    assert run(index["dense"]["onnx"][0], x=np.zeros((1, 2048), dtype=np.float32)).shape
    with pytest.raises(SystemExit):
        bench.main([str(tmp_path), "--dense-mib", "1"])
