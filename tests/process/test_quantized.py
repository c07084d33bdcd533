"""A version with smaller weights, pushed by the command and answered by a running server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.parity import graph_answer
from models.zoo.recommender import write_recommender
from tests.process.server import RunningServer, running_server

pytestmark = [pytest.mark.process, pytest.mark.slow]


def ramrack(server: RunningServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "serving.cli", *arguments],
        env=os.environ | {"RAMRACK_ADMIN_URL": server.admin_url},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def stored_bytes(server: RunningServer) -> int:
    return sum(each.stat().st_size for each in (server.store / "objects").iterdir())


def infer(server: RunningServer, version: int, inputs: dict[str, Any]) -> Any:
    body = {"inputs": [
        {"name": name, "datatype": "INT64", "shape": [len(values)], "data": values.tolist()}
        for name, values in inputs.items()
    ]}  # fmt: skip
    answer = server.data("POST", f"/v2/models/rec/versions/{version}/infer", json=body)
    return np.array(server.expect(answer)["outputs"][0]["data"])


def test_smaller_weights_take_less_disk_and_answer_within_the_tolerance(tmp_path: Path):
    """int8 takes a quarter of the disk, is served within its tolerance, and is never batched."""
    path = write_recommender(tmp_path, mib=4)
    inputs = {"user": np.arange(0, 64), "item": np.arange(0, 64) * 200}
    native = graph_answer(path)(inputs)["score"]
    with running_server(tmp_path) as server:
        refused = ramrack(server, "push", "rec", str(path), "--quantize", "int8",
                          "--tolerance", "1e-6")  # fmt: skip
        assert refused.returncode == 1
        assert "--quantize int8 loses too much" in refused.stderr
        assert stored_bytes(server) == 0
        for version, (options, share) in enumerate(
            [((), 1.05), (("--quantize", "int8"), 0.32)], start=1
        ):
            before = stored_bytes(server)
            done = ramrack(server, "push", "rec", str(path), "--load", "--json", *options)
            assert done.returncode == 0, done.stderr
            result = json.loads(done.stdout)
            assert result["version"] == version
            assert stored_bytes(server) - before <= share * (5 << 20) + (256 << 10)
            tolerance = result["parity"]["tolerance"] if options else 1e-5
            answers = infer(server, version, inputs)
            assert np.abs(answers - native).max() <= tolerance
            details = server.expect(server.admin("GET", f"/admin/v1/models/rec/versions/{version}"))
            assert details["batching"]["allowed"] is not bool(options)
