"""What the scenarios of the weights share: a server for each, models made and removed."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtest.lab.bed import ROOT, Bed
from loadtest.lab.bodies import Tensor, as_json
from loadtest.lab.memory import Held, held_by, tree_of
from loadtest.lab.processes import LabFailed, on_cores
from loadtest.lab.ramrack import Ramrack, ramrack

WORKERS: Final = 2
HEADS: Final = 12
_MAKE_TIMEOUT_S: Final = 1800.0
_WAIT_S: Final = 900
# An unload is answered when the memory was given back; the kernel's counts follow at once.
_SETTLE_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the models are, by ``scale``; 1 is what the claims speak of."""

    scale: float

    def mib(self, full: int) -> int:
        """Return MiB at this scale, at least 1."""
        return max(1, round(full * self.scale))

    @property
    def width(self) -> int:
        """Width of the encoder: its weights grow with its square."""
        return max(HEADS, round(768 * math.sqrt(self.scale) / HEADS) * HEADS)

    @property
    def nodes(self) -> int:
        """Nodes of the forest."""
        return max(2**14, round(3_000_000 * self.scale))


@dataclass(slots=True)
class Rig:
    """One scenario's server with its store and the folder of the model files."""

    bed: Bed
    server: Ramrack
    folder: Path

    def make(self, kind: str, *options: str) -> str:
        """Make one version's file and return its path."""
        return zoo("models.zoo.variants", kind, str(self.folder), *options).strip()

    def push(self, name: str, path: str, *, is_kept: bool = False) -> dict[str, Any]:
        """Publish a version and return what was printed; its file goes unless it is kept."""
        found = self.server.command("push", name, path)
        if found["version"] == 1:
            # By default a model keeps ten versions that are not loaded, and here more are compared.
            self.server.command("settings", name, "--set", "retain=100")
        if not is_kept:
            Path(path).unlink()
        return found

    def load(self, name: str, version: int) -> float:
        """Load a version; return the seconds from the call until it was READY in every worker."""
        began = time.monotonic()
        self.server.must("POST", f"/models/{name}/versions/{version}:load?wait={_WAIT_S}", {})
        return time.monotonic() - began

    def unload(self, name: str, version: int) -> float:
        """Unload a version; return the seconds until its memory was given back."""
        began = time.monotonic()
        self.server.must("POST", f"/models/{name}/versions/{version}:unload?wait={_WAIT_S}", {})
        return time.monotonic() - began

    def answer(self, name: str, version: int | None, tensors: Sequence[Tensor]) -> list[float]:
        """Return the numbers that a version, or the route, answers."""
        where = name if version is None else f"{name}/versions/{version}"
        found = json.loads(self.bed.answer("ramrack", where, as_json(tensors)))
        return [float(number) for number in found["outputs"][0]["data"]]

    def release_route(self, name: str) -> None:
        """Take the route away, so that all versions may be unloaded."""
        if self.server.must("GET", f"/models/{name}")["route"] is not None:
            self.server.must("DELETE", f"/models/{name}/route")

    def ledger(self, name: str) -> list[dict[str, Any]]:
        """Return the memory ledger's lines of one model."""
        versions = self.server.must("GET", "/memory")["versions"]
        return [each for each in versions if each["model"] == name]

    def committed_bytes(self) -> int:
        """Return what is reserved of the budget."""
        return int(self.server.must("GET", "/memory")["committed_bytes"])

    def worker_pids(self) -> list[int]:
        """Return the workers' processes."""
        workers = self.server.must("GET", "/workers")["workers"]
        return [each["pid"] for each in workers if each["pid"] is not None]

    def held(self) -> Held:
        """Return what the whole server holds now."""
        time.sleep(_SETTLE_S)
        return held_by(tree_of(self.server.pid))

    def objects(self) -> list[Path]:
        """Return the files of the store's objects."""
        return sorted((self.folder.parent / "store" / "objects").iterdir())


@contextmanager
def rig(bed: Bed, *options: str, is_core_left: bool = False) -> Iterator[Rig]:
    """Start a server over an empty store; store and models are removed at the end.

    ``is_core_left``: leave a core to the generator, for what is measured under load.
    """
    usable = os.sched_getaffinity(0)
    bed.server_cores = (usable - set(bed.client_cores) or usable) if is_core_left else usable
    work = bed.work / "rig"
    folder = work / "models"
    folder.mkdir(parents=True)
    try:
        with ramrack(bed.server_cores, work, "--workers", str(WORKERS), *options) as server:
            bed.server = server
            bed.urls["ramrack"] = server.url
            yield Rig(bed, server, folder)
    finally:
        shutil.rmtree(work)


def zoo(module: str, *options: str) -> str:
    """Run one of the makers of models and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", module, *options],
        cwd=ROOT, capture_output=True, text=True, timeout=_MAKE_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise LabFailed(f"making a model failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def plain_session(bed: Bed, graph: str, body: Path, seconds: float) -> dict[str, Any]:
    """Return what a plain session on the server's cores did."""
    script = ROOT / "loadtest" / "peers" / "plain_session.py"
    with on_cores(bed.server_cores):
        done = subprocess.run(
            [sys.executable, str(script), graph, str(body), "--seconds", str(seconds)],
            capture_output=True, text=True, timeout=_MAKE_TIMEOUT_S, check=False,
        )  # fmt: skip
    if done.returncode != 0:
        raise LabFailed(f"the plain session failed: {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
