"""What each scenario of the weights needs, looked at before it starts, not when it is half done."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.bench._weights_rig import Sizes

GB: Final = 1_000_000_000
_MEMINFO: Final = Path("/proc/meminfo")
# Interpreters, runtimes and their like, whatever the size of the models.
_BASE_GB: Final = 1.0
_LEAST_MINUTES: Final = 1.0


@dataclass(frozen=True, slots=True)
class Needs:
    """At full size. ``minutes``: on two quiet cores and a disk that writes a gigabyte a second."""

    memory_gb: float
    disk_gb: float
    minutes: float

    def at(self, sizes: Sizes) -> Needs:
        """Return the same for smaller models."""
        share = sizes.scale
        return Needs(
            _BASE_GB + share * self.memory_gb,
            _BASE_GB + share * self.disk_gb,
            max(_LEAST_MINUTES, self.minutes * (0.2 + 0.8 * share)),
        )

    def __str__(self) -> str:
        return (
            f"{self.memory_gb:.1f} GB of memory, {self.disk_gb:.1f} GB of disk, "
            f"about {self.minutes:.0f} min"
        )


NEEDS: Final = {
    "shared-table": Needs(5.0, 8.0, 4),
    "shared-layers": Needs(4.0, 8.0, 6),
    "distinct": Needs(6.0, 22.0, 4),
    "push": Needs(2.0, 20.0, 3),
    "load": Needs(4.0, 8.0, 6),
    "encoder": Needs(2.5, 4.0, 2),
}


def lacking(needs: Needs, folder: Path) -> str:
    """Return what the machine has too little of, or nothing."""
    memory_gb = available_bytes(_MEMINFO.read_text("ascii")) / GB
    disk_gb = shutil.disk_usage(folder).free / GB
    for what, wanted, free in (
        ("memory", needs.memory_gb, memory_gb), ("disk", needs.disk_gb, disk_gb),
    ):  # fmt: skip
        if free < wanted:
            return f"it needs {wanted:.1f} GB of {what}, and {free:.1f} GB are free"
    return ""


def available_bytes(meminfo: str) -> int:
    """Return MemAvailable of /proc/meminfo; 0 where it does not say."""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
