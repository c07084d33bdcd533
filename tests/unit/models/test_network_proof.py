"""The proof of networks, with graphs and answers written by hand: no library is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models.convert.network_proof import prove
from models.convert.network_rows import Case, make_cases, read_cases, write_cases
from models.convert.networks import CASES_FILE, GRAPH_FILE, Order, finish_network
from models.convert.sample import Sample
from models.errors import ConversionRefused
from models.signature import Signature, TensorSpec

X = TensorSpec("x", "FP32", (-1, 3))
ONE = Signature((X,), (TensorSpec("y", "FP32", (-1, 3)),))


def save(path: Path, *nodes: onnx.NodeProto, shape: tuple[object, ...] = ("rows", 3)) -> Path:
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy"]
    constants = [helper.make_tensor("flat", TensorProto.INT64, [2], [1, 3])]
    graph = helper.make_graph(list(nodes), "g", infos[:1], infos[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9),
              path)  # fmt: skip
    return path


@pytest.fixture
def relu(tmp_path: Path) -> Path:
    return save(tmp_path / "m.onnx", helper.make_node("Relu", ["x"], ["y"]))


def test_a_graph_that_answers_the_same_is_proven(relu: Path) -> None:
    """Hundreds of rows, edges among them, and golden rows for later."""
    cases = make_cases(ONE, lambda rows: {"y": np.maximum(rows["x"], 0)}, None, None)
    proof = prove(relu, cases, 1e-5)
    assert proof.parity.rows >= 200
    assert (proof.parity.max_difference, proof.is_alone) == (0.0, False)
    assert proof.parity.golden
    assert {case.kind for case in cases} == {"rows", "alone", "finite", "non-finite"}


@pytest.mark.parametrize(
    ("native", "reason"),
    [
        (lambda x: np.maximum(x, 0) + 1e-4 * (np.abs(x) > 2), "largest difference 0.0001"),
        (lambda x: np.where(np.abs(x) > 1e3, x, np.maximum(x, 0)), "rows with very large"),
        (lambda x: np.maximum(x, 0)[:, :2], "has shape"),
    ],
)
def test_a_graph_that_answers_otherwise_is_refused(
    relu: Path, native: Callable[[np.ndarray], np.ndarray], reason: str
) -> None:
    """On ordinary rows, on huge ones, and in another shape."""
    cases = make_cases(ONE, lambda rows: {"y": native(rows["x"])}, None, None)
    with pytest.raises(ConversionRefused, match=reason):
        prove(relu, cases, 1e-5)


def test_not_a_number_is_counted_and_refuses_nothing(relu: Path) -> None:
    """A library that swallows NaN where the graph does not: the record says in how many rows."""

    def swallow(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"y": np.maximum(np.where(np.isnan(rows["x"]), np.float32(7), rows["x"]), 0)}

    cases = make_cases(ONE, swallow, None, None)
    record = prove(relu, cases, 1e-5).to_json()
    # Six rows with NaN in one place and six with nothing else, of as many with each infinity.
    assert record["non_finite"] == {"rows": 36, "rows_differing": 12}


def test_a_graph_for_one_row_is_proven_row_by_row(tmp_path: Path) -> None:
    """It fails on more, and that is no reason against it; a wrong answer still is."""
    path = save(tmp_path / "m.onnx", helper.make_node("Reshape", ["x", "flat"], ["y"]))
    cases = make_cases(ONE, lambda rows: {"y": rows["x"].copy()}, None, None)
    proof = prove(path, cases, 1e-5)
    assert proof.is_alone
    assert proof.parity.golden == ()
    wrong = make_cases(ONE, lambda rows: {"y": rows["x"] + 1e-3}, None, None)
    with pytest.raises(ConversionRefused, match=r"largest difference 0\.001"):
        prove(path, wrong, 1e-5)


def test_an_axis_of_the_length_of_the_rows_is_not_taken_for_them() -> None:
    """Five layers beside five rows: only another number of rows tells them apart."""
    signature = Signature((X,), (TensorSpec("h", "FP32", (5, -1, 3)),))

    def native(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"h": np.stack([rows["x"]] * 5)}

    assert "rows" not in {case.kind for case in make_cases(signature, native, None, None)}


def test_ids_that_no_made_up_row_has_come_from_the_sample() -> None:
    """Where nothing made up is accepted the sample is asked, and without one its option named."""
    signature = Signature((TensorSpec("id", "INT64", (-1,)),), (TensorSpec("y", "FP32", (-1,)),))

    def native(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if (rows["id"] < 1000).any():
            raise ConversionRefused("unknown id")
        return {"y": rows["id"].astype(np.float32)}

    with pytest.raises(ConversionRefused, match=r"\(unknown id\): give real ones with --sample"):
        make_cases(signature, native, None, None)
    sample = Sample("ids.csv", {"id": ["1000", "2000"]}, has_names=True)
    found = make_cases(signature, native, sample, None)[0]
    assert found.kind == "rows"
    assert set(found.inputs["id"]) == {1000, 2000}


@pytest.mark.parametrize(
    ("text", "columns"),
    [("age,fare,sex\n1,2,3\n", ("age", "fare", "sex")), ("x\n1\n", None), (None, None)],
)
def test_a_sample_names_the_columns_of_a_matrix(
    tmp_path: Path, text: str | None, columns: tuple[str, ...] | None
) -> None:
    """Requests may then name them; without names, or with other ones, the input stays as it is."""
    save(tmp_path / GRAPH_FILE, helper.make_node("Relu", ["x"], ["y"]))
    cases = make_cases(ONE, lambda rows: {"y": np.maximum(rows["x"], 0)}, None, None)
    write_cases(tmp_path / CASES_FILE, cases)
    sample = tmp_path / "rows.csv" if text is not None else None
    if sample is not None and text is not None:
        sample.write_text(text)
    order = Order(tmp_path / "m.pt2", "pt2", sample, tmp_path)
    answer = {"framework": "torch", "libraries": {"torch": "2.13.0"}}
    network = finish_network(order, answer, 1e-5)
    assert network.signature.inputs[0].columns == columns
    assert network.parity["libraries"] == {"torch": "2.13.0"}


def test_cases_come_back_as_they_were_written(tmp_path: Path) -> None:
    """Names with dots and slashes, scalars and bits of NaN included."""
    case = Case("alone", {"a/b.c:0": np.float32([np.nan, 1])}, {"y|z": np.float64(2.5)})
    write_cases(tmp_path / "cases.npz", [case])
    (found,) = read_cases(tmp_path / "cases.npz")
    assert found.kind == "alone"
    assert found.inputs["a/b.c:0"].tobytes() == case.inputs["a/b.c:0"].tobytes()
    assert found.outputs["y|z"] == 2.5
