"""How the kernel ranks this process: for the processor, for the disk, and when memory runs out."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

NICE: Final = 10
# A quarter of what another group gets where all want a core: less would make a load on a busy
# machine take a minute instead of seconds.
_GROUP_NICE: Final = 5
# The system call has no wrapper in the C library, and its number differs.
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}.get(platform.machine())
_IOPRIO_WHO_PROCESS: Final = 1
# Best effort, the last of its eight levels. The idle class would wait for ever on a busy disk, and
# somebody waits for every load.
_IOPRIO_LAST: Final = (2 << 13) | 7
_MAX_OOM_SCORE: Final = 1000
_OOM_SCORE: Final = "/proc/{}/oom_score_adj"
_AUTOGROUP: Final = Path("/proc/self/autogroup")


def step_back_process() -> None:
    """Let everything else on the machine go first, for good; for a process of one thread.

    With a session of its own a process may be scheduled as a group, in which its nice value
    compares it with nobody else: the group's value is set, too.
    """
    step_back_thread()
    with suppress(OSError):
        _AUTOGROUP.write_text(str(_GROUP_NICE))


def step_back_thread() -> None:
    """Let every other thread go first, on the processor and on the disk, for good.

    Threads that it starts inherit this. Only root could take it back.
    """
    with suppress(OSError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))
    if _IOPRIO_SET is not None:
        ctypes.CDLL(None).syscall(_IOPRIO_SET, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_LAST)


def die_before_parent(more: int, pid: int | None = None) -> None:
    """Have the kernel end a process before its parent where memory runs out.

    ``more``: added to the score that was inherited, which is the operator's choice. ``pid``: the
    process, by default this one.
    """
    score = Path(_OOM_SCORE.format("self" if pid is None else pid))
    with suppress(OSError, ValueError):
        score.write_text(str(min(_MAX_OOM_SCORE, int(score.read_text()) + more)))
