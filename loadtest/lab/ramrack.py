"""The product as its users run it: ``ramrack serve`` with its defaults, and the two ways to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from loadtest.lab.processes import LabFailed, Launch, free_port, serving

RAMRACK: Final = Path(sys.executable).with_name("ramrack")
_TIMEOUT_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Ramrack:
    """A running server."""

    url: str
    admin_url: str
    pid: int

    def command(self, *arguments: str) -> dict[str, Any]:
        """Run ``ramrack ... --json`` and return what it printed."""
        done = subprocess.run(
            [RAMRACK, *arguments, "--json"],
            env=os.environ | {"RAMRACK_URL": self.url, "RAMRACK_ADMIN_URL": self.admin_url},
            capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise LabFailed(f"ramrack {' '.join(arguments)}: {done.stderr.strip()}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def push(self, name: str, path: str, *options: str) -> int:
        """Publish a version and return its number."""
        return int(self.command("push", name, path, *options)["version"])

    def admin(self, method: str, path: str, body: object = None) -> httpx.Response:
        """Send one request to the admin plane, without the cost of starting the command line."""
        return httpx.request(
            method, f"{self.admin_url}/admin/v1{path}", json=body, trust_env=False,
            timeout=_TIMEOUT_S,
        )  # fmt: skip

    def must(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Do the same and return the answer; raises LabFailed where it is not 2xx."""
        answer = self.admin(method, path, body)
        if not answer.is_success:
            raise LabFailed(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found

    def set_batching(self, model: str, *, is_on: bool) -> str:
        """Turn batching on or off; returns why it cannot be done, or nothing."""
        answer = self.admin("PUT", f"/models/{model}/settings", {"batching": is_on})
        return "" if answer.is_success else f"settings: {answer.status_code} {answer.text[:120]}"


@contextmanager
def ramrack(cores: Collection[int], work: Path, *options: str) -> Iterator[Ramrack]:
    """Run a server on ``cores`` over a store in ``work``; all checks are on, as by default."""
    port, admin_port = free_port(), free_port()
    launch = Launch(
        [str(RAMRACK), "serve", "--store", str(work / "store"), "--port", str(port),
         "--admin-port", str(admin_port), *options],
        port, cores, work / "ramrack.log", probe="/v2/health/ready",
    )  # fmt: skip
    with serving(launch) as process:
        yield Ramrack(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", process.pid)
