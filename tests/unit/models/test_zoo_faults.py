"""The models of the fault bench answer what they were asked, and say who they are."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest

from models.zoo import faults


@pytest.mark.parametrize("products", [0, 2])
def test_an_echo_answers_its_input_and_its_version(products):
    """Whatever it computes besides, each row comes back as it was, with the mark."""
    session = onnxruntime.InferenceSession(faults.echo(7, products).SerializeToString())
    rows = np.array([[1, 2, 3, 4], [65535, 255, 0.5, -1]], np.float32)
    y, version = session.run(None, {"x": rows})
    np.testing.assert_array_equal(y, rows)
    np.testing.assert_array_equal(version, [[7], [7]])


def test_the_loop_ends_for_small_numbers():
    """It turns as often as it is told."""
    session = onnxruntime.InferenceSession(faults.endless().SerializeToString())
    assert session.run(None, {"n": np.array([5], np.int64)})[0].tolist() == [5.0]


def test_packages_hold_all_that_an_upload_needs(tmp_path):
    """Each object is there under its digest, and spare versions share none."""
    assert faults.main([str(tmp_path), "--spares", "2"]) == 0
    names = {path.stem for path in tmp_path.glob("*.json")}
    assert names == {
        "busy-1", "cut-dense", "cut-table", "echo-1", "echo-2", "storm-1", "storm-2", "slow-1",
        "endless-1", "spare-0", "spare-1",
    }  # fmt: skip
    first, second = (json.loads((tmp_path / f"spare-{n}.json").read_text()) for n in (0, 1))
    for digest in first["objects"]:
        assert (tmp_path / "objects" / digest.removeprefix("sha256:")).stat().st_size > 0
    assert len(first["objects"]) == 2
    assert not set(first["objects"]) & set(second["objects"])
