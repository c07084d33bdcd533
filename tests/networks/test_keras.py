"""Keras files and SavedModel folders, beside TensorFlow itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="runs in .venv-tf: scripts/test-frameworks tensorflow")
tf = pytest.importorskip("tensorflow", reason="runs in .venv-tf")

from models.convert import ConvertOptions, convert
from models.errors import ConversionRefused, InputRefused
from models.golden import drift
from models.probe import probe
from tests.parity.conftest import Served, worst

pytestmark = [
    pytest.mark.extra,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # TensorFlow warns of itself
    pytest.mark.timeout(300),
]
layers = keras.layers
Serve = Callable[..., Served]


@pytest.fixture(autouse=True)
def same_weights() -> None:
    """Random weights, the same each time."""
    keras.utils.set_random_seed(5)


def dense() -> Any:
    model = keras.Sequential([
        keras.Input((7,)), layers.Dense(32, activation="gelu"), layers.BatchNormalization(),
        layers.Dropout(0.5), layers.Dense(3, activation="softmax", name="chances"),
    ])  # fmt: skip
    model.compile(loss="mse")
    rng = np.random.default_rng(0)
    model.fit(rng.normal(size=(64, 7)) * 2 + 1, rng.random((64, 3)), verbose=0)
    return model


def recurrent() -> Any:
    return keras.Sequential([
        keras.Input((9, 4)), layers.GRU(12, return_sequences=True),
        layers.Bidirectional(layers.LSTM(6)), layers.Dense(1),
    ])  # fmt: skip


def convolutional() -> Any:
    return keras.Sequential([
        keras.Input((20, 3)), layers.Conv1D(8, 3, activation="relu", padding="causal"),
        layers.MaxPooling1D(2), layers.Conv1D(4, 3), layers.GlobalAveragePooling1D(),
        layers.Dense(2),
    ])  # fmt: skip


def attentive() -> Any:
    tokens = keras.Input((6, 8))
    mixed = layers.MultiHeadAttention(2, 4)(tokens, tokens)
    values = layers.LayerNormalization()(layers.Add()([tokens, mixed]))
    return keras.Model(tokens, layers.Dense(1)(layers.Flatten()(values)))


NETS = {"dense": dense, "recurrent": recurrent, "conv": convolutional, "attention": attentive}


@pytest.mark.parametrize("suffix", ["keras", "h5", "folder"])
@pytest.mark.parametrize("name", NETS)
def test_a_network_answers_as_keras(name: str, suffix: str, tmp_path: Path, serve: Serve) -> None:
    """In each of the forms that it can be saved in, on rows never seen in the conversion."""
    model = NETS[name]()
    path = tmp_path / f"m.{suffix}"
    if suffix == "folder":
        model.export(path, verbose=False)
    else:
        model.save(path)
    served = serve(path)
    shape = model.input_shape[1:]
    spec, output = served.signature.inputs[0], served.signature.outputs[0]
    assert (spec.datatype, spec.shape) == ("FP32", (-1, *shape))
    rows = np.random.default_rng(1).normal(size=(300, *shape)).astype(np.float32)
    expected = model.predict(rows, verbose=0)
    assert worst(served({spec.name: rows})[output.name], expected) <= 1e-5
    if name == "dense" and suffix != "folder":
        assert output.name == "chances"
    assert drift(served.servable.run, served.signature, served.parity) == ""
    assert probe(served.servable.run, served.signature, None).is_batchable


def test_ids_and_numbers_stay_apart(tmp_path: Path, serve: Serve) -> None:
    """Each input keeps its name and type; an id beyond the table is the caller's mistake."""
    user = keras.Input((), dtype="int64", name="user")
    numbers = keras.Input((3,), name="numbers")
    joined = layers.Concatenate()([layers.Embedding(30, 4)(user), numbers])
    model = keras.Model({"user": user, "numbers": numbers}, {"score": layers.Dense(1)(joined)})
    model.save(tmp_path / "m.keras")
    served = serve(tmp_path / "m.keras")
    assert {(s.name, s.datatype, s.shape) for s in served.signature.inputs} == {
        ("user", "INT64", (-1,)),
        ("numbers", "FP32", (-1, 3)),
    }
    inputs = {"user": np.arange(30), "numbers": np.ones((30, 3), np.float32)}
    (output,) = served.signature.outputs
    got = served(inputs)[output.name]
    assert worst(got, np.asarray(model(inputs)["score"])) <= 1e-5
    with pytest.raises(InputRefused, match="30"):
        served(inputs | {"user": np.full(30, 30)})


@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_a_lambda_layer_runs_only_if_trusted(suffix: str, tmp_path: Path, serve: Serve) -> None:
    """Python code in a file is refused with the flag that opts in; then it is converted."""
    model = keras.Sequential([keras.Input((4,)), layers.Lambda(lambda x: x * 2)])
    path = tmp_path / f"m.{suffix}"
    model.save(path)
    with pytest.raises(ConversionRefused, match=r"has a Lambda layer, .* use --trust-code"):
        serve(path)
    shutil.rmtree(tmp_path / f"converted-m.{suffix}")
    served = serve(path, is_code_trusted=True)
    (spec,), (output,) = served.signature.inputs, served.signature.outputs
    assert served({spec.name: np.ones((1, 4), np.float32)})[output.name].tolist() == [[2.0] * 4]


def test_a_keras_whose_safe_mode_does_not_hold_opens_nothing(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another environment's older Keras would run the code of a file unasked."""
    dense().save(tmp_path / "m.h5")
    monkeypatch.setattr(keras, "__version__", "3.11.2")
    with pytest.raises(
        ConversionRefused, match=r"Keras 3\.11\.2 may run code .* 3\.12\.1 or newer"
    ):
        serve(tmp_path / "m.h5")


def test_a_function_saved_by_tensorflow_is_converted(tmp_path: Path, serve: Serve) -> None:
    """A SavedModel needs no Keras: its signature names inputs and outputs."""

    class Line(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = tf.Variable([[2.0], [3.0]])

        @tf.function(input_signature=[tf.TensorSpec((None, 2), tf.float32, name="points")])
        def serve(self, points: Any) -> Any:
            return {"height": tf.matmul(points, self.slope), "points": points + 1}

    line = Line()
    tf.saved_model.save(line, str(tmp_path / "m"), signatures={"serving_default": line.serve})
    served = serve(tmp_path / "m")
    got = served({"points": np.float32([[1, 1]])})
    assert got["height"].tolist() == [[5.0]]
    assert got["points_out"].tolist() == [[2.0, 2.0]]


def test_what_cannot_be_served_is_refused(tmp_path: Path, serve: Serve) -> None:
    """No signature, texts, weights alone, damage: each says what it is and what to do."""
    tf.saved_model.save(tf.Module(), str(tmp_path / "bare"))
    with pytest.raises(ConversionRefused, match="has no signature 'serving_default'"):
        serve(tmp_path / "bare")
    texts = keras.Sequential([
        keras.Input((1,), dtype="string"), layers.StringLookup(vocabulary=["a", "b"]),
    ])  # fmt: skip
    texts.save(tmp_path / "texts.keras")
    with pytest.raises(ConversionRefused, match=r"takes texts|knows no operator|no graph"):
        serve(tmp_path / "texts.keras")
    dense().save_weights(tmp_path / "w.weights.h5")
    with pytest.raises(ConversionRefused, match="hold weights only"):
        serve(tmp_path / "w.weights.h5")
    dense().save(tmp_path / "cut.keras")
    whole = (tmp_path / "cut.keras").read_bytes()
    (tmp_path / "cut.keras").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConversionRefused, match="damaged or truncated"):
        serve(tmp_path / "cut.keras")
    folder = tmp_path / "rubbish"
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(b"\xffrubbish")
    with pytest.raises(ConversionRefused, match=r"cannot be opened by TensorFlow 2\."):
        serve(folder)


def test_a_push_converts_in_a_process_of_its_own(tmp_path: Path) -> None:
    """The package says where it is from; large weights are objects of their own."""
    folder = tmp_path / "kept"
    folder.mkdir()
    model = keras.Sequential([keras.Input((300,)), layers.Dense(200)])
    model.save(tmp_path / "m.keras")
    package = convert("m", tmp_path / "m.keras", ConvertOptions(folder=folder))
    assert package.manifest.source["framework"] == "tensorflow"
    assert [entry.size_bytes for entry in package.manifest.tensors] == [300 * 200 * 4]
