"""What of the machine this process may use: cores and memory, after affinity and cgroup limits.

The host's totals are never the answer inside a container. Standard library only, read-only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
PROC: Final = Path("/proc")
CPUS: Final = Path("/sys/devices/system/cpu")
# What cgroup v1 says when there is no limit: the largest page-aligned 63-bit number.
_V1_UNLIMITED: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class Machine:
    """The share of the machine that is ours.

    ``cores``: physical ones by affinity, each with the processors of it that we may use: two
    hardware threads of a core share its units, and a second run there slows the first down.
    ``quota_cores``: what the CPU quota allows, None without one.
    ``memory_bytes``: the host's memory or the cgroup's limit, whichever is less.
    ``available_bytes``: what is left of that now, caches that can be dropped counted as free.
    """

    cores: tuple[tuple[int, ...], ...]
    quota_cores: float | None
    memory_bytes: int
    memory_limit_bytes: int | None
    available_bytes: int

    @property
    def usable_cores(self) -> int:
        """Whole cores that can be busy at once: at least 1."""
        if self.quota_cores is None:
            return max(1, len(self.cores))
        return max(1, min(len(self.cores), int(self.quota_cores)))


def read_machine(cgroup_root: Path = CGROUP_ROOT, proc: Path = PROC, cpus: Path = CPUS) -> Machine:
    """Return what this process may use now. A file that cannot be read counts as no limit."""
    total, available = _host_memory(proc)
    limit, used = _cgroup_memory(cgroup_root, proc)
    if limit is not None and limit < total:
        total, available = limit, min(available, max(0, limit - used))
    return Machine(
        cores=_cores(sorted(os.sched_getaffinity(0)), cpus),
        quota_cores=_quota(cgroup_root, proc),
        memory_bytes=total,
        memory_limit_bytes=limit,
        available_bytes=available,
    )


def _cores(affinity: Sequence[int], cpus: Path) -> tuple[tuple[int, ...], ...]:
    """Return the processors of the affinity by the core that they belong to."""
    cores: dict[object, list[int]] = {}
    for cpu in affinity:
        topology = cpus / f"cpu{cpu}/topology"
        siblings = _text(topology / "core_cpus_list") or _text(topology / "thread_siblings_list")
        # Where the kernel says nothing each counts as a core.
        cores.setdefault(siblings.strip() or cpu, []).append(cpu)
    return tuple(tuple(core) for core in cores.values())


def _host_memory(proc: Path) -> tuple[int, int]:
    values = _key_values(proc / "meminfo")
    total = values.get("MemTotal:", 0) * 1024
    return total, values.get("MemAvailable:", values.get("MemFree:", 0)) * 1024


def _key_values(path: Path) -> dict[str, int]:
    values = {}
    for line in _text(path).splitlines():
        parts = line.split()
        if len(parts) >= 2 and parts[1].isdigit():
            values[parts[0]] = int(parts[1])
    return values


def _folders(root: Path, proc: Path, controller: str) -> list[Path]:
    """Return the folders of our cgroup and of those above it, v2 first, the nearest first."""
    for line in _text(proc / "self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names == "" or controller in names.split(","):
            base = root if names == "" else root / controller
            inner = base / path.lstrip("/")
            # Inside a container the path is often the host's and not there: the root is ours then.
            chain = [inner, *inner.parents] if inner.is_dir() else [base]
            folders = [folder for folder in chain if folder == base or base in folder.parents]
            if any(_is_controlled(folder, controller) for folder in folders):
                return folders
    return [root]


def _is_controlled(folder: Path, controller: str) -> bool:
    return any(folder.glob(f"{controller}.*"))


def _cgroup_memory(root: Path, proc: Path) -> tuple[int | None, int]:
    """Return the tightest memory limit on our path and what is used under it, caches left out."""
    tightest: tuple[int, int] | None = None
    for folder in _folders(root, proc, "memory"):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        if limit is None or limit >= _V1_UNLIMITED:
            continue
        current = (
            _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
        )
        stat = _key_values(folder / "memory.stat")
        cache = stat.get("inactive_file", stat.get("total_inactive_file", 0))
        if tightest is None or limit < tightest[0]:
            tightest = (limit, max(0, current - cache))
    return tightest if tightest is not None else (None, 0)


def _quota(root: Path, proc: Path) -> float | None:
    quotas = []
    for folder in _folders(root, proc, "cpu"):
        words = _text(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
        quota = _number(folder / "cpu.cfs_quota_us")
        period = _number(folder / "cpu.cfs_period_us")
        if quota and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
