"""Sessions over the runtime's C interface: values of every type, errors, ends."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models.runtime import ort_library
from models.runtime.ort_library import InvalidArgument, OrtError, library
from models.runtime.ort_session import Node, RunOptions, Session, SessionConfig
from tests import graphs


def open_graph(model: onnx.ModelProto) -> Session:
    """Open a graph with one thread."""
    return Session(model.SerializeToString(), SessionConfig(1))


def texts(*elements: str) -> np.ndarray:
    """Return strings as the runtime takes them."""
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


def endless() -> onnx.ModelProto:
    """Return a loop that goes on for hours, ``x`` to ``y``."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["still"]),
            helper.make_node("Add", ["before", "before"], ["after"]),
        ],
        "body",
        [
            graphs.value("turn", TensorProto.INT64, []),
            graphs.value("go_on", TensorProto.BOOL, []),
            graphs.value("before", TensorProto.FLOAT, ["N"]),
        ],
        [
            graphs.value("still", TensorProto.BOOL, []),
            graphs.value("after", TensorProto.FLOAT, ["N"]),
        ],
    )
    return graphs.build(
        [helper.make_node("Loop", ["turns", "", "x"], ["y"], body=body)],
        [
            graphs.value("turns", TensorProto.INT64, []),
            graphs.value("x", TensorProto.FLOAT, ["N"]),
        ],
        [graphs.value("y", TensorProto.FLOAT, ["N"])],
    )


@pytest.mark.parametrize("runs", [1, 4])
@pytest.mark.parametrize(
    "array",
    [
        np.array([[1.5, -0.0], [np.nan, np.inf]], np.float32),
        np.array([[1e-300, 2.0**-1074]], np.float64),
        np.array([[65504, 6e-8, np.nan]], np.float16),
        np.array([[True, False]]),
        np.array([[2**64 - 1, 0]], np.uint64),
        np.array([[-(2**63), 9007199254740993]], np.int64),
        np.array([[-128, 127]], np.int8),
        np.array([[0xA5, 0xA5]], np.uint8),
        np.zeros((0, 3), np.float32),
        np.zeros((2, 0), np.int32),
    ],
)
def test_numbers_come_back_as_they_went_in(array: np.ndarray, runs: int) -> None:
    """Every type, also in arrays of no elements, the first time and when the form came before."""
    code = helper.np_dtype_to_tensor_dtype(array.dtype)
    session = open_graph(graphs.identity(code, ("N", "M")))
    for _ in range(runs):
        (found,) = session.run(["y"], {"x": array})
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    session.close()


@pytest.mark.parametrize("runs", [1, 4])
def test_scalars_have_no_sizes(runs: int) -> None:
    """A tensor without dimensions comes back as one."""
    session = open_graph(graphs.identity(TensorProto.DOUBLE, ()))
    for _ in range(runs):
        (found,) = session.run(["y"], {"x": np.array(0.1)})
    assert (found.shape, found.item()) == ((), 0.1)


@pytest.mark.parametrize(
    "elements",
    [
        ("a", "", "bc"),
        ("", ""),
        ("vérité", "日本", "\U0010ffff"),
        ("a\0b", "\0", "trailing\0", ""),
        (),
        ("", "é", "", "", "plain", "") * 50,
        ("", "é", "", "nul\0", "plain", "") * 50,
        ("",) * 100,
    ],
)
def test_strings_come_back_as_they_went_in(elements: tuple[str, ...]) -> None:
    """Text of any length and any characters, NUL among them."""
    session = open_graph(graphs.identity(TensorProto.STRING))
    for _ in range(4):
        (found,) = session.run(["y"], {"x": texts(*elements)})
        assert found.tolist() == list(elements)


def test_strings_keep_their_shape() -> None:
    """Rows and columns of text stay where they are."""
    session = open_graph(graphs.identity(TensorProto.STRING, ("N", "M")))
    array = texts("a", "b", "c", "d", "e", "f").reshape(2, 3)
    (found,) = session.run(["y"], {"x": array})
    assert found.tolist() == [["a", "b", "c"], ["d", "e", "f"]]


def test_nodes_tell_names_types_and_shapes() -> None:
    """Open sizes have their names, or None where the graph gives none."""
    model = graphs.build(
        [helper.make_node("NonZero", ["é"], ["y"])],
        [graphs.value("é", TensorProto.FLOAT, ["rows", 2])],
        [graphs.value("y", TensorProto.INT64, [2, None])],
    )
    session = open_graph(model)
    assert session.get_inputs() == [Node("é", "tensor(float)", ["rows", 2])]
    assert session.get_outputs() == [Node("y", "tensor(int64)", [2, None])]


def test_a_sequence_has_the_name_of_its_kind() -> None:
    """What is no tensor says what it is, and is an error when asked for."""
    model = graphs.build(
        [helper.make_node("SequenceConstruct", ["x"], ["y"])],
        [graphs.value("x", TensorProto.FLOAT, ["N"])],
        [helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, ["N"])],
    )
    session = open_graph(model)
    assert session.get_outputs()[0].type.startswith("seq(")
    for _ in range(3):
        with pytest.raises(OrtError):
            session.run(["y"], {"x": np.zeros(2, np.float32)})


@pytest.mark.parametrize(
    ("names", "feeds"),
    [
        (["y"], {"z": np.zeros((1, 4), np.float32)}),
        (["z"], {"x": np.zeros((1, 4), np.float32)}),
        (["y"], {"x": np.zeros((1, 4), np.float64)}),
        (["y"], {"x": np.zeros((1, 5), np.float32)}),
        (["y"], {"x": np.zeros(4, np.float32)}),
        (["y"], {}),
    ],
)
def test_what_does_not_fit_is_an_invalid_argument(
    names: list[str], feeds: dict[str, np.ndarray]
) -> None:
    """Names, types and shapes are checked by the runtime; the session goes on after."""
    session = open_graph(graphs.id32())
    for _ in range(3):
        with pytest.raises(InvalidArgument) as caught:
            session.run(names, feeds)
        assert caught.value.code == ort_library.INVALID_ARGUMENT
        session.run(["y"], {"x": np.ones((1, 4), np.float32)})


def test_errors_have_the_code_of_the_runtime(tmp_path: Path) -> None:
    """A missing file and a damaged graph are told apart."""
    with pytest.raises(OrtError) as missing:
        Session(tmp_path / "none.onnx", SessionConfig(1))
    with pytest.raises(OrtError) as damaged:
        Session(b"\xff" * 64, SessionConfig(1))
    assert (missing.value.code, damaged.value.code) == (3, 7)
    assert "NO_SUCHFILE" in str(missing.value)
    assert "INVALID_PROTOBUF" in str(damaged.value)


@pytest.mark.parametrize("runs_before", [0, 3])
def test_a_run_ends_when_it_is_told_to(runs_before: int) -> None:
    """Both ways of running see it, and the session goes on with other options."""
    session = open_graph(endless())
    x = np.ones(3, np.float32)
    for _ in range(runs_before):
        session.run(["y"], {"turns": np.array(1), "x": x})
    options, caught = RunOptions(), []

    def run() -> None:
        try:
            session.run(["y"], {"turns": np.array(2**62), "x": x}, options)
        except OrtError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    options.terminate()
    thread.join(60)
    assert not thread.is_alive()
    assert len(caught) == 1
    (found,) = session.run(["y"], {"turns": np.array(3), "x": x}, RunOptions())
    assert found.tolist() == [8, 8, 8]
    session.close()


def test_a_second_close_does_nothing() -> None:
    """A closed session says so instead of ending the process."""
    session = open_graph(graphs.id32())
    x = {"x": np.ones((1, 4), np.float32)}
    for _ in range(4):
        session.run(["y"], x)
    session.close()
    session.close()
    with pytest.raises(OrtError, match="closed"):
        session.run(["y"], x)


def test_a_package_without_the_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Releases before the one that ships it are refused by name."""
    monkeypatch.setattr(ort_library.metadata, "version", lambda _: "1.2.3")
    library.cache_clear()
    try:
        with pytest.raises(ImportError, match=r"onnxruntime 1\.2\.3 has no libonnxruntime\.so"):
            library()
    finally:
        library.cache_clear()
