"""The demo's server on the ports of the documentation, and what its workers take of memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.lab.processes import LabFailed, Launch, free_port, serving
from loadtest.lab.ramrack import RAMRACK, Ramrack


class DemoFailed(LabFailed):
    """Something did not do what it should; the demo ends with 1."""


@dataclass(frozen=True, slots=True)
class Server(Ramrack):
    """A running server, the command line pointed at it, and what the kernel says of its memory."""

    process: subprocess.Popen[bytes]

    def worker_pids(self) -> list[int]:
        """Return the process ids of the workers."""
        return [worker["pid"] for worker in self.must("GET", "/workers")["workers"]]

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
    port, admin_port = free_port(8080), free_port(8081)
    launch = Launch(
        [str(RAMRACK), "serve", "--store", str(store), "--port", str(port),
         "--admin-port", str(admin_port)],
        port, os.sched_getaffinity(0), log, probe="/v2/health/ready",
    )  # fmt: skip
    with serving(launch) as process:
        url, admin_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
        yield Server(url, admin_url, process.pid, process)


def _rollup(pid: int, key: str) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise DemoFailed(f"the kernel does not say how much memory process {pid} has")
