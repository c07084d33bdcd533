"""The server as a service manager starts it, and as a platform that brings a model's file does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import onnx
import pytest
from onnx import TensorProto

from serving.settings import load_settings
from tests.contract.ports import free_port
from tests.graphs import identity
from tests.process.server import ROOT, infer_body, running_server, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]
ROW = [1.0, 2.0, 3.0, 4.0]


def test_a_service_manager_hears_of_start_life_and_stop(tmp_path: Path) -> None:
    """READY when it listens, signs of life from then on, STOPPING at SIGTERM."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
        with running_server(tmp_path, environ=environ) as server:
            said = [manager.recv(4096).decode() for _ in range(4)]
            assert server.stop() == 0
            while not (last := manager.recv(4096).decode()).startswith("STOPPING=1"):
                assert last == "WATCHDOG=1"
    assert said == ["READY=1\nSTATUS=serving", *["WATCHDOG=1"] * 3]


def environ_of(tmp_path: Path) -> dict[str, str]:
    passed = {k: v for k, v in os.environ.items() if not k.startswith("RAMRACK_")}
    settings = {"STORE": str(tmp_path / "store"), "PORT": str(free_port()),
                "ADMIN_PORT": str(free_port()), "WORKERS": "1"}  # fmt: skip
    return passed | {f"RAMRACK_{key}": value for key, value in settings.items()}


def is_ready(client: httpx.Client) -> bool:
    return client.get("/v2/models/m/ready").status_code == 200


def serve_folder(environ: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    module = "serving.serve_folder"
    command = [sys.executable, "-m", module, "--name", "m", "--folder", str(folder)]
    return subprocess.Popen(
        command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def test_a_folder_is_served_and_served_again(tmp_path: Path) -> None:
    """The model is ready under its name; a second start has the same version; SIGTERM is a 0."""
    folder = tmp_path / "models" / "deep"
    folder.mkdir(parents=True)
    onnx.save(identity(TensorProto.FLOAT, ("N", 4)), folder / "model.onnx")
    environ = environ_of(tmp_path)
    assert load_settings(None, environ, {}).workers == 1
    url = f"http://127.0.0.1:{environ['RAMRACK_PORT']}"
    for _ in range(2):
        process = serve_folder(environ, tmp_path / "models")
        try:
            with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
                wait_until(lambda c=client: is_ready(c), 90, "the model is ready")
                answer = client.post("/v2/models/m/infer", json=infer_body([ROW]))
                assert answer.json()["outputs"][0]["data"] == ROW
                assert answer.headers["x-ramrack-version"] == "1"
        finally:
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said


@pytest.mark.parametrize("files", [(), ("a.onnx", "b.onnx"), ("bad.onnx",)])
def test_a_folder_without_one_good_model_ends_with_the_reason(
    tmp_path: Path, files: tuple[str, ...]
) -> None:
    """None, two, or one that is none: exit code 1, and stderr says which."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name in files:
        (folder / name).write_bytes(b"\x08\x09")
    process = serve_folder(environ_of(tmp_path), folder)
    _, said = process.communicate(timeout=110)
    assert process.returncode == 1
    expected = "cannot be served" if len(files) == 1 else f"{len(files)} .onnx files"
    assert expected in said
