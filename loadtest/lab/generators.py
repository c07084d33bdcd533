"""Load generators as processes on their own core, and what they measured.

For a closed loop wrk is used where it is installed, for it costs a tenth of a generator in Python;
our own otherwise, and the result says which.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtest.lab.processes import LabFailed, on_cores, tree_cpu_s

_GRACE_S: Final = 60.0
_WRK_SCRIPT: Final = """\
wrk.method = "POST"
local file = io.open(os.getenv("BENCH_BODY"), "rb")
wrk.body = file:read("*a")
file:close()
for line in (os.getenv("BENCH_HEADERS") or ""):gmatch("[^\\n]+") do
  local name, value = line:match("^([^:]+):%s*(.*)$")
  wrk.headers[name] = value
end
done = function(summary, latency, _)
  local e = summary.errors
  io.write(string.format(
    'RESULT {"requests":%d,"us":%d,"p50":%d,"p99":%d,"status":%d,"broken":%d,"timeout":%d}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.status, e.connect + e.read + e.write, e.timeout))
end
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What to send and where. ``headers``: ``Name: value``."""

    url: str
    body: Path
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """One closed-loop measurement.

    ``client_cpu`` and ``server_cpu``: share of a core that generator and server took; 0 where the
    server's process is not known.
    """

    rate: float
    p50_ms: float
    p99_ms: float
    failed: int
    client_cpu: float
    generator: str
    server_cpu: float = 0.0


def closed_loop(
    load: Load, connections: int, seconds: float, cores: Collection[int], work: Path,
    server_pid: int | None = None,
) -> Measured:  # fmt: skip
    """Keep ``connections`` requests under way for ``seconds`` and return what was seen."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    server_before_s = tree_cpu_s(server_pid)
    began = time.monotonic()
    measure = _wrk if shutil.which("wrk") else _own
    result = measure(load, connections, seconds, cores, work)
    took_s = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    server_s = tree_cpu_s(server_pid) - server_before_s
    return Measured(
        **result, client_cpu=round(cpu_s / took_s, 3), server_cpu=round(server_s / took_s, 3)
    )


def parse_wrk(output: str) -> dict[str, Any]:
    """Return what wrk measured, from what our script makes it print."""
    for line in output.splitlines():
        if line.startswith("RESULT "):
            found = json.loads(line.removeprefix("RESULT "))
            failed = found["status"] + found["broken"] + found["timeout"]
            succeeded = max(0, found["requests"] - found["status"])
            return {
                "rate": succeeded / (found["us"] / 1e6),
                "p50_ms": found["p50"] / 1000, "p99_ms": found["p99"] / 1000,
                "failed": failed, "generator": "wrk",
            }  # fmt: skip
    raise LabFailed(f"wrk: {output.strip()[-300:]}")


def _wrk(
    load: Load, connections: int, seconds: float, cores: Collection[int], work: Path
) -> dict[str, Any]:
    return parse_wrk(_output(*_wrk_command(load, connections, seconds, work), cores, seconds))


def _wrk_command(
    load: Load, connections: int, seconds: float, work: Path
) -> tuple[list[str], dict[str, str]]:
    script = work / "post.lua"
    script.write_text(_WRK_SCRIPT, encoding="utf-8")
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s",
               "-s", str(script), load.url]  # fmt: skip
    headers = load.headers
    if not any(header.lower().startswith("content-type:") for header in headers):
        headers = (*headers, "Content-Type: application/json")
    return command, {"BENCH_BODY": str(load.body), "BENCH_HEADERS": "\n".join(headers)}


def _own_command(load: Load, connections: int, seconds: float) -> list[str]:
    headers = [part for header in load.headers for part in ("--header", header)]
    return [sys.executable, "-m", "loadtest.closed_loop", load.url, str(load.body),
            "--connections", str(connections), "--seconds", str(seconds), *headers]  # fmt: skip


def _own(
    load: Load, connections: int, seconds: float, cores: Collection[int], _: Path
) -> dict[str, Any]:
    output = _output(_own_command(load, connections, seconds), {}, cores, seconds)
    found = json.loads(output)
    if found["p50_ms"] is None:
        raise LabFailed(f"nothing was answered: {found['errors']}")
    return {
        "rate": found["requests_per_second"], "p50_ms": found["p50_ms"],
        "p99_ms": found["p99_ms"], "failed": found["failed"], "generator": "closed_loop",
    }  # fmt: skip


@contextmanager
def background_load(
    load: Load, connections: int, cores: Collection[int], work: Path, most_s: float = 120.0
) -> Iterator[None]:
    """Keep ``connections`` requests under way while the block runs; what comes back is not kept."""
    command, environment = (
        _wrk_command(load, connections, most_s, work) if shutil.which("wrk")
        else (_own_command(load, connections, most_s), {})
    )  # fmt: skip
    with on_cores(cores):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=os.environ | environment,
        )  # fmt: skip
    try:
        yield
        if process.poll() is not None:
            raise LabFailed(f"the load beside ended by itself with {process.returncode}")
    finally:
        process.terminate()
        process.wait()


def open_loop_command(load: Load, rate: float, seconds: float, *more: str) -> list[str]:
    """Return the command of an open-loop run."""
    headers = [part for header in load.headers for part in ("--header", header)]
    return [sys.executable, "-m", "loadtest.open_loop", load.url, str(load.body),
            "--rate", f"{rate:.3f}", "--seconds", str(seconds), *headers, *more]  # fmt: skip


def open_loop(
    load: Load, rate: float, seconds: float, cores: Collection[int], *more: str
) -> dict[str, Any]:
    """Send ``rate`` requests a second and return the report of loadtest.open_loop."""
    output = _output(open_loop_command(load, rate, seconds, *more), {}, cores, seconds)
    found: dict[str, Any] = json.loads(output)
    return found


def _output(
    command: Sequence[str], environment: dict[str, str], cores: Collection[int], seconds: float
) -> str:
    with on_cores(cores):
        done = subprocess.run(
            command, capture_output=True, text=True, check=False,
            timeout=seconds + _GRACE_S, env=os.environ | environment,
        )  # fmt: skip
    if not done.stdout.strip():
        raise LabFailed(f"{command[0]}: {done.stderr.strip()[-300:]}")
    return done.stdout
