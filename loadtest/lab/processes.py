"""Processes on cores of their own: started, waited for, and ended by their id whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

_STOP_TIMEOUT_S: Final = 45.0


class LabFailed(Exception):
    """A bench cannot go on; the text says why."""


@contextmanager
def on_cores(cores: Collection[int]) -> Iterator[None]:
    """Let what is started inside run on these cores only; children inherit them from the start."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a server. ``probe``: a path that answers anything but 503 once it serves."""

    command: Sequence[str]
    port: int
    cores: Collection[int]
    log: Path
    probe: str = "/"
    start_timeout_s: float = 120.0
    environment: Mapping[str, str] | None = None


@contextmanager
def serving(launch: Launch) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server, wait until it answers, and stop it at the end.

    Raises LabFailed with the end of its log where it does not come up.
    """
    with launch.log.open("wb") as log, on_cores(launch.cores):
        process = subprocess.Popen(
            list(launch.command),
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            env=os.environ | dict(launch.environment or {}),
            # Ctrl-C reaches the whole foreground group; the bench itself ends its servers.
            start_new_session=True,
        )  # fmt: skip
    try:
        _wait(process, launch)
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process in order, by force if it does not, and then what it left behind.

    It must lead a session of its own: some servers end without their workers.
    """
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def tree_cpu_s(pid: int | None) -> float:
    """Return the CPU seconds that a process and all below it took so far; 0 for None."""
    if pid is None:
        return 0.0
    parents, ticks = {}, {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        # A process may end while this looks.
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            ticks[int(folder.name)] = int(fields[11]) + int(fields[12])
    total = sum(count for each, count in ticks.items() if _is_below(each, pid, parents))
    return total / os.sysconf("SC_CLK_TCK")


def _is_below(pid: int, root: int, parents: Mapping[int, int]) -> bool:
    while pid != root:
        if pid not in parents:
            return False
        pid = parents[pid]
    return True


def free_port(wanted: int = 0) -> int:
    """Return ``wanted`` or, where it is taken, any port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        # As a server's own sockets do: a port is free although old connections linger.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def log_end(log: Path) -> str:
    """Return the last lines of a log, for a message."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:])[-500:] if lines else "it said nothing"
    return "it has no log"


def _wait(process: subprocess.Popen[bytes], launch: Launch) -> None:
    deadline = time.monotonic() + launch.start_timeout_s
    url = f"http://127.0.0.1:{launch.port}{launch.probe}"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise LabFailed(f"{launch.command[0]} ended at once: {log_end(launch.log)}")
        try:
            # Any answer but "not ready" will do: not every server has a page at its root.
            if httpx.get(url, trust_env=False, timeout=5).status_code != 503:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise LabFailed(
        f"{launch.command[0]} did not answer within {launch.start_timeout_s:g} s: "
        f"{log_end(launch.log)}"
    )
