"""The demo's server and command line as processes, and what the kernel says of their memory."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

RAMRACK = Path(sys.executable).with_name("ramrack")
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 45.0


class DemoFailed(Exception):
    """Something did not do what it should; the demo ends with 1."""


class Server:
    """A running server and the command line pointed at it."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, admin_url: str) -> None:
        self.process = process
        self.url = url
        self.admin_url = admin_url

    def command(self, *arguments: str) -> dict[str, Any]:
        """Run ``ramrack ... --json`` and return what it printed."""
        environment = os.environ | {"RAMRACK_URL": self.url, "RAMRACK_ADMIN_URL": self.admin_url}
        done = subprocess.run(
            [RAMRACK, *arguments, "--json"],
            env=environment, capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise DemoFailed(f"ramrack {' '.join(arguments)}: {done.stderr.strip()}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def worker_pids(self) -> list[int]:
        """Return the process ids of the workers."""
        workers = httpx.get(f"{self.admin_url}/admin/v1/workers", trust_env=False).json()["workers"]
        return [worker["pid"] for worker in workers]

    def pss_bytes(self) -> int:
        """Return the workers' memory in all, each shared page counted once in total."""
        return sum(self.pss_of_each())

    def pss_of_each(self) -> list[int]:
        """Return each worker's memory, a shared page by its share."""
        return [_rollup(pid, "Pss:") for pid in self.worker_pids()]

    def rss_bytes(self) -> int:
        """Return the workers' memory in all, a shared page counted once for each worker."""
        return sum(_rollup(pid, "Rss:") for pid in self.worker_pids())

    @staticmethod
    def mapped_bytes(pid: int) -> int:
        """Return how much of files and shared memory one process has in its own page tables."""
        return _rollup(pid, "Rss:") - _rollup(pid, "Anonymous:")


@contextmanager
def running(store: Path, log: Path) -> Iterator[Server]:
    """Start a server, wait until it is ready, and stop it afterwards, whatever happens."""
    port, admin_port = _free_port(8080), _free_port(8081)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [RAMRACK, "serve", "--store", store, "--port", str(port),
             "--admin-port", str(admin_port)],
            stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            # Ctrl-C reaches the whole foreground group; the demo itself ends its server in order.
            start_new_session=True,
        )  # fmt: skip
    server = Server(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}")
    try:
        _wait_ready(server, log)
        yield server
    finally:
        _stop(process)


def _wait_ready(server: Server, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise DemoFailed(f"the server ended at once: {_last_line(log)}")
        try:
            answer = httpx.get(f"{server.url}/v2/health/ready", trust_env=False)
            if answer.status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise DemoFailed(f"the server was not ready after {START_TIMEOUT_S:g} s: {_last_line(log)}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port(wanted: int) -> int:
    """Return the port that the documentation names, or any free one where that is taken."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            # As the server's own sockets do: a port is free although old connections linger.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise DemoFailed("no free port")


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _rollup(pid: int, key: str) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise DemoFailed(f"the kernel does not say how much memory process {pid} has")
