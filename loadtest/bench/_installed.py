"""Peers from PyPI, each in an environment of its own, made on demand and kept for the next time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from loadtest.bench._throughput import by_cpu, fraud_rows
from loadtest.lab.bed import ROOT, Bed, warm
from loadtest.lab.bodies import as_json
from loadtest.lab.claims import Target, ratios
from loadtest.lab.generators import Load, Measured
from loadtest.lab.processes import LabFailed, Launch, free_port, serving

ENVIRONMENTS: Final = ROOT / ".ramrack" / "peers"
_INSTALL_TIMEOUT_S: Final = 900.0
_MODEL_TIMEOUT_S: Final = 60.0
_CONNECTIONS: Final = 16
# A GPU build of torch is gigabytes of what a server on CPUs never uses.
_REFUSED: Final = ("torch", "nvidia-cublas", "nvidia-cudnn", "nvidia-cuda")


@dataclass(frozen=True, slots=True)
class Peer:
    """A server from PyPI: what to install and the script in loadtest/peers that runs it."""

    name: str
    requirements: tuple[str, ...]
    script: str


PEERS: Final = (
    Peer("MLServer", ("mlserver==1.7.1",), "mlserver_onnx.py"),
    Peer("LitServe", ("litserve==0.2.19",), "litserve_onnx.py"),
    Peer("BentoML", ("bentoml==1.4.40",), "bentoml_onnx.py"),
    Peer("Ray Serve", ("ray[serve]==2.60.0",), "ray_serve_onnx.py"),
)
_COMMON: Final = ("onnxruntime", "numpy")


def compare(bed: Bed) -> None:
    """Measure each peer that can be installed here, in turn with ours; say why others cannot."""
    tensors = fraud_rows(bed, 1)
    body = bed.body("fraud-1", as_json(tensors))
    ours = bed.load("ramrack", "fraud", body)
    for peer in PEERS:
        title = f"LightGBM, 1 row, JSON, {_CONNECTIONS} connections, {peer.name}"
        target = Target(">=", 1.0)
        try:
            python = environment(peer)
            with serving(_launch(bed, peer, python)) as process:
                bed.pids[peer.name] = process.pid
                theirs = bed.load(peer.name, "fraud", body)
                _wait_for_model(bed, peer, as_json(tensors))
                bed.compare_answers("fraud", tensors, (peer.name,))
                warm(bed, [ours, theirs])
                seen = bed.in_turn(title, _measures(bed, {"ramrack": ours, peer.name: theirs}))
        except (LabFailed, OSError, httpx.HTTPError, subprocess.SubprocessError) as error:
            bed.findings.skip(f"{title}: rate against it", target, str(error)[:300])
            continue
        bed.findings.claim(
            f"{title}: rate against it", target,
            ratios([r.rate for r in seen["ramrack"]], [r.rate for r in seen[peer.name]]),
            by_cpu(seen, peer.name),
        )  # fmt: skip


def _wait_for_model(bed: Bed, peer: Peer, body: bytes) -> None:
    """Wait until the peer predicts: some answer 404 until their model is there."""
    deadline = time.monotonic() + _MODEL_TIMEOUT_S
    while True:
        try:
            bed.answer(peer.name, "fraud", body)
        except (LabFailed, httpx.TransportError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return


def environment(peer: Peer, folder: Path = ENVIRONMENTS) -> Path:
    """Return the Python of the peer's environment, making it first if it is not there.

    Raises LabFailed where it cannot be installed, or would bring what is refused.
    """
    home = folder / peer.script.removesuffix(".py")
    python, stamp = home / "bin" / "python", home / ".installed"
    wanted = " ".join((*peer.requirements, *_COMMON))
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return python
    print(f"installing {peer.name} into {home} (once)", flush=True)
    _refuse_if_huge(peer)
    venv.create(home, with_pip=True, clear=True)
    _pip(str(python), "install", *peer.requirements, *_COMMON)
    stamp.write_text(wanted, encoding="utf-8")
    return python


def refused(report: str) -> list[str]:
    """Return the packages in pip's report of an install that are not to be installed."""
    names = [entry["metadata"]["name"].lower() for entry in json.loads(report)["install"]]
    return [name for name in names if name.startswith(_REFUSED)]


def _refuse_if_huge(peer: Peer) -> None:
    report = _pip(
        sys.executable, "install", "--dry-run", "--ignore-installed", "--report", "-",
        *peer.requirements, *_COMMON,
    )  # fmt: skip
    if names := refused(report):
        raise LabFailed(f"not installed: it needs {', '.join(names)}")


def _pip(python: str, *arguments: str) -> str:
    done = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments],
        capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise LabFailed(f"pip: {lines[-1] if lines else done.returncode}")
    return done.stdout


def _launch(bed: Bed, peer: Peer, python: Path) -> Launch:
    port = free_port()
    work = bed.work / peer.script.removesuffix(".py")
    work.mkdir(exist_ok=True)
    bed.urls[peer.name] = f"http://127.0.0.1:{port}"
    command = [
        str(python), str(ROOT / "loadtest" / "peers" / peer.script), "--port", str(port),
        "--model", f"fraud={bed.index['fraud']['onnx'][1]}", "--work", str(work),
    ]  # fmt: skip
    return Launch(command, port, bed.server_cores, bed.work / f"{peer.script}.log",
                  probe="/nothing", environment={"PYTHONUNBUFFERED": "1"})  # fmt: skip


def _measures(bed: Bed, loads: dict[str, Load]) -> dict[str, Callable[[], Measured]]:
    def measure(load: Load) -> Callable[[], Measured]:
        return lambda: bed.closed(load, _CONNECTIONS)

    return {name: measure(load) for name, load in loads.items()}
