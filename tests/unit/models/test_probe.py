"""Probing: true shapes, and whether rows of different requests may share a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models.errors import InputRefused, LoadFailed
from models.graph_check import reason_not_to_batch
from models.probe import Probed, probe
from models.servable import Array
from models.signature import Signature, TensorSpec, parse_signature
from tests import graphs
from tests.unit.models.conftest import Shelf


def probe_model(shelf: Shelf, model: onnx.ModelProto) -> Probed:
    """Probe a model in this process."""
    reason = reason_not_to_batch(model)
    package = shelf.put(model)
    with_declared = parse_signature(package.manifest.signature)
    return probe(shelf.load(package).run, with_declared, reason)


def outputs_of(probed: Probed) -> dict[str, tuple[int, ...]]:
    return {spec.name: spec.shape for spec in probed.signature.outputs}


def state_model() -> onnx.ModelProto:
    """An LSTM-like state [layers,N,h]: the rows are on the second axis."""
    return graphs.build(
        [
            helper.make_node("Identity", ["x"], ["y"]),
            helper.make_node("Unsqueeze", ["x", "axis"], ["one"]),
            helper.make_node("Concat", ["one", "one", "one"], ["state"], axis=0),
        ],
        [graphs.value("x", TensorProto.FLOAT, ("N", 4))],
        [
            graphs.value("y", TensorProto.FLOAT, ("N", 4)),
            graphs.value("state", TensorProto.FLOAT, (3, "N", 4)),
        ],
        [graphs.weights("axis", np.array([0], np.int64))],
    )


def cumulative() -> onnx.ModelProto:
    """Each row holds the sum of all rows before it."""
    return graphs.build(
        [helper.make_node("CumSum", ["x", "axis"], ["y"])],
        [graphs.value("x", TensorProto.FLOAT, ("N", 4))],
        [graphs.value("y", TensorProto.FLOAT, ("N", 4))],
        [graphs.weights("axis", np.array(0, np.int64))],
    )


def outer_product() -> onnx.ModelProto:
    """Answers N x N: as many rows as asked, but every one sees all."""
    return graphs.build(
        [
            helper.make_node("Transpose", ["x"], ["t"]),
            helper.make_node("MatMul", ["x", "t"], ["y"]),
        ],
        [graphs.value("x", TensorProto.FLOAT, ("N", 4))],
        [graphs.value("y", TensorProto.FLOAT, ("N", "M"))],
    )


def wrong_shape() -> onnx.ModelProto:
    """Declares one label, answers one for each row, as LightGBM's converter does."""
    model = graphs.identity(TensorProto.INT64)
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    return model


def random_noise() -> onnx.ModelProto:
    """Answers differently each time."""
    return graphs.build(
        [helper.make_node("RandomNormalLike", ["x"], ["y"])],
        [graphs.value("x", TensorProto.FLOAT, ("N", 4))],
        [graphs.value("y", TensorProto.FLOAT, ("N", 4))],
    )


def side_input() -> onnx.ModelProto:
    """Rows, and one number for all of them."""
    return graphs.build(
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        [
            graphs.value("x", TensorProto.FLOAT, ("N", 4)),
            graphs.value("factor", TensorProto.FLOAT, ()),
        ],
        [graphs.value("y", TensorProto.FLOAT, ("N", 4))],
    )


def no_inputs() -> onnx.ModelProto:
    """Answers the same to everybody."""
    return graphs.build(
        [helper.make_node("Identity", ["t"], ["y"])],
        [],
        [graphs.value("y", TensorProto.FLOAT, (2,))],
        [graphs.weights("t", np.ones(2, np.float32))],
    )


def many_columns(count: int = 40) -> onnx.ModelProto:
    """A table of one [N,1] input for each column."""
    names = [f"c{i}" for i in range(count)]
    return graphs.build(
        [helper.make_node("Concat", names, ["y"], axis=1)],
        [graphs.value(name, TensorProto.FLOAT, (f"N{name}", 1)) for name in names],
        [graphs.value("y", TensorProto.FLOAT, ("N", count))],
    )


def any_width() -> onnx.ModelProto:
    """Open widths, of which only 16 works."""
    return graphs.build(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [graphs.value("x", TensorProto.FLOAT, ("N", "width"))],
        [graphs.value("y", TensorProto.FLOAT, ("N", 2))],
        [graphs.weights("w", np.ones((16, 2), np.float32))],
    )


class TestBatching:
    @pytest.mark.parametrize(
        "build",
        [graphs.id32, graphs.id64, graphs.idi64, graphs.idu64, graphs.idstr, graphs.idbool,
         graphs.idf16, graphs.log, graphs.gath, graphs.gemm, graphs.two_inputs, many_columns,
         wrong_shape, any_width],
    )  # fmt: skip
    def test_models_of_independent_rows_may_batch(self, shelf: Shelf, build: object) -> None:
        """Each output follows the rows, a batch equals its rows, neighbours are not seen."""
        probed = probe_model(shelf, build())  # type: ignore[operator]
        assert (probed.is_batchable, probed.batch_reason) == (True, "rows do not see each other")
        assert all(shape[0] == -1 for shape in outputs_of(probed).values())
        assert probed.run_s > 0

    @pytest.mark.parametrize(
        ("build", "reason"),
        [
            (graphs.fix1, "fixed first dimension"),  # G13
            (graphs.resh, "refuses 3 rows"),  # G14
            (graphs.scal, r"'total' answers shape \[\]"),  # G16
            (state_model, r"'state' answers shape \[3, 1, 4\]"),  # G16
            (graphs.across_rows, "differently alone"),
            (cumulative, "differently alone"),
            (outer_product, "differently alone"),
            (graphs.dynamic_quantized, "one scale for the whole batch"),
            (random_noise, "differently each time"),
            (side_input, "'factor' has a fixed"),
            (graphs.endless, "fixed first dimension"),
            (no_inputs, "no inputs"),
        ],
    )
    def test_models_whose_rows_see_each_other_may_not(
        self, shelf: Shelf, build: object, reason: str
    ) -> None:
        """G13 G14 G16: the reason names what was seen."""
        probed = probe_model(shelf, build())  # type: ignore[operator]
        assert not probed.is_batchable
        assert re.search(reason, probed.batch_reason)


class TestShapes:
    def test_a_label_declared_as_one_is_one_for_each_row(self, shelf: Shelf) -> None:
        """The answer counts, not the declaration."""
        assert outputs_of(probe_model(shelf, wrong_shape())) == {"y": (-1,)}

    def test_a_constant_keeps_its_own_size(self, shelf: Shelf) -> None:
        """G16: two values stay two, whatever the rows."""
        shapes = outputs_of(probe_model(shelf, graphs.scal()))
        assert shapes == {"total": (), "constant": (2,), "rows": (-1,)}

    def test_a_model_that_computes_one_row_takes_one(self, shelf: Shelf) -> None:
        """G14: a second row is then refused by its shape, before any run."""
        probed = probe_model(shelf, graphs.resh())
        assert [spec.shape for spec in probed.signature.inputs] == [(1, 4)]

    def test_a_value_refused_in_one_row_does_not_fix_the_rows(self, shelf: Shelf) -> None:
        """A table of two entries refuses most indices; other inputs are then tried."""
        probed = probe_model(shelf, graphs.gath(rows=2))
        assert probed.is_batchable
        assert [spec.shape for spec in probed.signature.inputs] == [(-1,)]


class FakeRun:
    """Answers rows by a function of all rows, as a graph would."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def __call__(
        self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> list[Array]:
        return [self.answer(inputs["x"])]  # type: ignore[operator]


FLOATS = Signature((TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 2)),))


class TestNeighbours:
    @pytest.mark.parametrize(
        ("name", "trigger"),
        [
            ("a thousand times", lambda x: np.abs(x) > 100),
            ("of NaN", np.isnan),
            ("of infinity", np.isinf),
        ],
    )
    def test_a_neighbour_that_spoils_others_is_found(self, name: str, trigger: object) -> None:
        """Harmless among friends: only an extreme row shows that the others depend on it."""

        def answer(x: Array) -> Array:
            with np.errstate(invalid="ignore"):
                return x * 0 if trigger(x).any() else x  # type: ignore[operator]

        probed = probe(FakeRun(answer), FLOATS, None)
        assert not probed.is_batchable
        assert name in probed.batch_reason

    def test_last_bits_may_differ_by_batch_size(self) -> None:
        """Kernels of other sizes round otherwise; the tolerance is relative to the largest."""
        rough = probe(FakeRun(lambda x: x * np.float32(1 + 5e-7 * (len(x) > 1))), FLOATS, None)
        wrong = probe(FakeRun(lambda x: x * np.float32(1 + 1e-4 * len(x))), FLOATS, None)
        assert (rough.is_batchable, wrong.is_batchable) == (True, False)

    def test_a_large_batch_is_tried_too(self) -> None:
        """Three rows may pass where thirty-two take another way."""
        probed = probe(FakeRun(lambda x: x if len(x) < 10 else x[::-1]), FLOATS, None)
        assert "among 32" in probed.batch_reason

    def test_a_version_that_refuses_everything_fails_with_its_own_words(self) -> None:
        """The complaint of the graph is the reason."""

        def answer(x: Array) -> Array:
            raise InputRefused("no such row")

        with pytest.raises(LoadFailed, match="no such row"):
            probe(FakeRun(answer), FLOATS, None)
