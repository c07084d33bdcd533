"""``scripts/bench parity`` at a small size: real pushes, a real server, answers over HTTP."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from loadtest.bench.parity import differences, library_itself, main
from loadtest.lab.tensors import decode, encode

pytestmark = [pytest.mark.extra, pytest.mark.slow]


@pytest.mark.process
@pytest.mark.timeout(300)
def test_what_is_served_answers_over_http_as_its_library(tmp_path: Path):
    """A graph and a library's own model: within the tolerance, and no label differs."""
    found = tmp_path / "found.json"
    families = ["--family", "xgboost", "--family", "catboost"]
    code = main(["--quick", "--rows", "600", "--json", str(found), *families])
    document = json.loads(found.read_bytes())
    assert code == 0, document["claims"]
    cases = document["measured"]["cases"]
    assert {case["name"].partition("-")[0]: case["runtime"] for case in cases} == {
        "catboost": "native", "xgboost": "onnx",
    }  # fmt: skip
    assert all(case["rows"] == 600 for case in cases)


def test_differences_are_relative_and_leave_ties_out():
    """A wrong number, an infinite one, a NaN on one side and a wrong label are all seen."""
    native = {
        "label": np.array([0, 1, 1]),
        "probabilities": np.array([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]]),
    }
    assert differences(native, native) == (0.0, 0)
    off = native | {"label": np.array([0, 0, 1])}
    assert differences(off, native) == (0.0, 0)  # the middle row is a tie
    off = native | {"label": np.array([1, 1, 1])}
    assert differences(off, native) == (0.0, 1)
    for wrong, expected, distance in ((2.0, 1.0, 1.0), (200.0, 100.0, 1.0)):
        found = differences({"prediction": np.array([wrong])}, {"prediction": np.array([expected])})
        assert found == (distance, 0)
    nan, one = np.array([np.nan]), np.array([1.0])
    assert differences({"prediction": nan}, {"prediction": nan}) == (0.0, 0)
    assert differences({"prediction": nan}, {"prediction": one})[0] == np.inf
    assert differences({"prediction": np.zeros((1, 2))}, {"prediction": one})[0] == np.inf


def test_several_labels_of_a_row_are_each_left_out_by_their_own_tie():
    """A label near a half excuses no other one of its row, and no label of another shape."""
    native = {
        "label": np.array([[1, 0], [0, 1]]), "probabilities": np.array([[0.5, 0.1], [0.2, 0.9]]),
    }  # fmt: skip
    off = native | {"label": np.array([[0, 0], [0, 1]])}
    assert differences(off, native) == (0.0, 0)
    off = native | {"label": np.array([[0, 1], [0, 1]])}
    assert differences(off, native) == (0.0, 1)
    assert differences(native | {"label": np.array([1, 0])}, native) == (np.inf, 0)
    tables = {
        "label": native["label"], "probabilities_0": np.array([[0.5, 0.5], [0.2, 0.8]]),
        "probabilities_1": np.array([[0.1, 0.9], [0.2, 0.8]]),
    }  # fmt: skip
    off = tables | {"label": np.array([[0, 1], [0, 1]])}
    assert differences(off, tables) == (0.0, 1)


def test_a_library_that_differs_from_itself_is_judged_by_exact_arithmetic():
    """What is served may be as far from it as the library is, and no further."""
    exact = {"output": np.array([1.0, 0.5])}
    native = {"output": np.array([1.0, 0.5 + 4e-5])}
    alone = {"output": np.array([1.0, 0.5 - 2e-5])}
    own, beside = library_itself({"output": np.array([1.0, 0.5 - 4e-5])}, native, alone, exact)
    assert own == pytest.approx(6e-5)
    assert beside == pytest.approx(1.0)
    worse = {"output": np.array([1.0, 0.5 - 8e-5])}
    assert library_itself(worse, native, alone, exact)[1] == pytest.approx(2.0)
    assert library_itself(exact, exact, exact, exact) == (0.0, 1.0)
    assert library_itself(native, exact, exact, exact) == (0.0, np.inf)


def test_tensors_go_there_and_back():
    """Numbers and texts come out of the binary form as they went in."""
    arrays = {"a": np.array([[1.5], [np.inf]]), "b": np.array([["日本"], [""]], dtype=object)}
    body, head_bytes = encode(arrays, {"a": "FP64", "b": "BYTES"})
    head = json.loads(body[:head_bytes])
    head["outputs"] = head.pop("inputs")
    text = json.dumps(head).encode()
    found = decode(text + body[head_bytes:], len(text))
    assert {name: array.tolist() for name, array in found.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }
