"""What this process holds in memory, a shared page by its share.

The resident size would count shared weights once for each worker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROLLUP: Final = Path("/proc/self/smaps_rollup")


def proportional_bytes() -> int:
    """Return the proportional set size; 0 where the kernel does not tell.

    The kernel walks all pages for it: milliseconds for each gigabyte. Not for the event loop.
    """
    try:
        text = ROLLUP.read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
