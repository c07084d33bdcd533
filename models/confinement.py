"""What a process gives up for good before it opens what strangers made: network, new rights.

For a process of one thread. Standard library only, so that it comes before everything else.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38


def leave_network() -> bool:
    """Move into a network of this process's own, in which nothing is, not even loopback.

    Return whether the kernel allowed it: root may, others where they may make namespaces. Where
    they may not, the process could open connections; nothing in it does.
    """
    unshare = ctypes.CDLL(None, use_errno=True).unshare
    return bool(unshare(_CLONE_NEWNET) == 0 or unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0)


def gain_nothing() -> None:
    """Let no program that this process starts have more rights than it has: no set-uid bits."""
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def die_with(parent_pid: int) -> None:
    """Let the kernel end this process with its parent, or rather the thread that started it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)  # it died before the call above
