"""Buffers kept between runs: the same values, never shared, never more than the bounds."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models.runtime import ort_frames
from models.runtime.ort_frames import MOST_BYTES, MOST_FRAMES, Frames
from models.runtime.ort_library import InvalidArgument, OrtError
from models.runtime.ort_session import Session, SessionConfig
from tests import graphs

FLOAT = TensorProto.FLOAT


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Frames]:
    """Return the frames of each session that the test opens."""
    found: list[Frames] = []

    class Watched(Frames):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            found.append(self)

    monkeypatch.setattr("models.runtime.ort_session.Frames", Watched)
    return found


def open_graph(model: onnx.ModelProto) -> Session:
    """Open a graph with one thread."""
    return Session(model.SerializeToString(), SessionConfig(1))


def doubled() -> onnx.ModelProto:
    """``x`` FP32 [N, 3] to ``y`` twice and ``z`` minus it."""
    return graphs.build(
        [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])],
        [graphs.value("x", FLOAT, ["N", 3])],
        [graphs.value("y", FLOAT, ["N", 3]), graphs.value("z", FLOAT, ["N", 3])],
    )


def rows(count: int, start: float = 0) -> np.ndarray:
    """Return ``count`` rows of three numbers."""
    return np.arange(start, start + count * 3, dtype=np.float32).reshape(count, 3)


def test_a_form_that_came_twice_has_a_frame(kept: list[Frames]) -> None:
    """What came once costs nothing; values are right before and after."""
    session = open_graph(doubled())
    counts = []
    for turn in range(5):
        x = rows(2, turn)
        y, z = session.run(["y", "z"], {"x": x})
        assert y.tolist() == (x + x).tolist()
        assert z.tolist() == (-x).tolist()
        counts.append(kept[0].count)
    assert counts == [0, 1, 1, 1, 1]
    assert kept[0].size_bytes == 3 * 24


def test_outputs_stay_what_they_were(kept: list[Frames]) -> None:
    """A later run of the same form does not write into arrays that were given out."""
    session = open_graph(doubled())
    inputs = [rows(2, turn) for turn in range(8)]
    found = [session.run(["y"], {"x": x})[0] for x in inputs]
    for x, y in zip(inputs, found, strict=True):
        assert y.tolist() == (x + x).tolist()
        y[:] = 0  # and may be written to
    assert inputs[7].tolist() == rows(2, 7).tolist()
    assert session.run(["y"], {"x": inputs[0]})[0].tolist() == (inputs[0] * 2).tolist()
    assert kept[0].count == 1


def test_order_and_choice_of_outputs_are_forms_of_their_own(kept: list[Frames]) -> None:
    """Whoever asks for other outputs gets those."""
    session, x = open_graph(doubled()), rows(1, 1)
    wanted = {"y": [[2, 4, 6]], "z": [[-1, -2, -3]]}
    for _ in range(4):
        for names in (["y"], ["z"], ["z", "y"], ["y", "z"]):
            found = session.run(names, {"x": x})
            assert [array.tolist() for array in found] == [wanted[name] for name in names]
    assert kept[0].count == 4


def test_other_shapes_and_types_never_use_a_frame_of_another(kept: list[Frames]) -> None:
    """What the runtime refuses it refuses also after a hundred good runs."""
    session = open_graph(doubled())
    for _ in range(4):
        session.run(["y"], {"x": rows(2)})
    for wrong in (rows(2).astype(np.float64), rows(2).ravel(), rows(2).astype(">f4")):
        with pytest.raises(InvalidArgument):
            session.run(["y"], {"x": wrong})
    assert session.run(["y"], {"x": rows(2)})[0].tolist() == (rows(2) * 2).tolist()
    assert kept[0].count == 1


def nonzero() -> onnx.ModelProto:
    return graphs.build(
        [helper.make_node("NonZero", ["x"], ["y"])],
        [graphs.value("x", FLOAT, ["N"])],
        [graphs.value("y", TensorProto.INT64, [1, "M"])],
    )


def compress() -> onnx.ModelProto:
    return graphs.build(
        [
            helper.make_node("Cast", ["x"], ["keep"], to=TensorProto.BOOL),
            helper.make_node("Compress", ["x", "keep"], ["y"], axis=0),
        ],
        [graphs.value("x", FLOAT, ["N"])],
        [graphs.value("y", FLOAT, ["M"])],
    )


def branches() -> onnx.ModelProto:
    """One branch gives a value from outside, the other one of another shape."""
    many = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["a"])], "many", [], [graphs.value("a", FLOAT, ["N"])]
    )
    one = helper.make_graph(
        [helper.make_node("ReduceMax", ["x"], ["b"], axes=[0], keepdims=1)],
        "one",
        [],
        [graphs.value("b", FLOAT, ["K"])],
    )
    return graphs.build(
        [
            helper.make_node("ReduceMin", ["x"], ["least"], keepdims=0),
            helper.make_node("Cast", ["least"], ["is_full"], to=TensorProto.BOOL),
            helper.make_node("If", ["is_full"], ["y"], then_branch=many, else_branch=one),
        ],
        [graphs.value("x", FLOAT, ["N"])],
        [graphs.value("y", FLOAT, None)],
    )


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (nonzero, lambda x: [np.flatnonzero(x).tolist()]),
        (compress, lambda x: x[x != 0].tolist()),
        (branches, lambda x: x.tolist() if x.min() else [x.max()]),
    ],
)
def test_shapes_that_depend_on_the_numbers_are_kept_of_inputs_only(
    kept: list[Frames], build: object, expected: object
) -> None:
    """The run in which it shows is right too, and later frames have no outputs."""
    session = open_graph(build())  # type: ignore[operator]
    same = np.array([1, 2, 3, 4], np.float32)
    for turn in range(5):
        (found,) = session.run(["y"], {"x": same + turn})
        assert found.tolist() == expected(same + turn)  # type: ignore[operator]
    assert kept[0].count == 1
    for x in (np.array([0, 5, 0, 6]), np.array([7, 8, 9, 1]), np.array([0, 0, 0, 2])):
        array = x.astype(np.float32)
        for _ in range(3):
            (found,) = session.run(["y"], {"x": array})
            assert found.tolist() == expected(array)  # type: ignore[operator]
            found[:] = 0
    assert (kept[0].count, kept[0].size_bytes) == (1, same.nbytes)


def test_branches_of_one_shape_answer_for_themselves(kept: list[Frames]) -> None:
    """The branch that only passes a value on is right in a frame that the other one proved."""
    passed = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["a"])], "pass", [], [graphs.value("a", FLOAT, ["N"])]
    )
    negated = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["b"])], "neg", [], [graphs.value("b", FLOAT, ["N"])]
    )
    session = open_graph(
        graphs.build(
            [helper.make_node("If", ["c"], ["y"], then_branch=passed, else_branch=negated)],
            [graphs.value("c", TensorProto.BOOL, []), graphs.value("x", FLOAT, ["N"])],
            [graphs.value("y", FLOAT, ["N"])],
        )
    )
    for turn in range(30):
        is_passed = turn >= 4 and turn % 3 > 0
        x = np.array([turn, 1], np.float32)
        (found,) = session.run(["y"], {"c": np.array(is_passed), "x": x})
        assert found.tolist() == (x if is_passed else -x).tolist()
    assert kept[0].count == 1


def test_outputs_that_no_kernel_writes_are_right(kept: list[Frames]) -> None:
    """An input, an initializer and a constant that are outputs themselves."""
    model = graphs.build(
        [
            helper.make_node("Constant", [], ["k"], value=graphs.weights("v", rows(1))),
            helper.make_node("Identity", ["x"], ["same"]),
            helper.make_node("Reshape", ["x", "flat"], ["reshaped"]),
        ],
        [graphs.value("x", FLOAT, ["N", 3])],
        [
            graphs.value("same", FLOAT, ["N", 3]),
            graphs.value("reshaped", FLOAT, ["M"]),
            graphs.value("w", FLOAT, [2]),
            graphs.value("k", FLOAT, [1, 3]),
            graphs.value("x", FLOAT, ["N", 3]),
        ],
        [
            graphs.weights("w", np.array([3, 4], np.float32)),
            graphs.weights("flat", np.array([-1], np.int64)),
        ],
    )
    names = ["same", "reshaped", "w", "k", "x"]
    session = open_graph(model)
    for turn in range(6):
        x = rows(2, turn)
        found = session.run(names, {"x": x})
        expected = [x, x.ravel(), np.array([3, 4]), rows(1), x]
        assert [array.tolist() for array in found] == [array.tolist() for array in expected]
        for array in found:
            array[:] = -1


def test_an_output_that_the_runtime_does_not_write_here_is_not_kept(kept: list[Frames]) -> None:
    """One that is asked for twice is written once: what lay in the other is no answer."""
    session = open_graph(doubled())
    for turn in range(6):
        x = rows(2, turn)
        first, second = session.run(["y", "y"], {"x": x})
        assert first.tolist() == second.tolist() == (x + x).tolist()
    assert (kept[0].count, kept[0].size_bytes) == (1, x.nbytes)


def test_a_frame_that_cannot_be_made_fails_no_run(
    kept: list[Frames], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without memory for it, runs go on the ordinary way."""

    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ort_frames, "Frame", no_memory)
    session = open_graph(doubled())
    for turn in range(4):
        x = rows(2, turn)
        assert session.run(["z"], {"x": x})[0].tolist() == (-x).tolist()
    assert kept[0].count == 0


def test_a_bad_input_says_the_same_in_a_frame_and_ends_none(kept: list[Frames]) -> None:
    """An index out of range is the caller's fault each time; others are answered as before."""
    model = graphs.build(
        [helper.make_node("Gather", ["w", "x"], ["y"])],
        [graphs.value("x", TensorProto.INT64, ["N"])],
        [graphs.value("y", FLOAT, ["N"])],
        [graphs.weights("w", np.array([5, 6, 7], np.float32))],
    )
    session, good, bad = open_graph(model), np.array([2, 0]), np.array([1, 9])
    with pytest.raises(OrtError) as first:
        session.run(["y"], {"x": bad})
    for _ in range(3):
        session.run(["y"], {"x": good})
    for _ in range(MOST_FRAMES + 1):
        with pytest.raises(OrtError) as later:
            session.run(["y"], {"x": bad})
        assert (later.value.code, str(later.value)) == (first.value.code, str(first.value))
        assert session.run(["y"], {"x": good})[0].tolist() == [7, 5]
    assert (kept[0].count, kept[0].is_allowed) == (1, True)


@pytest.mark.parametrize("count", [2, 40, 3000])
def test_outputs_of_strings_are_read_anew_each_time(kept: list[Frames], count: int) -> None:
    """They have no place of a fixed size, so that a frame keeps the inputs only."""
    session = open_graph(graphs.identity(TensorProto.STRING))
    found = []
    texts = ["a", "bb", "", "\0", "x\0y", "é日\U0001f600", "l" * 60, "long " * 10_000, "ccc"]
    for text in texts * 2:
        array = np.array([text, "x"] * (count // 2), dtype=object)
        found.append(session.run(["y"], {"x": array})[0])
    for text, array in zip(texts * 2, found, strict=True):
        assert array.tolist() == [text, "x"] * (count // 2)
    assert kept[0].count == (count < 1000)


def test_threads_read_texts_apart() -> None:
    """What one thread reads never lies where another one reads."""
    session = open_graph(graphs.identity(TensorProto.STRING))
    wrong = []

    def run(text: str) -> None:
        array = np.array([text] * 50, dtype=object)
        for _ in range(200):
            if session.run(["y"], {"x": array})[0].tolist() != array.tolist():
                wrong.append(text)

    threads = [threading.Thread(target=run, args=(str(i) * (i + 1),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("count", [0, 3, 100])
def test_inputs_of_strings_are_filled_anew_each_time(kept: list[Frames], count: int) -> None:
    """Nothing of the texts before stays, whatever their length and characters."""
    known = ["a", "", "é日", "x\0y", "x", "l" * 64, "long " * 100_000]
    model = graphs.build(
        [
            helper.make_node(
                "LabelEncoder",
                ["x"],
                ["y"],
                domain="ai.onnx.ml",
                keys_strings=known,
                values_int64s=list(range(len(known))),
                default_int64=-1,
            )
        ],
        [graphs.value("x", TensorProto.STRING, ["N"])],
        [graphs.value("y", TensorProto.INT64, ["N"])],
        domains=[("ai.onnx.ml", 2)],
    )
    session, random_ = open_graph(model), random.Random(1)
    for turn in range(60):
        # Without those with NUL and long ones at times: they go another way.
        chosen = [random_.randrange(len(known) if turn % 3 else 3) for _ in range(count)]
        x = np.array([known[index] for index in chosen], dtype=object)
        if count:
            x[0], chosen[0] = ("unknown", -1) if turn % 2 else (known[1], 1)
        assert session.run(["y"], {"x": x})[0].tolist() == chosen
    assert (kept[0].count, kept[0].is_allowed) == (1, True)
    session.close()


@pytest.mark.parametrize("sizes", [range(1, 3 * MOST_FRAMES), range(4000, 4020), (100_000,)])
def test_frames_are_bounded_in_number_and_bytes(kept: list[Frames], sizes: Iterable[int]) -> None:
    """However many forms come, and however large they are; all are answered right."""
    session = open_graph(doubled())
    for size in sizes:
        for turn in range(3):
            x = rows(size, turn)
            assert np.array_equal(session.run(["y"], {"x": x})[0], x + x)
    assert kept[0].count <= MOST_FRAMES
    assert kept[0].size_bytes <= MOST_BYTES
    assert bool(kept[0].count) == (max(sizes) < 100_000)


def test_forms_in_use_stay_and_forgotten_ones_go(
    kept: list[Frames], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More forms than fit do not push each other out at each run."""
    monkeypatch.setattr(ort_frames, "MOST_FRAMES", 2)
    session = open_graph(doubled())

    def run(size: int, times: int) -> None:
        for _ in range(times):
            session.run(["y"], {"x": rows(size)})

    run(1, 3)
    run(2, 3)
    run(3, 10)
    assert kept[0].size_bytes == (1 + 2) * 24
    run(2, ort_frames._STALE_RUNS + 10)
    run(3, 3)
    assert kept[0].size_bytes == (2 + 3) * 24


def test_threads_get_their_own_rows(kept: list[Frames]) -> None:
    """Eight threads over one session, with shapes that come and go."""
    session, wrong, ended = open_graph(doubled()), [], []

    def hammer(seed: int) -> None:
        random_ = random.Random(seed)
        for turn in range(600):
            x = rows(random_.randint(1, 90), seed * 1e4 + turn)
            y, z = session.run(["y", "z"], {"x": x})
            if not (np.array_equal(y, x + x) and np.array_equal(z, -x)):
                wrong.append((seed, turn))
        ended.append(seed)

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (wrong, sorted(ended)) == ([], list(range(8)))
    assert 0 < kept[0].count <= MOST_FRAMES
    session.close()
    assert (kept[0].count, kept[0].size_bytes) == (0, 0)


def test_closing_gives_frames_back_before_the_session(
    kept: list[Frames], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A binding belongs to its session: it must be gone when the session goes."""
    session, order = open_graph(doubled()), []
    library = session._library
    for _ in range(4):
        session.run(["y"], {"x": rows(1)})
    release = library.functions["ReleaseIoBinding"]
    release_session = library.release_session
    monkeypatch.setitem(
        library.functions,
        "ReleaseIoBinding",
        lambda handle: (order.append("frame"), release(handle)),
    )
    monkeypatch.setattr(
        library,
        "release_session",
        lambda handle: (order.append("session"), release_session(handle)),
    )
    session.close()
    assert order == ["frame", "session"]
