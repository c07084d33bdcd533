"""What was measured on: machine, cores and versions, printed above every result."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

_PACKAGES: Final = (
    "ramrack", "onnxruntime", "numpy", "orjson", "uvicorn", "uvloop", "httptools", "fastapi",
    "pydantic",
)  # fmt: skip


def describe_machine() -> dict[str, object]:
    """Return processor, cores, memory, load, kernel, versions and the commit, where known."""
    return {
        "processor": _first("/proc/cpuinfo", "model name"),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory": _first("/proc/meminfo", "MemTotal"),
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": _commit(),
        **{name: _version(name) for name in _PACKAGES},
    }


def machine_lines() -> list[str]:
    """Return the same as a few lines of text."""
    machine = describe_machine()
    head = ("processor", "usable_cores", "memory", "kernel", "load_average", "commit")
    return [
        "machine: " + ", ".join(f"{name} {machine[name]}" for name in head),
        "versions: " + ", ".join(f"{n} {v}" for n, v in machine.items() if n not in head),
    ]


def two_cores() -> tuple[set[int], set[int]]:
    """Return the core for the server and the one for the load; the same if there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    # The last cores: what else runs on a machine is more often on the first.
    return ({cores[-2]}, {cores[-1]}) if len(cores) > 1 else ({cores[0]}, {cores[0]})


def _first(path: str, key: str) -> str:
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        if line.startswith(key):
            return " ".join(line.partition(":")[2].split())
    return "unknown"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            capture_output=True, text=True, timeout=10, check=False,
            cwd=Path(__file__).parent,
        )  # fmt: skip
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
