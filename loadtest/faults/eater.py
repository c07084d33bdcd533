"""``python -m loadtest.faults.eater CGROUP``: takes memory until the kernel has ended somebody.

It joins the cgroup and takes ever more of its memory, as neighbours that leak do, spread over many
small processes, so that none of them is the largest there. All of it is given back as soon as one
process of the cgroup was ended for memory. Prints how many MiB it had.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from pathlib import Path
from typing import Final

from loadtest.faults.memory_group import oom_kills

_STEP_BYTES: Final = 1 << 20
_STEPS_EACH: Final = 16
# What the one that is ended gives back comes a moment later.
_PAUSE_S: Final = 0.002


def main(folder: Path) -> int:
    """Take memory of the cgroup; return the exit code."""
    before = oom_kills(folder)
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    holders, eaten = [], 0
    # Whoever holds memory does so until the other end of this is closed.
    reader, writer = os.pipe()
    while oom_kills(folder) == before:
        told, telling = os.pipe()
        holder = os.fork()
        if holder == 0:
            os.close(writer)
            _hold(folder, before, telling)
            os.read(reader, 1)
            os._exit(0)
        os.close(telling)
        holders.append(holder)
        while took := os.read(told, _STEPS_EACH):
            eaten += len(took)
        os.close(told)
    os.close(writer)
    for holder in holders:
        os.waitpid(holder, 0)
    print(eaten)
    return 0


def _hold(folder: Path, before: int, telling: int) -> None:
    """Take some MiB, one by one, and say each; the blocks stay until the process ends."""
    blocks = []
    for _ in range(_STEPS_EACH):
        if oom_kills(folder) > before:
            break
        block = mmap.mmap(-1, _STEP_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        block.write(b"x" * _STEP_BYTES)
        blocks.append(block)
        os.write(telling, b".")
        time.sleep(_PAUSE_S)
    _kept.extend(blocks)
    os.close(telling)


_kept: Final[list[mmap.mmap]] = []

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
