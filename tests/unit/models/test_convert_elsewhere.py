"""Converting with another interpreter."""

from __future__ import annotations

import pickle
import stat
import sys
from pathlib import Path

import pytest

from models.convert import ConvertOptions, convert
from models.convert.elsewhere import convert_elsewhere
from models.errors import ConversionRefused

pytestmark = [pytest.mark.extra, pytest.mark.slow]


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    from sklearn.tree import DecisionTreeRegressor

    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(DecisionTreeRegressor().fit([[0.0], [1.0]], [0.0, 1.0])))
    return path


def test_another_interpreter_makes_the_same_version(tmp_path: Path, model: Path) -> None:
    """The package is the one that this interpreter makes, with sample, options and warning."""
    sample = tmp_path / "rows.csv"
    sample.write_text("x\n0.25\n")
    warned = []
    options = ConvertOptions(sample=sample, tolerance=1e-4, meta={"run": "7"})
    other = convert_elsewhere(
        Path(sys.executable), "m", model, options, before_pickle=lambda: warned.append(1)
    )
    here = convert("m", model, options)
    documents = [package.manifest.to_json() | {"created": ""} for package in (other, here)]
    assert documents[0] == documents[1]
    assert [b"".join(item.chunks()) for item in other.objects] == [
        b"".join(item.chunks()) for item in here.objects
    ]
    assert warned == [1]


def test_a_refusal_there_is_a_refusal_here(tmp_path: Path) -> None:
    """The other interpreter's words reach the user."""
    from sklearn.preprocessing import StandardScaler

    path = tmp_path / "scaler.pkl"
    path.write_bytes(pickle.dumps(StandardScaler().fit([[0.0], [1.0]])))
    with pytest.raises(ConversionRefused, match="does not predict"):
        convert_elsewhere(Path(sys.executable), "m", path, ConvertOptions())


def test_what_an_environment_lacks_is_named(tmp_path: Path, model: Path) -> None:
    """An interpreter without the libraries says which, with the command to type."""
    bare = script(tmp_path / "bare", f'exec "{sys.executable}" -S -E "$@"')
    with pytest.raises(ConversionRefused, match=r"lacks numpy, onnx, onnxruntime: type .*pip inst"):
        convert_elsewhere(bare, "m", model, ConvertOptions())


def test_what_the_model_needs_is_named_for_that_environment(tmp_path: Path, model: Path) -> None:
    """All of it at once, and the command is that interpreter's: an extra of ours does not help."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: (\n"
        "    None if name in ('skl2onnx', 'pandas') else found(name, *rest))\n"
    )
    python = script(
        tmp_path / "python",
        f'PYTHONPATH="{tmp_path}:$PYTHONPATH" exec "{sys.executable}" "$@"',
    )
    with pytest.raises(ConversionRefused, match=r"type `.*python -m pip install skl2onnx pandas`"):
        convert_elsewhere(python, "m", model, ConvertOptions())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo hello", "is no Python interpreter: hello"),
        ("echo '[[3, 8], []]'", r"is Python 3\.8: at least 3\.11"),
        ("exit 3", "is no Python interpreter: it says nothing"),
        (
            'if [ "$1" = -c ]; then echo "[[3, 11], []]"; else echo gone >&2; exit 9; fi',
            "ended with exit code 9: gone",
        ),
    ],
)
def test_what_is_no_interpreter_is_said_so(
    tmp_path: Path, model: Path, text: str, reason: str
) -> None:
    """Whatever the file does, the user reads what it was and what it said."""
    with pytest.raises(ConversionRefused, match=reason):
        convert_elsewhere(script(tmp_path / "exe", text), "m", model, ConvertOptions())


def test_an_interpreter_that_is_not_there(tmp_path: Path, model: Path) -> None:
    """The operating system's reason is given."""
    with pytest.raises(ConversionRefused, match="No such file"):
        convert_elsewhere(tmp_path / "nowhere", "m", model, ConvertOptions())
