"""What a runtime tells its maker: nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "code",
    [
        "from models.runtime.ort_library import library; library()",
        "from models.parity import graph_answer; import onnxruntime",
    ],
    ids=["worker", "push"],
)
def test_onnx_runtime_sends_and_keeps_nothing(tmp_path: Path, code: str):
    """Since 1.29 it reports names and hashes of models unless told not to before it starts.

    Its reporter has threads of its own, and a file in the temporary folder.
    """
    counted = "; import os; print(len(os.listdir('/proc/self/task')))"
    environment = {"TMPDIR": str(tmp_path), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1",
                   "OPENBLAS_NUM_THREADS": "1"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code + counted], cwd=REPOSITORY, env=environment, check=True,
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == []
    assert done.stdout.strip() == "1"
