"""Running versions: exact values through the runtime, whose fault a failure is, memory."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from models.errors import InputRefused, LoadFailed, OutOfMemory, RunFailed, RunTerminated
from models.memory import anonymous_bytes, trim
from models.runtime.onnx import OnnxServable
from models.runtime.ort_errors import clean, run_error
from tests import graphs
from tests.unit.models.conftest import MIB, Shelf


def run_one(servable: OnnxServable, array: np.ndarray) -> np.ndarray:
    """Run a version that has one input and one output."""
    (result,) = servable.run({servable.signature.inputs[0].name: array})
    return result


class TestValues:
    @pytest.mark.parametrize(
        ("build", "array"),
        [
            (graphs.id32, np.array([[1.5, -0.0, np.nan, np.inf]], np.float32)),
            (graphs.id64, np.array([[1e-300, 2.0**-1074, np.nan, 0.1]])),
            (graphs.idi64, np.array([9007199254740993, -(2**63)])),
            (graphs.idu64, np.array([2**64 - 1], np.uint64)),
            (graphs.idbool, np.array([True, False])),
            (graphs.idf16, np.array([[65504, 6e-8, np.nan, -1]], np.float16)),
        ],
    )
    def test_numbers_pass_bit_for_bit(self, shelf: Shelf, build: object, array: np.ndarray) -> None:
        """What goes in comes out, over the whole range of its type."""
        servable = shelf.load(shelf.put(build()))  # type: ignore[operator]
        result = run_one(servable, array)
        assert (result.dtype, result.tobytes()) == (array.dtype, array.tobytes())

    @pytest.mark.parametrize(
        "elements",
        [
            ["ab", "c", ""],
            ["vérité", "日本", "a\0b", "trailing\0"],
            [b"\xff\xfe", b"a\x80", "plain", b"\0\xff"],
            ["\U0010ff41\U0010ffff", b"\xff", "x\U0010ff00"],
        ],
    )
    def test_b11_strings_pass_bit_for_bit(self, shelf: Shelf, elements: list[str | bytes]) -> None:
        """Text of any kind and bytes that are not UTF-8 come back as they were."""
        servable = shelf.load(shelf.put(graphs.idstr()))
        array = np.empty(len(elements), dtype=object)
        array[:] = elements
        assert run_one(servable, array).tolist() == elements

    def test_bytes_that_are_utf8_come_back_as_text(self, shelf: Shelf) -> None:
        """There is one form for each value."""
        servable = shelf.load(shelf.put(graphs.idstr()))
        array = np.array([b"abc"], dtype=object)
        assert run_one(servable, array).tolist() == ["abc"]

    def test_no_rows_in_are_no_rows_out(self, shelf: Shelf) -> None:
        """B17: an empty batch is answered without asking a kernel that may crash on it."""
        servable = shelf.load(shelf.put(graphs.gemm()))
        assert run_one(servable, np.empty((0, 4), np.float32)).shape == (0, 2)

    def test_no_rows_keep_the_other_sizes(self, shelf: Shelf) -> None:
        """B17: where the graph names a size in input and output alike, it is the same."""
        servable = shelf.load(shelf.put(graphs.identity(TensorProto.FLOAT, ("N", "M"))))
        assert run_one(servable, np.empty((0, 3), np.float32)).shape == (0, 3)

    def test_no_rows_for_an_output_without_rows_are_refused(self, shelf: Shelf) -> None:
        """A sum over nothing is not guessed."""
        servable = shelf.load(shelf.put(graphs.scal()))
        with pytest.raises(InputRefused, match="no rows"):
            servable.run({"X": np.empty(0, np.float32)})

    def test_outputs_come_in_the_order_asked(self, shelf: Shelf) -> None:
        """Names choose and order the outputs; rank 0 stays an array."""
        servable = shelf.load(shelf.put(graphs.scal()))
        rows, total = servable.run({"X": np.array([1, 2], np.float32)}, ["rows", "total"])
        assert rows.tolist() == [1.0, 2.0]
        assert (total.shape, total.dtype, float(total)) == ((), np.float32, 3.0)

    def test_a_strided_input_is_read_in_its_own_order(self, shelf: Shelf) -> None:
        """A slice of a larger batch needs no copy by the caller."""
        servable = shelf.load(shelf.put(graphs.id32()))
        array = np.arange(32, dtype=np.float32).reshape(4, 8)[:, ::2]
        assert run_one(servable, array).tolist() == array.tolist()


class TestFaults:
    @pytest.mark.parametrize(
        ("inputs", "words"),
        [
            ({}, "'x' is missing"),
            ({"x": np.zeros((1, 4))}, "got float64, expected FP32"),
            ({"x": np.zeros(4, np.float32)}, r"got shape \[4\]"),
            ({"x": np.zeros((1, 4), np.float32), "foo": np.zeros(1)}, "'foo' is unknown"),
            ({"x": np.zeros((1, 5), np.float32)}, "Got: 5 Expected: 4"),
        ],
    )
    def test_wrong_inputs_are_refused_by_name(
        self, shelf: Shelf, inputs: dict[str, np.ndarray], words: str
    ) -> None:
        """The message names the input, what came and what is wanted."""
        servable = shelf.load(shelf.put(graphs.id32()))
        with pytest.raises(InputRefused, match=words):
            servable.run(inputs)

    def test_an_unknown_output_is_refused(self, shelf: Shelf) -> None:
        """B07: never an answer with nothing in it."""
        servable = shelf.load(shelf.put(graphs.id32()))
        with pytest.raises(InputRefused, match="output 'z' is unknown"):
            servable.run({"x": np.zeros((1, 4), np.float32)}, ["z"])

    def test_an_index_out_of_range_is_the_callers_fault(self, shelf: Shelf) -> None:
        """The message of the kernel reaches the caller without node names and codes."""
        servable = shelf.load(shelf.put(graphs.gath()))
        with pytest.raises(InputRefused) as refusal:
            servable.run({"idx": np.array([999])})
        assert str(refusal.value) == (
            "Gather: indices element out of data bounds, idx=999 "
            "must be within the inclusive range [-10,9]"
        )
        assert servable.run({"idx": np.array([1])})[0].tolist() == [[4.0, 5.0, 6.0, 7.0]]

    def test_a_shape_that_the_graph_cannot_use_is_the_callers_fault(self, shelf: Shelf) -> None:
        """G14: a Reshape that only fits one row complains about the input, not about itself."""
        servable = shelf.load(shelf.put(graphs.resh()))
        with pytest.raises(InputRefused, match="dimension mismatch"):
            servable.run({"X": np.ones((2, 4), np.float32)})

    def test_a_text_that_is_no_number_is_the_callers_fault(self, shelf: Shelf) -> None:
        """A Cast from text names what it could not do."""
        model = graphs.build(
            [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)],
            [graphs.value("x", TensorProto.STRING, ("N",))],
            [graphs.value("y", TensorProto.FLOAT, ("N",))],
        )
        servable = shelf.load(shelf.put(model))
        with pytest.raises(InputRefused, match="Cast"):
            servable.run({"x": np.array(["many"], dtype=object)})

    @pytest.mark.parametrize("element", [None, 1.5, "\ud800"])
    def test_what_is_no_text_is_refused(self, shelf: Shelf, element: object) -> None:
        """The runtime would turn None into the text 'None'."""
        servable = shelf.load(shelf.put(graphs.idstr()))
        with pytest.raises(InputRefused, match="'x': element 1"):
            servable.run({"x": np.array(["a", element], dtype=object)})

    def test_memory_that_is_not_there_is_a_failed_run(self, shelf: Shelf) -> None:
        """A run that asks for terabytes fails by itself; the next one works."""
        model = graphs.build(
            [helper.make_node("ConstantOfShape", ["x"], ["y"])],
            [graphs.value("x", TensorProto.INT64, (2,))],
            [graphs.value("y", TensorProto.FLOAT, ("A", "B"))],
        )
        servable = shelf.load(shelf.put(model))
        with pytest.raises(RunFailed, match="not enough memory"):
            servable.run({"x": np.array([10**6, 10**6])})
        assert servable.run({"x": np.array([1, 2])})[0].shape == (1, 2)

    def test_memory_that_is_not_there_at_a_load_is_told_from_damage(self, shelf: Shelf) -> None:
        """A graph whose first run takes terabytes: with them it would load."""
        model = graphs.build(
            [
                helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
                helper.make_node("Add", ["x", "zeros"], ["y"]),
            ],
            [graphs.value("x", TensorProto.FLOAT, (1, 1))],
            [graphs.value("y", TensorProto.FLOAT, ("A", "B"))],
            [graphs.weights("shape", np.array([10**6, 10**6]))],
        )
        digest = shelf.put(model)
        with pytest.raises(OutOfMemory, match="warm-up failed: not enough memory"):
            shelf.load(digest)

    def test_messages_hold_no_place_of_any_machine(self) -> None:
        """Source files, functions and paths are taken out, the reason stays."""
        text = (
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Reshape "
            "node. Name:'n' Status Message: /onnxruntime_src/onnxruntime/core/x/reshape_helper.h:91"
            " onnxruntime::ReshapeHelper::ReshapeHelper(const onnxruntime::TensorShape&, bool) "
            "input_shape_size == requested_shape_size was false. The input tensor cannot be "
            "reshaped to the requested shape. Input shape:{2,4}, requested shape:{1,4}"
        )
        assert clean(text) == (
            "Reshape: The input tensor cannot be reshaped to the requested shape. "
            "Input shape:{2,4}, requested shape:{1,4}"
        )
        assert clean("Load model from /srv/store/objects/ab12 failed: x") == "x"
        assert clean("cannot open /srv/store/objects/ab12: x") == "cannot open <file>: x"

    def test_a_division_by_a_zero_that_was_sent_is_the_callers_fault(self, shelf: Shelf) -> None:
        """Whole numbers have no infinity; the message says what happened, the next run works."""
        model = graphs.build(
            [helper.make_node("Div", ["a", "b"], ["y"])],
            [graphs.value(name, TensorProto.INT64, ("N",)) for name in "ab"],
            [graphs.value("y", TensorProto.INT64, ("N",))],
        )
        servable = shelf.load(shelf.put(model))
        with pytest.raises(InputRefused, match="division by zero"):
            servable.run({"a": np.array([6]), "b": np.array([0])})
        assert servable.run({"a": np.array([6]), "b": np.array([2])})[0].tolist() == [3]

    def test_an_unknown_failure_is_not_blamed_on_the_caller(self) -> None:
        """What no rule recognises is a failure of the model."""
        assert type(run_error(RuntimeError("kernel exploded"))) is RunFailed


class TestTermination:
    def test_an_endless_run_can_be_ended(self, shelf: Shelf) -> None:
        """Ending the runs under way raises in each of them and harms no later one."""
        servable = shelf.load(shelf.put(graphs.endless()))
        ended = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                servable.run({"n": np.array([2**62])})
            except RunTerminated as error:
                failures.append(error)
            ended.set()

        thread = threading.Thread(target=run)
        thread.start()
        while not ended.wait(0.01):
            servable.terminate()
        thread.join()
        assert [type(error) for error in failures] == [RunTerminated]
        assert servable.run({"n": np.array([3])})[0].tolist() == [3.0]

    def test_a_closed_version_says_so(self, shelf: Shelf) -> None:
        """Closing twice does nothing, running afterwards is a failure, not a crash."""
        servable = shelf.load(shelf.put(graphs.id32()))
        servable.close()
        servable.close()
        with pytest.raises(RunFailed, match="closed"):
            run_one(servable, np.zeros((1, 4), np.float32))


class TestLoading:
    def test_a_graph_that_is_not_there_is_a_failed_load(self, shelf: Shelf) -> None:
        """The reason names no path of the machine."""
        package = shelf.put(graphs.id32())
        for path in shelf.objects_dir.iterdir():
            path.unlink()
        with pytest.raises(LoadFailed) as failure:
            shelf.load(package)
        assert str(shelf.objects_dir.parent) not in str(failure.value)

    def test_a_missing_tensor_object_is_a_failed_load(self, shelf: Shelf) -> None:
        """Weights that are gone are noticed at load, not at the first request."""
        package = shelf.put(graphs.big(1))
        (shelf.objects_dir / package.manifest.tensors[0].digest.removeprefix("sha256:")).unlink()
        with pytest.raises(LoadFailed) as failure:
            shelf.load(package)
        assert str(shelf.objects_dir.parent) not in str(failure.value)

    @pytest.mark.slow
    def test_a_table_is_mapped_not_copied(self, shelf: Shelf) -> None:
        """Loading 64 MiB and reading all of its rows takes no memory of the process's own."""
        package = shelf.put(graphs.big(64))
        shelf.load(shelf.put(graphs.gath())).close()  # what the runtime takes at its first session
        before = anonymous_bytes()
        servable = shelf.load(package)
        for start in range(0, 64 * 4096, 4096):
            servable.run({"idx": np.arange(start, start + 4096)})
        trim()
        assert anonymous_bytes() - before < 4 * MIB
        mapped = Path("/proc/self/maps").read_text()
        assert package.manifest.tensors[0].digest.removeprefix("sha256:") in mapped
        servable.close()

    @pytest.mark.slow
    def test_c01_memory_comes_back_after_close(self, shelf: Shelf) -> None:
        """Loading, running and closing forty times leaves less than one of the forty models."""
        package = shelf.put(graphs.gemm(1024, 1024))

        def cycle() -> None:
            servable = shelf.load(package)
            run_one(servable, np.zeros((4, 1024), np.float32))
            servable.close()

        for _ in range(10):
            cycle()
        before = anonymous_bytes()
        for _ in range(40):
            cycle()
        assert anonymous_bytes() - before < 4 * MIB
        assert not any(
            package.manifest.tensors[0].digest.removeprefix("sha256:") in line
            for line in Path("/proc/self/maps").read_text().splitlines()
        )

    @pytest.mark.slow
    def test_d05_runs_of_many_sizes_do_not_add_up(self, shelf: Shelf) -> None:
        """Memory stays where the first runs of random sizes brought it."""
        servable = shelf.load(shelf.put(graphs.gemm(32, 256)))
        random = np.random.default_rng(0)

        def runs(count: int) -> int:
            for rows in random.integers(1, 4096, count):
                run_one(servable, np.zeros((int(rows), 32), np.float32))
            return anonymous_bytes()

        early = runs(60)
        late = runs(180)
        run_one(servable, np.zeros((1, 32), np.float32))
        assert late <= early * 1.2

    def test_objects_are_read_only_and_stay_so(self, shelf: Shelf) -> None:
        """Loading and running write nothing into the store."""
        package = shelf.put(graphs.big(1))
        before = {p.name: p.stat().st_mtime_ns for p in shelf.objects_dir.iterdir()}
        os.chmod(shelf.objects_dir, 0o555)  # noqa: PTH101
        shelf.load(package).close()
        assert before == {p.name: p.stat().st_mtime_ns for p in shelf.objects_dir.iterdir()}
