"""Tests of what the parent process is made of."""

import subprocess
import sys

import pytest

FORBIDDEN = ("onnxruntime", "onnx", "lightgbm", "sklearn", "pandas", "scipy", "torch")


@pytest.mark.slow
def test_the_parent_imports_no_runtime_and_no_training_framework() -> None:
    """A native library that a model can crash, or a pool that it starts, is never in the parent."""
    code = (
        "import sys, serving.bootstrap, serving.__main__;"
        f"print([name for name in {FORBIDDEN!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
