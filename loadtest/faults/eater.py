"""``python -m loadtest.faults.eater CGROUP``: takes memory until the kernel has ended somebody.

Processes join the cgroup one after the other and take ever more of its memory, as neighbours that
leak do; each is small, so that none of them is the largest there. All of it is given back as soon
as one process of the cgroup was ended for memory. Prints how many MiB it had.

Who watches stays outside: inside it could be the one that waits for a page when the kernel has
ended somebody, and what it had not given back would cost the next one.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from pathlib import Path
from select import select
from typing import Final

from loadtest.faults.memory_group import oom_kills

_STEP_BYTES: Final = 1 << 20
_STEPS_EACH: Final = 16
# What the one that is ended gives back comes a moment later.
_PAUSE_S: Final = 0.002
_LOOK_S: Final = 0.001


def main(folder: Path) -> int:
    """Have memory of the cgroup taken until it is too much; return the exit code."""
    before = oom_kills(folder)
    holders: list[int] = []
    eaten = 0
    try:
        while oom_kills(folder) == before:
            told, telling = os.pipe()
            holder = os.fork()
            if holder == 0:
                try:
                    _hold(folder, telling)
                finally:
                    os._exit(1)
            os.close(telling)
            holders.append(holder)
            eaten += _steps_told(told, folder, before)
            os.close(told)
    finally:
        for holder in holders:
            # Also one that stands in the kernel and waits for a page: it gets none and ends.
            os.kill(holder, signal.SIGKILL)
        for holder in holders:
            os.waitpid(holder, 0)
    print(eaten)
    return 0


def _steps_told(told: int, folder: Path, before: int) -> int:
    """Return how many steps a holder took, once it has all of its own or somebody was ended."""
    steps = 0
    while oom_kills(folder) == before:
        if select([told], [], [], _LOOK_S)[0]:
            took = os.read(told, _STEPS_EACH)
            if not took:
                break
            steps += len(took)
    return steps


def _hold(folder: Path, telling: int) -> None:
    """Join, take some MiB one by one and say each; keep them until somebody ends this process."""
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    blocks = []
    for _ in range(_STEPS_EACH):
        block = mmap.mmap(-1, _STEP_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        block.write(b"x" * _STEP_BYTES)
        blocks.append(block)
        os.write(telling, b".")
        time.sleep(_PAUSE_S)
    os.close(telling)
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
